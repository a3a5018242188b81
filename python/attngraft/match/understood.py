"""A site's masks, read for what they are: causality and windows become attributes, padding its small tensor.

What the graph does not prove stays the operand that it was. Masks are read together only where that changes no row: a
row that is masked as a whole has to give what the model gives, and there fills meet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from attngraft.contract import CausalMode, EmptyRows, MaskedSoftmax, Role
from attngraft.match.mask import ABSORBING_FILL, MAX_FILL
from attngraft.match.meaning import MaskMeaning, read_condition, read_mask
from attngraft.match.paths import depends_on_inputs
from attngraft.match.records import MaskPart
from attngraft.onnx_graph import HALF_TYPES, GraphView

__all__ = ["Understood", "acting_masks", "is_mask_tensor", "understand_masks"]

Scores = Sequence[int | str | None]


@dataclass(frozen=True)
class Understood:
    """Masks in the operands' order, with what was read out of them. `empty_rows` is None where nothing changes
    it."""

    masks: tuple[MaskPart, ...]
    causal: str = CausalMode.NONE
    window_left: int = -1
    window_right: int = -1
    empty_rows: str | None = None

    def config(self, scale: float, softcap: float, empty_rows: str) -> MaskedSoftmax:
        """The contract's configuration with these masks."""
        return MaskedSoftmax(
            operands=tuple(mask.role for mask in self.masks),
            scale=scale,
            causal=self.causal,
            window_left=self.window_left,
            window_right=self.window_right,
            softcap=softcap,
            empty_rows=empty_rows,
        )


@dataclass(frozen=True)
class _Read:
    """One tensor of a mask part, what it means, and whether it is added or fills."""

    part: MaskPart
    tensor: str
    meaning: MaskMeaning
    fills: bool


def understand_masks(
    view: GraphView, masks: tuple[MaskPart, ...], scores: Scores, dtype: int, *, holds_fills: bool = False
) -> Understood:
    """Reads the masks of scores of a shape, () if not known. Returns them unchanged where nothing is proved.

    `dtype` is the element type that the site is lowered in; `holds_fills`: the scores hold other fills already, so a
    finite one stays the number that it is.
    """
    unchanged = Understood(masks)
    if not scores:
        return unchanged
    found = [read for part in masks for read in _reads(view, part, scores)]
    masking = [read for read in found if _masks_something(read.meaning)]
    if not found or any(not _is_mask(read) for read in masking):
        return unchanged
    rest = _rest(masks, found)
    if not _meet_harmlessly(view, masking, rest, holds_fills, dtype in HALF_TYPES):
        return unchanged
    keep = _padding(masking)
    limits = _limits(masking)
    if keep is None or limits is None or (keep and any(part.role == Role.KEEP for part in rest)):
        return unchanged
    together = tuple(sorted((*rest, *keep), key=lambda part: Role.ALL.index(part.role)))
    causal, left, right = limits
    return Understood(together, causal, left, right, _empty_rows(masking))


def acting_masks(view: GraphView, masks: tuple[MaskPart, ...], scores: Scores) -> tuple[MaskPart, ...]:
    """Without those that are proved to change no score: exporters write masks of nothing but True, and add zeros."""
    return tuple(part for part in masks if not (scores and _is_idle(view, part, scores)))


def _is_idle(view: GraphView, part: MaskPart, scores: Scores) -> bool:
    reads = _reads(view, part, scores)
    acts = any(_masks_something(read.meaning) or read.meaning.rest is not None for read in reads)
    return not acts and len(reads) == len(part.tensors)


def is_mask_tensor(view: GraphView, tensor: str, scores: Scores | None) -> bool:
    """Whether an added tensor is proved to mask something."""
    meaning = read_mask(view, tensor, scores) if scores else None
    return meaning is not None and _masks_something(meaning)


def _reads(view: GraphView, part: MaskPart, scores: Scores) -> list[_Read]:
    """The tensors of a part whose meaning is proved."""
    if part.unsqueeze or part.split_heads:
        return []
    if part.form == "where":
        meaning = read_condition(view, part.tensors[0], scores, part.invert)
        return [] if meaning is None else [_Read(part, part.tensors[0], replace(meaning, fill=part.fill), fills=True)]
    tensors = part.tensors if part.added is None else (part.added,)
    meanings = [(tensor, read_mask(view, tensor, scores)) for tensor in tensors]
    return [_Read(part, tensor, meaning, fills=False) for tensor, meaning in meanings if meaning is not None]


def _masks_something(meaning: MaskMeaning) -> bool:
    is_bounded = meaning.causal != CausalMode.NONE or meaning.window_left >= 0 or meaning.window_right >= 0
    return is_bounded or bool(meaning.paddings)


def _is_mask(read: _Read) -> bool:
    """Whether its fill is low enough for "not allowed", and what it adds besides can stand on its own."""
    has_rest = read.meaning.rest is not None
    return read.meaning.fill <= MAX_FILL and (not has_rest or read.meaning.rest_under_fill or _absorbs(read))


def _absorbs(read: _Read) -> bool:
    """Whether a masked place holds one number whatever the score is."""
    return read.fills or read.meaning.fill <= ABSORBING_FILL


def _rest(masks: tuple[MaskPart, ...], found: list[_Read]) -> list[MaskPart]:
    """What is left of the parts when the tensors that were read are taken out: biases, in one part."""
    read_parts = {id(read.part): [r for r in found if r.part is read.part] for read in found}
    left, biases = [], []
    for part in masks:
        reads = read_parts.get(id(part), [])
        biases += [read.meaning.rest for read in reads if read.meaning.rest is not None]
        gone = {read.tensor for read in reads}
        if not reads:
            left.append(part)
        elif part.role == Role.BIAS:
            remaining = tuple(tensor for tensor in part.tensors if tensor not in gone)
            left += [replace(part, tensors=remaining)] if remaining else []
    return _with_biases(left, biases)


def _with_biases(left: list[MaskPart], biases: list[str]) -> list[MaskPart]:
    """There is one bias operand: further ones are summed with it."""
    if not biases:
        return left
    present = next((part for part in left if part.role == Role.BIAS), None)
    tensors = (*(present.tensors if present else ()), *biases)
    return [part for part in left if part is not present] + [MaskPart("add", Role.BIAS, tensors)]


def _meet_harmlessly(
    view: GraphView, masking: list[_Read], rest: list[MaskPart], holds_fills: bool, is_half: bool
) -> bool:
    """Whether no row can tell how the masks were made: all fills are -inf, or a single mask is there and nothing that
    may be another one. A fill that does not absorb the scores takes digits from them, which fp32 shows in a row that is
    masked as a whole, and half types do not."""
    has_keep = any(part.role == Role.KEEP for part in rest)
    if all(read.meaning.fill == -math.inf for read in masking):
        return all(part.fill == -math.inf for part in rest if part.role == Role.KEEP)
    if holds_fills or not (_absorbs(masking[0]) or is_half):
        return False
    others = [tensor for part in rest for tensor in part.tensors]
    return len(masking) == 1 and not has_keep and not any(depends_on_inputs(view, tensor) for tensor in others)


def _padding(masking: list[_Read]) -> tuple[MaskPart, ...] | None:
    """The keep operand that all paddings together are; None if it takes more than one tensor."""
    found = [(padding, read) for read in masking for padding in read.meaning.paddings]
    if len({(padding.tensor, padding.unsqueeze, padding.invert) for padding, _ in found}) > 1:
        return None
    if not found:
        return ()
    padding, read = found[-1]
    part = MaskPart(
        form="where" if read.fills else "add-where",
        role=Role.KEEP,
        tensors=(padding.tensor,),
        invert=padding.invert,
        fill=read.meaning.fill,
        unsqueeze=padding.unsqueeze,
        taken_as_zero_one=not all(padding.zero_one for padding, _ in found),
    )
    return (part,)


def _limits(masking: list[_Read]) -> tuple[str, int, int] | None:
    """Causality and window that hold together; None where two masks align them differently."""
    modes = {read.meaning.causal for read in masking} - {CausalMode.NONE}
    windows = [r.meaning for r in masking if r.meaning.window_left >= 0 or r.meaning.window_right >= 0]
    if len(modes) > 1:
        return None
    causal = modes.pop() if modes else CausalMode.NONE
    # A window counts from the causal offset; one that was read beside another alignment would move.
    if any(meaning.causal != causal for meaning in windows):
        return None
    return causal, _narrowest(m.window_left for m in windows), _narrowest(m.window_right for m in windows)


def _narrowest(sides: Sequence[int]) -> int:
    return min((side for side in sides if side >= 0), default=-1)


def _empty_rows(masking: list[_Read]) -> str | None:
    """What a row without an allowed key gives: nothing to divide by, one number throughout, or, where the fill is added
    and does not absorb the scores, the softmax that would be there without it."""
    if not masking:
        return None
    if all(read.meaning.fill == -math.inf for read in masking):
        return EmptyRows.ZEROS
    return EmptyRows.UNIFORM if _absorbs(masking[0]) else EmptyRows.UNMASKED
