"""A read-only view of one graph: who makes a tensor, who reads it, what is constant, which shape and type it has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from attngraft.onnx_graph.external import SMALL_TENSOR_BYTES, stored_bytes
from attngraft.onnx_graph.walk import graph_attributes, inner_path

__all__ = ["GraphView", "infer_types", "names_defined", "names_read", "walk_views", "without_weights"]

Shape = tuple["int | str | None", ...]

NOT_DETERMINISTIC = frozenset({"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli"})


def infer_types(model: ModelProto) -> ModelProto:
    """The model with types and shapes inferred, large initializers reduced to their shape."""
    skeleton = without_weights(model)
    try:
        return onnx.shape_inference.infer_shapes(skeleton, data_prop=True)
    except Exception:  # inference is best effort: a site whose type stays unknown is refused with that reason
        return skeleton


def without_weights(model: ModelProto) -> ModelProto:
    """A copy whose initializers above 1 KiB have a name, a type and a shape, and no values: weights are not copied."""
    skeleton = ModelProto()
    skeleton.ir_version = model.ir_version
    skeleton.opset_import.extend(model.opset_import)
    skeleton.functions.extend(model.functions)
    _copy_without_weights(model.graph, skeleton.graph)
    return skeleton


def _copy_without_weights(source: GraphProto, copy: GraphProto) -> None:
    copy.name = source.name
    copy.node.extend(source.node)
    copy.input.extend(source.input)
    copy.output.extend(source.output)
    copy.value_info.extend(source.value_info)
    for tensor in source.initializer:
        if stored_bytes(tensor) <= SMALL_TENSOR_BYTES and tensor.data_location != TensorProto.EXTERNAL:
            copy.initializer.append(tensor)
            continue
        stub = copy.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        stub.data_location = TensorProto.EXTERNAL
        stub.external_data.add(key="location", value="not-loaded")


class GraphView:
    """One graph of a model, with its outer graphs behind it for names that it does not define."""

    def __init__(self, graph: GraphProto, inferred: GraphProto, outer: GraphView | None = None) -> None:
        """`graph` is the model's own; `inferred` is the same graph after infer_types."""
        self.graph = graph
        self.outer = outer
        self.outputs = frozenset(value.name for value in graph.output)
        self._inputs = frozenset(value.name for value in graph.input)
        self._initializers = {tensor.name: tensor for tensor in graph.initializer}
        self._makers = {output: node for node in graph.node for output in node.output if output}
        self._readers: dict[str, list[NodeProto]] = defaultdict(list)
        for node in graph.node:
            for name in dict.fromkeys(names_read(node)):
                self._readers[name].append(node)
        self._types: dict[str, ValueInfoProto] = {
            value.name: value for value in (*inferred.value_info, *inferred.input, *inferred.output)
        }
        self._constants = self._constant_names()

    def maker(self, name: str) -> NodeProto | None:
        """The node of this graph that makes `name`; None for inputs, initializers and outer tensors."""
        return self._makers.get(name)

    def readers(self, name: str) -> list[NodeProto]:
        """The nodes of this graph that read `name`, themselves or in a subgraph."""
        return self._readers.get(name, [])

    def is_only_read_by(self, name: str, *nodes: NodeProto) -> bool:
        """Whether `name` is no graph output and nothing but `nodes` reads it."""
        return name not in self.outputs and all(any(r is n for n in nodes) for r in self.readers(name))

    def is_constant(self, name: str) -> bool:
        """Whether the value depends on no input of the model: initializers and what is computed from them alone."""
        if name in self._constants:
            return True
        return self.outer is not None and not self._defines(name) and self.outer.is_constant(name)

    def is_input(self, name: str) -> bool:
        """Whether whoever runs the graph, or one around it, gives `name`, be it in place of an initializer."""
        if self.outer is None or self._defines(name):
            return name in self._inputs
        return self.outer.is_input(name)

    def value(self, name: str) -> np.ndarray | None:
        """The value of a small initializer or Constant, looked at through Identity and Cast; None if it is no such
        thing."""
        tensor = self._initializers.get(name)
        if tensor is not None:
            return _small_array(tensor)
        node = self._makers.get(name)
        if node is None:
            return self.outer.value(name) if self.outer and not self._defines(name) else None
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            return _constant_node_array(node)
        if node.op_type in ("Identity", "Cast", "CastLike"):
            return self.value(node.input[0])
        return None

    def scalar(self, name: str) -> float | None:
        """The value of a constant with one element and rank 0 or 1 as a float; None otherwise."""
        value = self.value(name)
        if value is None or value.size != 1 or value.ndim > 1 or value.dtype.kind not in "fiubV":
            return None
        return float(value.reshape(()).astype(np.float64))

    def dtype(self, name: str) -> int:
        """ONNX's number of the element type; 0 (UNDEFINED) when it is not known."""
        if name in self._initializers:
            return self._initializers[name].data_type
        if name in self._types:
            return self._types[name].type.tensor_type.elem_type
        return self.outer.dtype(name) if self.outer and not self._defines(name) else TensorProto.UNDEFINED

    def shape(self, name: str) -> Shape | None:
        """Dimensions as numbers, symbols, or None each; None altogether when the rank is not known."""
        if name in self._initializers:
            return tuple(self._initializers[name].dims)
        if name in self._types:
            tensor_type = self._types[name].type.tensor_type
            if not tensor_type.HasField("shape"):
                return None
            return tuple(
                dim.dim_value if dim.HasField("dim_value") else (dim.dim_param or None) for dim in tensor_type.shape.dim
            )
        return self.outer.shape(name) if self.outer and not self._defines(name) else None

    def _defines(self, name: str) -> bool:
        return name in self._makers or name in self._initializers or name in self._inputs

    def _constant_names(self) -> set[str]:
        inputs = self._inputs
        # An initializer that is also an input can be replaced by the caller (ONNX before IR 4 listed all of them).
        constants = set(self._initializers) - (inputs if self.outer is None else set())
        constants |= set(self._initializers) & inputs if self._lists_all_initializers(inputs) else set()
        for node in self.graph.node:
            if node.op_type in NOT_DETERMINISTIC or any(True for _ in graph_attributes(node)):
                continue
            if all(not name or name in constants or self._outer_constant(name) for name in node.input):
                constants.update(node.output)
        return constants

    def _lists_all_initializers(self, inputs: frozenset[str]) -> bool:
        return bool(self._initializers) and set(self._initializers) <= inputs

    def _outer_constant(self, name: str) -> bool:
        return self.outer is not None and not self._defines(name) and self.outer.is_constant(name)


def walk_views(
    graph: GraphProto, inferred: GraphProto, outer: GraphView | None = None, path: str = ""
) -> Iterator[tuple[str, GraphView]]:
    """The views of a graph and of all graphs inside it, each with its path, in the order of walk_graphs. `inferred` is
    the same graph after infer_types."""
    view = GraphView(graph, inferred, outer)
    yield path, view
    for node, typed in zip(graph.node, inferred.node, strict=True):
        for (name, inner), (_, typed_inner) in zip(graph_attributes(node), graph_attributes(typed), strict=True):
            yield from walk_views(inner, typed_inner, view, inner_path(path, node, name))


def names_defined(graph: GraphProto) -> set[str]:
    """The tensors that a graph makes, stores or is given, those of graphs inside it not included."""
    names = {output for node in graph.node for output in node.output if output}
    names |= {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    return names | {sparse.values.name for sparse in graph.sparse_initializer}


def names_read(node: NodeProto) -> Iterator[str]:
    """The names that a node reads from its graph: its inputs, and what its subgraphs take from outside."""
    yield from (name for name in node.input if name)
    for _, inner in graph_attributes(node):
        made = names_defined(inner)
        for inner_node in inner.node:
            yield from (name for name in names_read(inner_node) if name not in made)
        yield from (value.name for value in inner.output if value.name not in made)


def _small_array(tensor: TensorProto) -> np.ndarray | None:
    if tensor.data_location == TensorProto.EXTERNAL or stored_bytes(tensor) > SMALL_TENSOR_BYTES:
        return None
    return onnx.numpy_helper.to_array(tensor)


def _constant_node_array(node: NodeProto) -> np.ndarray | None:
    for attribute in node.attribute:
        if attribute.name == "value":
            return _small_array(attribute.t)
        if attribute.name in ("value_float", "value_int", "value_floats", "value_ints"):
            kind = np.float32 if "float" in attribute.name else np.int64
            return np.asarray(onnx.helper.get_attribute_value(attribute), dtype=kind)
    return None
