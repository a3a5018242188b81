"""Every softmax of a model, one record each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, ValueInfoProto

from attngraft.contract import DOMAIN, FUSED_ATTENTION, MASKED_SOFTMAX
from attngraft.match.fused import is_fused_attention, match_fused
from attngraft.match.normaliser import find_normaliser
from attngraft.match.operators import is_standard
from attngraft.match.records import ModelSites, OtherSoftmax, Site
from attngraft.match.softmax import match_softmax
from attngraft.onnx_graph import GraphView, default_opset, node_label
from attngraft.onnx_graph.inline import can_be_inlined
from attngraft.onnx_graph.view import infer_types, walk_views

__all__ = ["function_path", "match_model"]

IN_FUNCTION = "it is inside a local function; inline it first with onnx.inliner.inline_local_functions"
IN_OTHER_OPSET = "it is inside a local function of another opset than the model's, which cannot be inlined as it is"


def match_model(model: ModelProto) -> ModelSites:
    """Finds the attention softmaxes of a model, subgraphs of If, Loop and Scan included. The model is not changed."""
    opset = default_opset(model)
    found: list[Site | OtherSoftmax] = []
    inferred = infer_types(model)
    for path, view in walk_views(model.graph, inferred.graph):
        found += [record for node in view.graph.node if (record := _match_node(view, node, path, opset)) is not None]
    found += _in_functions(model)
    found = _with_unique_names(found)
    return ModelSites(
        sites=tuple(record for record in found if isinstance(record, Site)),
        others=tuple(record for record in found if isinstance(record, OtherSoftmax)),
    )


def function_path(function: FunctionProto) -> str:
    """What Site.graph is for the body of a local function."""
    return f"function {function.domain}::{function.name}"


def _match_node(view: GraphView, node: NodeProto, path: str, opset: int) -> Site | OtherSoftmax | None:
    if node.domain == DOMAIN and node.op_type in (MASKED_SOFTMAX, FUSED_ATTENTION):
        return OtherSoftmax(node_label(node), path, f"it is {DOMAIN}::{node.op_type} already")
    if is_fused_attention(node):
        return match_fused(view, node, path)
    normaliser = find_normaliser(view, node, opset)
    if normaliser is not None:
        return match_softmax(view, normaliser, path)
    if is_standard(node, "LogSoftmax"):
        return OtherSoftmax(node_label(node), path, "LogSoftmax gives logarithms, not probabilities")
    return None


def _in_functions(model: ModelProto) -> Iterator[Site | OtherSoftmax]:
    """What local functions hold, once for each function: in which types and how often, only its calls tell."""
    for function in model.functions:
        if function.domain == DOMAIN:
            continue
        reason = IN_FUNCTION if can_be_inlined(model, function) else IN_OTHER_OPSET
        graph = GraphProto(
            name=function.name,
            node=function.node,
            input=[ValueInfoProto(name=name) for name in function.input],
            output=[ValueInfoProto(name=name) for name in function.output],
        )
        path = function_path(function)
        for place, view in walk_views(graph, graph, path=path):
            for node in view.graph.node:
                record = _match_node(view, node, place, default_opset(function))
                if record is not None:
                    yield _in_function(record, reason)


def _in_function(record: Site | OtherSoftmax, reason: str) -> Site | OtherSoftmax:
    """A site of a function is shown and kept: to lower it, its calls must be inlined."""
    if isinstance(record, OtherSoftmax):
        return record
    lowerings = dict.fromkeys(record.lowerings, reason) | {"keep": None}
    return replace(record, config=None, whole=None, attention=None, key_mask=None, projection=None, lowerings=lowerings)


def _with_unique_names(found: list[Site | OtherSoftmax]) -> list[Site | OtherSoftmax]:
    """Node names repeat in some exports, and between a graph and its subgraphs: the second "x" becomes "x#2"."""
    taken: Counter[str] = Counter()
    unique = []
    for record in found:
        name = f"{record.graph}/{record.name}" if record.graph else record.name
        taken[name] += 1
        unique.append(replace(record, name=name if taken[name] == 1 else f"{name}#{taken[name]}"))
    return unique
