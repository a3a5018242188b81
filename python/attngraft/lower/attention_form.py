"""The standard Attention operator (opset 23) as the form of a native site.

TensorRT 10.14 and TensorRT-RTX map it to their attention layer, which is never decomposed: the build fails where no
dedicated kernel exists, so it is used only where one is known to (docs/what_tensorrt_fuses.md).
"""

from __future__ import annotations

from attngraft.contract import CausalMode
from attngraft.lower.emit import Emitter
from attngraft.lower.empty_rows import may_have_empty_rows
from attngraft.lower.target import Target
from attngraft.match.records import Site
from attngraft.onnx_graph import HALF_NAMES

__all__ = ["MAX_HEAD_SIZE", "MIN_HEAD_SIZE", "emit_attention", "takes_attention_form"]

FIRST_OPSET = 23
MIN_HEAD_SIZE, MAX_HEAD_SIZE = 9, 256
"""Head sizes between which the attention layer of TensorRT-RTX 1.7 builds (12 to 256 tried, 8 and 264 fail)."""


def takes_attention_form(site: Site, opset: int, target: Target | None) -> bool:
    """Whether the site can be one Attention node for this target: half type, no softcap, no guard to keep, and no mask
    but causality. A boolean mask costs 9 kernels more in that operator than in Where, so masks stay in plain form."""
    whole = site.whole
    return (
        target is not None
        and target.has_attention
        and opset >= FIRST_OPSET
        and whole.dtype in HALF_NAMES
        and whole.context_dtype == whole.dtype
        and not whole.wide
        and not whole.softcap
        and site.head_size is not None
        and MIN_HEAD_SIZE <= site.head_size <= MAX_HEAD_SIZE
        and not site.source_masks
        and not may_have_empty_rows(site)
        and (whole.layout == "bsd" or site.rank == 4)
        and not (whole.key_transposed and whole.layout == "bsd")
    )


def emit_attention(emit: Emitter, site: Site, dtype: int) -> None:
    """Emits the node, and in front of it the transposition that makes the key [B, H, Sk, D] where the site has it as
    [B, H, D, Sk]."""
    whole = site.whole
    key = emit.node("Transpose", whole.key, perm=[0, 1, 3, 2]) if whole.key_transposed else whole.key
    attributes: dict[str, object] = {"scale": whole.scale}
    if whole.causal != CausalMode.NONE:
        attributes["is_causal"] = 1
    if whole.layout == "bsd":
        attributes.update(q_num_heads=whole.heads, kv_num_heads=whole.kv_heads)
    emit.node("Attention", whole.query, key, whole.values, output=whole.context, **attributes)
