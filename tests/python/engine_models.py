"""Small models with attngraft operators in them, for the tests of engines and sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper

from attngraft.contract import CONTRACT_VERSION, DOMAIN, MASKED_SOFTMAX, PLUGIN_VERSION, MaskedSoftmax
from attngraft.lower.functions import FunctionTable
from attngraft.onnx_graph import numpy_dtype, onnx_dtype

HIDDEN = 32
"""Weights of this size are large enough to stay in an external file."""
OPSET = 17

Operands = Mapping[str, tuple[str, tuple[int | str, ...]]]
"""Element type and shape of each operand, by role."""


def masked_softmax_node(config: MaskedSoftmax, scores: str, output: str, overload: str = "") -> onnx.NodeProto:
    node = helper.make_node(
        MASKED_SOFTMAX,
        [scores, *config.operands],
        [output],
        name=f"site_{output}",
        domain=DOMAIN,
        plugin_version=PLUGIN_VERSION,
        plugin_namespace=DOMAIN,
        **config.attributes(),
    )
    node.overload = overload
    return node


def softmax_model(
    config: MaskedSoftmax, shape: tuple[int | str, ...], operands: Operands | None = None, *, dtype: str = "float32"
) -> ModelProto:
    """One site: `scores` and the operands in, `probabilities` out."""
    inputs = [_value("scores", dtype, shape), *_operand_values(operands)]
    return _model(config, dtype, len(shape), inputs, [_value("probabilities", dtype, shape)], [], sites=0)


def attention_model(
    config: MaskedSoftmax, operands: Operands | None = None, *, dtype: str = "float32", sites: int = 2, seed: int = 0
) -> ModelProto:
    """Layers of x = softmax(x W x^T) x on `x` [batch, seq, HIDDEN]; the result is `y`."""
    inputs = [_value("x", dtype, ("batch", "seq", HIDDEN)), *_operand_values(operands)]
    rng = np.random.default_rng(seed)
    weights = [
        onnx.numpy_helper.from_array(
            (rng.standard_normal((HIDDEN, HIDDEN)) / HIDDEN).astype(numpy_dtype(onnx_dtype(dtype))), f"weight_{index}"
        )
        for index in range(sites)
    ]
    return _model(config, dtype, 3, inputs, [_value("y", dtype, ("batch", "seq", HIDDEN))], weights, sites=sites)


def many_sites_model(
    configs: Sequence[MaskedSoftmax], shape: tuple[int | str, ...], operands: Operands, *, dtype: str = "float32"
) -> ModelProto:
    """Sites side by side on one `scores`; site i gives `p_i`, operands are shared by role. No portable functions."""
    inputs = [_value("scores", dtype, shape), *_operand_values(operands)]
    outputs = [_value(f"p_{index}", dtype, shape) for index in range(len(configs))]
    nodes = [masked_softmax_node(config, "scores", f"p_{index}") for index, config in enumerate(configs)]
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, CONTRACT_VERSION)]
    return helper.make_model(helper.make_graph(nodes, "graph", inputs, outputs), opset_imports=opsets, ir_version=8)


def _value(name: str, dtype: str, shape: tuple[int | str, ...]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx_dtype(dtype), shape)


def _operand_values(operands: Operands | None) -> list[onnx.ValueInfoProto]:
    return [_value(role, dtype, shape) for role, (dtype, shape) in (operands or {}).items()]


def _model(
    config: MaskedSoftmax,
    dtype: str,
    rank: int,
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    weights: list[TensorProto],
    *,
    sites: int,
) -> ModelProto:
    graph = helper.make_graph([], "graph", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    table = FunctionTable(model)
    overload = table.overload(config, onnx_dtype(dtype), rank)
    if sites == 0:
        model.graph.node.append(masked_softmax_node(config, "scores", "probabilities", overload))
    for index in range(sites):
        model.graph.node.extend(_layer(config, index, sites, overload))
    table.add_to(model)
    onnx.checker.check_model(model)
    return model


def _layer(config: MaskedSoftmax, index: int, sites: int, overload: str) -> list[onnx.NodeProto]:
    source = "x" if index == 0 else f"x_{index}"
    target = "y" if index == sites - 1 else f"x_{index + 1}"
    return [
        helper.make_node("MatMul", [source, f"weight_{index}"], [f"q_{index}"], name=f"query_{index}"),
        helper.make_node("Transpose", [source], [f"k_{index}"], perm=[0, 2, 1], name=f"key_{index}"),
        helper.make_node("MatMul", [f"q_{index}", f"k_{index}"], [f"s_{index}"], name=f"scores_{index}"),
        masked_softmax_node(config, f"s_{index}", f"p_{index}", overload),
        helper.make_node("MatMul", [f"p_{index}", source], [target], name=f"context_{index}"),
    ]
