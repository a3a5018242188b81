"""Small numbers that the graph computes: scalars, ranks and dimensions.

SDPA computes its scale as 1 / sqrt(Shape(q)[-1]) in a dozen nodes; where the head size is known, that is a constant.
Exporters write a view of [B, S, heads, D] as a Reshape to a Concat of computed numbers, one of them -1; ONNX's shape
inference then knows nothing, although number and size of the heads stand in the graph. Scalars are computed in the
types of their tensors, so they have the rounding that the graph gives them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import NodeProto

from attngraft.match.operators import attribute, is_cast, is_pass_through, is_standard
from attngraft.onnx_graph import GraphView, numpy_dtype

__all__ = ["known_dimension", "known_rank", "scalar_value"]

MAX_DEPTH = 24
"""Nodes from a scale to its Shape, or from a tensor to the Reshape that says its dimensions; the longest seen have
11."""

_BINARY: dict[str, Callable[..., np.ndarray]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Pow": np.power,
    "Max": np.maximum,
    "Min": np.minimum,
}
_UNARY: dict[str, Callable[..., np.ndarray]] = {
    "Sqrt": np.sqrt,
    "Neg": np.negative,
    "Reciprocal": np.reciprocal,
    "Exp": np.exp,
    "Identity": np.asarray,
}
_RESHAPES = frozenset({"Reshape", "Squeeze", "Unsqueeze"})
_CASTS = frozenset({"Cast", "CastLike"})
_FIRST_INPUT = ("GatherElements", "Neg", "Sqrt", "Tanh", "Softmax", "Clip")
_ELEMENTWISE = ("Add", "Sub", "Mul", "Div", "Max", "Min")


def scalar_value(view: GraphView, name: str) -> float | None:
    """The value of a tensor with one element that constants and known dimensions determine; None otherwise."""
    value = _evaluate(view, name, MAX_DEPTH)
    return None if value is None or value.size != 1 else float(value.reshape(()).astype(np.float64))


def _evaluate(view: GraphView, name: str, depth: int) -> np.ndarray | None:
    node = view.maker(name)
    if node is None or is_standard(node, "Constant"):
        return view.value(name)
    if depth <= 0 or not is_standard(node, node.op_type):
        return None
    if is_standard(node, "Gather", "Slice", "Shape"):
        return _dimension(view, node, depth)
    operation = _BINARY.get(node.op_type) or _UNARY.get(node.op_type)
    if operation is None and node.op_type not in (*_RESHAPES, *_CASTS, "Div"):
        return None
    reads = node.input[:1] if node.op_type in (*_RESHAPES, *_CASTS) else node.input
    operands = [_evaluate(view, read, depth - 1) for read in reads]
    if any(operand is None or operand.size != 1 for operand in operands):
        return None
    with np.errstate(all="ignore"):
        return _apply(view, node, operation, [np.asarray(operand).reshape(()) for operand in operands])


def _apply(
    view: GraphView, node: NodeProto, operation: Callable[..., np.ndarray] | None, operands: list[np.ndarray]
) -> np.ndarray | None:
    if node.op_type in _CASTS:
        target = int(attribute(node, "to", 0)) if node.op_type == "Cast" else view.dtype(node.input[1])
        return operands[0].astype(numpy_dtype(target)) if target else None
    if node.op_type == "Div":
        dividend, divisor = operands
        if dividend.dtype.kind in "iu":  # ONNX truncates; dimensions are never negative
            return None if divisor == 0 else np.asarray(dividend // divisor)
        return np.asarray(dividend / divisor)
    return operands[0] if operation is None else np.asarray(operation(*operands))


def _dimension(view: GraphView, node: NodeProto, depth: int) -> np.ndarray | None:
    """One known dimension: Gather or Slice of a Shape, or a Shape of one dimension."""
    shape = node if is_standard(node, "Shape") else view.maker(node.input[0])
    if not is_standard(shape, "Shape"):
        return None
    rank = known_rank(view, shape.input[0])
    if rank is None:
        return None
    axes = list(range(rank))[int(attribute(shape, "start", 0)) : attribute(shape, "end")]
    if shape is not node:
        axes = _picked(view, node, axes, depth)
    if axes is None or len(axes) != 1:
        return None
    size = known_dimension(view, shape.input[0], axes[0], depth - 1)
    return None if size is None else np.asarray(size, dtype=np.int64)


def _picked(view: GraphView, node: NodeProto, axes: list[int], depth: int) -> list[int] | None:
    """What a Gather of one index, or a Slice, takes out of a list."""
    if node.op_type == "Gather":
        index = _evaluate(view, node.input[1], depth - 1)
        if index is None or index.size != 1:
            return None
        position = int(index.reshape(()))
        return [axes[position]] if -len(axes) <= position < len(axes) else None
    if len(node.input) < 3:  # before opset 10 the bounds are attributes
        bounds = [attribute(node, "starts"), attribute(node, "ends")]
    else:
        bounds = [view.value(name) for name in node.input[1:3]]
        steps = view.value(node.input[4]) if len(node.input) > 4 and node.input[4] else None
        if steps is not None and any(int(step) != 1 for step in steps.reshape(-1)):
            return None
    if any(bound is None or np.size(bound) != 1 for bound in bounds):
        return None
    first, last = (int(np.asarray(bound).reshape(())) for bound in bounds)
    return axes[first:last]


def known_rank(view: GraphView, name: str) -> int | None:
    """The rank of a tensor; None where neither inference nor the nodes before it tell."""
    for _ in range(MAX_DEPTH):
        shape, node = view.shape(name), view.maker(name)
        if shape is not None:
            return len(shape)
        if is_standard(node, "Transpose") and attribute(node, "perm"):
            return len(attribute(node, "perm"))
        if is_standard(node, "Reshape"):
            target = view.shape(node.input[1])
            return target[0] if target and isinstance(target[0], int) else None
        # A product has the rank of its left operand, which is an activation; weights are right of it.
        following = node.input[0] if is_standard(node, "MatMul") else _same_rank(view, node)
        if following is None:
            return None
        name = following
    return None


def known_dimension(view: GraphView, name: str, axis: int, depth: int = MAX_DEPTH) -> int | None:
    """Dimension `axis` (negative from the end) of a tensor; None where it is no number, or not known to be one."""
    while depth > 0:
        depth -= 1
        shape, node, rank = view.shape(name), view.maker(name), known_rank(view, name)
        if shape is not None and -len(shape) <= axis < len(shape) and isinstance(shape[axis], int):
            return shape[axis]
        if rank is None or not -rank <= axis < rank:
            return None
        if is_standard(node, "Reshape"):
            return _reshaped(view, node, axis % rank, rank, depth)
        if is_standard(node, "Transpose"):
            perm = attribute(node, "perm") or range(rank - 1, -1, -1)
            axis, following = int(perm[axis]), node.input[0]
        else:
            following = _same_rank(view, node)
        if following is None:
            return None
        name = following
    return None


def _same_rank(view: GraphView, node: NodeProto | None) -> str | None:
    """The operand whose dimensions a node keeps. Of an elementwise node that is the one of higher known rank, else the
    first: scores and activations come first, scalars and biases second."""
    if is_standard(node, *_FIRST_INPUT) or is_cast(node) or is_pass_through(view, node):
        return node.input[0]
    if is_standard(node, "Where"):  # scores and a fill
        return next((read for read in node.input[1:] if view.scalar(read) is None), None)
    if not is_standard(node, *_ELEMENTWISE):
        return None
    first, second = (view.shape(read) for read in node.input[:2])
    return node.input[1] if first is not None and second is None and len(first) < 2 else node.input[0]


def _reshaped(view: GraphView, node: NodeProto, axis: int, rank: int, depth: int) -> int | None:
    """One number of a Reshape's target: a known one, or a -1 at the end that parts the last dimension."""
    number = _target(view, node.input[1], axis, rank, depth)
    if number is not None and number > 0:
        return number
    if number == 0:
        return known_dimension(view, node.input[0], axis, depth)
    if number == -1 and axis == rank - 1 and known_rank(view, node.input[0]) == rank - 1:
        width = known_dimension(view, node.input[0], -1, depth)
        parts = _target(view, node.input[1], axis - 1, rank, depth)
        return width // parts if width is not None and parts is not None and parts > 0 else None
    return None


def _target(view: GraphView, name: str, axis: int, rank: int, depth: int) -> int | None:
    """The number at `axis` of a Reshape's target with `rank` numbers."""
    value, node = view.value(name), view.maker(name)
    if value is not None and value.size == rank:
        return int(value.reshape(-1)[axis])
    if not is_standard(node, "Concat") or len(node.input) != rank:
        return None
    number = _evaluate(view, node.input[axis], depth)
    return int(number.reshape(())) if number is not None and number.size == 1 else None
