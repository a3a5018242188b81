"""Attention inside local functions, which are inlined: only a call tells the types, and each call is a site.

In: a model. Out: the model with the functions inlined that hold attention, and one record for each of these.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onnx import ModelProto, NodeProto

from attngraft.contract import DOMAIN
from attngraft.match.model import function_path, match_model
from attngraft.match.records import Site
from attngraft.onnx_graph import graph_attributes, without_weights
from attngraft.onnx_graph.inline import FunctionName, can_be_inlined, function_name, inline_functions

__all__ = ["InlinedFunction", "inline_attention"]

CALLS = "it calls a function that holds attention"
SPREAD = "the model has attention that lies across functions"


@dataclass(frozen=True)
class InlinedFunction:
    """One function whose calls were replaced by its body, and why."""

    domain: str
    name: str
    reason: str


def inline_attention(model: ModelProto) -> tuple[ModelProto, tuple[InlinedFunction, ...]]:
    """The model with those local functions inlined that hold attention sites, and those that call such functions; all
    of them, if sites lie across functions. The very same object and () if there is nothing to inline. attngraft's own
    functions stay, and the given model is not changed."""
    names = {function_name(f) for f in model.functions if f.domain != DOMAIN and can_be_inlined(model, f)}
    if not names:
        return model, ()
    skeleton = without_weights(model)
    reachable = _sites_of_graph(inline_functions(skeleton, names))
    found = match_model(skeleton).sites
    if reachable <= len([site for site in found if not _is_in_function(site)]):
        return model, ()
    reasons = {name: reason for name, reason in _reasons(model, found).items() if name in names}
    if _sites_of_graph(inline_functions(skeleton, reasons)) < reachable:
        reasons = {name: reasons.get(name, SPREAD) for name in sorted(names)}
    return inline_functions(model, reasons), tuple(InlinedFunction(*name, why) for name, why in reasons.items())


def _sites_of_graph(model: ModelProto) -> int:
    return sum(not _is_in_function(site) for site in match_model(model).sites)


def _is_in_function(site: Site) -> bool:
    return site.graph.startswith("function ")


def _reasons(model: ModelProto, found: Iterable[Site]) -> dict[FunctionName, str]:
    """Why functions are to be inlined: their own sites, or what they call."""
    reasons: dict[FunctionName, str] = {}
    for function in model.functions:
        path = function_path(function)
        count = sum(site.graph == path or site.graph.startswith(f"{path}/") for site in found)
        if count:
            reasons[function_name(function)] = f"it holds {count} attention site{'s' if count > 1 else ''}"
    calls = {function_name(function): set(_called(function.node)) for function in model.functions}
    while callers := [name for name in calls if name not in reasons and calls[name] & reasons.keys()]:
        reasons.update(dict.fromkeys(callers, CALLS))
    return reasons


def _called(nodes: Iterable[NodeProto]) -> Iterable[FunctionName]:
    """The operators of nodes and of their subgraphs, by domain and name."""
    for node in nodes:
        yield node.domain, node.op_type
        for _, inner in graph_attributes(node):
            yield from _called(inner.node)
