"""The ONNX checker on a model's structure. Weights are left out: they were not changed, and may not be in memory."""

from __future__ import annotations

import onnx
from onnx import ModelProto, TensorProto

from attngraft.onnx_graph.external import SMALL_TENSOR_BYTES, stored_bytes

__all__ = ["structure_fault"]

MAX_REASON = 200
"""Characters of the checker's message that are shown: the reason comes first."""


def structure_fault(model: ModelProto) -> str | None:
    """What the ONNX checker finds wrong with a model, in one line; None if it finds nothing.

    Initializers above 1 KiB and external ones are checked as if they were inputs of the graph: by name, type and shape.
    """
    skeleton = ModelProto()
    for field, value in model.ListFields():
        if field.name in ("opset_import", "functions"):
            getattr(skeleton, field.name).extend(value)
    skeleton.ir_version = model.ir_version
    graph = skeleton.graph
    graph.name = model.graph.name
    graph.node.extend(model.graph.node)
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    graph.sparse_initializer.extend(model.graph.sparse_initializer)
    listed = {value.name for value in model.graph.input}
    for tensor in model.graph.initializer:
        if tensor.data_location != TensorProto.EXTERNAL and stored_bytes(tensor) <= SMALL_TENSOR_BYTES:
            graph.initializer.append(tensor)
        elif tensor.name not in listed:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    try:
        onnx.checker.check_model(skeleton)
    except onnx.checker.ValidationError as error:
        return " ".join(str(error).split())[:MAX_REASON]
    return None
