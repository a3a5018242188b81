"""New nodes: an emitter puts them in front of an anchor node, in order, and names what they make.

In: an edited graph and the node in front of which everything goes. Out: names of tensors. Constants become
initializers, each value once a graph.
"""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto

from attngraft.lower.surgery import EditedGraph, EditedNode, Surgery
from attngraft.onnx_graph import numpy_dtype

__all__ = ["Constants", "Emitter", "lowest"]


class Constants:
    """The constants that a rewrite adds, each once in the graph that needs it."""

    def __init__(self, surgery: Surgery) -> None:
        self._surgery = surgery
        self._made: dict[tuple[int, int, tuple[int, ...], bytes], str] = {}

    def name(self, graph: EditedGraph, value: float | int | Sequence[int], dtype: int) -> str:
        """An initializer of `graph` with this value and ONNX element type: rank 0 for a number, else rank 1."""
        array = np.asarray(value).astype(numpy_dtype(dtype))
        key = (id(graph), dtype, array.shape, array.tobytes())
        if key not in self._made:
            name = self._surgery.free_name(f"attngraft_constant_{len(self._made)}")
            graph.add_initializer(onnx.helper.make_tensor(name, dtype, array.shape, array.tobytes(), raw=True))
            self._made[key] = name
        return self._made[key]


class Emitter:
    """Puts nodes in front of `anchor`, one behind the other; names begin with `prefix`. `opset` is the model's."""

    def __init__(
        self, surgery: Surgery, constants: Constants, graph: EditedGraph, anchor: EditedNode, prefix: str, opset: int
    ) -> None:
        self.opset = opset
        self._surgery = surgery
        self._constants = constants
        self._graph = graph
        self._anchor = anchor
        self._prefix = prefix

    def node(
        self,
        op_type: str,
        *inputs: str,
        output: str | None = None,
        domain: str = "",
        overload: str = "",
        **attributes: object,
    ) -> str:
        """Adds a node with one output and returns the output's name. `output` is used as it is if given: the caller
        sees to it that nothing else makes it."""
        name = self._surgery.free_name(f"{self._prefix}/{op_type}")
        made = output if output is not None else self._surgery.free_name(f"{name}_output")
        node = onnx.helper.make_node(op_type, list(inputs), [made], name=name, domain=domain, **attributes)
        if overload:
            node.overload = overload
        self._graph.insert_before(self._anchor, node)
        return made

    def again(self, node: EditedNode, output: str) -> str:
        """Adds a node of one output once more, with all that its proto says, and returns the new output's name:
        `output`, with a number behind it where that is taken."""
        made = self._surgery.free_name(output)
        copy = onnx.NodeProto()
        copy.CopyFrom(node.proto)
        copy.input[:] = node.inputs
        copy.output[:] = [made]
        self._graph.insert_before(self._anchor, copy)
        return made

    def rename(self, made: str, name: str) -> None:
        """Gives a tensor made here, which nothing reads yet, a name that nothing else has any more."""
        self._graph.rename(made, name)

    def number(self, value: float, dtype: int) -> str:
        """A constant of rank 0."""
        return self._constants.name(self._graph, value, dtype)

    def integers(self, values: Sequence[int]) -> str:
        """A constant int64 vector."""
        return self._constants.name(self._graph, list(values), TensorProto.INT64)

    def truth(self) -> str:
        """A constant bool vector with the one element true."""
        return self._constants.name(self._graph, [1], TensorProto.BOOL)

    def cast(self, tensor: str, dtype: int) -> str:
        return self.node("Cast", tensor, to=dtype)


def lowest(dtype: int) -> float:
    """The lowest finite number of a floating-point element type."""
    return float(ml_dtypes.finfo(numpy_dtype(dtype)).min)
