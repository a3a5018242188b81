"""What repairs need to know of a model: types, shapes, who makes a tensor, and constants that nodes compute."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np
import onnx
import onnx.reference
from onnx import ModelProto, NodeProto, TensorProto, TypeProto

from attngraft.lower.runtime_operators import NodeFacts
from attngraft.onnx_graph import default_opset, graph_attributes, walk_graphs
from attngraft.onnx_graph.view import infer_types

__all__ = ["FLOATS", "GraphFacts"]

FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})

MAX_CONSTANT_NODES = 8
"""Nodes that make a constant of axes: exporters that fold nothing write two or three."""

DFT_AXIS_IS_INPUT = 20
"""From this opset on."""


class GraphFacts:
    """Types and shapes of the tensors of a graph and of those inside it."""

    def __init__(self, model: ModelProto) -> None:
        self.opset = default_opset(model)
        self._model = model
        self._stored: dict[str, TensorProto] = {}
        self._makers: dict[str, NodeProto] = {}
        for _, graph in walk_graphs(model.graph):
            self._stored.update((tensor.name, tensor) for tensor in graph.initializer)
            self._makers.update((output, node) for node in graph.node for output in node.output)

    @cached_property
    def _types(self) -> dict[str, TypeProto.Tensor]:
        """Inferred when they are first asked for: most models need no repair, and no inference then."""
        found: dict[str, TypeProto.Tensor] = {}
        for _, graph in walk_graphs(infer_types(self._model).graph):
            values = (*graph.input, *graph.output, *graph.value_info)
            found.update((value.name, value.type.tensor_type) for value in values)
        return found

    @cached_property
    def _places(self) -> dict[str, int]:
        """Where in the graph's order each tensor is made."""
        return {name: place for place, name in enumerate(self._makers)}

    def dtype(self, name: str) -> int:
        if name in self._stored:
            return self._stored[name].data_type
        return self._types[name].elem_type if name in self._types else TensorProto.UNDEFINED

    def float_type(self, names: Iterable[str]) -> int:
        """The first floating-point type among tensors, or else among what the model stores."""
        stored = (tensor.data_type for tensor in self._stored.values())
        known = (dtype for dtype in (*map(self.dtype, names), *stored) if dtype in FLOATS)
        return next(known, TensorProto.FLOAT)

    def node_facts(self, node: NodeProto) -> NodeFacts:
        """What runtime_operators is to know of a node's surroundings."""
        is_packed = node.op_type == "Attention"
        width = self.last_dimension(node.input[1 if is_packed else 0])
        if is_packed and width is not None:
            width = width // 3 if width % 3 == 0 else None
        mask = 3 if is_packed else 4
        return NodeFacts(
            dtype=self.float_type(node.input),
            opset=self.opset,
            width=width,
            mask_rank=self._mask_rank(node.input[mask], node.input[0]) if mask < len(node.input) else None,
        )

    def _mask_rank(self, mask: str, query: str) -> int | None:
        """Of a mask of keys. One of rank 1 is understood as a length for each sequence only if it is known to be."""
        maker = self._makers.get(mask)
        if maker is not None and maker.op_type == "EmbedLayerNormalization":
            return 1
        rank = len(self._types[mask].shape.dim) if mask in self._types else 0
        batch = self.first_dimension(query)
        return rank if rank == 2 or rank == 1 and self.first_dimension(mask) == batch is not None else None

    def rank(self, name: str) -> int | None:
        dimensions = self._dimensions(name)
        return None if dimensions is None else len(dimensions)

    def last_dimension(self, name: str) -> int | None:
        """None where it is not a known number."""
        dimensions = self._dimensions(name)
        return dimensions[-1] if dimensions and isinstance(dimensions[-1], int) else None

    def is_constant_node(self, name: str) -> bool:
        return name in self._stored or name in self._makers and self._makers[name].op_type == "Constant"

    def computed_constant(self, name: str) -> np.ndarray | None:
        """The value of what a few nodes compute from constants alone; None for anything else."""
        makers: dict[int, NodeProto] = {}
        used: dict[str, TensorProto] = {}
        pending = [name]
        while pending:
            current = pending.pop()
            if current in self._stored:
                used[current] = self._stored[current]
                continue
            maker = self._makers.get(current)
            if maker is None or len(makers) > MAX_CONSTANT_NODES or any(graph_attributes(maker)):
                return None
            makers[id(maker)] = maker
            pending += [tensor for tensor in maker.input if tensor]
        if any(tensor.data_location == TensorProto.EXTERNAL for tensor in used.values()):
            return None
        ordered = sorted(makers.values(), key=lambda node: self._places[node.output[0]])
        return _evaluated(ordered, list(used.values()), name, self.opset)

    def transformed_axis(self, node: NodeProto) -> int | None:
        """Of a DFT: an attribute before opset 20, since then an input. None where the graph computes it."""
        if self.opset < DFT_AXIS_IS_INPUT:
            return next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
        if len(node.input) < 3 or not node.input[2]:
            return -2
        axis = self.computed_constant(node.input[2])
        return None if axis is None else int(axis)

    def boolean_fill(self, node: NodeProto) -> tuple[str, str] | None:
        """Of a ScatterND that writes one number at all places where a mask of the data's shape is true: the mask and
        the number, a tensor of one element. None for any other."""
        data, indices, updates = node.input
        attributes = {attribute.name: attribute for attribute in node.attribute}
        if "reduction" in attributes and attributes["reduction"].s not in (b"", b"none"):
            return None
        places = self._made_by(indices, "Transpose")
        true = self._made_by(places.input[0], "NonZero") if places is not None else None
        if true is None or not self._is_shaped_as(true.input[0], data):
            return None
        if self.dtype(true.input[0]) != TensorProto.BOOL:
            return None
        while (maker := self._made_by(updates, "Reshape")) is not None:
            updates = maker.input[0]
        repeated = self._made_by(updates, "Expand")
        if repeated is None or not self._is_one_element(repeated.input[0]):
            return None
        return true.input[0], repeated.input[0]

    def _made_by(self, name: str, op_type: str) -> NodeProto | None:
        maker = self._makers.get(name)
        return maker if maker is not None and maker.op_type == op_type and not maker.domain else None

    def _is_shaped_as(self, name: str, other: str) -> bool:
        """Whether it is known that both have the same shape."""
        expanded = self._made_by(name, "Expand")
        shape = self._made_by(expanded.input[1], "Shape") if expanded is not None else None
        if shape is not None and shape.input[0] == other:
            return not any(attribute.name == "end" or attribute.i for attribute in shape.attribute)
        shapes = [self._dimensions(each) for each in (name, other)]
        return shapes[0] == shapes[1] and bool(shapes[0]) and None not in shapes[0]

    def _is_one_element(self, name: str) -> bool:
        """Whether it is known that a tensor is a number or a vector of one."""
        dimensions = self._dimensions(name)
        return dimensions is not None and len(dimensions) <= 1 and all(dimension == 1 for dimension in dimensions)

    def _dimensions(self, name: str) -> tuple[int | str | None, ...] | None:
        """Numbers, symbols, None for what is not known; None for all of it where the rank is not known."""
        if name in self._stored:
            return tuple(self._stored[name].dims)
        if name not in self._types or not self._types[name].HasField("shape"):
            return None
        return tuple(
            each.dim_value if each.HasField("dim_value") else each.dim_param or None
            for each in self._types[name].shape.dim
        )

    def is_fixed(self, name: str) -> bool:
        """Whether every dimension is a known number."""
        if name in self._stored:
            return True
        return all(isinstance(dimension, int) for dimension in self._dimensions(name) or (None,))

    def first_dimension(self, name: str) -> int | str | None:
        """A number, a symbol, or None where nothing is known."""
        dimensions = self._dimensions(name)
        return dimensions[0] if dimensions else None


def _evaluated(nodes: list[NodeProto], stored: list[TensorProto], name: str, opset: int) -> np.ndarray | None:
    """What standard nodes on stored tensors give; None if it is no integer."""
    ordered = [node for node in nodes if not node.domain]
    if len(ordered) < len(nodes):
        return None
    output = onnx.helper.make_tensor_value_info(name, TensorProto.INT64, None)
    graph = onnx.helper.make_graph(ordered, "constant", [], [output], stored)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    try:
        (value,) = onnx.reference.ReferenceEvaluator(model).run(None, {})
    except Exception:  # best effort: what onnx cannot evaluate stays as it is
        return None
    return value if value.dtype == np.int64 else None
