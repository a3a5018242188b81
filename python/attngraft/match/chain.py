"""From the softmax's input up towards Q·K: peels off masks, scales and casts that the contract has words for."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from onnx import TensorProto

from attngraft.contract import Role
from attngraft.match.mask import (
    MAX_FILL,
    MaskedScores,
    added_mask,
    before_floor,
    blended_mask,
    holds_mask,
    where_mask,
)
from attngraft.match.normaliser import before_shift
from attngraft.match.operators import cast_types, is_cast, is_pass_through, is_standard
from attngraft.match.paths import depends_on_inputs
from attngraft.match.records import MaskPart, Scale
from attngraft.match.scale import ScalarFactor, scale_factor
from attngraft.match.understood import is_mask_tensor
from attngraft.onnx_graph import GraphView

__all__ = ["Chain", "climb"]


@dataclass(frozen=True)
class Chain:
    """What lies between `scores` and the softmax: masks in the operands' order, the scale, whether a Cast to fp32 is
    absorbed (`widened`), whether something else reads a tensor on the way (`shared`), and whether a mask is among what
    became the bias (`masked_twice`), the softcap, and whether -inf is lifted to the type's lowest value (`floored`)."""

    scores: str
    masks: tuple[MaskPart, ...] = ()
    scale: Scale = Scale()
    widened: bool = False
    shared: bool = False
    masked_twice: bool = False
    softcap: float = 0.0
    floored: bool = False

    def part(self, role: str) -> MaskPart | None:
        return next((mask for mask in self.masks if mask.role == role), None)


def climb(view: GraphView, softmax_input: str, narrow: int | None) -> Chain:
    """Peels nodes until one is met that the contract has no word for.

    `narrow` is the element type from which a Cast to fp32 may be absorbed, because the probabilities are cast back to
    it behind the softmax; None when they are not.
    """
    chain = _climb(view, softmax_input, narrow, fills_mask=True)
    return _climb(view, softmax_input, narrow, fills_mask=False) if _has_overlap(view, chain) else chain


def _climb(view: GraphView, softmax_input: str, narrow: int | None, fills_mask: bool) -> Chain:
    """`fills_mask`: whether a finite fill is taken as "not allowed", or as the number that it is."""
    chain = Chain(softmax_input)
    while True:
        longer = _peel(view, chain, narrow, fills_mask)
        if longer is None:
            return chain
        shared = chain.shared or chain.scores in view.outputs or len(view.readers(chain.scores)) > 1
        chain = replace(longer, shared=shared)


def _has_overlap(view: GraphView, chain: Chain) -> bool:
    """Whether a finite fill may meet another mask: a row's result then depends on both numbers, and only the original
    arithmetic gives it. What is added independently of the inputs' values is a position bias, unless it is read as a
    mask."""
    keep, bias = chain.part(Role.KEEP), chain.part(Role.BIAS)
    if keep is None or keep.fill == -math.inf:
        return False
    if chain.masked_twice or holds_mask(view, chain.scores):
        return True
    added = () if bias is None else bias.tensors
    shape = view.shape(chain.scores)
    return any(depends_on_inputs(view, name) or is_mask_tensor(view, name, shape) for name in added)


def _peel(view: GraphView, chain: Chain, narrow: int | None, fills_mask: bool) -> Chain | None:
    node = view.maker(chain.scores)
    if is_pass_through(view, node):
        return replace(chain, scores=node.input[0])
    if is_cast(node):
        if cast_types(view, node) == (narrow, TensorProto.FLOAT) and not chain.widened:
            return replace(chain, scores=node.input[0], widened=True)
        return None
    unshifted = before_shift(view, node, -1)
    if unshifted is not None:
        return replace(chain, scores=unshifted)
    unfloored = before_floor(view, node)
    if unfloored is not None:
        return None if chain.scale.places or chain.masks else replace(chain, scores=unfloored, floored=True)
    masked = blended_mask(view, node) or where_mask(view, node)
    if masked is not None:
        return _with_where(chain, masked, fills_mask)
    masked = added_mask(view, node)
    if masked is not None:
        return _with_added(view, chain, masked, fills_mask)
    if is_standard(node, "Tanh"):
        return _with_softcap(chain, node.input[0])
    factor = scale_factor(view, node)
    return None if factor is None else _with_scale(chain, factor)


def _with_scale(chain: Chain, factor: ScalarFactor) -> Chain | None:
    if factor.value is not None:
        value = chain.scale.value * factor.value
        return replace(chain, scores=factor.tensor, scale=replace(chain.scale, value=value, places=("scores",)))
    if chain.scale.note is not None or chain.softcap:
        return None
    note = "computed scale stays on the scores"
    return replace(chain, scale=replace(chain.scale, places=("computed",), note=note))


def _with_softcap(chain: Chain, tensor: str) -> Chain | None:
    """cap * tanh(t / cap): the factor so far is the cap; what comes above is the scale divided by it."""
    if chain.softcap or chain.scale.note is not None:
        return None
    return replace(chain, scores=tensor, softcap=chain.scale.value, scale=replace(chain.scale, places=("scores",)))


def _with_added(view: GraphView, chain: Chain, masked: MaskedScores, fills_mask: bool) -> Chain | None:
    """An addition is absorbed only where it comes after the scale, as in the contract."""
    if chain.scale.places:
        return None
    part, masked_twice = masked.mask, chain.masked_twice
    if part.role == Role.KEEP and chain.part(Role.KEEP) is not None:
        part, masked_twice = part.as_bias(), True
    elif part.role == Role.KEEP and part.fill != -math.inf and not fills_mask:
        part = part.as_bias()
    present = chain.part(part.role)
    if present is not None:
        if not _sum_is_small(view, present.tensors, part.tensors):
            return None
        part = replace(present, tensors=(*part.tensors, *present.tensors))
    others = (mask for mask in chain.masks if mask is not present)
    return replace(chain, scores=masked.scores, masks=_in_order((part, *others)), masked_twice=masked_twice)


def _with_where(chain: Chain, masked: MaskedScores, fills_mask: bool) -> Chain | None:
    """A finite fill equals "not allowed" only if nothing is added to it later; -inf stays -inf."""
    fill = masked.mask.fill * chain.scale.value
    if chain.part(Role.KEEP) is not None or chain.softcap:
        return None
    if fill != -math.inf and (chain.masks or fill > MAX_FILL or not fills_mask):
        return None
    return replace(chain, scores=masked.scores, masks=_in_order((*chain.masks, masked.mask)))


def _in_order(masks: tuple[MaskPart, ...]) -> tuple[MaskPart, ...]:
    return tuple(sorted(masks, key=lambda mask: Role.ALL.index(mask.role)))


def _sum_is_small(view: GraphView, first: tuple[str, ...], second: tuple[str, ...]) -> bool:
    """Whether adding the operands beforehand makes no tensor larger than the largest of them.

    [1, H, S, S] + [B, 1, 1, S] would be as large as the scores: then the inner addition stays where it is.
    """
    known = [view.shape(name) for name in (*first, *second)]
    shapes = [shape for shape in known if shape is not None and None not in shape]
    if len(shapes) < len(known):
        return False
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    total = tuple(next((dim for dim in dims if dim != 1), 1) for dims in zip(*padded, strict=True))
    return total in padded
