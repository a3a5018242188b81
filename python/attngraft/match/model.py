"""Every softmax of a model, one record each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from onnx import GraphProto, ModelProto, NodeProto

from attngraft.contract import DOMAIN, MASKED_SOFTMAX
from attngraft.match.fused import FUSED_OPERATORS, match_fused
from attngraft.match.records import ModelSites, OtherSoftmax, Site
from attngraft.match.softmax import match_softmax
from attngraft.onnx_graph import GraphView, default_opset, graph_attributes, node_label
from attngraft.onnx_graph.view import infer_types

__all__ = ["match_model"]

SOFTMAX_OPERATORS = frozenset({"Softmax", "LogSoftmax"})


def match_model(model: ModelProto) -> ModelSites:
    """Finds the attention softmaxes of a model, subgraphs of If, Loop and Scan included. The model is not changed."""
    opset = default_opset(model)
    found: list[Site | OtherSoftmax] = []
    inferred = infer_types(model)
    for path, view in _views(model.graph, inferred.graph, None, ""):
        found += [record for node in view.graph.node if (record := _match_node(view, node, path, opset)) is not None]
    found += _in_functions(model)
    found = _with_unique_names(found)
    return ModelSites(
        sites=tuple(record for record in found if isinstance(record, Site)),
        others=tuple(record for record in found if isinstance(record, OtherSoftmax)),
    )


def _views(
    graph: GraphProto, inferred: GraphProto, outer: GraphView | None, path: str
) -> Iterator[tuple[str, GraphView]]:
    view = GraphView(graph, inferred, outer)
    yield path, view
    for node, typed in zip(graph.node, inferred.node, strict=True):
        for (name, inner), (_, typed_inner) in zip(graph_attributes(node), graph_attributes(typed), strict=True):
            yield from _views(inner, typed_inner, view, f"{path}/{node_label(node)}/{name}".lstrip("/"))


def _match_node(view: GraphView, node: NodeProto, path: str, opset: int) -> Site | OtherSoftmax | None:
    if node.domain == DOMAIN and node.op_type == MASKED_SOFTMAX:
        return OtherSoftmax(node_label(node), path, f"it is {DOMAIN}::{MASKED_SOFTMAX} already")
    if node.op_type in FUSED_OPERATORS and node.domain in ("", "ai.onnx", "com.microsoft"):
        return match_fused(view, node, path)
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "Softmax":
        return match_softmax(view, node, path, opset)
    if node.op_type == "LogSoftmax":
        return OtherSoftmax(node_label(node), path, "LogSoftmax gives logarithms, not probabilities")
    return None


def _in_functions(model: ModelProto) -> list[OtherSoftmax]:
    """Softmaxes inside local functions: which call they belong to, and with which types, only inlining tells."""
    return [
        OtherSoftmax(
            node_label(node),
            f"function {function.domain}::{function.name}",
            "it is inside a local function; inline it first with onnx.inliner.inline_local_functions",
        )
        for function in model.functions
        if function.domain != DOMAIN
        for node in function.node
        if node.op_type in SOFTMAX_OPERATORS and node.domain in ("", "ai.onnx")
    ]


def _with_unique_names(found: list[Site | OtherSoftmax]) -> list[Site | OtherSoftmax]:
    """Node names repeat in some exports, and between a graph and its subgraphs: the second "x" becomes "x#2"."""
    taken: Counter[str] = Counter()
    unique = []
    for record in found:
        name = f"{record.graph}/{record.name}" if record.graph else record.name
        taken[name] += 1
        unique.append(replace(record, name=name if taken[name] == 1 else f"{name}#{taken[name]}"))
    return unique
