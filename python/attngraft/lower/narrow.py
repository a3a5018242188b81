"""What a half-type export computes in fp32 by accident, back in its half type.

torch.onnx (TorchScript) gives scaled_dot_product_attention of half models an fp32 mask. Its sum with the scores is
fp32, and so is everything behind the first attention: weights are stored again as fp32, residuals are cast up. Lowering
`native` ends that accident at the context; here the half type is carried on from there.

In: a rewritten model (edited in place) and the contexts that are cast up to fp32 only to meet such weights. Out: the
graph in the half type up to where fp32 was meant, which is a Cast that the model itself has. A product of such an fp32
tensor with stored weights is no longer meant, as a half model has no fp32 weights: from there on it is the half type
again. An output of the model that is fp32 by this accident keeps its type, which callers know: it is cast up last.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from attngraft.lower.emit import lowest
from attngraft.lower.names import FreeNames
from attngraft.lower.tensor_types import TensorTypes
from attngraft.onnx_graph import graph_attributes, numpy_dtype
from attngraft.onnx_graph.view import names_read

__all__ = ["narrow_from"]

TYPED_INPUTS = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Max", "Min", "MatMul", "Gemm", "Concat", "Sum"), None),
    **dict.fromkeys(("Erf", "Tanh", "Sigmoid", "Relu", "Gelu", "Sqrt", "Neg", "Exp", "Abs", "Identity"), None),
    **dict.fromkeys(("LeakyRelu", "Elu", "HardSigmoid", "HardSwish", "Softplus", "Reciprocal", "Mish"), None),
    **dict.fromkeys(("LayerNormalization", "Clip", "Conv", "Softmax", "LogSoftmax", "PRelu", "Pow"), None),
    **dict.fromkeys(("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Split"), (0,)),
    **dict.fromkeys(("Gather", "GatherND", "GatherElements", "Expand", "Tile", "Pad", "Dropout"), (0,)),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax"), (0,)),
    "Where": (1, 2),
}
"""Operators whose result has the type of these inputs (None: of all). Everything else is a border. Pow's exponent may
be of another type in ONNX and in TensorRT-RTX 1.7, but not in TensorRT 10.6."""

WEIGHTED = frozenset({"MatMul", "Gemm"})
"""Operators that multiply activations by weights."""

TYPE_BLIND = frozenset({"Cast", "CastLike", "Shape", "Size", "IsNaN", "IsInf"})
"""Operators that take any type and whose result does not depend on it."""


def narrow_from(model: ModelProto, contexts: Iterable[str], dtype: int) -> int:
    """Carries `dtype` on from `contexts`, outputs of Cast nodes of the main graph. Returns the number of nodes that
    compute in it now and did not before."""
    pass_over = _Narrowing(model, dtype, frozenset(contexts))
    pass_over.run()
    return pass_over.changed


def _names_read_inside(node: NodeProto) -> set[str]:
    """What the node's subgraphs take from outside."""
    return set(names_read(node)) - set(node.input) if any(graph_attributes(node)) else set()


class _Narrowing:
    """One pass over the nodes, which are in topological order."""

    def __init__(self, model: ModelProto, dtype: int, contexts: frozenset[str]) -> None:
        self._graph: GraphProto = model.graph
        self._types = TensorTypes(model)
        self._dtype = dtype
        self._narrow: set[str] = set()
        self._behind: set[str] = set()  # what is computed from narrow tensors and is not narrow itself
        self._stored = {tensor.name: tensor for tensor in model.graph.initializer}
        self._fixed = set(self._stored)  # what follows from stored tensors alone
        self._makers = {output: node for node in model.graph.node for output in node.output}
        self._declared = {value.name: value.type.tensor_type.elem_type for value in model.graph.output}
        self._read_inside = {name for node in model.graph.node for name in _names_read_inside(node)}
        self._contexts = {name for name in contexts if self._may_change(name) and name not in self._declared}
        self._cast: dict[tuple[str, int], str] = {}
        self._nodes: list[NodeProto] = []
        self._to_declare: list[tuple[str, str]] = []
        self._names = FreeNames(model)
        self.changed = 0

    def run(self) -> None:
        for node in self._graph.node:
            if node.op_type == "Constant" or node.op_type == "Identity" and node.input[0] in self._fixed:
                self._fixed.update(node.output)
            if node.op_type == "Cast" and node.output[0] in self._contexts:
                self._narrow.add(node.output[0])
                node = onnx.helper.make_node("Identity", [node.input[0]], [node.output[0]], name=node.name)
            elif self._reads_narrow(node) and node.op_type not in TYPE_BLIND:
                self._visit(node)
            if any(name in self._narrow or name in self._behind for name in node.input):
                self._behind.update(name for name in node.output if name not in self._narrow)
            self._nodes.append(node)
            self._cast_declared()
        kept = GraphProto()
        kept.node.extend(self._without_idle_casts())  # copies: clearing a list frees what it holds
        del self._graph.node[:]
        self._graph.node.extend(kept.node)
        for value in self._graph.value_info:
            if value.name in self._narrow:
                value.type.tensor_type.elem_type = self._dtype

    def _without_idle_casts(self) -> list[NodeProto]:
        """The nodes but for those casts that nothing reads any more."""
        read = {name for node in self._nodes for name in names_read(node)} | set(self._declared)
        return [node for node in self._nodes if node.op_type != "Cast" or node.output[0] in read]

    def _reads_narrow(self, node: NodeProto) -> bool:
        """Whether an input is narrow. One that meets stored weights is made so."""
        if node.op_type in WEIGHTED and node.input[1] in self._fixed and node.input[0] in self._behind:
            if self._types.of(node.input[0]) == self._types.of(node.input[1]) == TensorProto.FLOAT:
                node.input[0] = self._cast_to(node.input[0], self._dtype)
                self._narrow.add(node.input[0])
        return any(name in self._narrow for name in node.input)

    def _visit(self, node: NodeProto) -> None:
        typed = self._typed_inputs(node)
        if typed is None or not all(self._can_be_narrow(node.input[index]) for index in typed):
            for index, name in enumerate(node.input):
                if name in self._narrow:
                    node.input[index] = self._cast_to(name, TensorProto.FLOAT)
            return
        for index in typed:
            if node.input[index] not in self._narrow:
                node.input[index] = self._narrowed(node.input[index])
        for index, output in enumerate(node.output):
            if self._declared.get(output) == TensorProto.FLOAT:
                node.output[index] = self._names.take(f"{output}_narrow")
                self._to_declare.append((node.output[index], output))
        self._narrow.update(output for output in node.output if output)
        self.changed += 1

    def _cast_declared(self) -> None:
        """Behind the node that makes them: outputs of the model in the type that they are declared with."""
        for narrow, output in self._to_declare:
            name = self._names.take(f"{output}_declared")
            node = onnx.helper.make_node("Cast", [narrow], [output], name=name, to=TensorProto.FLOAT)
            self._makers[output] = node
            self._behind.add(output)
            self._nodes.append(node)
        self._to_declare.clear()

    def _typed_inputs(self, node: NodeProto) -> list[int] | None:
        """The inputs that set the result's type; None for a border, also where one of them is no narrow tensor."""
        if node.domain not in ("", "ai.onnx") or node.op_type not in TYPED_INPUTS:
            return None
        if not all(self._may_change(output) for output in node.output):
            return None
        places = TYPED_INPUTS[node.op_type]
        found = [i for i in (range(len(node.input)) if places is None else places) if i < len(node.input)]
        found = [i for i in found if node.input[i]]
        return found if any(node.input[i] in self._narrow for i in found) else None

    def _may_change(self, name: str) -> bool:
        """Whether no subgraph reads the tensor, which says there that it is fp32."""
        return name not in self._read_inside

    def _can_be_narrow(self, name: str) -> bool:
        """Narrow already, a constant, or cast up from the half type."""
        return (
            name in self._narrow
            or self._types.of(name) == self._dtype
            or name in self._fixed
            or self._before_cast(name) is not None
        )

    def _narrowed(self, name: str) -> str:
        """The tensor in the half type. Small constants are stored again, in its range; weights are cast in the graph,
        so that none is read here."""
        if self._types.of(name) == self._dtype:
            return name
        before = self._before_cast(name)
        if before is not None:
            return before
        constant = self._constant(name)
        if constant is None or constant.size > 1:
            return self._cast_to(name, self._dtype)
        if (name, self._dtype) not in self._cast:
            value = constant.astype(np.float32)
            value = np.where(np.isinf(value), value, np.clip(value, lowest(self._dtype), -lowest(self._dtype)))
            made = self._names.take(f"{name}_narrow")
            array = value.astype(numpy_dtype(self._dtype))
            self._graph.initializer.append(
                onnx.helper.make_tensor(made, self._dtype, array.shape, array.tobytes(), raw=True)
            )
            self._cast[name, self._dtype] = made
        return self._cast[name, self._dtype]

    def _constant(self, name: str) -> np.ndarray | None:
        """The value of a stored number or of a Constant node."""
        if name in self._stored:
            tensor = self._stored[name]
            is_number = int(np.prod(tensor.dims)) == 1 and tensor.data_location != TensorProto.EXTERNAL
            return onnx.numpy_helper.to_array(tensor) if is_number else None
        node = self._makers.get(name)
        if node is None or node.op_type != "Constant" or node.attribute[0].name != "value":
            return None
        return onnx.numpy_helper.to_array(node.attribute[0].t)

    def _before_cast(self, name: str) -> str | None:
        """What a Cast from the half type to fp32 reads."""
        node = self._makers.get(name)
        if node is None or node.op_type != "Cast":
            return None
        source = node.input[0]
        return source if source in self._narrow or self._types.of(source) == self._dtype else None

    def _cast_to(self, name: str, dtype: int) -> str:
        if (name, dtype) not in self._cast:
            made = self._names.take(f"{name}_{'wide' if dtype == TensorProto.FLOAT else 'narrow'}")
            self._nodes.append(onnx.helper.make_node("Cast", [name], [made], name=made, to=dtype))
            self._cast[name, dtype] = made
        return self._cast[name, dtype]
