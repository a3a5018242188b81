"""Query, key and values as products of one tensor, which one product with the weights side by side gives packed.

Comes in: three tensors [B, S, heads * size]. Goes out: what makes them, or None where they are not such products, or
where anything else reads them. TensorRT joins the three products by itself, but then copies each part out of what it
has made, for a plugin that takes three tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

from attngraft.match.attention.movement import only_reader
from attngraft.match.meaning import read_dims
from attngraft.match.operators import is_standard
from attngraft.match.records import MergedProjection
from attngraft.onnx_graph import GraphView

__all__ = ["merged_projection"]


def merged_projection(view: GraphView, tensors: Sequence[str], widths: Sequence[int]) -> MergedProjection | None:
    """What makes the three tensors out of one. `widths` are their last dimensions."""
    found = [_projected(view, tensor) for tensor in tensors]
    if any(each is None for each in found):
        return None
    sources, weights, biases = zip(*found, strict=True)
    if len(set(sources)) > 1:
        return None
    return MergedProjection(sources[0], weights, biases if any(biases) else (), tuple(widths))


def _projected(view: GraphView, tensor: str) -> tuple[str, str, str | None] | None:
    """The source [B, S, K], the weights [K, N], and the row [N] that is added to the product or None."""
    if only_reader(view, tensor) is None:
        return None
    product, bias = view.maker(tensor), None
    if is_standard(product, "Add"):
        total, (first, second) = product, product.input
        inner, bias = (first, second) if _has_rank(view, second, 1) else (second, first)
        product = view.maker(inner)
        if not _has_rank(view, bias, 1) or not view.is_only_read_by(inner, total):
            return None
    if not is_standard(product, "MatMul"):
        return None
    source, weights = product.input
    dims = read_dims(view, source)
    return (source, weights, bias) if _has_rank(view, weights, 2) and dims is not None and len(dims) == 3 else None


def _has_rank(view: GraphView, tensor: str, rank: int) -> bool:
    """Whether it is stored, with so many dimensions."""
    dims = read_dims(view, tensor) if view.is_constant(tensor) else None
    return dims is not None and len(dims) == rank
