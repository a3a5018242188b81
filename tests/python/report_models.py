"""Records and models for the tests of reports."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
from onnx import ModelProto, helper

from attngraft.contract import MaskedSoftmax
from attngraft.match.records import LOWERINGS, ModelSites, Scale, Site
from attngraft.onnx_graph import numpy_dtype, onnx_dtype
from attngraft.report.records import Inspection

HEADS = 4

SITE = Site(
    name="/layer.0/Softmax",
    graph="",
    node="p",
    scores="s",
    probabilities="p",
    config=MaskedSoftmax(scale=0.125),
    masks=(),
    scale=Scale(0.125, ("scores",)),
    bypasses=(),
    guard=False,
    dtype="float16",
    rank=4,
    heads=12,
    head_size=64,
    layout="bshd",
    consumers=("context",),
    is_output=False,
    lowerings=dict.fromkeys(LOWERINGS),
)
"""A site about which everything is known, that can take every lowering."""


def inspection_of(*sites: Site, others: tuple = (), **more: object) -> Inspection:
    """All sites kept, without a reason, unless `choices` and `reasons` say otherwise."""
    fields = {"choices": {site.name: "keep" for site in sites}, "reasons": {}, **more}
    return Inspection("model.onnx", ModelSites(tuple(sites), tuple(others)), **fields)


def layers_of(site: Site, count: int) -> list[Site]:
    """The same site in as many layers."""
    return [replace(site, name=f"/layer.{index}/Softmax") for index in range(count)]


def encoder_model(
    *, layers: int = 2, dtype: str = "float16", head_size: int = 64, named: bool = True, metadata: bool = False
) -> ModelProto:
    """Self-attention layers on `x` [batch, sequence, HEADS * head_size] with an additive `mask`: q, k and v are
    projected, heads are split and merged. Nodes are called "/layer.0/Softmax" and so on, or nothing."""
    width = HEADS * head_size
    rng = np.random.default_rng(0)
    element, array_type = onnx_dtype(dtype), numpy_dtype(onnx_dtype(dtype))
    constants = [
        onnx.numpy_helper.from_array(np.array([0, 0, HEADS, head_size], np.int64), "split"),
        onnx.numpy_helper.from_array(np.array([0, 0, width], np.int64), "merge"),
        onnx.numpy_helper.from_array(np.array(head_size**-0.5, array_type), "scale"),
    ]
    nodes: list[onnx.NodeProto] = []
    for layer in range(layers):
        weights = [f"weight_{layer}_{name}" for name in "qkvo"]
        constants += [
            onnx.numpy_helper.from_array((rng.standard_normal((width, width)) / width).astype(array_type), name)
            for name in weights
        ]
        source = "x" if layer == 0 else f"x{layer}"
        target = "y" if layer == layers - 1 else f"x{layer + 1}"
        nodes += _layer(layer, weights, source, target)
    for node in nodes:
        node.name = node.name if named else ""
        if metadata and node.op_type == "Softmax":
            layer = node.output[0].split(".")[1].strip("/")
            node.metadata_props.add(
                key="pkg.torch.onnx.name_scopes", value=f"['', 'encoder', 'encoder.{layer}.attention', 'softmax']"
            )
    inputs = [
        helper.make_tensor_value_info("x", element, ("batch", "sequence", width)),
        helper.make_tensor_value_info("mask", element, ("batch", 1, 1, "sequence")),
    ]
    outputs = [helper.make_tensor_value_info("y", element, ("batch", "sequence", width))]
    graph = helper.make_graph(nodes, "encoder", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _layer(layer: int, weights: list[str], source: str, target: str) -> list[onnx.NodeProto]:
    prefix = f"/layer.{layer}/"

    def node(operator: str, inputs: list[str], output: str, **attributes: object) -> onnx.NodeProto:
        return helper.make_node(operator, inputs, [output], name=prefix + output.split("#")[0], **attributes)

    nodes = []
    for name, weight, order in zip("qkv", weights, ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)), strict=False):
        nodes += [
            node("MatMul", [source, weight], f"{name}_projected#{prefix}"),
            node("Reshape", [f"{name}_projected#{prefix}", "split"], f"{name}_split#{prefix}"),
            node("Transpose", [f"{name}_split#{prefix}"], f"{name}#{prefix}", perm=order),
        ]
    return [
        *nodes,
        node("MatMul", [f"q#{prefix}", f"k#{prefix}"], f"scores#{prefix}"),
        node("Mul", [f"scores#{prefix}", "scale"], f"scaled#{prefix}"),
        node("Add", [f"scaled#{prefix}", "mask"], f"masked#{prefix}"),
        node("Softmax", [f"masked#{prefix}"], f"Softmax#{prefix}", axis=-1),
        node("MatMul", [f"Softmax#{prefix}", f"v#{prefix}"], f"context#{prefix}"),
        node("Transpose", [f"context#{prefix}"], f"context_rows#{prefix}", perm=(0, 2, 1, 3)),
        node("Reshape", [f"context_rows#{prefix}", "merge"], f"merged#{prefix}"),
        helper.make_node("MatMul", [f"merged#{prefix}", weights[3]], [target], name=f"{prefix}out"),
    ]
