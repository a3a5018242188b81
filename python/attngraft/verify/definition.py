"""The standard Attention operator as ONNX defines it, in place of a runtime's own kernel.

ONNX Runtime 1.32's kernel gives zeros in a row whose keys all have the type's lowest value added, where ONNX's
definition gives the mean of the values. Other runtimes follow the one or the other.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx
from onnx import FunctionProto, ModelProto, NodeProto, TypeProto

from attngraft.onnx_graph import default_opset, walk_graphs
from attngraft.onnx_graph.view import infer_types

__all__ = ["by_definition", "has_attention"]

DOMAIN = "attngraft.definition"
"""Of the local functions that stand for Attention nodes."""

FIRST_OPSET = 23
"""Brought Attention."""

MIN_IR_VERSION = 8
"""The first with local functions."""


def has_attention(model: ModelProto) -> bool:
    """Whether a graph of the model has an Attention node of the standard operator set, of a version that the installed
    onnx defines."""
    if not onnx.defs.has("Attention") or default_opset(model) < FIRST_OPSET:
        return False
    return any(_is_attention(node) for _, graph in walk_graphs(model.graph) for node in graph.node)


def by_definition(model: ModelProto) -> ModelProto:
    """A copy in which ONNX's own definitions stand for Attention nodes; those of unknown types stay. External data is
    referred to as before."""
    inferred = infer_types(model)
    copy = ModelProto()
    copy.CopyFrom(model)
    schema = onnx.defs.get_schema("Attention", default_opset(model))
    types: dict[str, TypeProto] = {}  # outer graphs come first, and their tensors are known in inner ones
    for (_, graph), (_, typed) in zip(walk_graphs(copy.graph), walk_graphs(inferred.graph), strict=True):
        types |= {value.name: value.type for value in (*typed.value_info, *typed.input, *typed.output)}
        types |= {tensor.name: _type_of(tensor) for tensor in graph.initializer}
        for node in filter(_is_attention, graph.node):
            if all(name in types for name in node.input if name):
                _call(copy, node, _definition(schema, node, [types.get(name) for name in node.input]))
    if any(function.domain == DOMAIN for function in copy.functions):
        copy.opset_import.add(domain=DOMAIN, version=1)
        copy.ir_version = max(copy.ir_version, MIN_IR_VERSION)
    return copy


def _is_attention(node: NodeProto) -> bool:
    return node.op_type == "Attention" and node.domain in ("", "ai.onnx")


def _type_of(tensor: onnx.TensorProto) -> TypeProto:
    return onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)


def _definition(schema: onnx.defs.OpSchema, node: NodeProto, types: Iterable[TypeProto | None]) -> FunctionProto:
    """The function that ONNX builds for a node of these input types, cut to the inputs and outputs that it has."""
    serialized = [b"" if kind is None else kind.SerializeToString() for kind in types]
    function = FunctionProto.FromString(schema.get_context_dependent_function(node.SerializeToString(), serialized))
    del function.input[len(node.input) :]
    del function.output[len(node.output) :]
    del function.attribute[:]  # their values are in the body already
    return function


def _call(model: ModelProto, node: NodeProto, function: FunctionProto) -> None:
    """Makes the node a call of the function."""
    function.domain, function.name = DOMAIN, f"Attention{len(model.functions)}"
    model.functions.append(function)
    node.domain, node.op_type = DOMAIN, function.name
    del node.attribute[:]
