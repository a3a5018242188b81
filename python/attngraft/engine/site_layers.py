"""Which layers do the work of which attention site. In: a model, and names of ONNX nodes. Out: each site's nodes.

An engine's layers name the ONNX nodes that they hold. A site's nodes are those between its operands and its result, as
TensorRT's parser calls them; where a site has been lowered since, the lowered node is named after the site.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onnx import GraphProto, ModelProto, NodeProto

from attngraft.contract import DOMAIN
from attngraft.engine.fusion import UNNAMED_NODE_PREFIX
from attngraft.engine.layers import EngineLayer
from attngraft.match import match_model
from attngraft.match.records import Site
from attngraft.onnx_graph import walk_graphs

__all__ = ["SiteNodes", "is_plugin", "site_nodes", "site_of_layer"]

PLUGIN_KINDS = ("plugin", "custom_layer")
"""How TensorRT's LayerType of a plugin begins: "PluginV3" of its own, "custom_layer" inside a graph of Myelin's."""


@dataclass(frozen=True)
class SiteNodes:
    """One site: its name, the node that normalises (or the attngraft node), and all nodes that belong to it."""

    name: str
    softmax: str
    nodes: frozenset[str]

    def holds(self, layer: EngineLayer) -> bool:
        """Whether the layer works for this site: it has the softmax or what that was lowered to, or nothing but nodes
        of the site."""
        own = f"{self.name}/"
        if any(node in (self.softmax, self.name) or node.startswith(own) for node in layer.nodes):
            return True
        return bool(layer.nodes) and self.nodes.issuperset(layer.nodes)


def is_plugin(layer: EngineLayer) -> bool:
    """Whether the layer is a plugin, as far as its kind tells."""
    return layer.kind.lower().startswith(PLUGIN_KINDS)


def site_of_layer(layer: EngineLayer, sites: Iterable[SiteNodes]) -> SiteNodes | None:
    """The site that the layer works for."""
    return next((site for site in sites if site.holds(layer)), None)


def site_nodes(model: ModelProto) -> tuple[SiteNodes, ...]:
    """The attention sites of a model, attngraft's own nodes in it included, in the order of its nodes."""
    graphs = dict(walk_graphs(model.graph))
    found = {(site.graph, site.node): _nodes_of(graphs[site.graph], site) for site in match_model(model).sites}
    for path, graph in graphs.items():
        for node in graph.node:
            if node.domain == DOMAIN:
                name = _parser_name(node)
                found[path, node.output[0]] = SiteNodes(name, name, frozenset({name}))
    places = [(path, output) for path, graph in graphs.items() for node in graph.node for output in node.output]
    return tuple(found[place] for place in places if place in found)


def _nodes_of(graph: GraphProto, site: Site) -> SiteNodes:
    makers = {output: node for node in graph.node for output in node.output if output}
    between = _between(graph, makers, *_ends(site))
    softmax = makers.get(site.node)
    name = _parser_name(softmax) if softmax is not None else site.name
    return SiteNodes(site.name, name, frozenset({name, *map(_parser_name, between)}))


def _ends(site: Site) -> tuple[set[str], str]:
    """The tensors that the site computes with, and the one that it makes."""
    if site.whole is not None:
        return {site.whole.query, site.whole.key, site.whole.values}, site.whole.context
    return {site.scores}, site.probabilities


def _between(graph: GraphProto, makers: Mapping[str, NodeProto], operands: set[str], result: str) -> list[NodeProto]:
    """The nodes on a way from an operand to the result: what only feeds a mask is on none."""
    needed: set[str] = set()
    pending = [result]
    while pending:
        tensor = pending.pop()
        if tensor in needed or tensor in operands or tensor not in makers:
            continue
        needed.update(makers[tensor].output)
        pending += makers[tensor].input
    reached, nodes = set(operands), []
    for node in graph.node:  # which are in an order in which they can be computed
        if needed.intersection(node.output) and reached.intersection(node.input):
            reached.update(node.output)
            nodes.append(node)
    return nodes


def _parser_name(node: NodeProto) -> str:
    return node.name or UNNAMED_NODE_PREFIX + node.output[0]
