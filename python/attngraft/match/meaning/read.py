"""The questions that matching asks: what does this additive mask mean, and what this condition."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace

from onnx import NodeProto

from attngraft.match.meaning.casts import by_cases
from attngraft.match.meaning.dimensions import slices
from attngraft.match.meaning.formulas import NotReadable, Polynomial, Value, as_formula, as_number, negate
from attngraft.match.meaning.normalise import meaning_of_condition, single_fill
from attngraft.match.meaning.polynomials import ONE, ZERO, Index
from attngraft.match.meaning.reader import MISFITS, Dims, Reader
from attngraft.match.meaning.records import MaskMeaning
from attngraft.onnx_graph import GraphView

__all__ = [
    "constant_integers",
    "is_stored_zero_one",
    "read_condition",
    "read_dims",
    "read_mask",
    "read_truth",
    "slice_bounds",
]

Scores = str | Sequence["int | str | None"]

Readers = weakref.WeakKeyDictionary[GraphView, Reader]

_READERS: dict[bool, Readers] = {False: weakref.WeakKeyDictionary(), True: weakref.WeakKeyDictionary()}
"""What was read of a graph already, exactly or not: the layers of a model share their masks."""


def read_mask(view: GraphView, tensor: str, scores: Scores) -> MaskMeaning | None:
    """The meaning of an additive mask: a float tensor that is 0 where a key may be attended and one number elsewhere,
    or the sum of such a mask and a tensor that is none (a position bias), or that tensor with the number in places.

    tensor   broadcasts to the scores.
    scores   the scores' tensor, or their shape [..., Sq, Sk] with symbols or None for what is not known.
    """
    reader, rank = _reader(view), _rank(view, scores)
    if rank is None or reader.kind(tensor) != "f":
        return None
    return _two_valued(reader, tensor, rank) or _with_rest(reader, tensor, rank)


def read_condition(view: GraphView, tensor: str, scores: Scores, invert: bool = False) -> MaskMeaning | None:
    """The meaning of a boolean mask that is true where a key may be attended, or where it may not, if `invert`.

    `tensor` and `scores` as in read_mask.
    """
    reader, rank = _reader(view), _rank(view, scores)
    meaning = None if rank is None else _condition(reader, tensor, rank, invert)
    if meaning is not None and any(padding.tensor == tensor for padding in meaning.paddings):
        return None  # nothing was read: the tensor means itself
    return meaning


def read_truth(view: GraphView, tensor: str) -> bool | None:
    """The value of a boolean of one element that the model's sizes and constants decide, the same for every input; None
    where they are not proved to. Nothing is assumed but that tensors which are reshaped or cut are not empty."""
    reader = _reader(view, exact=True)
    try:
        dims = reader.known_dims(tensor)
        value = reader.element(tensor, (ZERO,) * len(dims)) if reader.kind(tensor) == "b" else None
    except (NotReadable, *MISFITS):
        return None
    return value if isinstance(value, bool) else None


def read_dims(view: GraphView, tensor: str) -> Dims | None:
    """The dimensions of a tensor as polynomials of the model's sizes, equal where they are proved to be; None where the
    rank is not known."""
    return _reader(view).dims(tensor)


def slice_bounds(view: GraphView, node: NodeProto) -> list[tuple[int, Polynomial, Polynomial]] | None:
    """What a Slice takes: axis, first index and length of each cut; None where a step is not 1 or a bound not read."""
    try:
        return slices(_reader(view), node)
    except (NotReadable, *MISFITS):
        return None


def constant_integers(view: GraphView, node: NodeProto, name: str, position: int) -> list[int] | None:
    """Whole numbers that a node has as the attribute `name` or, in newer opsets, as constant input `position`; None
    where it has neither, or they are not constant."""
    try:
        return _reader(view).integers(node, name, position)
    except (NotReadable, *MISFITS):
        return None


def is_stored_zero_one(view: GraphView, tensor: str) -> bool:
    """Whether a tensor is stored and holds 0 and 1 alone."""
    table = _reader(view).table(tensor)
    return table is not None and bool(((table == 0) | (table == 1)).all())


def _reader(view: GraphView, exact: bool = False) -> Reader:
    readers = _READERS[exact]
    if view not in readers:
        readers[view] = Reader(view, exact)
    return readers[view]


def _rank(view: GraphView, scores: Scores) -> int | None:
    if not isinstance(scores, str):
        return len(scores)
    dims = _reader(view).dims(scores)
    return None if dims is None else len(dims)


def _two_valued(reader: Reader, tensor: str, rank: int) -> MaskMeaning | None:
    root = _root(reader, tensor, rank)
    if root is None:
        return None
    value, sizes = root
    try:
        found = single_fill(by_cases(as_number(value)))
    except NotReadable:
        return None
    if found is None:
        return None
    condition, fill = found
    meaning = meaning_of_condition(reader, condition, rank, sizes)
    return None if meaning is None else replace(meaning, fill=fill)


def _condition(reader: Reader, tensor: str, rank: int, invert: bool) -> MaskMeaning | None:
    root = _root(reader, tensor, rank)
    if root is None:
        return None
    value, sizes = root
    condition = as_formula(value)
    return meaning_of_condition(reader, negate(condition) if invert else condition, rank, sizes)


def _with_rest(reader: Reader, tensor: str, rank: int) -> MaskMeaning | None:
    """Add(rest, mask), and Where(condition, rest, fill), in either order, where `rest` is no mask itself."""
    node = reader.node(tensor)
    if node is None or node.op_type not in ("Add", "Where"):
        return None
    first, second = node.input[-2:]
    for rest, other, invert in ((first, second, False), (second, first, True)):
        dims = reader.dims(rest)
        is_mask = _constant(reader, rest) is not None or _two_valued(reader, rest, rank) is not None
        if dims is None or len(dims) > rank or is_mask:
            continue
        if node.op_type == "Add":
            meaning = _two_valued(reader, other, rank)
        else:
            meaning = _condition(reader, node.input[0], rank, invert)
            fill = _constant(reader, other)
            meaning = None if meaning is None or fill is None else replace(meaning, fill=fill)
        if meaning is not None:
            return replace(meaning, rest=rest, rest_under_fill=node.op_type == "Add")
    return None


def _constant(reader: Reader, tensor: str) -> float | None:
    """The number that every element of a tensor is."""
    root = _root(reader, tensor)
    number = root[0].constant if root is not None and isinstance(root[0], Polynomial) else None
    return None if number is None else float(number)


def _root(reader: Reader, tensor: str, rank: int | None = None) -> tuple[Value, Dims] | None:
    """The element at indices that run over the tensor's own dimensions, and these, filled up with 1 to two of them;
    None when the rank is not known or above that of the scores."""
    dims = reader.dims(tensor)
    if dims is None or (rank is not None and len(dims) > rank):
        return None
    index = tuple(ZERO if dim == ONE else Polynomial.of(Index(axis - len(dims), dim)) for axis, dim in enumerate(dims))
    return reader.element(tensor, index), (ONE,) * (2 - len(dims)) + dims
