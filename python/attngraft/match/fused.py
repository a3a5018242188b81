"""Attention that is one node already, the standard operator or ONNX Runtime's: read for what it computes.

There is no softmax to replace, so the `softmax` lowering has no place here; but where the node's meaning is plain
attention, it is recorded from Q, K and V to the context like any other site.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from onnx import NodeProto, TensorProto

from attngraft.contract import CausalMode, EmptyRows, Role
from attngraft.match.attention import MaskReading, attention_form
from attngraft.match.key_mask import find_key_mask
from attngraft.match.operators import attribute
from attngraft.match.projection import find_projection
from attngraft.match.records import AttentionForm, MaskPart, Scale, Site, WholeSite
from attngraft.match.understood import Understood, acting_masks, understand_masks
from attngraft.onnx_graph import GraphView, dtype_name, node_label

__all__ = ["is_fused_attention", "match_fused"]

STANDARD = "Attention"
RUNTIME_DOMAIN = "com.microsoft"
RUNTIME_OPERATORS = frozenset(
    {
        "Attention",
        "DecoderAttention",
        "DecoderMaskedMultiHeadAttention",
        "DecoderMaskedSelfAttention",
        "GroupQueryAttention",
        "LongformerAttention",
        "MultiHeadAttention",
        "PackedAttention",
        "PackedMultiHeadAttention",
        "PagedAttention",
        "QAttention",
        "SparseAttention",
    }
)
"""Attention operators of com.microsoft in ONNX Runtime 1.17 to 1.32."""

OBSTACLES = {
    "Attention": "the node contains the projections of Q, K and V",
    "GroupQueryAttention": "the node keeps its own cache of keys and values",
}
"""Why an operator of com.microsoft has no form from Q, K and V to the context."""


@dataclass(frozen=True)
class _Shapes:
    """What the operands' shapes and the attributes say."""

    layout: str
    heads: int | None
    kv_heads: int | None
    head_size: int | None


def is_fused_attention(node: NodeProto) -> bool:
    if node.domain in ("", "ai.onnx"):
        return node.op_type == STANDARD
    return node.domain == RUNTIME_DOMAIN and node.op_type in RUNTIME_OPERATORS


def match_fused(view: GraphView, node: NodeProto, path: str) -> Site:
    """The record of a fused attention node. A wholly masked row of it gives zeros, as behind a guard."""
    read = _reader(node)(view, node)
    reason = read if isinstance(read, str) else None
    whole, masks = (None, ()) if isinstance(read, str) else read
    scores = _scores(view, whole)
    masks = acting_masks(view, masks, scores)
    understood = _understood(view, whole, masks, scores)
    shape, dtype = view.shape(node.input[0]), view.dtype(node.input[0])
    shapes = _shapes(view, node)
    scale = attribute(node, "scale")
    config = None
    attention: AttentionForm | str = reason or ""
    if whole is not None:
        config = understood.config(whole.scale, whole.softcap, understood.empty_rows or EmptyRows.ZEROS)
        attention = attention_form(view, whole, MaskReading.of(config, understood.masks), len(shape or ()))
    return Site(
        name=node_label(node),
        graph=path,
        node=node.output[0],
        scores="",
        probabilities="",
        config=config,
        masks=understood.masks,
        scale=Scale() if scale is None else Scale(float(scale), ("attribute",)),
        bypasses=(),
        guard=whole is not None,
        dtype=dtype_name(dtype) if dtype else None,
        rank=None if shape is None else len(shape),
        heads=shapes.heads if shapes else None,
        head_size=shapes.head_size if shapes else None,
        layout=shapes.layout if shapes else None,
        consumers=tuple(node_label(reader) for reader in view.readers(node.output[0])),
        is_output=node.output[0] in view.outputs,
        lowerings={
            "keep": None,
            "softmax": f"{node.op_type} is one fused operator: there is no softmax in the graph to replace",
            "native": reason,
            "attention": attention if isinstance(attention, str) else None,
        },
        source_masks=masks,
        whole=whole,
        widened=_widened(node, dtype),
        operator=f"{RUNTIME_DOMAIN}::{node.op_type}" if node.domain == RUNTIME_DOMAIN else node.op_type,
        attention=None if isinstance(attention, str) else attention,
        key_mask=find_key_mask(view, whole, masks, understood.masks, config),
        projection=find_projection(view, whole, masks),
    )


_Reading = tuple[WholeSite, tuple[MaskPart, ...]] | str


def _reader(node: NodeProto) -> Callable[[GraphView, NodeProto], _Reading]:
    if node.domain != RUNTIME_DOMAIN:
        return _read_standard
    return _read_multi_head if node.op_type == "MultiHeadAttention" else _read_other


def _read_other(view: GraphView, node: NodeProto) -> _Reading:
    return OBSTACLES.get(node.op_type, f"{node.op_type} is no plain attention from Q, K and V")


def _read_standard(view: GraphView, node: NodeProto) -> _Reading:
    """The operator of opset 23 and 24. ONNX Runtime and the specification agree on softcap before the mask, causality
    from the upper left where there is no cache, and zeros for a row without an allowed key."""
    if _input(node, 4) or _input(node, 5):
        return "the node appends to a cache of keys and values (past_key)"
    if _input(node, 6):
        return "the node takes the keys' lengths (nonpad_kv_seqlen)"
    if any(name in view.outputs or view.readers(name) for name in node.output[1:] if name):
        return "another output of the node than the context is used"
    masks: tuple[MaskPart, ...] = ()
    if mask := _input(node, 3):
        is_condition = view.dtype(mask) == TensorProto.BOOL
        masks = (_condition(mask) if is_condition else MaskPart("add", Role.BIAS, (mask,)),)
    causal = CausalMode.TOP_LEFT if attribute(node, "is_causal", 0) else CausalMode.NONE
    return _whole(view, node, masks, causal, float(attribute(node, "softcap", 0.0)))


def _read_multi_head(view: GraphView, node: NodeProto) -> _Reading:
    """com.microsoft::MultiHeadAttention with Q, K and V [B, S, hidden], and nothing that the graph does not show."""
    names = {
        3: "the projections' bias",
        4: "a mask of keys, to which it adds a number of its own",
        6: "a cache of keys and values",
        7: "a cache of keys and values",
    }
    for index, what in names.items():
        if _input(node, index):
            return f"the node takes {what} ({_INPUTS[index]})"
    if not (_input(node, 1) and _input(node, 2)):
        return "query, key and value are packed in one tensor"
    if any(name in view.outputs or view.readers(name) for name in node.output[1:] if name):
        return "another output of the node than the context is used"
    bias = _input(node, 5)
    masks = (MaskPart("add", Role.BIAS, (bias,)),) if bias else ()
    causal = CausalMode.TOP_LEFT if attribute(node, "unidirectional", 0) else CausalMode.NONE
    lengths = [shape[1] if shape and len(shape) == 3 else None for shape in map(view.shape, node.input[:2])]
    if causal != CausalMode.NONE and (lengths[0] is None or lengths[0] != lengths[1]):
        return "causal attention over lengths that are not known to be equal"
    return _whole(view, node, masks, causal, 0.0)


_INPUTS = ("query", "key", "value", "bias", "key_padding_mask", "attention_bias", "past_key", "past_value")


def _whole(view: GraphView, node: NodeProto, masks: tuple[MaskPart, ...], causal: str, softcap: float) -> _Reading:
    shapes = _shapes(view, node)
    if shapes is None:
        return "the rank of the operands is not known; run onnx.shape_inference on the model"
    scale = attribute(node, "scale")
    if not scale:  # 0 is ONNX Runtime's word for "not given"
        if shapes.head_size is None:
            return "the scale follows from a head size that is not known"
        scale = shapes.head_size**-0.5
    dtypes = [view.dtype(name) for name in node.input[:3]]
    if len(set(dtypes)) != 1:
        return f"query, key and values have different types ({', '.join(sorted(set(map(dtype_name, dtypes))))})"
    dtype = dtype_name(dtypes[0]) if dtypes[0] else None
    whole = WholeSite(
        query=node.input[0],
        key=node.input[1],
        values=node.input[2],
        context=node.output[0],
        scale=float(scale),
        key_transposed=False,
        layout=shapes.layout,
        heads=shapes.heads,
        kv_heads=shapes.kv_heads,
        softcap=softcap,
        causal=causal,
        dtype=dtype,
        context_dtype=dtype,
    )
    return whole, masks


def _scores(view: GraphView, whole: WholeSite | None) -> tuple[int | str | None, ...]:
    """The shape of the scores, which are no tensor here; () if it is not known."""
    query, key = (view.shape(name) for name in (whole.query, whole.key)) if whole is not None else (None, None)
    return () if query is None or key is None else (query[0], whole.heads, query[-2], key[-2])


def _understood(
    view: GraphView, whole: WholeSite | None, masks: tuple[MaskPart, ...], scores: tuple[int | str | None, ...]
) -> Understood:
    """The masks read for what they are; where the node is causal itself, they stay as they are."""
    if whole is None or whole.causal != CausalMode.NONE:
        return Understood(masks, CausalMode.NONE if whole is None else whole.causal)
    return understand_masks(view, masks, scores, view.dtype(whole.query))


def _condition(mask: str) -> MaskPart:
    return MaskPart("where", Role.KEEP, (mask,), fill=-math.inf)


def _shapes(view: GraphView, node: NodeProto) -> _Shapes | None:
    """Layout, heads and head size; None where the query's rank is neither 3 nor 4 or not known."""
    query = view.shape(node.input[0])
    key = view.shape(_input(node, 1)) if _input(node, 1) else None
    heads = attribute(node, "q_num_heads") or attribute(node, "num_heads")
    kv_heads = attribute(node, "kv_num_heads") or heads
    if query is None or len(query) not in (3, 4):
        return None
    if len(query) == 4:
        return _Shapes("bhsd", _number(query[1]), _number(key[1]) if key else None, _number(query[3]))
    width = _number(query[2])
    return _Shapes("bsd", heads, kv_heads, width // heads if width is not None and heads else None)


def _number(dimension: int | str | None) -> int | None:
    return dimension if isinstance(dimension, int) else None


def _widened(node: NodeProto, dtype: int) -> bool:
    """Whether the softmax of half types is asked for in fp32."""
    return attribute(node, "softmax_precision") == TensorProto.FLOAT and dtype != TensorProto.FLOAT


def _input(node: NodeProto, index: int) -> str:
    return node.input[index] if index < len(node.input) else ""
