"""Repeats a whole site's arithmetic from its record alone, in plain ONNX: does the record say what the model does?"""

from __future__ import annotations

import math

import numpy as np
import onnx
from attngraft.contract import CausalMode
from attngraft.match import MaskPart, Site, match_model
from attngraft.onnx_graph import default_opset, onnx_dtype
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

PREFIX = "rebuilt_"
_ONE = onnx.helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])


def rebuilt(model: ModelProto) -> ModelProto:
    """A copy in which every site of the main graph that has a `whole` is computed anew, in fp32, from its record."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for number, site in enumerate(match_model(model).sites):
        if site.whole is not None and not site.graph:
            _Rebuild(copy.graph, site, f"{PREFIX}{number}_", default_opset(model)).apply()
    return copy


class _Rebuild:
    def __init__(self, graph: GraphProto, site: Site, prefix: str, opset: int) -> None:
        self.graph, self.site, self.prefix, self.opset = graph, site, prefix, opset
        self.nodes: list[NodeProto] = []

    def apply(self) -> None:
        whole = self.site.whole
        query, key, values = (self.widened(name) for name in (whole.query, whole.key, whole.values))
        if whole.layout == "bsd":
            query = self.split(query, whole.heads)
            key, values = self.split(key, whole.kv_heads), self.split(values, whole.kv_heads)
        if whole.kv_heads is not None and whole.heads is not None and whole.kv_heads < whole.heads:
            key, values = self.repeated(key), self.repeated(values)
        if not whole.key_transposed:
            rank = 4 if whole.layout == "bsd" else self.site.rank
            key = self.add("Transpose", [key], perm=[*range(rank - 2), rank - 1, rank - 2])
        scores = self.add("Mul", [self.add("MatMul", [query, key]), self.scalar(whole.scale)])
        if whole.softcap:
            cap = self.scalar(whole.softcap)
            scores = self.add("Mul", [self.add("Tanh", [self.add("Div", [scores, cap])]), cap])
        for mask in self.site.source_masks:
            scores = self.masked(scores, mask)
        if whole.causal != CausalMode.NONE:
            scores = self.causal(scores)
        probabilities = self.add("Softmax", [scores], axis=-1)
        if self.site.guard:
            test = self.add("IsNaN", [probabilities])
            probabilities = self.add("Where", [test, self.scalar(0.0), probabilities])
        context = self.add("MatMul", [probabilities, values])
        if whole.layout == "bsd":
            context = self.add("Transpose", [context], perm=[0, 2, 1, 3])
            context = self.add("Reshape", [context, self.integers([0, 0, -1])])
        self.replace(whole.context, context, onnx_dtype(whole.context_dtype))

    def split(self, tensor: str, heads: int) -> str:
        """[B, S, heads * D] to [B, heads, S, D]."""
        parted = self.add("Reshape", [tensor, self.integers([0, 0, heads, -1])])
        return self.add("Transpose", [parted], perm=[0, 2, 1, 3])

    def repeated(self, tensor: str) -> str:
        """Grouped keys or values, each head as often in succession as query heads use it."""
        whole = self.site.whole
        indices = np.repeat(np.arange(whole.kv_heads), whole.heads // whole.kv_heads)
        return self.add("Gather", [tensor, self.integers(indices.tolist())], axis=1)

    def causal(self, scores: str) -> str:
        """Keys after the query's position, counted from the upper left, get -inf."""
        shape = self.add("Shape", [scores], start=-2)
        below = self.add("Trilu", [self.add("ConstantOfShape", [shape], value=_ONE)], upper=0)
        return self.add("Where", [self.add("Cast", [below], to=TensorProto.BOOL), scores, self.scalar(-math.inf)])

    def masked(self, scores: str, mask: MaskPart) -> str:
        if mask.form == "where":
            condition = self.shaped(self.add("Cast", [mask.tensors[0]], to=TensorProto.BOOL), mask)
            fill = self.scalar(mask.fill)
            return self.add("Where", [condition, fill, scores] if mask.invert else [condition, scores, fill])
        for name in (mask.added,) if mask.added else mask.tensors:
            scores = self.add("Add", [scores, self.shaped(self.widened(name), mask)])
        return scores

    def shaped(self, tensor: str, mask: MaskPart) -> str:
        """The mask's tensor as it broadcasts to the scores."""
        if mask.split_heads:
            rest = self.add("Shape", [tensor], start=1)
            target = self.add("Concat", [self.integers([-1, mask.split_heads]), rest], axis=0)
            return self.add("Reshape", [tensor, target])
        return self.add("Unsqueeze", [tensor, self.integers(list(mask.unsqueeze))]) if mask.unsqueeze else tensor

    def widened(self, name: str) -> str:
        return self.add("Cast", [name], to=TensorProto.FLOAT)

    def scalar(self, value: float) -> str:
        low = float(np.finfo(np.float32).min)
        value = value if math.isinf(value) else max(value, low)
        name = f"{self.prefix}{len(self.graph.initializer)}"
        self.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value, np.float32), name))
        return name

    def integers(self, values: list[int]) -> str:
        name = f"{self.prefix}{len(self.graph.initializer)}"
        self.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(values, np.int64), name))
        return name

    def add(self, op_type: str, inputs: list[str], **attributes: object) -> str:
        output = f"{self.prefix}{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [output], **attributes))
        return output

    def replace(self, context: str, made: str, dtype: int) -> None:
        """Puts the nodes before the one that makes the context, which takes a name that nothing reads."""
        self.nodes.append(helper.make_node("Cast", [made], [context], to=dtype))
        index, maker = next((i, node) for i, node in enumerate(self.graph.node) if context in node.output)
        maker.output[list(maker.output).index(context)] = f"{self.prefix}unused"
        later = list(self.graph.node[index:])
        del self.graph.node[index:]
        self.graph.node.extend(self.nodes)
        self.graph.node.extend(later)
