"""Graph surgery: onnx-graphsurgeon rewires the graph, and the protos of all that was not touched are carried over.

graphsurgeon alone would lose parts of a model that it does not know: nodes' metadata, doc strings and overloads,
attributes of type GRAPHS and TYPE_PROTO, quantization annotations, dimension denotations, model metadata, training
information. So it decides which nodes exist and how they are wired, and `to_proto` writes only what it changed into a
copy of the original.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import onnx_graphsurgeon as gs
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto
from onnx_graphsurgeon.exporters.onnx_exporter import OnnxExporter
from onnx_graphsurgeon.importers.onnx_importer import OnnxImporter
from onnx_graphsurgeon.logger import G_LOGGER

from attngraft.onnx_graph import default_opset, graph_attributes, node_label, walk_graphs
from attngraft.onnx_graph.view import names_read

__all__ = ["Surgery"]


class Surgery:
    """An editable copy of a model's graphs. Initializers stay unread: graphsurgeon holds them as references."""

    def __init__(self, model: ModelProto) -> None:
        self._model = model
        with _quiet_graphsurgeon():
            root = OnnxImporter.import_graph(model.graph, opset=default_opset(model), import_domains=model.opset_import)
        self._graphs: dict[str, gs.Graph] = {}
        self._originals: dict[int, NodeProto] = {}
        self._removed_names: set[str] = set()
        self._index(root, model.graph, "")
        # Outputs of subgraphs may name an outer tensor, which graphsurgeon does not connect with it.
        self._output_names = {value.name for _, graph in walk_graphs(model.graph) for value in graph.output}

    def graph(self, path: str) -> gs.Graph:
        """The graph of a path as in the sites' records."""
        return self._graphs[path]

    def insert_before(self, graph: gs.Graph, anchor: gs.Node, node: gs.Node) -> None:
        """Puts a new node in front of an existing one, which keeps the topological order."""
        graph.nodes.insert(next(i for i, present in enumerate(graph.nodes) if present is anchor), node)

    def remove_if_dead(self, graph: gs.Graph, node: gs.Node) -> None:
        """Removes a node that nothing reads any more, then what fed only it. Graph outputs and subgraph owners stay."""
        pending = [node]
        while pending:
            current = pending.pop()
            if not any(present is current for present in graph.nodes) or not self._is_dead(current):
                continue
            pending += [tensor.inputs[0] for tensor in current.inputs if tensor.inputs]
            self._removed_names.update(tensor.name for tensor in (*current.inputs, *current.outputs) if tensor.name)
            current.inputs.clear()
            graph.nodes[:] = [present for present in graph.nodes if present is not current]

    def to_proto(self) -> ModelProto:
        """The edited model."""
        edited = ModelProto()
        for field, value in self._model.ListFields():
            if field.name != "graph":
                _copy_field(edited, field.name, value)
        edited.graph.CopyFrom(self._graph_proto(self._model.graph, ""))
        return edited

    def _index(self, graph: gs.Graph, proto: GraphProto, path: str) -> None:
        self._graphs[path] = graph
        for node, original in zip(graph.nodes, proto.node, strict=True):
            self._originals[id(node)] = original
            for name, inner in graph_attributes(original):
                if name in node.attrs:  # lists of graphs are not imported
                    self._index(node.attrs[name], inner, f"{path}/{node_label(original)}/{name}".lstrip("/"))

    def _is_dead(self, node: gs.Node) -> bool:
        original = self._originals.get(id(node))
        if original is not None and any(True for _ in graph_attributes(original)):
            return False
        return not any(tensor.outputs or tensor.name in self._output_names for tensor in node.outputs if tensor.name)

    def _graph_proto(self, original: GraphProto, path: str) -> GraphProto:
        edited = GraphProto()
        nodes = [self._node_proto(node, path) for node in self._graphs[path].nodes]
        for field, value in original.ListFields():
            if field.name == "node":
                edited.node.extend(nodes)
            elif field.name not in ("initializer", "value_info"):
                _copy_field(edited, field.name, value)
        used = {name for node in nodes for name in names_read(node)} | {value.name for value in original.output}
        used |= {value.name for value in original.input}
        gone = self._removed_names - used
        made = {output for node in nodes for output in node.output}
        edited.initializer.extend(tensor for tensor in original.initializer if tensor.name not in gone)
        edited.value_info.extend(v for v in original.value_info if v.name not in gone or v.name in made)
        return edited

    def _node_proto(self, node: gs.Node, path: str) -> NodeProto:
        original = self._originals.get(id(node))
        if original is None:
            return OnnxExporter.export_node(node)
        edited = NodeProto()
        edited.CopyFrom(original)
        edited.input[:] = [tensor.name for tensor in node.inputs]
        for attribute in edited.attribute:
            inner_path = f"{path}/{node_label(original)}/{attribute.name}".lstrip("/")
            if attribute.type == AttributeProto.GRAPH and inner_path in self._graphs:
                attribute.g.CopyFrom(self._graph_proto(attribute.g, inner_path))
        return edited


def _copy_field(target: ModelProto | GraphProto, name: str, value: object) -> None:
    current = getattr(target, name)
    if hasattr(current, "extend"):
        current.extend(value)
    elif hasattr(current, "CopyFrom"):
        current.CopyFrom(value)
    else:
        setattr(target, name, value)


@contextmanager
def _quiet_graphsurgeon() -> Iterator[None]:
    """graphsurgeon warns of every bfloat16 tensor that it may lose values if they are read; here they never are."""
    before = G_LOGGER.severity
    G_LOGGER.severity = G_LOGGER.ERROR
    try:
        yield
    finally:
        G_LOGGER.severity = before
