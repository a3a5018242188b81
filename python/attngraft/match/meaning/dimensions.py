"""The dimensions of a node's first output, from those of its inputs: shape inference with arithmetic on symbols."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING

from onnx import NodeProto

from attngraft.match.meaning.bounds import is_nonnegative, least, quotient
from attngraft.match.meaning.formulas import NotReadable
from attngraft.match.meaning.polynomials import ONE, ZERO, Polynomial, Size, divide
from attngraft.match.operators import attribute

if TYPE_CHECKING:
    from attngraft.match.meaning.reader import Dims, Reader

__all__ = ["output_dims", "product", "slices", "sources", "squeezed_axes"]

SAME_AS_FIRST = frozenset(
    (
        "Abs BatchNormalization Cast CastLike Ceil Clip CumSum Dropout Elu Erf Exp Floor Gelu HardSigmoid HardSwish "
        "Identity IsInf IsNaN LayerNormalization LeakyRelu Log LogSoftmax Mish Neg Not Reciprocal Relu "
        "RMSNormalization Round ScatterElements ScatterND Sigmoid Sign SimplifiedLayerNormalization Softmax Softplus "
        "Sqrt Tanh Trilu"
    ).split()
)
"""Operators whose first output has the shape of the first input."""

BROADCASTING = frozenset(
    (
        "Add And BitwiseAnd BitwiseOr Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul Or Pow "
        "Sub Sum Where Xor"
    ).split()
)
"""Operators whose inputs broadcast to the output, all of them."""

MADE_UP = "unk__"
"""How the symbols begin that ONNX's shape inference gives to dimensions that it does not know."""

LAST = 2**62
"""Slices to the end give an end at least this large."""


def sources(node: NodeProto) -> Sequence[str]:
    """The inputs whose dimensions decide those of the output; shapes given as values are read when they are needed."""
    if node.op_type in BROADCASTING or node.op_type in ("MatMul", "Concat"):
        return [name for name in node.input if name]
    if node.op_type in ("Gather", "GatherND"):
        return node.input[:2]
    return node.input[:1] if node.op_type in SAME_AS_FIRST or node.op_type in (*RULES, "Split") else ()


def output_dims(reader: Reader, node: NodeProto, place: int = 0) -> Dims | None:
    """The dimensions of the output at `place`, which is not the first for Split only; None when the operator is not
    known here. Raises NotReadable."""
    if node.op_type == "Split":
        return _split(reader, node, place)
    if node.op_type in SAME_AS_FIRST:
        return reader.dims(node.input[0])
    if node.op_type in BROADCASTING:
        return broadcast(reader, [reader.known_dims(name) for name in node.input if name])
    rule = RULES.get(node.op_type)
    return None if rule is None else rule(reader, node)


def broadcast(reader: Reader, shapes: Sequence[Dims]) -> Dims:
    """NumPy's rule, with the assumption that symbols which meet are equal."""
    rank = max(len(shape) for shape in shapes)
    padded = [(ONE,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(reduce(partial(_meet, reader), column) for column in zip(*padded, strict=True))


def _meet(reader: Reader, first: Polynomial, second: Polynomial) -> Polynomial:
    if second == ONE or first == second:
        return first
    if first == ONE or second.constant is not None:
        return second
    if first.constant is not None:
        return first
    reader.assume()
    return min(first, second, key=_obscurity)  # the simpler of two names for one size


def _obscurity(dim: Polynomial) -> tuple[bool, int]:
    """Names that shape inference made up come behind all others: the model's own are what other shapes are made of."""
    made_up = any(isinstance(atom, Size) and atom.symbol.startswith(MADE_UP) for atom in dim.inner_atoms())
    return made_up, len(repr(dim))


def _shape(reader: Reader, node: NodeProto) -> Dims:
    taken = slice(attribute(node, "start", 0), attribute(node, "end"))
    return (Polynomial.of(len(range(reader.rank(node.input[0]))[taken])),)


def _unsqueeze(reader: Reader, node: NodeProto) -> Dims:
    dims = reader.known_dims(node.input[0])
    axes = reader.integers(node, "axes", 1)
    if axes is None:
        raise NotReadable
    rank = len(dims) + len(axes)
    new = {axis % rank for axis in axes}
    old = iter(dims)
    return tuple(ONE if axis in new else next(old) for axis in range(rank))


def squeezed_axes(reader: Reader, node: NodeProto) -> set[int]:
    """The axes that a Squeeze removes."""
    dims = reader.known_dims(node.input[0])
    axes = reader.integers(node, "axes", 1)
    if axes is None:
        if any(dim.constant is None for dim in dims):
            raise NotReadable
        return {axis for axis, dim in enumerate(dims) if dim == ONE}
    return {axis % len(dims) for axis in axes}


def _squeeze(reader: Reader, node: NodeProto) -> Dims:
    gone = squeezed_axes(reader, node)
    return tuple(dim for axis, dim in enumerate(reader.known_dims(node.input[0])) if axis not in gone)


def _transpose(reader: Reader, node: NodeProto) -> Dims:
    dims = reader.known_dims(node.input[0])
    return tuple(dims[axis] for axis in attribute(node, "perm") or range(len(dims))[::-1])


def _flatten(reader: Reader, node: NodeProto) -> Dims:
    dims = reader.known_dims(node.input[0])
    axis = attribute(node, "axis", 1)
    axis = axis + len(dims) if axis < 0 else axis
    return (product(dims[:axis]), product(dims[axis:]))


def product(dims: Sequence[Polynomial]) -> Polynomial:
    """The number of elements of a tensor with these dimensions."""
    return reduce(lambda left, right: left * right, dims, ONE)


def _reshape(reader: Reader, node: NodeProto) -> Dims:
    dims = reader.known_dims(node.input[0])
    target = reader.vector(node.input[1])
    if not attribute(node, "allowzero", 0):
        target = [dims[k] if dim == ZERO and k < len(dims) else dim for k, dim in enumerate(target)]
    inferred = [k for k, dim in enumerate(target) if dim.constant == -1]
    if not all(is_nonnegative(dim) for k, dim in enumerate(target) if k not in inferred):
        raise NotReadable
    if inferred:
        others = product([dim for k, dim in enumerate(target) if k not in inferred])
        total = product(dims)
        exact = divide(total, others)
        target[inferred[0]] = quotient(total, others) if exact is None else exact
    return tuple(target)


def _expand(reader: Reader, node: NodeProto) -> Dims:
    target = reader.vector(node.input[1])
    if not all(is_nonnegative(dim) for dim in target):
        raise NotReadable
    return broadcast(reader, [reader.known_dims(node.input[0]), tuple(target)])


def _concat(reader: Reader, node: NodeProto) -> Dims:
    shapes = [reader.known_dims(name) for name in node.input]
    axis = attribute(node, "axis", 0) % len(shapes[0])
    length = reduce(lambda left, right: left + right, (shape[axis] for shape in shapes))
    merged = [
        next((shape[k] for shape in shapes if shape[k].constant is not None), shapes[0][k])
        for k in range(len(shapes[0]))
    ]
    return (*merged[:axis], length, *merged[axis + 1 :])


def _gather(reader: Reader, node: NodeProto) -> Dims:
    data, indices = reader.known_dims(node.input[0]), reader.known_dims(node.input[1])
    axis = attribute(node, "axis", 0) % len(data)
    return (*data[:axis], *indices, *data[axis + 1 :])


def _gather_nd(reader: Reader, node: NodeProto) -> Dims:
    data, indices = reader.known_dims(node.input[0]), reader.known_dims(node.input[1])
    depth = indices[-1].constant
    if depth is None:
        raise NotReadable
    return (*indices[:-1], *data[attribute(node, "batch_dims", 0) + int(depth) :])


def _gather_elements(reader: Reader, node: NodeProto) -> Dims | None:
    return reader.dims(node.input[1])


def _slice(reader: Reader, node: NodeProto) -> Dims:
    dims = list(reader.known_dims(node.input[0]))
    for axis, _, length in slices(reader, node):
        dims[axis] = length
    return tuple(dims)


def slices(reader: Reader, node: NodeProto) -> list[tuple[int, Polynomial, Polynomial]]:
    """What a Slice with steps of 1 takes: axis, first index and length. Raises NotReadable."""
    dims = reader.known_dims(node.input[0])
    if attribute(node, "starts") is not None:
        starts, ends = ([Polynomial.of(k) for k in attribute(node, key)] for key in ("starts", "ends"))
    else:
        starts, ends = (reader.vector(node.input[k]) for k in (1, 2))
    axes = reader.integers(node, "axes", 3) or list(range(len(starts)))
    steps = reader.integers(node, "steps", 4) or [1] * len(starts)
    if any(step != 1 for step in steps):
        raise NotReadable
    taken = []
    for axis, start, end in zip(axes, starts, ends, strict=True):
        dim = dims[axis % len(dims)]
        first, last = _bound(start, dim), _bound(end, dim)
        if not is_nonnegative(last - first):
            raise NotReadable
        taken.append((axis % len(dims), first, last - first))
    return taken


def _bound(bound: Polynomial, dim: Polynomial) -> Polynomial:
    """A start or an end of a slice as an index between 0 and the dimension."""
    number = bound.constant
    if number is not None and number >= LAST:
        return dim
    if number is not None and number < 0:
        from_end = dim + bound
        if is_nonnegative(from_end) or number == -1:
            return from_end
        raise NotReadable
    if not is_nonnegative(bound):
        raise NotReadable
    return least(bound, dim)


def _matmul(reader: Reader, node: NodeProto) -> Dims:
    left, right = (reader.known_dims(name) for name in node.input)
    if min(len(left), len(right)) < 2:
        raise NotReadable
    return (*broadcast(reader, [left[:-2], right[:-2]]), left[-2], right[-1])


def _gemm(reader: Reader, node: NodeProto) -> Dims:
    left, right = (reader.known_dims(name) for name in node.input[:2])
    return (left[1 if attribute(node, "transA", 0) else 0], right[0 if attribute(node, "transB", 0) else 1])


def _range(reader: Reader, node: NodeProto) -> Dims:
    start, limit, delta = (reader.vector(name)[0] for name in node.input)
    length = limit - start
    if delta != ONE or not is_nonnegative(length):
        raise NotReadable
    return (length,)


def _constant_of_shape(reader: Reader, node: NodeProto) -> Dims:
    return tuple(reader.vector(node.input[0]))


def _scalar(reader: Reader, node: NodeProto) -> Dims:
    return ()


def _split(reader: Reader, node: NodeProto, place: int) -> Dims:
    dims = reader.known_dims(node.input[0])
    axis = attribute(node, "axis", 0) % len(dims)
    lengths = reader.integers(node, "split", 1)
    if lengths is not None:
        part = Polynomial.of(lengths[place])
    else:
        count = Polynomial.of(len(node.output))
        if divide(dims[axis], count) is None:
            reader.assume()  # since opset 18 the last part may be smaller than the others
        part = quotient(dims[axis], count)
    return (*dims[:axis], part, *dims[axis + 1 :])


def _tile(reader: Reader, node: NodeProto) -> Dims:
    dims, repeats = reader.known_dims(node.input[0]), reader.vector(node.input[1])
    return tuple(dim * times for dim, times in zip(dims, repeats, strict=True))


RULES: dict[str, Callable[[Reader, NodeProto], Dims | None]] = {
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "EyeLike": lambda reader, node: reader.dims(node.input[0]),
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Range": _range,
    "Reshape": _reshape,
    "Shape": _shape,
    "Size": _scalar,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
