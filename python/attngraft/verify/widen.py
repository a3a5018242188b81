"""bfloat16 models as float32: ONNX Runtime's CPU kernels know no bfloat16, so both models are compared one type wider.

Every bfloat16 value is a float32 value, so nothing is lost but the rounding between operators, which both models lose
alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from attngraft.errors import VerificationError
from attngraft.onnx_graph import external_files, walk_graphs, walk_tensors

__all__ = ["uses_bfloat16", "widened"]

MAX_BYTES = 2**31 - 1
"""Protobuf's limit: a widened model is held in memory."""


def uses_bfloat16(model: ModelProto) -> bool:
    """Whether a stored tensor, an input, an output or a Cast of the model is bfloat16."""
    if any(tensor.data_type == TensorProto.BFLOAT16 for tensor in walk_tensors(model)):
        return True
    for _, graph in walk_graphs(model.graph):
        if any(_elem_type(value) == TensorProto.BFLOAT16 for value in (*graph.input, *graph.output)):
            return True
        if any(_casts_to_bfloat16(attribute) for node in graph.node for attribute in node.attribute):
            return True
    return False


def widened(model: ModelProto, folder: Path | None) -> ModelProto:
    """A copy with every bfloat16 made float32. `folder` holds the external data. Raises VerificationError above 2
    GB."""
    copy = ModelProto()
    copy.CopyFrom(model)
    if external_files(copy):
        if folder is None:
            raise VerificationError("a bfloat16 model with external data is verified from its file; give its path")
        onnx.external_data_helper.load_external_data_for_model(copy, str(folder))
    for tensor in walk_tensors(copy):
        if tensor.data_type == TensorProto.BFLOAT16:
            values = onnx.numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    for _, graph in walk_graphs(copy.graph):
        _widen_values(graph)
        _widen_casts(graph.node)
    for function in copy.functions:
        _widen_casts(function.node)
    if copy.ByteSize() > MAX_BYTES:
        raise VerificationError("the bfloat16 model exceeds 2 GB as float32, so it cannot be verified; use --no-verify")
    return copy


def _widen_values(graph: GraphProto) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        if _elem_type(value) == TensorProto.BFLOAT16:
            value.type.tensor_type.elem_type = TensorProto.FLOAT


def _widen_casts(nodes: Iterable[NodeProto]) -> None:
    for node in nodes:
        for attribute in node.attribute:
            if _casts_to_bfloat16(attribute):
                attribute.i = TensorProto.FLOAT


def _casts_to_bfloat16(attribute: AttributeProto) -> bool:
    """`to` of Cast, `dtype` of the operators that make tensors."""
    return attribute.name in ("to", "dtype") and attribute.i == TensorProto.BFLOAT16


def _elem_type(value: ValueInfoProto) -> int:
    return value.type.tensor_type.elem_type
