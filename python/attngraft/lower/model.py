"""Applies chosen lowerings to a whole model."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import ModelProto

from attngraft.contract import DOMAIN
from attngraft.errors import RewriteError
from attngraft.lower.functions import FunctionTable
from attngraft.lower.softmax import SoftmaxLowering
from attngraft.lower.surgery import Surgery
from attngraft.match.records import LOWERINGS, ModelSites, Site
from attngraft.onnx_graph import onnx_dtype, walk_graphs

__all__ = ["lower_model"]


def lower_model(model: ModelProto, sites: ModelSites, choices: Mapping[str, str]) -> ModelProto:
    """A new model with each site of `choices` (site name -> lowering) lowered; sites not named are kept.

    `sites` must be what match_model found in this very model. The given model is not changed. Raises RewriteError for
    an unknown site or lowering, and for a lowering that the site cannot take.
    """
    chosen = _sites_to_lower(sites, choices)
    surgery = Surgery(model)
    lowering = SoftmaxLowering(surgery, _names(model))
    functions = FunctionTable(model)
    overloads = {}
    for site in chosen:
        output = lowering.apply(site)
        overloads[site.graph, output] = functions.overload(site.config, onnx_dtype(site.dtype), site.rank)
    lowered = surgery.to_proto()
    functions.add_to(lowered)
    # graphsurgeon's nodes have no overload; it is set on the protos.
    for path, graph in walk_graphs(lowered.graph):
        for node in graph.node:
            if node.domain == DOMAIN and overloads.get((path, node.output[0])):
                node.overload = overloads[path, node.output[0]]
    return lowered


def _sites_to_lower(sites: ModelSites, choices: Mapping[str, str]) -> list[Site]:
    by_name = {site.name: site for site in sites.sites}
    for name, lowering in choices.items():
        if name not in by_name:
            raise RewriteError(f"site {name!r} is not in the model; `attngraft inspect` lists its sites")
        if lowering not in LOWERINGS:
            raise RewriteError(f"site {name!r}: lowering {lowering!r} is unknown; choose one of {', '.join(LOWERINGS)}")
        reason = by_name[name].lowerings[lowering]
        if reason is not None:
            raise RewriteError(f"site {name!r} cannot take lowering {lowering!r}: {reason}; keep it or choose another")
    return [site for site in sites.sites if choices.get(site.name, "keep") == "softmax"]


def _names(model: ModelProto) -> set[str]:
    """Every name of a tensor or node, so that new ones collide with none."""
    names: set[str] = set()
    for _, graph in walk_graphs(model.graph):
        names.update(value.name for value in (*graph.input, *graph.output, *graph.initializer))
        for node in graph.node:
            names.update((node.name, *node.output))
    return names
