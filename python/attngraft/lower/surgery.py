"""Graph surgery: which nodes exist and how they are wired, edited in constant time a step.

In: a model, which is never changed. Out: a new one, in which everything that no step touched is the original's own
proto, down to metadata and annotations. Weights are not looked at.

Every edited graph keeps for each tensor who makes it and how many read it, subgraphs' readers included, so that nothing
ever scans a graph: a model of 100,000 nodes with thousands of sites is rewritten in a time that grows with its nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from attngraft.errors import RewriteError
from attngraft.lower.names import FreeNames
from attngraft.onnx_graph import copy_fields, graph_attributes, inner_path

__all__ = ["EditedGraph", "EditedNode", "Surgery"]

EDITED_FIELDS = frozenset({"initializer", "node", "value_info"})
"""The parts of a graph that editing can change; all others are copied."""


class EditedNode:
    """A node while it is edited: `proto` says what it computes, `inputs` and `outputs` how it is wired now. All three
    are for reading; EditedGraph changes them."""

    __slots__ = ("before", "inner", "inputs", "outputs", "proto", "removed")

    def __init__(self, proto: NodeProto) -> None:
        self.proto = proto
        self.inputs = list(proto.input)
        self.outputs = list(proto.output)
        self.inner: tuple[EditedGraph, ...] = ()  # its subgraphs, in the order of graph_attributes
        self.before: list[EditedNode] = []  # new nodes directly in front of this one
        self.removed = False

    def in_order(self) -> Iterator[EditedNode]:
        """What was put in front of the node, and the node itself unless it was removed."""
        for node in self.before:
            yield from node.in_order()
        if not self.removed:
            yield self


class EditedGraph:
    """One graph of the model, or a subgraph of one of its nodes, with its outer graph behind it for outer tensors."""

    def __init__(self, surgery: Surgery, proto: GraphProto, outer: EditedGraph | None) -> None:
        self._surgery = surgery
        self._proto = proto
        self._outer = outer
        self._nodes = [EditedNode(node) for node in proto.node]
        self._makers = {output: node for node in self._nodes for output in node.outputs if output}
        self._stored = {tensor.name for tensor in proto.initializer}
        self._stored |= {sparse.values.name for sparse in proto.sparse_initializer}
        self._inputs = {value.name for value in proto.input}
        self._new_initializers: list[TensorProto] = []
        self._touched: set[str] = set()  # tensors that lost a reader or their maker: left-overs are among these
        self._uses: Counter[str] = Counter()
        for node in self._nodes:
            for name in node.inputs:
                self._add_use(name)
        for value in proto.output:
            self._add_use(value.name)

    def maker(self, name: str) -> EditedNode | None:
        """The node of this graph that makes `name`; None for inputs, initializers and outer tensors."""
        return self._makers.get(name)

    def set_input(self, node: EditedNode, index: int, name: str) -> None:
        """Makes input `index` of `node` read `name`, a tensor of this graph or of an outer one."""
        self._drop_use(node.inputs[index])
        node.inputs[index] = name
        self._add_use(name)

    def set_node(self, node: EditedNode, proto: NodeProto) -> None:
        """Makes `node` another one in the same place. Its subgraphs, if it has any, must be the same."""
        for name in node.inputs:
            self._drop_use(name)
        for name in node.outputs:
            self._makers.pop(name, None)
            self._touched.add(name)
        node.proto, node.inputs, node.outputs = proto, list(proto.input), list(proto.output)
        self._connect(node)

    def release(self, node: EditedNode, index: int = 0) -> None:
        """Takes output `index` away from `node`, so that a new node can make the tensor of that name."""
        name = node.outputs[index]
        node.outputs[index] = self._surgery.free_name(f"{name}_before")
        self._makers.pop(name, None)
        self._makers[node.outputs[index]] = node
        self._touched.add(node.outputs[index])

    def rename(self, made: str, name: str) -> None:
        """Makes the maker of `made`, which nothing reads, make the tensor `name` instead, which nothing makes."""
        node = self._makers.pop(made)
        node.outputs[node.outputs.index(made)] = name
        self._makers[name] = node

    def insert_before(self, anchor: EditedNode, proto: NodeProto) -> EditedNode:
        """Puts a new node in front of an existing one, behind those put there earlier: the order stays topological."""
        node = EditedNode(proto)
        anchor.before.append(node)
        self._connect(node)
        return node

    def add_initializer(self, tensor: TensorProto) -> None:
        """Adds a constant; its name must be free (Surgery.free_name)."""
        self._new_initializers.append(tensor)
        self._stored.add(tensor.name)

    def remove_if_dead(self, node: EditedNode) -> None:
        """Removes a node that nothing reads any more, then what fed only it, in outer graphs too. Nodes that own
        subgraphs stay, and so do graph outputs."""
        pending = [(self, node)]
        while pending:
            graph, current = pending.pop()
            if current.removed or current.inner or any(graph._uses[name] for name in current.outputs if name):
                continue
            current.removed = True
            graph._touched.update(current.outputs)
            for name in current.outputs:
                graph._makers.pop(name, None)
            for name in current.inputs:
                graph._drop_use(name)
                owner = graph._owner(name)
                if owner is not None and name in owner._makers:
                    pending.append((owner, owner._makers[name]))

    def nodes(self) -> Iterator[EditedNode]:
        """The nodes as they are now, in topological order."""
        for node in self._nodes:
            yield from node.in_order()

    def write(self, target: GraphProto) -> None:
        """Writes the graph as it is now into an empty proto."""
        gone = {name for name in self._touched if not self._uses[name] and not self._is_made(name)}
        copy_fields(self._proto, target, EDITED_FIELDS)
        target.value_info.extend(value for value in self._proto.value_info if value.name not in gone)
        target.initializer.extend(tensor for tensor in self._proto.initializer if tensor.name not in gone)
        target.initializer.extend(tensor for tensor in self._new_initializers if tensor.name not in gone)
        for node in self.nodes():
            _write_node(node, target.node.add())

    def _is_made(self, name: str) -> bool:
        return name in self._makers or name in self._inputs

    def _connect(self, node: EditedNode) -> None:
        for name in node.inputs:
            self._add_use(name)
        for name in node.outputs:
            if name:
                self._makers[name] = node

    def _add_use(self, name: str) -> None:
        owner = self._owner(name)
        if owner is not None:
            owner._uses[name] += 1

    def _drop_use(self, name: str) -> None:
        owner = self._owner(name)
        if owner is not None:
            owner._uses[name] -= 1
            owner._touched.add(name)

    def _owner(self, name: str) -> EditedGraph | None:
        """The graph that defines `name`: this one or one around it; None for an omitted input."""
        graph: EditedGraph | None = self if name else None
        while graph is not None and not graph._defines(name):
            graph = graph._outer
        return graph

    def _defines(self, name: str) -> bool:
        return name in self._makers or name in self._stored or name in self._inputs


class Surgery:
    """An editable copy of a model's graphs. Local functions are carried over as they are."""

    def __init__(self, model: ModelProto) -> None:
        self._model = model
        self._names = FreeNames(model)
        self._graphs: dict[str, EditedGraph] = {}
        self._ambiguous: set[str] = set()
        self._root = self._edit(model.graph, None, "")

    def graph(self, path: str) -> EditedGraph:
        """The graph of a path as in the sites' records."""
        if path in self._ambiguous:
            raise RewriteError(f"graph {path!r}: several nodes of this name own subgraphs; give them different names")
        return self._graphs[path]

    def free_name(self, wanted: str) -> str:
        """`wanted`, or with a number behind it: a name of no tensor or node in the model, and taken from now on."""
        return self._names.take(wanted)

    def to_proto(self) -> ModelProto:
        """The edited model."""
        edited = ModelProto()
        copy_fields(self._model, edited, frozenset({"graph"}))
        self._root.write(edited.graph)
        return edited

    def _edit(self, proto: GraphProto, outer: EditedGraph | None, path: str) -> EditedGraph:
        graph = EditedGraph(self, proto, outer)
        if path in self._graphs:
            self._ambiguous.add(path)
        self._graphs[path] = graph
        for node in graph.nodes():
            node.inner = tuple(
                self._edit(inner, graph, inner_path(path, node.proto, name))
                for name, inner in graph_attributes(node.proto)
            )
        return graph


def _write_node(node: EditedNode, target: NodeProto) -> None:
    target.CopyFrom(node.proto)
    if list(target.input) != node.inputs:
        target.input[:] = node.inputs
    if list(target.output) != node.outputs:
        target.output[:] = node.outputs
    for edited, (_, proto) in zip(node.inner, graph_attributes(target), strict=True):
        proto.Clear()
        edited.write(proto)
