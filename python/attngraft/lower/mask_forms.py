"""The masks of a site, emitted from their records.

`apply_masks`: scores and the site's source masks in, masked scores of the same type out, in the form that TensorRT
fuses best (docs/what_tensorrt_fuses.md). `shaped` and `as_condition`: one mask's tensor, made ready to broadcast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from attngraft.contract import CausalMode
from attngraft.lower.emit import Emitter, lowest
from attngraft.lower.tensor_types import TensorTypes
from attngraft.match.records import MaskPart, Site

__all__ = ["apply_masks", "as_condition", "every_row_has_a_key", "needs_guard", "shaped"]

UNSQUEEZE_AXES_ARE_INPUT = 13
"""From this opset on Unsqueeze takes its axes as an input."""

VANISHING = -60000.0
"""A score this far below another has probability exactly 0, whatever is added to it within float16's range of scores
that attention has."""

END = int(np.iinfo(np.int64).max)
"""As the end of a Slice: everything to the last."""

ABSORBING = -1e30
"""A fill this low swallows any score when it is added: the sum is the fill itself, in every type that can hold it.
float16's lowest, -65504, is not of this kind: where the addition is carried out in fp32, scores survive in it."""


def needs_guard(site: Site) -> bool:
    """Whether a row of the site's softmax may be NaN for finite inputs, where the model turns NaN into 0: it needs a
    row of -inf, so a mask that fills with -inf (or is added, and may hold it) and no proof that each row has a key."""
    return site.guard and any(_may_be_infinite(mask) for mask in site.source_masks) and not every_row_has_a_key(site)


def every_row_has_a_key(site: Site) -> bool:
    """Whether it is proved that no row is masked as a whole: what masks is causality from the upper left alone, which
    leaves key 0 to every row."""
    config, causal = site.config, (CausalMode.NONE, CausalMode.TOP_LEFT)
    proved = config is not None and not config.operands and max(config.window_left, config.window_right) < 0
    return proved and config.causal in causal and site.whole.causal in causal


def apply_masks(emit: Emitter, scores: str, site: Site, dtype: int, types: TensorTypes, guarded: bool) -> str:
    """The scores of ONNX element type `dtype` with the site's masks. `guarded`: a row that is masked as a whole is to
    be -inf throughout, since a guard behind the softmax waits for its NaN.

    What masks with -inf becomes one Where, behind what is added: TensorRT-RTX 1.7 crashes on two of them in a row.
    """
    closing: list[tuple[str, bool]] = []  # conditions, and whether each is true where masked
    filling = _Filling(alone=len(site.source_masks) == 1, rows_have_keys=every_row_has_a_key(site))
    for mask in site.source_masks:
        if mask.form == "add" or mask.form == "add-where" and not filling.replaces(mask):
            for tensor in mask.tensors if mask.added is None else (mask.added,):
                scores = emit.node("Add", scores, shaped(emit, _in_type(emit, tensor, dtype, types, guarded), mask))
            continue
        condition = shaped(emit, as_condition(emit, mask.tensors[0], types), mask)
        if mask.fill == -math.inf:
            closing.append((condition, mask.invert))
        else:  # a finite fill replaces a -inf before it
            scores, closing = _closed(emit, scores, closing, dtype, guarded), []
            scores = _filled(emit, condition, scores, max(mask.fill, lowest(dtype)), dtype, mask.invert)
    if site.whole.causal != CausalMode.NONE:
        closing.append((_lower_triangle(emit, scores), False))
    return _closed(emit, scores, closing, dtype, guarded)


def as_condition(emit: Emitter, tensor: str, types: TensorTypes) -> str:
    """The tensor as bool: a padding mask is often made of integers."""
    is_bool = types.of(tensor) in (TensorProto.BOOL, TensorProto.UNDEFINED)
    return tensor if is_bool else emit.cast(tensor, TensorProto.BOOL)


def shaped(emit: Emitter, tensor: str, mask: MaskPart) -> str:
    """The tensor of a mask so that it broadcasts to the scores: heads split from the batch, axes of size 1 inserted."""
    if mask.split_heads:
        after = emit.node("Slice", emit.node("Shape", tensor), emit.integers([1]), emit.integers([END]))
        shape = emit.node("Concat", emit.integers([-1, mask.split_heads]), after, axis=0)
        tensor = emit.node("Reshape", tensor, shape)
    if not mask.unsqueeze:
        return tensor
    if emit.opset < UNSQUEEZE_AXES_ARE_INPUT:
        return emit.node("Unsqueeze", tensor, axes=list(mask.unsqueeze))
    return emit.node("Unsqueeze", tensor, emit.integers(mask.unsqueeze))


@dataclass(frozen=True)
class _Filling:
    """When adding a fill gives what a Where between scores and fill gives."""

    alone: bool
    rows_have_keys: bool

    def replaces(self, mask: MaskPart) -> bool:
        """-inf always, an absorbing fill if nothing else is added to it, and what leaves no probability beside an
        allowed key where each row is known to have one."""
        return mask.fill == -math.inf or self.alone and mask.fill <= (VANISHING if self.rows_have_keys else ABSORBING)


def _may_be_infinite(mask: MaskPart) -> bool:
    """A tensor that is added may hold -inf; a fill is known."""
    return mask.form == "add" or mask.fill == -math.inf


def _closed(emit: Emitter, scores: str, conditions: list[tuple[str, bool]], dtype: int, guarded: bool) -> str:
    """The scores with -inf where any of the conditions masks. Without a guard the lowest number serves: no row is NaN
    then, and no pass over the mask looks for such rows."""
    if not conditions:
        return scores
    (joined, inverted), *others = conditions
    if others and inverted:
        joined, inverted = emit.node("Not", joined), False
    for condition, is_inverted in others:
        joined = emit.node("And", joined, emit.node("Not", condition) if is_inverted else condition)
    return _filled(emit, joined, scores, -math.inf if guarded else lowest(dtype), dtype, inverted)


def _filled(emit: Emitter, condition: str, scores: str, fill: float, dtype: int, inverted: bool) -> str:
    number = emit.number(fill, dtype)
    return emit.node("Where", condition, *((number, scores) if inverted else (scores, number)))


def _in_type(emit: Emitter, tensor: str, dtype: int, types: TensorTypes, guarded: bool) -> str:
    """A mask that is added, in the scores' type: what is below its range becomes its lowest number, -inf stays -inf
    where a guard waits for it."""
    present = types.of(tensor)
    if present == dtype:
        return tensor
    if present != TensorProto.FLOAT:  # a half type widened, or not known
        return emit.cast(tensor, dtype)
    narrowed = emit.cast(emit.node("Max", tensor, emit.number(lowest(dtype), present)), dtype)
    if not guarded:
        return narrowed
    infinite = emit.node("IsInf", tensor, detect_positive=0)
    return emit.node("Where", infinite, emit.number(-np.inf, dtype), narrowed)


def _lower_triangle(emit: Emitter, scores: str) -> str:
    """Whether key j <= query i, bool [Sq, Sk], from the scores' shape."""
    shape = emit.node("Shape", scores)
    rows, keys = (_indices(emit, shape, axis) for axis in (-2, -1))
    return emit.node("Not", emit.node("Greater", keys, emit.node("Reshape", rows, emit.integers([-1, 1]))))


def _indices(emit: Emitter, shape: str, axis: int) -> str:
    """0, 1, ... along a dimension."""
    length = emit.node("Gather", shape, emit.number(axis, TensorProto.INT64), axis=0)
    return emit.node("Range", emit.number(0, TensorProto.INT64), length, emit.number(1, TensorProto.INT64))
