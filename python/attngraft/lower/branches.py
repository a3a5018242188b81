"""An If whose condition is decided becomes the branch that is taken.

Exporters write an If for what Python would have decided: PyTorch's tracer for a scripted function that compares a
key's length with a query's. Where the model's sizes or constants decide the condition for every input, one branch is
never run, but TensorRT analyses and builds both, and sites inside a branch are fused with nothing around it. What is
decided is proved by match/meaning; every other If stays.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import GraphProto, ModelProto, NodeProto

from attngraft.lower.leftovers import remove_leftovers, replace_nodes
from attngraft.lower.mends import Repair
from attngraft.lower.names import FreeNames, rename_tensors
from attngraft.match.meaning import read_truth
from attngraft.match.operators import is_standard
from attngraft.onnx_graph import GraphView, graph_attributes, node_label, walk_graphs
from attngraft.onnx_graph.view import infer_types, names_defined, names_read, walk_views

__all__ = ["take_branches"]

BRANCHES = {True: "then_branch", False: "else_branch"}


def take_branches(model: ModelProto) -> tuple[ModelProto, tuple[Repair, ...]]:
    """The model with every decided If replaced, in subgraphs too; the very same object and () if there are none. The
    given model is not changed. What an If gives keeps its name; what else moves gets another one only where its own is
    taken. What fed only a condition or a branch that is not taken is removed."""
    if not any(_ifs(graph) for _, graph in walk_graphs(model.graph)):  # most models: nothing is inferred for them
        return model, ()
    views = walk_views(model.graph, infer_types(model).graph)
    if all(_truth(view, node) is None for _, view in views for node in _ifs(view.graph)):
        return model, ()
    taken = ModelProto()
    taken.CopyFrom(model)
    taking = _Taking(taken)
    while taking.round():  # there may be others in a branch, and what is behind an If is better known without it
        pass
    remove_leftovers(taken.graph, taking.loose)
    return taken, tuple(taking.repairs)


def _ifs(graph: GraphProto) -> list[NodeProto]:
    return [node for node in graph.node if is_standard(node, "If")]


def _truth(view: GraphView, node: NodeProto) -> bool | None:
    """The condition of an If; None where it is not decided, and for other nodes."""
    return read_truth(view, node.input[0]) if is_standard(node, "If") else None


class _Taking:
    """Edits a model in place. `repairs`: what was done so far. `loose`: tensors that may have lost their readers."""

    def __init__(self, model: ModelProto) -> None:
        self.repairs: list[Repair] = []
        self.loose: set[str] = set()
        self._model = model
        self._names = FreeNames(model)

    def round(self) -> bool:
        """Replaces every If that is decided as the model is now; whether there was any, and others are left."""
        before = len(self.repairs)
        self._take(self._model.graph, infer_types(self._model).graph, None)
        return len(self.repairs) > before and any(_ifs(graph) for _, graph in walk_graphs(self._model.graph))

    def _take(self, graph: GraphProto, inferred: GraphProto, outer: GraphView | None) -> None:
        """In one graph and, before it changes, in those inside it. What a taken branch holds is for the next round."""
        view = GraphView(graph, inferred, outer)
        nodes: list[NodeProto] = []
        is_changed = False
        for node, typed in zip(graph.node, inferred.node, strict=True):
            truth = _truth(view, node)
            if truth is not None:
                nodes += self._inlined(graph, node, truth)
                is_changed = True
                continue
            nodes.append(node)
            for (_, inner), (_, typed_inner) in zip(graph_attributes(node), graph_attributes(typed), strict=True):
                self._take(inner, typed_inner, view)
        if is_changed:
            replace_nodes(graph, nodes)

    def _inlined(self, graph: GraphProto, node: NodeProto, truth: bool) -> Iterator[NodeProto]:
        """What stands in the place of an If: its branch's nodes, under the names that they have in `graph`, to which
        everything else of the branch is added."""
        (branch,) = (inner for name, inner in graph_attributes(node) if name == BRANCHES[truth])
        self.loose.update(names_read(node), filter(None, node.output))
        self._rename(branch, node)
        self.loose.update(names_defined(branch))
        for moved in branch.node:
            moved.name = self._names.moved_node(moved.name)
            yield moved
        for given, result in zip(node.output, branch.output, strict=True):
            if given and result.name != given:
                yield onnx.helper.make_node("Identity", [result.name], [given], self._names.take(f"{given}_taken"))
        described = {value.name for value in (*graph.value_info, *graph.output)}
        graph.value_info.extend(value for value in branch.value_info if value.name not in described)
        graph.initializer.extend(branch.initializer)
        graph.sparse_initializer.extend(branch.sparse_initializer)
        graph.quantization_annotation.extend(branch.quantization_annotation)
        self.repairs.append(_repair(node, truth))

    def _rename(self, branch: GraphProto, node: NodeProto) -> None:
        """Gives what a branch and graphs inside it define names of its own, and its results those of the If, where
        nodes make them."""
        _, *inside = walk_graphs(branch)
        for _, graph in inside:
            rename_tensors(graph, self._moved(names_defined(graph)))
        made = {name for inner in branch.node for name in inner.output}
        names: dict[str, str] = {}
        for given, result in zip(node.output, branch.output, strict=True):
            if given and result.name in made:
                names.setdefault(result.name, given)
        rename_tensors(branch, names | self._moved(names_defined(branch) - names.keys()))

    def _moved(self, tensors: set[str]) -> dict[str, str]:
        """The new names of those that cannot keep theirs."""
        moved = ((name, self._names.moved_tensor(name)) for name in sorted(tensors))  # the same in every run
        return {name: new for name, new in moved if new != name}


def _repair(node: NodeProto, truth: bool) -> Repair:
    which = "then" if truth else "else"
    reason = (
        f"sizes or constants make its condition {str(truth).lower()} for every input, and TensorRT builds both branches"
    )
    return Repair(node_label(node), f"replaced by its {which} branch", reason)
