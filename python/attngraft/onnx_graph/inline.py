"""Inlining local functions. In: a model and which of its functions. Out: a model whose weights were not looked at."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import onnx.inliner
from onnx import FunctionProto, ModelProto

from attngraft.onnx_graph.view import without_weights
from attngraft.onnx_graph.walk import copy_fields

__all__ = ["FunctionName", "can_be_inlined", "function_name", "inline_functions"]

FunctionName = tuple[str, str]
"""Domain and name of a local function."""


def function_name(function: FunctionProto) -> FunctionName:
    return function.domain, function.name


def can_be_inlined(model: ModelProto, function: FunctionProto) -> bool:
    """Whether the function and the model import the same versions of the operator sets that both import."""
    versions = _versions(model.opset_import)
    return all(versions.get(domain, version) == version for domain, version in _versions(function.opset_import).items())


def inline_functions(model: ModelProto, names: Collection[FunctionName]) -> ModelProto:
    """A copy in which every call of these functions, by the graph or by another function, is the function's body.

    Nodes and tensors of a body get names of their own at each call. Functions of other operator sets than the model's
    are left as they are: onnx's inliner refuses models that hold one.
    """
    skeleton = without_weights(model)  # the inliner serializes what it is given
    fitting = [function for function in model.functions if can_be_inlined(model, function)]
    others = [function for function in model.functions if not can_be_inlined(model, function)]
    del skeleton.functions[:]
    skeleton.functions.extend(fitting)
    chosen = [function_name(function) for function in fitting if function_name(function) in names]
    inlined = onnx.inliner.inline_selected_functions(skeleton, chosen) if chosen else skeleton
    return _with_weights(model, inlined, others)


def _with_weights(model: ModelProto, inlined: ModelProto, others: Iterable[FunctionProto]) -> ModelProto:
    """The model with the nodes of its inlined skeleton."""
    copy = ModelProto()
    copy_fields(model, copy, frozenset({"graph", "functions", "opset_import"}))
    copy.opset_import.extend(inlined.opset_import)
    copy.functions.extend([*inlined.functions, *others])
    copy_fields(model.graph, copy.graph, frozenset({"node", "value_info"}))
    copy.graph.node.extend(inlined.graph.node)
    copy.graph.value_info.extend(inlined.graph.value_info)
    return copy


def _versions(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    return {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in imports}
