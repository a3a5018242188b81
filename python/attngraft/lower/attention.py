"""The `attention` lowering: everything from Q, K and V to the context becomes one attngraft::FusedAttention node.

What the node reads and makes is in the record (AttentionForm): tensors of which Q, K and V are views, and one that is a
view of the context. Left-overs of the way there go with the site where nothing else reads them.
"""

from __future__ import annotations

from attngraft.contract import DOMAIN, FUSED_ATTENTION, Layout
from attngraft.errors import RewriteError
from attngraft.lower.context_types import ContextTypes
from attngraft.lower.emit import Constants, Emitter
from attngraft.lower.onnx_function import PLUGIN_IDENTITY
from attngraft.lower.operands import Operands
from attngraft.lower.surgery import Surgery
from attngraft.lower.tensor_types import TensorTypes
from attngraft.match.records import AttentionForm, MergedProjection, Site
from attngraft.onnx_graph import onnx_dtype

__all__ = ["AttentionLowering"]

KEY_INPUT = 1


class AttentionLowering:
    """Lowers sites one after the other, in the order of the nodes that make their contexts."""

    def __init__(self, surgery: Surgery, types: TensorTypes, opset: int, contexts: ContextTypes) -> None:
        self._surgery = surgery
        self._opset = opset
        self._constants = Constants(surgery)
        self._operands = Operands(types)
        self._contexts = contexts

    def apply(self, site: Site, overload: str) -> None:
        """Puts the node in the site's place, with the function of that `overload` as its body; the name of what it
        makes is unchanged. Raises RewriteError for a site that has no such form."""
        form = site.attention
        if form is None:
            reason = site.lowerings["attention"]
            raise RewriteError(f"site {site.name!r} cannot take lowering 'attention': {reason}; keep it")
        graph = self._surgery.graph(site.graph)
        anchor = graph.maker(form.context)
        prefix = f"{site.name}/{FUSED_ATTENTION}"
        emit = Emitter(self._surgery, self._constants, graph, anchor, prefix, self._opset)
        tensors = _tensors(emit, site, form)
        by_role = ([mask for mask in form.masks if mask.role == role] for role in form.config.operands)
        operands = [self._operands.summed(emit, site.graph, masks) for masks in by_role]
        graph.release(anchor, anchor.outputs.index(form.context))
        made = emit.node(
            FUSED_ATTENTION,
            *tensors,
            *operands,
            domain=DOMAIN,
            overload=overload,
            **form.config.attributes(),
            **PLUGIN_IDENTITY,
        )
        emit.rename(self._as_in_model(emit, site, form, made), form.context)
        graph.remove_if_dead(anchor)

    def _as_in_model(self, emit: Emitter, site: Site, form: AttentionForm, made: str) -> str:
        """The node's output in the shape and type of the tensor that it stands for."""
        if form.split_context:
            made = emit.node("Reshape", made, emit.integers([0, 0, form.split_context, -1]))
        return self._contexts.as_in_model(emit, site, made, form.context)


def _tensors(emit: Emitter, site: Site, form: AttentionForm) -> list[str]:
    """The node's tensors, in the site's own type and with the key's last two dimensions in order."""
    whole = site.whole
    if form.merged is not None:
        return [_packed(emit, form.merged, onnx_dtype(whole.dtype))]
    if form.config.is_packed:
        return list(form.tensors)
    operands = (whole.query, whole.key, whole.values)
    tensors = [
        emit.cast(tensor, onnx_dtype(whole.dtype)) if operand in whole.wide else tensor
        for tensor, operand in zip(form.tensors, operands, strict=True)
    ]
    if form.transpose_key:
        is_by_heads = form.config.words[KEY_INPUT] == Layout.BHSD
        perm = [0, 1, 3, 2] if is_by_heads else [0, 2, 1]
        tensors[KEY_INPUT] = emit.node("Transpose", tensors[KEY_INPUT], perm=perm)
    return tensors


def _packed(emit: Emitter, merged: MergedProjection, dtype: int) -> str:
    """Query, key and values beside each other, by one product. No weight is read: runtimes join them when they load."""
    weights = emit.node("Concat", *merged.weights, axis=1)
    product = emit.node("MatMul", merged.source, weights)
    if not merged.biases:
        return product
    rows = [
        emit.node("Expand", emit.number(0.0, dtype), emit.integers([width])) if bias is None else bias
        for bias, width in zip(merged.biases, merged.widths, strict=True)
    ]
    return emit.node("Add", product, emit.node("Concat", *rows, axis=0))
