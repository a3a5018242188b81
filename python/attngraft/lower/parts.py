"""The nodes that replace one, in the making. In: the node. Out: nodes, in order, that make its outputs."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import NodeProto, TensorProto

from attngraft.onnx_graph import numpy_dtype

__all__ = ["NodeParts"]


@dataclass
class NodeParts:
    """What takes the place of `node`: `nodes` grows by what is added, names begin with the node's first output."""

    node: NodeProto
    nodes: list[NodeProto] = field(default_factory=list, kw_only=True)

    def input(self, index: int) -> str:
        return self.node.input[index] if index < len(self.node.input) else ""

    def attribute(self, name: str, default: float) -> float:
        for attribute in self.node.attribute:
            if attribute.name == name:
                return onnx.helper.get_attribute_value(attribute)
        return default

    def add(self, op_type: str, *inputs: str, output: str | None = None, count: int = 1, **attributes: object) -> str:
        """Adds a node; the name of its first output, the others have `_1`, `_2` behind it."""
        made = output or f"{self.node.output[0]}/{op_type}_{len(self.nodes)}"
        outputs = [made, *(f"{made}_{index}" for index in range(1, count))]
        self.nodes.append(onnx.helper.make_node(op_type, list(inputs), outputs, made, **attributes))
        return made

    def number(self, value: float, dtype: int) -> str:
        """A constant of rank 0."""
        return self._constant(np.asarray(value, np.float64).astype(numpy_dtype(dtype)), dtype)

    def integers(self, value: int | list[int]) -> str:
        """An int64 constant: rank 0 for a number, else rank 1."""
        return self._constant(np.asarray(value, np.int64), TensorProto.INT64)

    def _constant(self, array: np.ndarray, dtype: int) -> str:
        tensor = onnx.helper.make_tensor("value", dtype, array.shape, array.tobytes(), raw=True)
        return self.add("Constant", value=tensor)
