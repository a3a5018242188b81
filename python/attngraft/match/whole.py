"""A site from Q, K and V to the context: everything between the two products."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import NodeProto, TensorProto

from attngraft.match.ascent import Ascent, ascend
from attngraft.match.normaliser import Normaliser
from attngraft.match.operators import (
    axis_is_last,
    cast_types,
    exchanges_last_two,
    is_cast,
    is_product,
    is_standard,
)
from attngraft.match.probabilities import Probabilities
from attngraft.match.product import ScoreProduct, read_score_product, read_values_product
from attngraft.match.records import MaskPart, WholeSite
from attngraft.match.sizes import known_dimension, known_rank
from attngraft.match.split_heads import merges_heads, split_tensor, splitting_reader
from attngraft.onnx_graph import HALF_TYPES, GraphView, dtype_name

__all__ = ["WholeReading", "read_whole"]


@dataclass(frozen=True)
class WholeReading:
    """What was read of a site: `whole`, or the `reason` why there is none; the masks on the way, nearest to the product
    first; whether a cast of the scores to fp32 was passed."""

    whole: WholeSite | None
    reason: str | None
    masks: tuple[MaskPart, ...]
    widened: bool


@dataclass(frozen=True)
class _Operands:
    """Names of the tensors that a site is made of."""

    query: str
    key: str
    values: str
    context: str


def read_whole(
    view: GraphView, normaliser: Normaliser, product: NodeProto, probabilities: Probabilities
) -> WholeReading:
    """Reads from the softmax's input up to Q and K, whose product `product` is, and from its result down to the
    context."""
    swapped = _is_swapped(view, normaliser)
    climb = ascend(view, normaliser.scores, product)
    obstacle = normaliser.obstacle or climb.obstacle or _axis_obstacle(view, normaliser, swapped, climb)
    above: ScoreProduct | str = obstacle or read_score_product(view, product, swapped=swapped)
    below = _values_and_context(view, probabilities, swapped, climb.heads)
    whole = next((part for part in (above, below) if isinstance(part, str)), None)
    if whole is None:
        whole = _whole(view, climb, above, *below)
    if isinstance(whole, str):
        return WholeReading(None, whole, climb.masks, climb.widened)
    widened = whole.dtype != "float32" and view.dtype(normaliser.scores) == TensorProto.FLOAT
    return WholeReading(whole, None, climb.masks, widened)


def _is_swapped(view: GraphView, normaliser: Normaliser) -> bool:
    """Whether the softmax goes over the last dimension but one, of scores that are transposed."""
    shape = view.shape(normaliser.scores)
    return normaliser.axis == -2 or (shape is not None and normaliser.axis == len(shape) - 2)


def _axis_obstacle(view: GraphView, normaliser: Normaliser, swapped: bool, climb: Ascent) -> str | None:
    if swapped:
        return "masks of transposed scores" if climb.masks else None
    if axis_is_last(normaliser.axis, view.shape(normaliser.scores)):
        return None
    return f"softmax over axis {normaliser.axis}, which is not known to be the last"


def _values_and_context(
    view: GraphView, probabilities: Probabilities, swapped: bool, heads: int | None
) -> tuple[str, str, bool] | str:
    """(values, context, whether both have their heads merged with the batch) of the product that reads the
    probabilities, or the reason why there is no such product."""
    tensor, readers = probabilities.tensor, view.readers(probabilities.tensor)
    if swapped:
        if len(readers) != 1 or not is_standard(readers[0], "Transpose") or not exchanges_last_two(readers[0]):
            return "the probabilities are transposed and not transposed back"
        tensor, readers = readers[0].output[0], view.readers(readers[0].output[0])
    merging = [node for node in readers if heads is not None and merges_heads(view, node) == heads]
    if merging:
        tensor, readers = merging[0].output[0], view.readers(merging[0].output[0])
    products = [node for node in readers if is_product(view, node)]
    if not products:
        return f"{min(node.op_type for node in readers)} lies between the softmax and the values"
    if len(products) > 1:
        return "the probabilities weigh more than one tensor of values"
    values = read_values_product(view, products[0], tensor)
    if isinstance(values, str):
        return values
    shape = view.shape(tensor)
    is_merged = bool(merging) or (heads is not None and shape is not None and len(shape) == 3)
    return values.tensor, products[0].output[0], is_merged


def _whole(
    view: GraphView, climb: Ascent, product: ScoreProduct, values: str, context: str, merged: bool
) -> WholeSite | str:
    named = _Operands(product.query, product.key, values, context)
    if climb.heads is not None:
        split = _split(view, named, climb, merged)
        if split is None:
            return "heads are merged with the batch in a way that is not undone"
        named = split
    operands = _in_one_type(view, (named.query, named.key, named.values))
    if isinstance(operands, str):
        return operands
    names, dtype, wide = operands
    context = _cast_back(view, named.context, dtype)
    context_dtype = view.dtype(context) or view.dtype(values)
    return WholeSite(
        query=names[0],
        key=names[1],
        values=names[2],
        context=context,
        scale=climb.factor * product.factor,
        key_transposed=product.key_transposed,
        heads=_heads(view, names[0]) or climb.heads,
        kv_heads=_heads(view, names[1]) or climb.heads,
        softcap=climb.softcap,
        dtype=dtype_name(dtype),
        context_dtype=dtype_name(context_dtype),
        wide=wide,
    )


def _split(view: GraphView, named: _Operands, climb: Ascent, merged: bool) -> _Operands | None:
    """The operands of rank 4 from which those of merged heads are made."""
    query, key, values, context = named.query, named.key, named.values, named.context
    if climb.merged:
        query, key = (split_tensor(view, name, climb.heads) for name in (query, key))
    if merged:
        values, context = split_tensor(view, values, climb.heads), splitting_reader(view, context, climb.heads)
    return None if None in (query, key, values, context) else _Operands(query, key, values, context)


def _in_one_type(view: GraphView, names: tuple[str, ...]) -> tuple[tuple[str, ...], int, tuple[str, ...]] | str:
    """The operands' names before casts to fp32, their common half type if they have one, and those that are fp32
    nevertheless."""
    types = [view.dtype(name) for name in names]
    if TensorProto.UNDEFINED in types:
        return "the operands' types are not known; run onnx.shape_inference on the model"
    narrow = tuple(_before_widening(view, name) for name in names)
    narrow_types = {view.dtype(name) for name in narrow}
    if len(narrow_types) == 1:
        return narrow, narrow_types.pop(), ()
    if types[0] == types[1] and types[0] in HALF_TYPES and types[2] == TensorProto.FLOAT:
        return names, types[0], names[2:]
    if len(set(types)) == 1:
        return names, types[0], ()
    return f"query, key and values have different types ({', '.join(sorted(set(map(dtype_name, types))))})"


def _before_widening(view: GraphView, name: str) -> str:
    node = view.maker(name)
    if is_cast(node) and cast_types(view, node)[0] in HALF_TYPES and cast_types(view, node)[1] == TensorProto.FLOAT:
        return node.input[0]
    return name


def _cast_back(view: GraphView, context: str, dtype: int) -> str:
    """The context after the cast from fp32 back to the operands' type, if nothing else reads what is before it."""
    readers = view.readers(context)
    if len(readers) == 1 and is_cast(readers[0]) and view.is_only_read_by(context, *readers):
        if dtype in HALF_TYPES and cast_types(view, readers[0]) == (TensorProto.FLOAT, dtype):
            return readers[0].output[0]
    return context


def _heads(view: GraphView, name: str) -> int | None:
    return known_dimension(view, name, 1) if known_rank(view, name) == 4 else None
