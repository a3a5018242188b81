"""The portable bodies: attngraft's operators as ONNX local functions of standard operators, for any runtime.

One function is made for one configuration, element type and opset (11 or later). It computes in fp32.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import FunctionProto, TensorProto

from attngraft.contract import (
    DOMAIN,
    FUSED_ATTENTION,
    MASKED_SOFTMAX,
    PLUGIN_VERSION,
    FusedAttention,
    MaskConfig,
    MaskedSoftmax,
)
from attngraft.lower.attention_body import emit_context
from attngraft.lower.function_body import FunctionBody
from attngraft.lower.probabilities_body import emit_probabilities

__all__ = ["PLUGIN_IDENTITY", "fused_attention_function", "masked_softmax_function"]

PLUGIN_IDENTITY = {"plugin_version": PLUGIN_VERSION, "plugin_namespace": DOMAIN}
"""Attributes by which TensorRT's parser finds the plugin of a node; the bodies have no use for them."""


def masked_softmax_function(
    config: MaskedSoftmax, dtype: int, rank: int | None, opset: int, overload: str = ""
) -> FunctionProto:
    """attngraft::MaskedSoftmax for scores of ONNX element type `dtype`.

    `rank` is the scores' rank, which only kv_lengths and kv_starts need to be known. Raises ContractError without it.
    """
    body = FunctionBody(opset)
    scores = body.add("Cast", "scores", to=TensorProto.FLOAT)
    probabilities = emit_probabilities(body, scores, config, rank)
    body.finish("Cast", probabilities, output="probabilities", to=dtype)
    return _function(MASKED_SOFTMAX, ["scores"], "probabilities", config, body, overload)


def fused_attention_function(config: FusedAttention, dtype: int, opset: int, overload: str = "") -> FunctionProto:
    """attngraft::FusedAttention for tensors of ONNX element type `dtype`, in any layout."""
    body = FunctionBody(opset)
    body.finish("Cast", emit_context(body, config), output="context", to=dtype)
    return _function(FUSED_ATTENTION, config.tensor_names, "context", config, body, overload)


def _function(
    name: str, tensors: Sequence[str], output: str, config: MaskConfig, body: FunctionBody, overload: str
) -> FunctionProto:
    function = onnx.helper.make_function(
        DOMAIN,
        name,
        [*tensors, *config.operands],
        [output],
        body.nodes,
        [onnx.helper.make_opsetid("", body.opset)],
        attributes=[*config.attributes(), *PLUGIN_IDENTITY],
    )
    if overload:
        function.overload = overload
    return function
