"""Models of half types as float32 models: what they compute without the roundings between operators.

Every float16 and bfloat16 value is a float32 value, so nothing but those roundings is lost. The float32 model is the
reference for float16, and stands in for bfloat16, of which ONNX Runtime has no kernels on the CPU. Mixed types, which
keep some float16 exports from loading (LayerNormalization of a float32 input with a float16 scale), are gone in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from attngraft.errors import VerificationError
from attngraft.onnx_graph import HALF_TYPES, external_files, graph_attributes, walk_graphs, walk_tensors
from attngraft.onnx_graph.external import stored_bytes

__all__ = ["narrowest_type", "widened"]

MAX_BYTES = 2**31 - 1
"""Protobuf's limit: a widened model is held in memory."""

TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype", "softmax_precision", "stash_type"})
"""`to` of Cast, those of operators that make tensors or say in which type they compute."""


def narrowest_type(model: ModelProto) -> int:
    """BFLOAT16 if a stored tensor, an input, an output or a Cast of the model is bfloat16, else FLOAT16 if one is
    float16, else FLOAT."""
    found = {tensor.data_type for tensor in walk_tensors(model)}
    for graph in _all_graphs(model):
        found.update(_elem_type(value) for value in (*graph.input, *graph.output))
        found.update(attribute.i for attribute in _type_attributes(graph.node))
    for function in model.functions:
        found.update(attribute.i for attribute in _type_attributes(function.node))
    return next((dtype for dtype in (TensorProto.BFLOAT16, TensorProto.FLOAT16) if dtype in found), TensorProto.FLOAT)


def widened(model: ModelProto, folder: Path | None) -> ModelProto:
    """A copy with everything that is bfloat16 or float16 made float32. `folder` holds the external data. Raises
    VerificationError above 2 GB."""
    size = sum(stored_bytes(tensor) * (2 if tensor.data_type in HALF_TYPES else 1) for tensor in walk_tensors(model))
    if size > MAX_BYTES:
        raise VerificationError("the model exceeds 2 GB in float32, so it is not compared with its float32 form")
    copy = ModelProto()
    copy.CopyFrom(model)
    if external_files(copy):
        if folder is None:
            raise VerificationError("a half-type model with external data is verified from its file; give its path")
        onnx.external_data_helper.load_external_data_for_model(copy, str(folder))
    for tensor in walk_tensors(copy):
        if tensor.data_type in HALF_TYPES:
            values = onnx.numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    for graph in _all_graphs(copy):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if _elem_type(value) in HALF_TYPES:
                value.type.tensor_type.elem_type = TensorProto.FLOAT
        _widen_types(graph.node)
    for function in copy.functions:
        _widen_types(function.node)
    return copy


def _all_graphs(model: ModelProto) -> Iterator[GraphProto]:
    """The graphs of a model, those inside local functions included."""
    yield from (graph for _, graph in walk_graphs(model.graph))
    for function in model.functions:
        for node in function.node:
            for _, inner in graph_attributes(node):
                yield from (graph for _, graph in walk_graphs(inner))


def _widen_types(nodes: Iterable[NodeProto]) -> None:
    for attribute in _type_attributes(nodes):
        if attribute.i in HALF_TYPES:
            attribute.i = TensorProto.FLOAT


def _type_attributes(nodes: Iterable[NodeProto]) -> Iterator[AttributeProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name in TYPE_ATTRIBUTES and attribute.type == AttributeProto.INT:
                yield attribute


def _elem_type(value: ValueInfoProto) -> int:
    return value.type.tensor_type.elem_type
