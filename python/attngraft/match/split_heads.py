"""Heads merged with the batch: [B * H, S, D] operands of a product whose scores are masked as [B, H, Sq, Sk].

torch.bmm, BLOOM and DeBERTa multiply tensors of rank 3 and reshape between; the site is read in rank 4 throughout.
"""

from __future__ import annotations

from dataclasses import replace

from onnx import NodeProto

from attngraft.match.operators import is_pass_through, is_standard
from attngraft.match.records import MaskPart
from attngraft.match.sizes import known_dimension, known_rank
from attngraft.onnx_graph import GraphView

__all__ = ["merges_heads", "splits_heads", "split_mask", "split_tensor", "splitting_reader"]

SPLIT_RANK, MERGED_RANK = 4, 3


def splits_heads(view: GraphView, node: NodeProto | None) -> int | None:
    """The number of heads that a Reshape from [B * H, Sq, Sk] to [B, H, Sq, Sk] splits off; None if `node` is none."""
    if not is_standard(node, "Reshape") or known_rank(view, node.input[0]) != MERGED_RANK:
        return None
    return _heads(view, node.output[0])


def merges_heads(view: GraphView, node: NodeProto | None) -> int | None:
    """The number of heads that a Reshape from [B, H, Sq, Sk] to [B * H, Sq, Sk] merges with the batch; None if `node`
    is none."""
    if not is_standard(node, "Reshape") or known_rank(view, node.output[0]) != MERGED_RANK:
        return None
    return _heads(view, node.input[0])


def split_tensor(view: GraphView, name: str, heads: int) -> str | None:
    """The tensor of rank 4 from which the operand `name` of rank 3 is made by merging `heads` heads."""
    node = view.maker(name)
    while is_pass_through(view, node):
        node = view.maker(node.input[0])
    if node is None or merges_heads(view, node) != heads:
        return None
    before, after = view.shape(node.input[0]), view.shape(node.output[0])
    sizes = [shape[-1] for shape in (before, after) if shape is not None and isinstance(shape[-1], int)]
    return node.input[0] if len(set(sizes)) <= 1 else None


def splitting_reader(view: GraphView, name: str, heads: int) -> str | None:
    """The tensor of rank 4 that the only reader of the context `name` of rank 3 makes of it; Shape does not count, for
    it reads no values."""
    readers = [node for node in view.readers(name) if not is_standard(node, "Shape")]
    if len(readers) != 1 or name in view.outputs or not is_standard(readers[0], "Reshape"):
        return None
    return readers[0].output[0] if _heads(view, readers[0].output[0]) == heads else None


def split_mask(view: GraphView, mask: MaskPart, heads: int) -> MaskPart | None:
    """A mask of scores [B * H, Sq, Sk] as one of scores [B, H, Sq, Sk]; None if its rank is not known."""
    name = mask.tensors[0] if mask.added is None else mask.added
    rank, shape = known_rank(view, name), view.shape(name)
    if rank is None or rank > MERGED_RANK:
        return None
    if rank < MERGED_RANK or (shape is not None and shape[0] == 1):
        return mask
    return replace(mask.as_bias(), split_heads=heads)


def _heads(view: GraphView, name: str) -> int | None:
    return known_dimension(view, name, 1) if known_rank(view, name) == SPLIT_RANK else None
