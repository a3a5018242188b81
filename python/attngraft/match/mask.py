"""The mask: what is added to the scores, and where they are replaced by a fill."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from attngraft.contract import KEEP_DTYPES, Role
from attngraft.match.operators import is_cast, is_standard
from attngraft.match.paths import find_product, nodes_above
from attngraft.match.records import MaskPart
from attngraft.match.scale import scalar_factor
from attngraft.onnx_graph import GraphView, dtype_name

__all__ = ["MAX_FILL", "MaskedScores", "added_mask", "holds_mask", "where_mask"]

MAX_FILL = -1e4
"""A fill at most this large counts as "not allowed". exp(-1e4) is 0 in every type, and scores within +-1e4 of each
other are all that a softmax in fp16 or fp32 tells apart."""

ABSORBING_FILL = 0.99 * float(np.finfo(np.float32).min)
"""An added fill this low absorbs every score in fp32, in which masks are added here and in ONNX Runtime whatever the
tensors' type: what remains is one constant for all keys. bfloat16's lowest value is among them, fp16's -65504 is
not."""


@dataclass(frozen=True)
class MaskedScores:
    """A mask found at a node, and the tensor of scores that it acts on."""

    scores: str
    mask: MaskPart


def added_mask(view: GraphView, node: NodeProto | None) -> MaskedScores | None:
    """Add(scores, mask) in either order; None when it is no Add or when both operands are made of scores."""
    if not is_standard(node, "Add"):
        return None
    from_scores = [name for name in node.input if find_product(view, name) is not None]
    if len(from_scores) != 1:
        return None
    scores = from_scores[0]
    added = node.input[1] if node.input[0] == scores else node.input[0]
    return MaskedScores(scores, _two_valued(view, added) or MaskPart("add", Role.BIAS, (added,)))


def where_mask(view: GraphView, node: NodeProto | None) -> MaskedScores | None:
    """Where(condition, scores, fill) in either polarity with a constant fill of at most MAX_FILL."""
    if not is_standard(node, "Where"):
        return None
    condition, if_true, if_false = node.input
    for scores, other, invert in ((if_true, if_false, False), (if_false, if_true, True)):
        fill = _constant_fill(view, other)
        if fill is not None and fill <= MAX_FILL and find_product(view, scores) is not None:
            return MaskedScores(scores, MaskPart("where", Role.KEEP, (condition,), invert, fill))
    return None


def holds_mask(view: GraphView, scores: str) -> bool:
    """Whether a fill was put in the scores already, by a Where or an added Where, anywhere above them."""
    for node in nodes_above(view, scores):
        added = added_mask(view, node)
        if where_mask(view, node) is not None or (added is not None and added.mask.role == Role.KEEP):
            return True
    return False


def _two_valued(view: GraphView, added: str) -> MaskPart | None:
    """An added mask that is 0 or a fill that absorbs the scores: its condition says the same in one byte a key.

    Other fills stay additive: -1e4 is a number, which leaves a wholly masked row as if nothing were masked.
    """
    part = _added_where(view, added) or _scaled_complement(view, added)
    return part if part is not None and part.fill <= ABSORBING_FILL else None


def _added_where(view: GraphView, added: str) -> MaskPart | None:
    """Where(condition, 0, fill) in either polarity."""
    node = view.maker(added)
    if not is_standard(node, "Where"):
        return None
    condition, if_true, if_false = node.input
    for zero, other, invert in ((if_true, if_false, False), (if_false, if_true, True)):
        fill = _constant_fill(view, other)
        if _constant_fill(view, zero) == 0 and fill is not None:
            return MaskPart("add-where", Role.KEEP, (condition,), invert, fill, added)
    return None


def _scaled_complement(view: GraphView, added: str) -> MaskPart | None:
    """(1 - mask) * fill with a mask cast from integers or booleans: 0 and 1, since others would add numbers that mask
    nothing."""
    factor = scalar_factor(view, view.maker(added))
    if factor is None or factor.value is None:
        return None
    complement = view.maker(factor.tensor)
    if not is_standard(complement, "Sub") or view.scalar(complement.input[0]) != 1:
        return None
    cast = view.maker(complement.input[1])
    if not is_cast(cast) or dtype_name(view.dtype(cast.input[0])) not in KEEP_DTYPES:
        return None
    return MaskPart("add-where", Role.KEEP, (cast.input[0],), False, factor.value, added)


def _constant_fill(view: GraphView, name: str) -> float | None:
    """A scalar constant, expanded or not."""
    node = view.maker(name)
    return view.scalar(node.input[0] if is_standard(node, "Expand") else name)
