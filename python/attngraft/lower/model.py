"""Applies chosen lowerings to a whole model."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import ModelProto

from attngraft.errors import RewriteError
from attngraft.lower.attention import AttentionLowering
from attngraft.lower.context_types import ContextTypes
from attngraft.lower.functions import FunctionTable
from attngraft.lower.names import rename_tensors
from attngraft.lower.narrow import narrow_from
from attngraft.lower.native import NativeLowering
from attngraft.lower.softmax import SoftmaxLowering
from attngraft.lower.surgery import Surgery
from attngraft.lower.target import Target
from attngraft.lower.tensor_types import TensorTypes
from attngraft.match.records import LOWERINGS, ModelSites, Site
from attngraft.onnx_graph import default_opset, onnx_dtype, walk_graphs

__all__ = ["lower_model"]


def lower_model(
    model: ModelProto, sites: ModelSites, choices: Mapping[str, str], target: Target | None = None
) -> ModelProto:
    """A new model with each site of `choices` (site name -> lowering) lowered; sites not named are kept.

    `sites` must be what match_model found in this very model; `target` is the TensorRT aimed at, None for any. The
    given model is not changed. Raises RewriteError for an unknown site or lowering, and for a lowering that the site
    cannot take.
    """
    chosen = _in_node_order(model, _sites_to_lower(sites, choices), choices)
    surgery = Surgery(model)
    types, opset = TensorTypes(model), default_opset(model)
    softmax = SoftmaxLowering(surgery, types, opset)
    contexts = ContextTypes()
    native = NativeLowering(surgery, types, opset, target, contexts)
    attention = AttentionLowering(surgery, types, opset, contexts)
    functions = FunctionTable(model)
    for site in chosen:
        if choices[site.name] == "native":
            native.apply(site)
        elif choices[site.name] == "attention":
            attention.apply(site, functions.overload(site.attention.config, onnx_dtype(site.whole.dtype)))
        else:
            softmax.apply(site, functions.overload(site.config, onnx_dtype(site.dtype), site.rank))
    lowered = surgery.to_proto()
    functions.add_to(lowered)
    for dtype, widened in contexts.widened.items():
        narrow_from(lowered, widened, dtype)
    rename_tensors(lowered.graph, native.unguarded)
    return lowered


def _in_node_order(model: ModelProto, chosen: list[Site], choices: Mapping[str, str]) -> list[Site]:
    """The sites in the order of the nodes behind which they end, so that what one makes is there for the next."""
    places = {
        (path, output): place
        for path, graph in walk_graphs(model.graph)
        for place, node in enumerate(graph.node)
        for output in node.output
    }
    return sorted(chosen, key=lambda site: places[site.graph, _end(site, choices[site.name])])


def _end(site: Site, lowering: str) -> str:
    """The tensor in front of whose node a lowering puts its own."""
    if lowering == "attention" and site.attention is not None:
        return site.attention.context
    return site.whole.context if site.whole is not None else site.probabilities


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
    return [site for site in sites.sites if choices.get(site.name, "keep") != "keep"]
