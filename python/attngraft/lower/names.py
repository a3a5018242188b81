"""Names for what a rewrite adds, moves or renames. In: a model. Out: names that collide with none of its own, nor with
each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from onnx import GraphProto, ModelProto

from attngraft.onnx_graph import graph_attributes, walk_graphs
from attngraft.onnx_graph.view import names_defined

__all__ = ["FreeNames", "rename_tensors"]


class FreeNames:
    """The names of a model's tensors and nodes, subgraphs included, and those given out since."""

    def __init__(self, model: ModelProto) -> None:
        self._tensors: Counter[str] = Counter()  # how many graphs define a tensor of the name: siblings may share it
        self._nodes: Counter[str] = Counter()
        for _, graph in walk_graphs(model.graph):
            self._tensors.update(names_defined(graph))
            self._nodes.update(node.name for node in graph.node)

    def take(self, wanted: str) -> str:
        """`wanted`, or with a number behind it where that is taken; it is taken from now on."""
        candidate, number = wanted, 1
        while candidate in self._tensors or candidate in self._nodes:
            number += 1
            candidate = f"{wanted}_{number}"
        self._tensors[candidate] += 1
        return candidate

    def moved_tensor(self, name: str) -> str:
        """What a tensor that moves to another graph is to be called: as it was, unless another graph has the name."""
        return self.take(name) if self._tensors[name] > 1 else name

    def moved_node(self, name: str) -> str:
        """The same for a node. Names of nodes are optional: "" stays."""
        return self.take(name) if name and self._nodes[name] > 1 else name


def rename_tensors(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Gives tensors that a graph makes, stores, is given or takes from outside other names, in place: in the graph, and
    where graphs inside it read them. A graph inside that defines one of these names itself means its own tensor."""
    if not names:
        return
    for node in graph.node:
        for tensors in (node.input, node.output):
            if not names.keys().isdisjoint(tensors):
                tensors[:] = [names.get(name, name) for name in tensors]
        for _, inner in graph_attributes(node):
            own = names_defined(inner)
            rename_tensors(inner, {name: new for name, new in names.items() if name not in own})
    stored = (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer))
    for named in (*graph.input, *graph.output, *graph.value_info, *stored):
        named.name = names.get(named.name, named.name)
    for annotation in graph.quantization_annotation:
        annotation.tensor_name = names.get(annotation.tensor_name, annotation.tensor_name)
        for parameter in annotation.quant_parameter_tensor_names:
            parameter.value = names.get(parameter.value, parameter.value)
