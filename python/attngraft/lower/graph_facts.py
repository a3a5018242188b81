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
        width = self._last_dimension(node.input[1 if is_packed else 0])
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

    def _last_dimension(self, name: str) -> int | None:
        if name in self._stored:
            return self._stored[name].dims[-1] if self._stored[name].dims else None
        shape = self._types[name].shape.dim if name in self._types else ()
        return shape[-1].dim_value or None if shape else None

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

    def is_fixed(self, name: str) -> bool:
        """Whether every dimension is a known number."""
        if name in self._stored:
            return True
        shape = self._types[name].shape.dim if name in self._types else ()
        return bool(shape) and all(dimension.HasField("dim_value") for dimension in shape)

    def first_dimension(self, name: str) -> int | str | None:
        """A number, a symbol, or None where nothing is known."""
        if name in self._stored:
            return self._stored[name].dims[0] if self._stored[name].dims else None
        shape = self._types[name].shape.dim if name in self._types else ()
        if not shape:
            return None
        return shape[0].dim_value if shape[0].HasField("dim_value") else shape[0].dim_param or None


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
