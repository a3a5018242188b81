"""The masks of a site, emitted from their records.

`apply_masks`: scores and the site's source masks in, masked scores of the same type out, in the form that TensorRT
fuses best (docs/what_tensorrt_fuses.md). The other functions make one mask's tensor ready, for it and for empty_rows.
"""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from attngraft.contract import CausalMode
from attngraft.lower.emit import Emitter, lowest
from attngraft.lower.tensor_types import TensorTypes
from attngraft.match.records import MaskPart, Site

__all__ = [
    "added_tensors",
    "apply_masks",
    "as_condition",
    "every_row_has_a_key",
    "in_type",
    "key_numbers",
    "lower_triangle",
    "needs_float32",
    "row_numbers",
    "shaped",
    "squeezed",
    "stays_added",
]

SQUEEZE_AXES_ARE_INPUT = 13
"""From this opset on Squeeze and Unsqueeze take their axes as an input."""

VANISHING = -60000.0
"""A score this far below another has probability exactly 0, whatever is added to it within float16's range of scores
that attention has."""

END = int(np.iinfo(np.int64).max)
"""As the end of a Slice: everything to the last."""

ABSORBING = -1e30
"""A fill this low swallows any score when it is added: the sum is the fill itself, in every type that can hold it.
float16's lowest, -65504, is not of this kind: where the addition is carried out in fp32, scores survive in it."""


def apply_masks(emit: Emitter, scores: str, site: Site, dtype: int, types: TensorTypes) -> str:
    """The scores of ONNX element type `dtype` with the site's masks.

    What masks with -inf becomes one Where, behind what is added: TensorRT-RTX 1.7 crashes on two of them in a row.
    """
    closing: list[tuple[str, bool]] = []  # conditions, and whether each is true where masked
    fill = _fill(site, dtype)
    for mask in site.source_masks:
        if stays_added(mask, site):
            for tensor in added_tensors(mask):
                added = shaped(emit, in_type(emit, tensor, dtype, types, fill), mask)
                if mask.factor != 1.0:
                    added = emit.node("Mul", added, emit.number(mask.factor, dtype))
                if mask.stored:  # TensorRT-RTX 1.7 fuses no table that is only moved about, but what an Identity gives
                    added = emit.node("Identity", added)
                scores = emit.node("Add", scores, added)
            continue
        condition = shaped(emit, as_condition(emit, mask.tensors[0], types), mask)
        if mask.fill == -math.inf:
            closing.append((condition, mask.invert))
        else:  # a finite fill replaces a -inf before it
            scores, closing = _closed(emit, scores, closing, dtype, fill), []
            scores = _filled(emit, condition, scores, max(mask.fill, lowest(dtype)), dtype, mask.invert)
    if site.whole.causal != CausalMode.NONE:
        closing.append((lower_triangle(emit, scores), False))
    return _closed(emit, scores, closing, dtype, fill)


def stays_added(mask: MaskPart, site: Site) -> bool:
    """Whether the mask is added to the scores, and not filled in by a Where: -inf always fills in, an absorbing fill
    if nothing else is added to it, and what leaves no probability beside an allowed key where each row has one."""
    if mask.form != "add-where":
        return mask.form == "add"
    enough = VANISHING if every_row_has_a_key(site) else ABSORBING
    return not (mask.fill == -math.inf or len(site.source_masks) == 1 and mask.fill <= enough)


def needs_float32(site: Site) -> bool:
    """Whether the masks are to be added in fp32: in float16 a score and a finite fill can be -inf together
    (-65504 - 16), in all places of a row even, and no guard makes zeros of the NaN any more. In fp32 such a row has a
    softmax."""
    added = [mask for mask in site.source_masks if stays_added(mask, site)]
    finite = len(added) == 1 and -math.inf < added[0].fill <= VANISHING
    return site.guard and site.whole.dtype == "float16" and finite


def added_tensors(mask: MaskPart) -> tuple[str, ...]:
    """What a mask adds, in the order of adding."""
    return mask.tensors if mask.added is None else (mask.added,)


def every_row_has_a_key(site: Site) -> bool:
    """Whether it is proved that no row is masked as a whole: what masks is causality from the upper left alone, which
    leaves key 0 to every row. Of several masks the configuration may leave one in the scores, so it proves nothing."""
    config, causal = site.config, (CausalMode.NONE, CausalMode.TOP_LEFT)
    reads_all = config is not None and len(site.source_masks) <= 1 and all(m.factor == 1.0 for m in site.source_masks)
    proved = reads_all and not config.operands and max(config.window_left, config.window_right) < 0
    return proved and config.causal in causal and site.whole.causal in causal


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
    return _on_axes(emit, "Unsqueeze", tensor, mask.unsqueeze)


def squeezed(emit: Emitter, tensor: str, axis: int) -> str:
    """The tensor without an axis of size 1."""
    return _on_axes(emit, "Squeeze", tensor, (axis,))


def _on_axes(emit: Emitter, operator: str, tensor: str, axes: tuple[int, ...]) -> str:
    if emit.opset < SQUEEZE_AXES_ARE_INPUT:
        return emit.node(operator, tensor, axes=list(axes))
    return emit.node(operator, tensor, emit.integers(axes))


def in_type(emit: Emitter, tensor: str, dtype: int, types: TensorTypes, fill: float) -> str:
    """A mask that is added, in the scores' type: what is below its range becomes its lowest number, -inf becomes
    `fill`."""
    present = types.of(tensor)
    if present == dtype:
        return tensor
    if present != TensorProto.FLOAT:  # a half type widened, or not known
        return emit.cast(tensor, dtype)
    narrowed = emit.cast(emit.node("Max", tensor, emit.number(lowest(dtype), present)), dtype)
    if fill != -math.inf:
        return narrowed
    infinite = emit.node("IsInf", tensor, detect_positive=0)
    return emit.node("Where", infinite, emit.number(fill, dtype), narrowed)


def lower_triangle(emit: Emitter, scores: str) -> str:
    """Whether key j <= query i, bool [Sq, Sk], from the scores' shape."""
    return emit.node("Not", emit.node("Greater", key_numbers(emit, scores), row_numbers(emit, scores)))


def key_numbers(emit: Emitter, scores: str) -> str:
    """0, 1, ... of the keys, int64 [Sk], from the scores' shape."""
    return _numbers(emit, scores, -1)


def row_numbers(emit: Emitter, scores: str) -> str:
    """0, 1, ... of the queries, int64 [Sq, 1], from the scores' shape."""
    return emit.node("Reshape", _numbers(emit, scores, -2), emit.integers([-1, 1]))


def _fill(site: Site, dtype: int) -> float:
    """What stands in for -inf: the lowest number, so that no row is NaN, if all masks fill with -inf. Beside anything
    else a row's allowed keys may have scores as low as that, so -inf it stays."""
    alone = all(mask.form != "add" and mask.fill == -math.inf for mask in site.source_masks)
    return lowest(dtype) if alone else -math.inf


def _closed(emit: Emitter, scores: str, conditions: list[tuple[str, bool]], dtype: int, fill: float) -> str:
    """The scores with `fill` where any of the conditions masks."""
    if not conditions:
        return scores
    (joined, inverted), *others = conditions
    if others and inverted:
        joined, inverted = emit.node("Not", joined), False
    for condition, is_inverted in others:
        joined = emit.node("And", joined, emit.node("Not", condition) if is_inverted else condition)
    return _filled(emit, joined, scores, fill, dtype, inverted)


def _filled(emit: Emitter, condition: str, scores: str, fill: float, dtype: int, inverted: bool) -> str:
    number = emit.number(fill, dtype)
    return emit.node("Where", condition, *((number, scores) if inverted else (scores, number)))


def _numbers(emit: Emitter, scores: str, axis: int) -> str:
    """0, 1, ... along a dimension."""
    length = emit.node("Gather", emit.node("Shape", scores), emit.number(axis, TensorProto.INT64), axis=0)
    return emit.node("Range", emit.number(0, TensorProto.INT64), length, emit.number(1, TensorProto.INT64))
