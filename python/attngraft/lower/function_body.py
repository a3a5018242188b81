"""The body of an ONNX local function, in the making: standard operators that exist in the model's own opset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import NodeProto, TensorProto

__all__ = ["FunctionBody"]

REDUCE_AXES_ARE_INPUT = 18
"""From this opset on ReduceMax takes its axes as an input."""


@dataclass
class FunctionBody:
    """The nodes so far. `opset` is the model's, 11 or later."""

    opset: int
    nodes: list[NodeProto] = field(default_factory=list)

    def add(self, op_type: str, *inputs: str, **attributes: object) -> str:
        """Appends a node with one output and returns the output's name."""
        output = f"{op_type.lower()}_{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(op_type, list(inputs), [output], **attributes))
        return output

    def constant(self, value: float | int | Sequence[int]) -> str:
        """A constant: fp32 for a float, int64 for whole numbers."""
        array = np.asarray(value, dtype=np.float32 if isinstance(value, float) else np.int64)
        return self.add("Constant", value=onnx.numpy_helper.from_array(array))

    def finish(self, op_type: str, *inputs: str, output: str, **attributes: object) -> None:
        """Appends the node that makes an output of the function."""
        self.nodes.append(onnx.helper.make_node(op_type, list(inputs), [output], **attributes))

    def dimension(self, tensor: str, axis: int) -> str:
        """A dimension of a tensor, int64, rank 0."""
        return self.add("Gather", self.add("Shape", tensor), self.constant(axis), axis=0)

    def dimensions(self, tensor: str, first: int, last: int) -> str:
        """Dimensions `first` to `last`, the latter excluded, int64 [last - first]."""
        return self.part(self.add("Shape", tensor), first, last, axis=0)

    def part(self, tensor: str, first: int, last: int, axis: int) -> str:
        """Indices `first` to `last`, the latter excluded, of one axis."""
        return self.add("Slice", tensor, *(self.constant([bound]) for bound in (first, last, axis)))

    def indices(self, tensor: str, axis: int) -> str:
        """0, 1, ... along a dimension of a tensor, int64 [n]."""
        return self.add("Range", self.constant(0), self.dimension(tensor, axis), self.constant(1))

    def any_in_row(self, condition: str) -> str:
        """Whether a condition holds anywhere in its last dimension, which becomes 1."""
        numbers = self.add("Cast", condition, to=TensorProto.FLOAT)
        if self.opset >= REDUCE_AXES_ARE_INPUT:
            top = self.add("ReduceMax", numbers, self.constant([-1]), keepdims=1)
        else:
            top = self.add("ReduceMax", numbers, axes=[-1], keepdims=1)
        return self.add("Cast", top, to=TensorProto.BOOL)
