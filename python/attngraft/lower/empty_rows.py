"""Rows without an allowed key, where the model gives zeros for them: found from the masks, zeroed behind the values.

The model's own way, IsNaN and Where between the softmax and the values, makes TensorRT 10.6 take a slower kernel
(docs/what_tensorrt_fuses.md). Here: Where(row has a key, context, 0), the condition once for all sites with the same
masks, and behind the output projection where there is one (projection.py). For finite inputs the results are equal; a
NaN among the scores of allowed keys, which the model makes 0 as well, stays NaN.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from onnx import TensorProto

from attngraft.contract import CausalMode
from attngraft.lower.emit import Emitter
from attngraft.lower.mask_forms import (
    added_tensors,
    as_condition,
    every_row_has_a_key,
    in_type,
    key_numbers,
    lower_triangle,
    row_numbers,
    shaped,
    squeezed,
    stays_added,
)
from attngraft.lower.tensor_types import TensorTypes
from attngraft.match.records import MaskPart, Site

__all__ = ["RowsWithKeys", "may_have_empty_rows"]

AXES_ARE_INPUT = 18
"""From this opset on ReduceMax and ReduceMin take their axes as an input."""

BEHIND_EVERY_ROW = int(np.iinfo(np.int32).max)
"""The first key of a sequence that has none. TensorRT 10.6 computes indices in 32 bits where it can."""

HEADS_AXIS = 1
"""Of [B, heads, Sq, Sk]."""


def may_have_empty_rows(site: Site) -> bool:
    """Whether a row of the site's softmax may be NaN for finite inputs, where the model turns NaN into 0: a row of -inf
    needs a mask that fills with it, or adds what may hold it or reach it, and no proof that each row has a key."""
    if not site.guard or every_row_has_a_key(site):
        return False
    added = [tensor for mask in site.source_masks if mask.form != "where" for tensor in added_tensors(mask)]
    return len(added) > 1 or any(mask.form == "add" or mask.fill == -math.inf for mask in site.source_masks)


class RowsWithKeys:
    """Which rows have an allowed key, made once for each graph and set of masks. Sites come in the order of the nodes
    that make their contexts, so that what the first one made is there for the others."""

    def __init__(self, types: TensorTypes) -> None:
        self._types = types
        self._made: dict[tuple[str, int, tuple[MaskPart, ...]], str] = {}
        self._without_heads: dict[str, str] = {}
        self._first_keys: dict[tuple[str, MaskPart], str] = {}

    def condition(self, emit: Emitter, scores: str, site: Site, dtype: int) -> str:
        """bool [..., Sq or 1, 1], broadcasting to the context. `scores`, of ONNX element type `dtype`, are as they were
        before the masks."""
        if site.key_mask is not None and site.config.causal == CausalMode.TOP_LEFT:
            return self._after_first_key(emit, scores, site)
        if site.whole.causal != CausalMode.NONE:  # a triangle of this site's own lengths
            return _any_key(emit, _allowed(emit, scores, site, dtype, self._types))
        key = _same_condition(site, dtype)
        if key not in self._made:
            self._made[key] = _any_key(emit, _allowed(emit, scores, site, dtype, self._types))
        return self._made[key]

    def _after_first_key(self, emit: Emitter, scores: str, site: Site) -> str:
        """bool [B, 1, Sq, 1], of a site with causality and one mask of keys: whether the sequence's first key is not
        behind the row. Nothing of the size of the scores is computed for it."""
        key = site.graph, site.key_mask
        if key not in self._first_keys:
            self._first_keys[key] = _first_key(emit, scores, site.key_mask, self._types)
        first = self._first_keys[key]
        return emit.node("Not", emit.node("Greater", first, row_numbers(emit, scores)))

    def without_heads(self, emit: Emitter, condition: str) -> str:
        """A condition [B or 1, 1, Sq or 1, 1] for rows [B, Sq, N]."""
        if condition not in self._without_heads:
            self._without_heads[condition] = squeezed(emit, condition, HEADS_AXIS)
        return self._without_heads[condition]


def _same_condition(site: Site, dtype: int) -> tuple[str, int, tuple[MaskPart, ...]]:
    """Equal for sites of one graph whose `_allowed` is the same: what a Where made of a condition does not count, nor
    does the scores' type unless something is added in it."""
    masks = tuple(mask if stays_added(mask, site) else replace(mask, added=None) for mask in site.source_masks)
    adds = any(stays_added(mask, site) for mask in masks)
    return site.graph, dtype if adds else TensorProto.UNDEFINED, masks


def _first_key(emit: Emitter, scores: str, mask: MaskPart, types: TensorTypes) -> str:
    """The number of each sequence's first allowed key, int64 [B, 1, 1, 1]; of a mask of keys [B, Sk]."""
    condition = shaped(emit, as_condition(emit, mask.tensors[0], types), mask)
    keys, never = key_numbers(emit, scores), emit.number(BEHIND_EVERY_ROW, TensorProto.INT64)
    found = emit.node("Where", condition, *((never, keys) if mask.invert else (keys, never)))
    return _reduced(emit, "ReduceMin", found)


def _any_key(emit: Emitter, allowed: str) -> str:
    """Whether any place along the last axis is true. A condition may be a single number, without axes."""
    at_least_a_vector = emit.node("And", allowed, emit.truth())
    numbers = emit.cast(at_least_a_vector, TensorProto.INT32)  # no version of ReduceMax before 20 takes bool
    return emit.cast(_reduced(emit, "ReduceMax", numbers), TensorProto.BOOL)


def _reduced(emit: Emitter, operator: str, tensor: str) -> str:
    """One number of each row."""
    if emit.opset < AXES_ARE_INPUT:
        return emit.node(operator, tensor, axes=[-1], keepdims=1)
    return emit.node(operator, tensor, emit.integers([-1]), keepdims=1)


def _allowed(emit: Emitter, scores: str, site: Site, dtype: int, types: TensorTypes) -> str:
    """Where the masked scores are above -inf, as apply_masks makes them: bool, broadcasting to the scores."""
    added: list[str] = []
    conditions: list[str] = []  # all of them hold where a key is allowed
    for mask in site.source_masks:
        if stays_added(mask, site):
            added += [shaped(emit, in_type(emit, name, dtype, types, -math.inf), mask) for name in added_tensors(mask)]
            continue
        condition = shaped(emit, as_condition(emit, mask.tensors[0], types), mask)
        if mask.fill == -math.inf:
            conditions.append(emit.node("Not", condition) if mask.invert else condition)
        elif added or conditions:  # a finite fill replaces a -inf before it
            filled = condition if mask.invert else emit.node("Not", condition)
            before = _all(emit, conditions + _above_infinity(emit, added, dtype))
            conditions, added = [emit.node("Or", before, filled)], []
    conditions += _above_infinity(emit, added, dtype)
    if site.whole.causal != CausalMode.NONE:
        conditions.append(lower_triangle(emit, scores))
    return _all(emit, conditions)


def _above_infinity(emit: Emitter, added: list[str], dtype: int) -> list[str]:
    """The condition that the sum of what is added is above -inf, which two finite numbers can reach together."""
    if not added:
        return []
    total, *others = added
    for tensor in others:
        total = emit.node("Add", total, tensor)
    return [emit.node("Greater", total, emit.number(-math.inf, dtype))]


def _all(emit: Emitter, conditions: list[str]) -> str:
    """True where every one of the conditions, at least one, is."""
    joined, *others = conditions
    for condition in others:
        joined = emit.node("And", joined, condition)
    return joined
