"""What stands beside the attention and keeps a model from being parsed or built, mended.

In: a model and the target. Out: the model, a copy if anything had to be mended, and one record for each repair. The
repairs themselves are in mends.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from onnx import GraphProto, ModelProto, NodeProto

from attngraft.lower.graph_facts import GraphFacts
from attngraft.lower.mends import FOR_ANY_RUNTIME, FOR_TENSORRT, Mend, Mended, Repair
from attngraft.lower.target import Target
from attngraft.onnx_graph import graph_attributes, walk_graphs
from attngraft.onnx_graph.view import names_read

__all__ = ["Repair", "repair_model"]

Mends = Mapping[Mend, "frozenset[str]"]


def repair_model(model: ModelProto, target: Target | None) -> tuple[ModelProto, tuple[Repair, ...]]:
    """The model with its obstacles mended; the very same object and () if there are none. The given model is not
    changed. `target` is the TensorRT aimed at, None for any ONNX runtime: then only what breaks ONNX's own rules is
    mended."""
    mends = FOR_ANY_RUNTIME if target is None else FOR_TENSORRT
    facts = GraphFacts(model)
    nodes = (node for _, graph in walk_graphs(model.graph) for node in graph.node)
    if not any(_mended(node, facts, mends) for node in nodes):  # a model without obstacles is not copied
        return model, ()
    repaired = ModelProto()
    repaired.CopyFrom(model)
    repairs = [repair for _, graph in walk_graphs(repaired.graph) for repair in _mend_graph(graph, facts, mends)]
    return repaired, tuple(repairs)


def _mended(node: NodeProto, facts: GraphFacts, mends: Mends) -> Mended | None:
    """The first repair that applies: the node and what belongs to it, in order. `node` itself is not changed."""
    for mend, operators in mends.items():
        if node.op_type not in operators:
            continue
        copy = NodeProto()
        copy.CopyFrom(node)
        mended = mend(copy, facts)
        if mended is not None:
            new, repair = mended
            replaced = set(node.output) & {output for made in new for output in made.output}
            return (new if replaced else [*new, copy]), repair
    return None


def _mend_graph(graph: GraphProto, facts: GraphFacts, mends: Mends) -> list[Repair]:
    """Mends one graph in place, not those inside its nodes."""
    kept: list[NodeProto] = []
    loose: set[str] = set()  # what mended nodes read and may have been the last to read
    repairs = []
    for node in graph.node:
        mended = _mended(node, facts, mends)
        kept += [node] if mended is None else mended[0]
        if mended is not None:
            repairs.append(mended[1])
            loose.update(node.input)
    if repairs:
        copies = GraphProto()
        copies.node.extend(_without_leftovers(kept, graph, loose))
        del graph.node[:]
        graph.node.extend(copies.node)
    return repairs


def _without_leftovers(nodes: list[NodeProto], graph: GraphProto, loose: set[str]) -> list[NodeProto]:
    """The nodes but for those that make `loose` tensors which nothing reads any more, and what fed only those:
    TensorRT parses them all the same."""
    uses = Counter(name for node in nodes for name in names_read(node))
    uses.update(value.name for value in graph.output)
    kept = []
    for node in reversed(nodes):
        read = any(uses[name] for name in node.output)
        if read or loose.isdisjoint(node.output) or any(graph_attributes(node)):
            kept.append(node)
            continue
        uses.subtract(names_read(node))
        loose.update(node.input)
    return kept[::-1]
