"""The `native` lowering: a whole site again in plain ONNX, in the form that TensorRT fuses by itself.

    MatMul(query * scale, key^T) [-> softcap] -> masks -> Softmax -> MatMul(values) [-> zeros in rows without a key]

The zeros are written behind the output projection instead, where the site has one (projection.py).

In: a site's record with its `whole`. Out: the same context tensor, made by new nodes. What each step is for, and the
measurements behind it, is in docs/what_tensorrt_fuses.md:

* the scale stands on the query: fused everywhere, and in float16 no unscaled product can overflow;
* all operands, the second product's too, are in the site's own type; the softmax may be widened in between;
* a guard (NaN becomes 0) goes; where a row can be without a key, its context is zeroed (empty_rows.py);
* key and values with fewer heads than the query are repeated in the open: MatMul's broadcasting is not fused.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from attngraft.errors import RewriteError
from attngraft.lower.attention_form import emit_attention, takes_attention_form
from attngraft.lower.context_types import ContextTypes
from attngraft.lower.emit import Constants, Emitter
from attngraft.lower.empty_rows import RowsWithKeys, may_have_empty_rows
from attngraft.lower.key_masks import KeyMasks
from attngraft.lower.mask_forms import apply_masks, needs_float32
from attngraft.lower.projection import zero_behind
from attngraft.lower.surgery import Surgery
from attngraft.lower.target import Target
from attngraft.lower.tensor_types import TensorTypes
from attngraft.match.records import Site, WholeSite
from attngraft.onnx_graph import onnx_dtype

__all__ = ["NativeLowering", "native_obstacle"]

HEADS_AXIS = 1
"""Of [B, heads, S, D]."""

SOFTMAX_TAKES_ONE_AXIS = 13
"""Opset; before, runtimes differ over a negative axis."""


class NativeLowering:
    """Lowers sites one after the other, in the order of the nodes that make their contexts."""

    def __init__(
        self, surgery: Surgery, types: TensorTypes, opset: int, target: Target | None, contexts: ContextTypes
    ) -> None:
        self._surgery = surgery
        self._types = types
        self._opset = opset
        self._target = target
        self._constants = Constants(surgery)
        self._key_masks = KeyMasks(types)
        self._rows_with_keys = RowsWithKeys(types)
        self._contexts = contexts
        self.unguarded: dict[str, str] = {}
        """New names for tensors of the main graph whose empty rows hold other numbers than in the model given, up to
        the projections behind which they are zeroed."""

    def apply(self, site: Site) -> None:
        """Puts new nodes in the site's place; the context keeps its name. Raises RewriteError where the record does not
        say enough."""
        obstacle = native_obstacle(site)
        if obstacle is not None:
            raise RewriteError(f"site {site.name!r} cannot take lowering 'native': {obstacle}; keep it")
        whole = site.whole
        graph = self._surgery.graph(site.graph)
        anchor = graph.maker(whole.context)
        emit = Emitter(self._surgery, self._constants, graph, anchor, f"{site.name}/native", self._opset)
        graph.release(anchor, anchor.outputs.index(whole.context))
        dtype = onnx_dtype(whole.dtype)
        if takes_attention_form(site, self._opset, self._target):
            emit_attention(emit, site, dtype)
        else:
            self._emit_context(emit, site, dtype)
        graph.remove_if_dead(anchor)

    def _plain_context(self, emit: Emitter, site: Site, dtype: int) -> str:
        """The context [..., Sq, Dv] in the site's type, with zeros in rows without a key or with a projection that has
        them."""
        site, whole = self._key_masks.in_site(emit, site), site.whole
        query, key, values = _operands(emit, site, dtype)
        if whole.scale != 1.0:
            query = emit.node("Mul", query, emit.number(whole.scale, dtype))
        scores = emit.node("MatMul", query, key)
        wide = site.widened or needs_float32(site)
        score_dtype = TensorProto.FLOAT if wide else dtype
        if wide:
            scores = emit.cast(scores, score_dtype)
        if whole.softcap:
            cap = emit.number(whole.softcap, score_dtype)
            scores = emit.node("Mul", emit.node("Tanh", emit.node("Div", scores, cap)), cap)
        masked = apply_masks(emit, scores, site, score_dtype, self._types)
        probabilities = _softmax(emit, masked, _rank(site))
        if wide:
            probabilities = emit.cast(probabilities, dtype)
        context = emit.node("MatMul", probabilities, values)
        if not may_have_empty_rows(site):
            return context
        has_key = self._rows_with_keys.condition(emit, scores, site, score_dtype)
        if site.projection is None or site.graph:  # names in other graphs are not looked after (unguarded)
            return emit.node("Where", has_key, context, emit.number(0.0, dtype))
        if site.projection.mask_has_heads:
            has_key = self._rows_with_keys.without_heads(emit, has_key)
        self._zero_behind(site, has_key)
        return context

    def _zero_behind(self, site: Site, has_key: str) -> None:
        """Zeros as if they stood in the context, in the rows of the site's projection for which `has_key` is false."""
        graph, whole = self._surgery.graph(site.graph), site.whole
        last = graph.maker(site.projection.tensors[-1])
        emit = Emitter(self._surgery, self._constants, graph, last, f"{site.name}/native", self._opset)
        zero_behind(emit, graph, last, site.projection, has_key, onnx_dtype(whole.context_dtype or whole.dtype))
        for name in site.projection.tensors[:-1]:
            self.unguarded[name] = self._surgery.free_name(f"{name}_unguarded")

    def _emit_context(self, emit: Emitter, site: Site, dtype: int) -> None:
        """The whole site; the context in the layout and type of the original, under its name."""
        whole = site.whole
        made = self._plain_context(emit, site, dtype)
        if whole.layout == "bsd":
            made = emit.node("Transpose", made, perm=[0, 2, 1, 3])
            made = emit.node("Reshape", made, emit.integers([0, 0, -1]))
        emit.rename(self._contexts.as_in_model(emit, site, made, whole.context), whole.context)


def _operands(emit: Emitter, site: Site, dtype: int) -> tuple[str, str, str]:
    """query [..., Sq, D], key [..., D, Sk], values [..., Sk, Dv], of one type and with equal numbers of heads."""
    whole = site.whole
    query, key, values = (
        emit.cast(name, dtype) if name in whole.wide else name for name in (whole.query, whole.key, whole.values)
    )
    if whole.layout == "bsd":
        query = _split_heads(emit, query, whole.heads)
        key, values = (_split_heads(emit, name, whole.kv_heads) for name in (key, values))
    if not whole.key_transposed:
        axes = list(range(_rank(site)))
        key = emit.node("Transpose", key, perm=[*axes[:-2], axes[-1], axes[-2]])
    if whole.heads and whole.kv_heads and whole.kv_heads < whole.heads:
        key, values = (_repeat_heads(emit, name, whole) for name in (key, values))
    return query, key, values


def native_obstacle(site: Site) -> str | None:
    """Why the site cannot take this lowering; None if it can."""
    whole = site.whole
    if site.lowerings["native"] is not None or whole is None:
        return site.lowerings["native"]
    if whole.dtype is None:
        return "the element type of its query is not known; infer the model's types first"
    if whole.layout == "bsd" and not (whole.heads and whole.kv_heads):
        return "its numbers of heads are not known"
    if whole.layout != "bsd" and site.rank is None:
        return "the rank of its scores is not known; infer the model's shapes first"
    return None


def _rank(site: Site) -> int:
    """The rank of the products' operands."""
    return 4 if site.whole.layout == "bsd" else site.rank


def _split_heads(emit: Emitter, tensor: str, heads: int | None) -> str:
    """[B, S, heads * D] to [B, heads, S, D]."""
    parted = emit.node("Reshape", tensor, emit.integers([0, 0, heads, -1]))
    return emit.node("Transpose", parted, perm=[0, 2, 1, 3])


def _repeat_heads(emit: Emitter, tensor: str, whole: WholeSite) -> str:
    """[B, kv_heads, ...] to [B, heads, ...], each head as often in succession as query heads use it."""
    if whole.kv_heads == 1:
        return emit.node("Expand", tensor, emit.integers([1, whole.heads, 1, 1]))
    indices = np.repeat(np.arange(whole.kv_heads), whole.heads // whole.kv_heads)
    return emit.node("Gather", tensor, emit.integers(indices.tolist()), axis=HEADS_AXIS)


def _softmax(emit: Emitter, scores: str, rank: int) -> str:
    """Along the last axis. Before opset 13 all axes from the given one on were taken together, the last is the same."""
    return emit.node("Softmax", scores, axis=-1 if emit.opset >= SOFTMAX_TAKES_ONE_AXIS else rank - 1)
