"""The output projection behind a site: where zeros in rows of the context can be written just as well.

Comes in: a graph, a site from Q, K and V to the context, and its masks. Goes out: a Projection, or None where rows of
the context are not proved to become rows of a product with weights, each by itself and read by nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx import NodeProto

from attngraft.contract import Layout
from attngraft.match.attention.movement import moved, moves_behind, only_reader
from attngraft.match.attention.strided import Strided, contiguous
from attngraft.match.meaning import Polynomial, read_dims
from attngraft.match.meaning.polynomials import ONE
from attngraft.match.operators import attribute, is_pass_through, is_standard
from attngraft.match.records import MaskPart, Projection, WholeSite
from attngraft.onnx_graph import GraphView

__all__ = ["find_projection"]

BATCH_RANK, HEADS_RANK = 3, 4
"""Of [B, S, D], without heads or with heads as part of D, and of [B, H, S, D]."""

HEADS_AXIS = -3
"""Of a mask that broadcasts to [B, H, Sq, Sk]."""

Dims = Sequence[Polynomial]


def find_projection(view: GraphView, whole: WholeSite | None, masks: Sequence[MaskPart]) -> Projection | None:
    """The projection of a site with these masks, nearest to the product first."""
    context = None if whole is None else read_dims(view, whole.context)
    if whole is None or context is None or len(context) not in (BATCH_RANK, HEADS_RANK):
        return None
    has_heads = whole.layout == Layout.BSD or len(context) == HEADS_RANK
    mask_rank = _mask_rank(view, masks, has_heads=has_heads)
    moves = moves_behind(view, whole.context)
    product = only_reader(view, moves[-1].output[0] if moves else whole.context)
    if mask_rank is None or product is None or not _is_projection(view, product):
        return None
    rows = _rows(context)
    if not _reads_rows(view, context, moves, rows):
        return None
    behind = _behind(view, product, rows.dims)
    if behind is None:
        return None
    tensors = (whole.context, *(node.output[0] for node in (*moves, product, *behind)))
    has_bias = len(product.input) > 2 and bool(product.input[2])
    return Projection(
        tensors=tensors,
        bias=product.input[2] if has_bias else None,
        bias_factor=float(attribute(product, "beta", 1.0)),
        mask_has_heads=has_heads and mask_rank == HEADS_RANK,
    )


def _is_projection(view: GraphView, product: NodeProto) -> bool:
    """A product of rows with stored weights [K, N], to which a Gemm may add one row."""
    if not is_standard(product, "MatMul", "Gemm") or attribute(product, "transA", 0):
        return False
    weights = read_dims(view, product.input[1])
    if not view.is_constant(product.input[1]) or weights is None or len(weights) != 2:
        return False
    if len(product.input) < 3 or not product.input[2]:
        return True
    bias = read_dims(view, product.input[2])
    return bias is not None and all(dim == ONE for dim in bias[:-1])


def _rows(context: Dims) -> Strided:
    """[B, S, D] as a view of the context: heads beside each other."""
    whole = contiguous(context)
    return whole if len(context) == BATCH_RANK else whole.transposed((0, 2, 1, 3)).joined(2)


def _reads_rows(view: GraphView, context: Dims, moves: Sequence[NodeProto], rows: Strided) -> bool:
    """Whether the moves make of the context its rows [B, S, D], or [B * S, D]."""
    strided: Strided | None = contiguous(context)
    for node in moves:
        strided = None if strided is None else moved(view, node, node.output[0], strided)
    return strided is not None and strided.axes in (rows.axes, rows.joined(0).axes)


def _behind(view: GraphView, product: NodeProto, rows: Dims) -> list[NodeProto] | None:
    """The nodes behind the product that give it the dimensions [B, S, N]: none, or the Reshape of [B * S, N]; None
    where neither is proved."""
    chain: list[NodeProto] = []
    node = product
    while (made := read_dims(view, node.output[0])) is not None:
        if len(made) == BATCH_RANK:
            return chain if tuple(made[:2]) == tuple(rows[:2]) else None
        following = only_reader(view, node.output[0])
        if following is None or not (is_standard(following, "Reshape") or is_pass_through(view, following)):
            return None
        chain.append(following)
        node = following
    return None


def _mask_rank(view: GraphView, masks: Sequence[MaskPart], *, has_heads: bool) -> int | None:
    """The rank to which the masks broadcast together; None if it is not known, or if they differ between heads."""
    ranks = [0]
    for mask in masks:
        for tensor in (*mask.tensors, *((mask.added,) if mask.added is not None else ())):
            dims = read_dims(view, tensor)
            if dims is None or mask.split_heads:
                return None
            shaped = _with_axes(dims, mask.unsqueeze)
            if has_heads and len(shaped) >= -HEADS_AXIS and shaped[HEADS_AXIS] != ONE:
                return None
            ranks.append(len(shaped))
    return max(ranks)


def _with_axes(dims: Dims, axes: Sequence[int]) -> list[Polynomial]:
    """The dimensions with axes of size 1 inserted, as Unsqueeze does."""
    old = iter(dims)
    return [ONE if axis in axes else next(old) for axis in range(len(dims) + len(axes))]
