"""Elements of nodes that move elements or make them from positions: slices, gathers, reshapes, ranges, triangles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from onnx import NodeProto, TensorProto, numpy_helper

from attngraft.match.meaning.bounds import is_nonnegative, quotient, remainder
from attngraft.match.meaning.dimensions import product, slices, squeezed_axes
from attngraft.match.meaning.formulas import (
    Formula,
    NotReadable,
    Value,
    all_of,
    as_formula,
    as_number,
    at_least_zero,
    choose,
    is_zero,
    lift,
    select,
)
from attngraft.match.meaning.polynomials import ONE, ZERO, Polynomial, Quotient
from attngraft.match.operators import attribute

if TYPE_CHECKING:
    from attngraft.match.meaning.reader import Dims, Reader

__all__ = ["RULES"]


def _unsqueeze(reader: Reader, node: NodeProto, index: Dims) -> Value:
    axes = reader.integers(node, "axes", 1)
    if axes is None:
        raise NotReadable
    gone = {axis % len(index) for axis in axes}
    return reader.element(node.input[0], tuple(x for axis, x in enumerate(index) if axis not in gone))


def _squeeze(reader: Reader, node: NodeProto, index: Dims) -> Value:
    gone, rest = squeezed_axes(reader, node), iter(index)
    inner = tuple(ZERO if axis in gone else next(rest) for axis in range(reader.rank(node.input[0])))
    return reader.element(node.input[0], inner)


def _transpose(reader: Reader, node: NodeProto, index: Dims) -> Value:
    order = attribute(node, "perm") or range(len(index))[::-1]
    inner = dict(zip(order, index, strict=True))
    return reader.element(node.input[0], tuple(inner[axis] for axis in range(len(index))))


def _expand(reader: Reader, node: NodeProto, index: Dims) -> Value:
    return reader.broadcast(node.input[0], index)


def _tile(reader: Reader, node: NodeProto, index: Dims) -> Value:
    dims, repeats = reader.known_dims(node.input[0]), reader.vector(node.input[1])
    inner = []
    for dim, times, position in zip(dims, repeats, index, strict=True):
        if dim != ONE and times != ONE:
            raise NotReadable
        inner.append(ZERO if dim == ONE else position)
    return reader.element(node.input[0], tuple(inner))


def _reshape(reader: Reader, node: NodeProto, index: Dims) -> Value:
    """Reshape and Flatten: axes whose products agree correspond; within them the flat position is taken apart."""
    inner = reader.known_dims(node.input[0])
    outer = reader.known_dims(node.output[0])
    found: list[Polynomial] = []
    for inner_group, outer_axes in _groups(inner, outer):
        found += _within(inner_group, [outer[axis] for axis in outer_axes], [index[axis] for axis in outer_axes])
    return reader.element(node.input[0], tuple(found))


def _groups(inner: Dims, outer: Dims) -> list[tuple[list[Polynomial], list[int]]]:
    """Runs of inner dimensions with the outer axes that hold the same number of elements."""
    groups: list[tuple[list[Polynomial], list[int]]] = []
    start, axis = 0, 0
    while start < len(inner):
        stop, end = start + 1, axis
        while True:
            match = _axes_with_product(outer, axis, product(inner[start:stop]))
            if match is not None or stop == len(inner):
                break
            stop += 1
        end = len(outer) if match is None or stop == len(inner) else match
        groups.append((list(inner[start:stop]), list(range(axis, end))))
        start, axis = stop, end
    return groups


def _axes_with_product(outer: Dims, first: int, wanted: Polynomial) -> int | None:
    """The end of the axes from `first` on whose product is `wanted`; ones may need no axis at all."""
    for end in range(first, len(outer) + 1):
        if product(outer[first:end]) == wanted:
            return end
    return None


def _within(inner: Sequence[Polynomial], outer: Sequence[Polynomial], index: Sequence[Polynomial]) -> list[Polynomial]:
    inner_moving = [dim for dim in inner if dim != ONE]
    outer_moving = [(dim, x) for dim, x in zip(outer, index, strict=True) if dim != ONE]
    if inner_moving == [dim for dim, _ in outer_moving]:
        moving = iter(x for _, x in outer_moving)
        return [ZERO if dim == ONE else next(moving) for dim in inner]
    flat = ZERO
    for dim, x in outer_moving:
        flat = flat * dim + x
    if not is_nonnegative(flat):
        raise NotReadable
    found: list[Polynomial] = []
    for position, dim in reversed(list(enumerate(inner))):
        if position == 0:
            found.insert(0, flat)
        else:
            found.insert(0, ZERO if dim == ONE else remainder(flat, dim))
            flat = flat if dim == ONE else quotient(flat, dim)
    if any(isinstance(atom, Quotient) for x in found for atom in x.atoms()):
        raise NotReadable
    return found


def _slice(reader: Reader, node: NodeProto, index: Dims) -> Value:
    inner = list(index)
    for axis, first, _ in slices(reader, node):
        inner[axis] = inner[axis] + first
    return reader.element(node.input[0], tuple(inner))


def _concat(reader: Reader, node: NodeProto, index: Dims) -> Value:
    axis = attribute(node, "axis", 0) % len(index)
    pieces: list[tuple[Formula, Value]] = []  # each with the condition that the index is not beyond it
    start = ZERO
    for name in node.input:
        length = reader.known_dims(name)[axis]
        is_before_end = at_least_zero(start + length - ONE - index[axis])
        if is_before_end is not False and at_least_zero(index[axis] - start) is not False:
            inner = ZERO if length == ONE else index[axis] - start
            pieces.append((is_before_end, reader.element(name, (*index[:axis], inner, *index[axis + 1 :]))))
        if is_before_end is True:
            break
        start = start + length
    if not pieces:
        raise NotReadable
    _, value = pieces.pop()
    for is_before_end, piece in reversed(pieces):
        value = choose(is_before_end, piece, value)
    return value


def _whole_position(reader: Reader, name: str, index: Dims, dim: Polynomial) -> Polynomial:
    """An index that a tensor of indices gives, with negative ones counted from the end. Raises NotReadable."""
    position = reader.number(name, index)
    if position.constant is not None and position.constant < 0:
        return dim + position
    if not is_nonnegative(position):
        raise NotReadable
    return position


def _gather(reader: Reader, node: NodeProto, index: Dims) -> Value:
    dims, rank = reader.known_dims(node.input[0]), reader.rank(node.input[1])
    axis = attribute(node, "axis", 0) % len(dims)
    position = _whole_position(reader, node.input[1], index[axis : axis + rank], dims[axis])
    return reader.element(node.input[0], (*index[:axis], position, *index[axis + rank :]))


def _gather_nd(reader: Reader, node: NodeProto, index: Dims) -> Value:
    dims, rank = reader.known_dims(node.input[0]), reader.rank(node.input[1])
    depth = reader.known_dims(node.input[1])[-1].constant
    batch = attribute(node, "batch_dims", 0)
    if depth is None:
        raise NotReadable
    where = index[: rank - 1]
    positions = [
        _whole_position(reader, node.input[1], (*where, Polynomial.of(k)), dims[batch + k]) for k in range(int(depth))
    ]
    return reader.element(node.input[0], (*index[:batch], *positions, *index[rank - 1 :]))


def _gather_elements(reader: Reader, node: NodeProto, index: Dims) -> Value:
    dims = reader.known_dims(node.input[0])
    axis = attribute(node, "axis", 0) % len(dims)
    position = _whole_position(reader, node.input[1], index, dims[axis])
    return reader.element(node.input[0], (*index[:axis], position, *index[axis + 1 :]))


def _scatter_nd(reader: Reader, node: NodeProto, index: Dims) -> Value:
    """What exporters make of x[..., :n] = y: each index is its own position, so a box from the origin is replaced."""
    data, indices, updates = node.input
    box = reader.known_dims(indices)[:-1]
    if attribute(node, "reduction", b"none") != b"none" or len(box) != len(index):
        raise NotReadable
    position = tuple(ZERO if dim == ONE else reader.fresh_index(dim) for dim in box)
    if any(reader.number(indices, (*position, Polynomial.of(axis))) != own for axis, own in enumerate(position)):
        raise NotReadable
    is_inside = all_of(at_least_zero(dim - ONE - own) for dim, own in zip(box, index, strict=True))
    return choose(is_inside, reader.element(updates, index), reader.element(data, index))


def _shape(reader: Reader, node: NodeProto, index: Dims) -> Value:
    dims = reader.known_dims(node.input[0])
    position = index[0].constant
    if position is None:
        raise NotReadable
    return dims[slice(attribute(node, "start", 0), attribute(node, "end"))][int(position)]


def _size(reader: Reader, node: NodeProto, index: Dims) -> Value:
    return product(reader.known_dims(node.input[0]))


def _range(reader: Reader, node: NodeProto, index: Dims) -> Value:
    start, _, delta = (reader.number(name, (ZERO,) * reader.rank(name)) for name in node.input)
    return start + delta * index[0]


def _constant_of_shape(reader: Reader, node: NodeProto, index: Dims) -> Value:
    value = attribute(node, "value")
    if not isinstance(value, TensorProto):
        return ZERO
    array = numpy_helper.to_array(value)
    return bool(array.flat[0]) if array.dtype.kind == "b" else Polynomial.of(array.astype(object).flat[0])


def _eye_like(reader: Reader, node: NodeProto, index: Dims) -> Value:
    diagonal = is_zero(index[1] - index[0] - Polynomial.of(attribute(node, "k", 0)))
    return diagonal if reader.kind(node.output[0]) == "b" else select(diagonal, ONE, ZERO)


def _trilu(reader: Reader, node: NodeProto, index: Dims) -> Value:
    offset = ZERO
    if len(node.input) > 1 and node.input[1]:
        (offset,) = reader.vector(node.input[1])
    beyond = index[-1] - index[-2] - offset
    kept = at_least_zero(beyond if attribute(node, "upper", 1) else -beyond)
    value = reader.element(node.input[0], index)
    if reader.kind(node.output[0]) == "b":
        return all_of([kept, as_formula(value)])
    return select(kept, as_number(value), ZERO)


def _cumulative_sum(reader: Reader, node: NodeProto, index: Dims) -> Value:
    """Sums of what is the same at every position."""
    (axis_number,) = reader.vector(node.input[1])
    if axis_number.constant is None or attribute(node, "reverse", 0):
        raise NotReadable
    axis = int(axis_number.constant) % len(index)
    running = reader.fresh_index(reader.known_dims(node.input[0])[axis])
    (atom,) = running.atoms()
    count = index[axis] + (ZERO if attribute(node, "exclusive", 0) else ONE)

    def times(value: Polynomial) -> Polynomial:
        if atom in value.inner_atoms() or value.elements():
            raise NotReadable
        return value * count

    value = as_number(reader.element(node.input[0], (*index[:axis], running, *index[axis + 1 :])))
    if not isinstance(value, Polynomial):  # a condition could depend on the position
        raise NotReadable
    return lift(times, value)


Rule = Callable[["Reader", NodeProto, "Dims"], Value]

RULES: dict[str, Rule] = {
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "CumSum": _cumulative_sum,
    "Expand": _expand,
    "EyeLike": _eye_like,
    "Flatten": _reshape,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Range": _range,
    "Reshape": _reshape,
    "ScatterND": _scatter_nd,
    "Shape": _shape,
    "Size": _size,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
}
