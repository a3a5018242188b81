"""What a repair leaves behind: nodes and stored tensors that nothing reads any more, and that TensorRT parses."""

from __future__ import annotations

from collections import Counter
from collections.abc import MutableSequence, Sequence

from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto

from attngraft.onnx_graph import graph_attributes
from attngraft.onnx_graph.view import names_read

__all__ = ["remove_leftovers", "replace_nodes"]


def remove_leftovers(graph: GraphProto, loose: set[str]) -> None:
    """Removes from a graph and those inside it, in place, what makes or stores `loose` tensors that nothing reads, and
    what fed only that. What else nothing reads is the model's own affair. Nodes with subgraphs stay.

    loose   the tensors that may have lost a reader; grows by what the removed nodes read.
    """
    for node in graph.node:  # first, since they read tensors of this graph
        for _, inner in graph_attributes(node):
            remove_leftovers(inner, loose)
    uses = Counter(name for node in graph.node for name in names_read(node))
    uses.update(value.name for value in graph.output)
    kept: list[NodeProto] = []
    for node in reversed(graph.node):
        if any(uses[name] for name in node.output) or loose.isdisjoint(node.output) or any(graph_attributes(node)):
            kept.append(node)
            continue
        uses.subtract(names_read(node))
        loose.update(name for name in (*node.input, *node.output) if name)
    if len(kept) < len(graph.node):
        replace_nodes(graph, kept[::-1])
    given = {value.name for value in graph.input}
    gone = {name for name in loose if not uses[name]} - given - {name for node in kept for name in node.output}
    for tensors in (graph.initializer, graph.value_info):
        _remove(tensors, gone)


def replace_nodes(graph: GraphProto, nodes: Sequence[NodeProto]) -> None:
    """Makes `nodes`, which may be the graph's own or inside them, the nodes of a graph."""
    copies = GraphProto()
    copies.node.extend(nodes)
    del graph.node[:]
    graph.node.extend(copies.node)


def _remove(tensors: MutableSequence[TensorProto] | MutableSequence[ValueInfoProto], names: set[str]) -> None:
    for place in reversed(range(len(tensors))):
        if tensors[place].name in names:
            del tensors[place]
