"""What shapes and nodes show about the heads: their number, their size, and how they lie in memory."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import NodeProto

from attngraft.match.operators import attribute, is_pass_through, is_standard
from attngraft.match.scale import scale_factor
from attngraft.onnx_graph import GraphView

__all__ = ["HeadLayout", "head_layout"]


@dataclass(frozen=True)
class HeadLayout:
    """Number of heads, head size and layout ("bshd", "packed"); None for what cannot be seen."""

    heads: int | None = None
    head_size: int | None = None
    layout: str | None = None


def head_layout(view: GraphView, product: NodeProto) -> HeadLayout:
    """Reads the product of Q and K: its first operand is [B, heads, S, head size] where it has rank 4."""
    split = _heads_transpose(view, product.input[0])
    sizes = _reshape_sizes(view, split) if split is not None else (None, None)
    query, scores = view.shape(product.input[0]), view.shape(product.output[0])
    by_shape = [_number(shape, 1) for shape in (scores, query) if shape is not None and len(shape) == 4]
    heads = next((number for number in (*by_shape, sizes[0]) if number is not None), None)
    head_size = (_number(query, -1) if query else None) or sizes[1]
    return HeadLayout(heads, head_size, "bshd" if split is not None else _packed(view, product.input[0]))


def _number(shape: tuple, axis: int) -> int | None:
    return shape[axis] if isinstance(shape[axis], int) else None


def _origin(view: GraphView, name: str) -> NodeProto | None:
    """The node that makes a tensor, looked at through scales and nodes that change nothing."""
    node = view.maker(name)
    while node is not None:
        factor = scale_factor(view, node)
        if factor is not None:
            node = view.maker(factor.tensor)
        elif is_pass_through(view, node):
            node = view.maker(node.input[0])
        else:
            break
    return node


def _heads_transpose(view: GraphView, query: str) -> NodeProto | None:
    """The transpose from [B, S, heads, size] to [B, heads, S, size]."""
    node = _origin(view, query)
    is_one = is_standard(node, "Transpose") and list(attribute(node, "perm", ())) == [0, 2, 1, 3]
    return node if is_one else None


def _reshape_sizes(view: GraphView, transpose: NodeProto) -> tuple[int | None, int | None]:
    """Number and size of heads as the Reshape before the transpose states them, where inference lost its shape."""
    reshape = view.maker(transpose.input[0])
    if not is_standard(reshape, "Reshape"):
        return None, None
    heads, size = _last_two(view, reshape.input[1])
    width = view.shape(reshape.input[0])
    if heads is None and size and width and isinstance(width[-1], int):
        heads = width[-1] // size  # written as -1
    return heads, size


def _last_two(view: GraphView, target: str) -> tuple[int | None, int | None]:
    """The last two of four numbers in a Reshape's target, a constant or a Concat; None for what is not a fixed size."""
    value, node = view.value(target), view.maker(target)
    if value is not None and value.size == 4:
        numbers = [float(number) for number in value[2:]]
    elif is_standard(node, "Concat") and len(node.input) == 4:
        numbers = [view.scalar(name) for name in node.input[2:]]
    else:
        return None, None
    heads, size = (int(number) if number is not None and number > 0 else None for number in numbers)
    return heads, size


def _packed(view: GraphView, query: str) -> str | None:
    """Q cut out of one projection of Q, K and V."""
    return "packed" if is_standard(_origin(view, query), "Slice", "Gather", "Squeeze", "Split") else None
