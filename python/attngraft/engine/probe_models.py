"""One-site models that ask TensorRT one question each. In: a case. Out: an ONNX model with q, k and v as its inputs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper

from attngraft.onnx_graph import onnx_dtype

__all__ = ["ProbeCase", "all_cases", "one_site_model", "usual_cases"]

HEADS = 4
OPSETS = {"matmul": (17, 8), "attention": (23, 10)}
"""Opset and IR version of each form; 23 brought the Attention operator."""

DTYPES = ("float16", "bfloat16", "float32")
HEAD_SIZES = (8, 16, 32, 64, 80, 128, 256, 264, 320)
"""Both sides of every border that TensorRT's kernels are known to have (more than 8, at most 256)."""

MASKS = ("none", "bool", "additive", "causal")
FEATURES = {
    "matmul": ("softcap", "guard", "float32 softmax", "grouped heads"),
    "attention": ("softcap", "float32 softmax", "grouped heads"),
}
SOFTCAP = 30.0


@dataclass(frozen=True)
class ProbeCase:
    """One form of attention.

    form     "matmul": MatMul, Mul, mask, Softmax, MatMul; "attention": the standard operator.
    mask     "none", "bool" (true may attend), "additive" (of the tensors' type), or "causal": an attribute of the
             operator, a triangle made from positions in the matmul form. Tensors are [B,1,1,Sk], in the operator
             [B,1,Sq,Sk].
    feature  "", "softcap", "guard" (NaN rows become 0), "float32 softmax", "grouped heads" (two queries a key).
    rank     4: [B, heads, S, D]. 3: [B * heads, S, D] in the matmul form, [B, S, heads * D] in the operator.
    """

    form: str
    dtype: str = "float16"
    head_size: int = 64
    mask: str = "additive"
    feature: str = ""
    rank: int = 4


def usual_cases() -> Iterator[ProbeCase]:
    """Both forms in fp16 with 64 a head and an additive mask, and every other value of each property one at a time."""
    for form in OPSETS:
        base = ProbeCase(form)
        yield base
        yield from (replace(base, dtype=dtype) for dtype in DTYPES[1:])
        yield from (replace(base, head_size=size) for size in HEAD_SIZES if size != base.head_size)
        yield from (replace(base, mask=mask) for mask in MASKS if mask != base.mask)
        yield from (replace(base, feature=feature) for feature in FEATURES[form])
        yield replace(base, rank=3)


def all_cases() -> Iterator[ProbeCase]:
    """Every combination of form, type, head size and mask; and of form, type, mask and feature or rank 3 at head size
    64."""
    for form, dtype, mask in itertools.product(OPSETS, DTYPES, MASKS):
        base = ProbeCase(form, dtype, mask=mask)
        yield from (replace(base, head_size=size) for size in HEAD_SIZES)
        yield from (replace(base, feature=feature) for feature in FEATURES[form])
        yield replace(base, rank=3)


def one_site_model(case: ProbeCase) -> ModelProto:
    """The model of a case: inputs q, k, v and mask, if the case has one; output `context`; batch and length dynamic."""
    nodes, constants = (_matmul_nodes if case.form == "matmul" else _attention_nodes)(case)
    element = onnx_dtype(case.dtype)
    inputs = [helper.make_tensor_value_info(name, element, _shape(case, name)) for name in ("q", "k", "v")]
    if case.mask in ("bool", "additive"):
        kind = TensorProto.BOOL if case.mask == "bool" else element
        inputs.append(helper.make_tensor_value_info("mask", kind, _mask_shape(case)))
    outputs = [helper.make_tensor_value_info("context", element, _shape(case, "q"))]
    opset, ir_version = OPSETS[case.form]
    graph = helper.make_graph(nodes, "one_site", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def _shape(case: ProbeCase, name: str) -> tuple[int | str, ...]:
    heads = HEADS if name == "q" or case.feature != "grouped heads" else HEADS // 2
    if case.rank == 4:
        return ("batch", heads, "sequence", case.head_size)
    if case.form == "attention":
        return ("batch", "sequence", heads * case.head_size)
    return ("batch", "sequence", case.head_size)


def _mask_shape(case: ProbeCase) -> tuple[int | str, ...]:
    if case.form == "attention":  # not every runtime broadcasts the operator's mask over the queries
        return ("batch", 1, "sequence", "sequence")
    return ("batch", 1, 1, "sequence") if case.rank == 4 else ("batch", 1, "sequence")


class _Nodes:
    """Nodes and constants of a model in the making."""

    def __init__(self, dtype: str) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self._element = onnx_dtype(dtype)

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: object) -> str:
        output = output or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], name=f"site/{output}", **attributes))
        return output

    def scalar(self, name: str, value: float) -> str:
        """A constant of the model's element type."""
        self.constants.append(helper.make_tensor(name, self._element, (), [value]))
        return name

    def integers(self, name: str, *values: int) -> str:
        self.constants.append(onnx.numpy_helper.from_array(np.array(values, np.int64), name))
        return name


def _matmul_nodes(case: ProbeCase) -> tuple[list[NodeProto], list[TensorProto]]:
    made = _Nodes(case.dtype)
    grouped = case.feature == "grouped heads"
    key, values = (_repeated(made, case, name) if grouped else name for name in ("k", "v"))
    order = (0, 1, 3, 2) if case.rank == 4 else (0, 2, 1)
    scores = made.add("MatMul", "q", made.add("Transpose", key, perm=order))
    scores = made.add("Mul", scores, made.scalar("scale", 1 / math.sqrt(case.head_size)))
    if case.feature == "softcap":
        cap = made.scalar("cap", SOFTCAP)
        scores = made.add("Mul", made.add("Tanh", made.add("Div", scores, cap)), cap)
    scores = _masked(made, case, scores)
    if case.feature == "float32 softmax":
        scores = made.add("Cast", scores, to=TensorProto.FLOAT)
    weights = made.add("Softmax", scores, axis=-1)
    if case.feature == "float32 softmax":
        weights = made.add("Cast", weights, to=onnx_dtype(case.dtype))
    if case.feature == "guard":
        weights = made.add("Where", made.add("IsNaN", weights), made.scalar("zero", 0.0), weights)
    made.add("MatMul", weights, values, output="context")
    return made.nodes, made.constants


def _masked(made: _Nodes, case: ProbeCase, scores: str) -> str:
    if case.mask == "none":
        return scores
    if case.mask == "additive":
        return made.add("Add", scores, "mask")
    allowed = "mask" if case.mask == "bool" else _triangle(made, case)
    return made.add("Where", allowed, scores, made.scalar("fill", -math.inf))


def _triangle(made: _Nodes, case: ProbeCase) -> str:
    """key position <= query position, [Sq, Sk], as exporters of is_causal write it."""
    axis = case.rank - 2
    length = made.add("Shape", "q", start=axis, end=axis + 1)
    count = made.add("Squeeze", length, made.integers("axis_0", 0))
    for name, value in (("first", 0), ("step", 1)):
        made.constants.append(onnx.numpy_helper.from_array(np.array(value, np.int64), name))
    positions = made.add("Range", "first", count, "step")
    rows = made.add("Unsqueeze", positions, made.integers("axis_1", 1))
    return made.add("LessOrEqual", positions, rows)


def _repeated(made: _Nodes, case: ProbeCase, name: str) -> str:
    """[B, heads / 2, S, D] to [B, heads, S, D], each head twice."""
    wide = made.add("Unsqueeze", name, made.integers(f"{name}_axis", 2))
    shape = made.add("Shape", name)
    parts = [made.add("Gather", shape, made.integers(f"{name}_index_{i}", i)) for i in range(4)]
    two = made.integers(f"{name}_two", 2)
    grown = made.add("Expand", wide, made.add("Concat", *parts[:2], two, *parts[2:], axis=0))
    heads = made.integers(f"{name}_heads", HEADS)
    return made.add("Reshape", grown, made.add("Concat", parts[0], heads, *parts[2:], axis=0))


def _attention_nodes(case: ProbeCase) -> tuple[list[NodeProto], list[TensorProto]]:
    attributes: dict[str, object] = {}
    if case.rank == 3:
        attributes |= {"q_num_heads": HEADS, "kv_num_heads": HEADS}
    if case.mask == "causal":
        attributes["is_causal"] = 1
    if case.feature == "softcap":
        attributes["softcap"] = SOFTCAP
    if case.feature == "float32 softmax":
        attributes["softmax_precision"] = int(TensorProto.FLOAT)
    masks = ["mask"] if case.mask in ("bool", "additive") else []
    node = helper.make_node("Attention", ["q", "k", "v", *masks], ["context"], name="site/Attention", **attributes)
    return [node], []
