"""The mask: what is added to the scores, and where they are replaced by a fill."""

from __future__ import annotations

from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
from onnx import NodeProto, TensorProto

from attngraft.contract import KEEP_DTYPES, Role
from attngraft.match.meaning import is_stored_zero_one
from attngraft.match.operators import is_cast, is_standard
from attngraft.match.paths import find_product, nodes_above
from attngraft.match.records import MaskPart
from attngraft.match.scale import scalar_factor
from attngraft.onnx_graph import GraphView, dtype_name

__all__ = [
    "ABSORBING_FILL",
    "MAX_FILL",
    "MaskedScores",
    "added_mask",
    "before_floor",
    "blended_mask",
    "holds_mask",
    "where_mask",
]

MAX_FILL = -1e4
"""A fill at most this large counts as "not allowed". exp(-1e4) is 0 in every type, and scores within +-1e4 of each
other are all that a softmax in fp16 or fp32 tells apart."""

ABSORBING_FILL = 0.99 * float(np.finfo(np.float32).min)
"""An added fill this low absorbs every score in fp32, in which masks are added here and in ONNX Runtime whatever the
tensors' type: what remains is one constant for all keys. bfloat16's lowest value is among them, fp16's -65504 is
not."""


MOVES = ("Reshape", "Transpose", "Unsqueeze", "Squeeze")
"""Operators by which a table of positions becomes a bias [1, H, Sq, Sk]."""

_LOWEST_VALUES = {
    TensorProto.FLOAT: float(np.finfo(np.float32).min),
    TensorProto.FLOAT16: float(np.finfo(np.float16).min),
    TensorProto.BFLOAT16: float(ml_dtypes.finfo(ml_dtypes.bfloat16).min),
}
"""The lowest finite number of each type that scores have."""


@dataclass(frozen=True)
class MaskedScores:
    """A mask found at a node, and the tensor of scores that it acts on."""

    scores: str
    mask: MaskPart


def added_mask(view: GraphView, node: NodeProto | None, max_fill: float = ABSORBING_FILL) -> MaskedScores | None:
    """Add(scores, mask) in either order; None when it is no Add or when both operands are made of scores. A mask that
    is 0 or a fill of at most `max_fill` is told from a tensor of numbers."""
    if not is_standard(node, "Add"):
        return None
    from_scores = [name for name in node.input if find_product(view, name) is not None]
    if len(from_scores) != 1:
        return None
    scores = from_scores[0]
    added = node.input[1] if node.input[0] == scores else node.input[0]
    two_valued = _two_valued(view, added, max_fill)
    return MaskedScores(scores, two_valued or MaskPart("add", Role.BIAS, (added,), stored=_is_moved_table(view, added)))


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


def blended_mask(view: GraphView, node: NodeProto | None) -> MaskedScores | None:
    """scores * m + (1 - m) * fill with m as in _scaled_complement: a Where written out."""
    if not is_standard(node, "Add"):
        return None
    for kept, filled in (node.input, node.input[::-1]):
        mask = _scaled_complement(view, filled)
        product = view.maker(kept)
        if mask is None or not is_standard(product, "Mul"):
            continue
        for scores, factor in (product.input, product.input[::-1]):
            condition = _condition_of(view, factor)
            is_same = condition is not None and condition[0] == mask.tensors[0]
            if is_same and find_product(view, scores) is not None:
                return MaskedScores(scores, replace(mask, form="where", added=None)) if mask.fill <= MAX_FILL else None
    return None


def before_floor(view: GraphView, node: NodeProto | None) -> str | None:
    """The scores that Max(scores, lowest value of their type) lifts from -inf; None if `node` does something else."""
    if not is_standard(node, "Max") or len(node.input) != 2:
        return None
    dtype = view.dtype(node.output[0])
    lowest = _LOWEST_VALUES.get(dtype)
    for scores, floor in (node.input, node.input[::-1]):
        value = view.scalar(floor)
        if value is not None and lowest is not None and value <= 0.99 * lowest:
            return scores
    return None


def holds_mask(view: GraphView, scores: str) -> bool:
    """Whether a fill was put in the scores already, by a Where or an added Where, anywhere above them."""
    for node in nodes_above(view, scores):
        added = added_mask(view, node)
        if (where_mask(view, node) or blended_mask(view, node)) is not None or (
            added is not None and added.mask.role == Role.KEEP
        ):
            return True
    return False


def _is_moved_table(view: GraphView, name: str) -> bool:
    """Whether nodes that move data alone, one at least, lead from a stored tensor to this one."""
    moves = 0
    while is_standard(view.maker(name), *MOVES):
        name, moves = view.maker(name).input[0], moves + 1
    return moves > 0 and view.maker(name) is None and view.is_constant(name)


def _two_valued(view: GraphView, added: str, max_fill: float) -> MaskPart | None:
    """An added mask that is 0 or a fill. One that absorbs the scores says no more than its condition does, in one byte
    a key; -1e4 is a number, which leaves a wholly masked row as if nothing were masked."""
    part = _added_where(view, added) or _scaled_complement(view, added)
    return part if part is not None and part.fill <= max_fill else None


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
    """(1 - mask) * fill with a mask that is 0 or 1."""
    factor = scalar_factor(view, view.maker(added))
    if factor is None or factor.value is None:
        return None
    complement = view.maker(factor.tensor)
    if not is_standard(complement, "Sub") or view.scalar(complement.input[0]) != 1:
        return None
    condition = _condition_of(view, complement.input[1])
    if condition is None:
        return None
    part = MaskPart("add-where", Role.KEEP, condition[:1], False, factor.value, added)
    return replace(part, taken_as_zero_one=condition[1])


def _condition_of(view: GraphView, mask: str) -> tuple[str, bool] | None:
    """What a mask in numbers says where it is not 0, and whether it is only taken for 0 and 1: booleans or integers
    that it is cast from, since other integers would add numbers that mask nothing, or itself, cut from a stored table
    of zeros and ones."""
    cast = view.maker(mask)
    if is_cast(cast) and dtype_name(view.dtype(cast.input[0])) in KEEP_DTYPES:
        return cast.input[0], view.dtype(cast.input[0]) != TensorProto.BOOL
    stored = mask
    while is_standard(view.maker(stored), *MOVES, "Slice"):
        stored = view.maker(stored).input[0]
    return (mask, False) if is_stored_zero_one(view, stored) else None


def _constant_fill(view: GraphView, name: str) -> float | None:
    """A scalar constant, expanded or not."""
    node = view.maker(name)
    return view.scalar(node.input[0] if is_standard(node, "Expand") else name)
