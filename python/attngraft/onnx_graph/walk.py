"""Walking a model: every graph, every tensor, subgraphs and local functions included."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

__all__ = [
    "copy_fields",
    "default_opset",
    "graph_attributes",
    "inner_path",
    "node_label",
    "walk_graphs",
    "walk_tensors",
]


def default_opset(model: ModelProto | onnx.FunctionProto) -> int:
    """The version of the standard operator set that the model imports; 0 if it imports none."""
    return max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)


def copy_fields(source: ModelProto | GraphProto, copy: ModelProto | GraphProto, but: frozenset[str]) -> None:
    """Fills an empty message with all fields of `source`, except those named in `but`, which may be large."""
    for field, value in source.ListFields():
        if field.name in but:
            continue
        current = getattr(copy, field.name)
        if hasattr(current, "extend"):
            current.extend(value)
        elif hasattr(current, "CopyFrom"):
            current.CopyFrom(value)
        else:
            setattr(copy, field.name, value)


def node_label(node: NodeProto) -> str:
    """A node's name or, since names are optional in ONNX, its first output."""
    return node.name or next((output for output in node.output if output), node.op_type)


def graph_attributes(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    """The subgraphs of a node (If, Loop, Scan) with the attribute that holds each."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.name, attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            for index, graph in enumerate(attribute.graphs):
                yield f"{attribute.name}[{index}]", graph


def inner_path(path: str, node: NodeProto, attribute: str) -> str:
    """The path of the graph that an attribute of `node` holds; `path` is that of the node's own graph."""
    return f"{path}/{node_label(node)}/{attribute}".lstrip("/")


def walk_graphs(graph: GraphProto, path: str = "") -> Iterator[tuple[str, GraphProto]]:
    """The graph and all graphs inside it, outer before inner. The main graph's path is "", others are
    "node/attribute"."""
    yield path, graph
    for node in graph.node:
        for name, inner in graph_attributes(node):
            yield from walk_graphs(inner, inner_path(path, node, name))


def walk_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every stored tensor of a model: initializers (sparse ones' parts too) and tensor attributes, wherever they
    are."""
    for _, graph in walk_graphs(model.graph):
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
        for node in graph.node:
            yield from _attribute_tensors(node)
    for function in model.functions:
        for node in function.node:
            yield from _attribute_tensors(node)
            for _, inner in graph_attributes(node):
                for _, graph in walk_graphs(inner):
                    yield from graph.initializer
                    for inner_node in graph.node:
                        yield from _attribute_tensors(inner_node)


def _attribute_tensors(node: NodeProto) -> Iterator[TensorProto]:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.TENSOR:
            yield attribute.t
        elif attribute.type == AttributeProto.TENSORS:
            yield from attribute.tensors
