"""What stands beside the attention and keeps a model from being parsed or built, mended.

In: a model and the target. Out: the model, a copy if anything had to be mended, and one record for each repair. The
repairs themselves are in branches.py and mends.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnx import GraphProto, ModelProto, NodeProto

from attngraft.lower.branches import take_branches
from attngraft.lower.graph_facts import GraphFacts
from attngraft.lower.leftovers import remove_leftovers, replace_nodes
from attngraft.lower.mends import FOR_ANY_RUNTIME, FOR_TENSORRT, Mend, Mended, Repair
from attngraft.lower.target import Target
from attngraft.onnx_graph import walk_graphs

__all__ = ["Repair", "repair_model"]

Mends = Mapping[Mend, "frozenset[str]"]


def repair_model(model: ModelProto, target: Target | None) -> tuple[ModelProto, tuple[Repair, ...]]:
    """The model with its obstacles mended; the very same object and () if there are none. The given model is not
    changed. `target` is the TensorRT aimed at, None for any ONNX runtime: then only what breaks ONNX's own rules is
    mended."""
    repaired, taken = (model, ()) if target is None else take_branches(model)
    mends = FOR_ANY_RUNTIME if target is None else FOR_TENSORRT
    facts = GraphFacts(repaired)
    nodes = (node for _, graph in walk_graphs(repaired.graph) for node in graph.node)
    if not any(_mended(node, facts, mends) for node in nodes):
        return repaired, taken
    if repaired is model:  # a model without obstacles is not copied
        repaired = ModelProto()
        repaired.CopyFrom(model)
    loose: set[str] = set()  # what mended nodes read and may have been the last to read
    mended = [repair for _, graph in walk_graphs(repaired.graph) for repair in _mend_graph(graph, facts, mends, loose)]
    remove_leftovers(repaired.graph, loose)
    return repaired, (*taken, *mended)


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


def _mend_graph(graph: GraphProto, facts: GraphFacts, mends: Mends, loose: set[str]) -> list[Repair]:
    """Mends one graph in place, not those inside its nodes. `loose` grows by what the mended nodes read."""
    kept: list[NodeProto] = []
    repairs = []
    for node in graph.node:
        mended = _mended(node, facts, mends)
        kept += [node] if mended is None else mended[0]
        if mended is not None:
            repairs.append(mended[1])
            loose.update(name for name in node.input if name)
    if repairs:
        replace_nodes(graph, kept)
    return repairs
