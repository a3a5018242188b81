"""Models with Ifs, and what repairing them must leave as it was."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from native_models import RTX
from onnx import ModelProto

from attngraft.lower import repair_model

__all__ = ["BRANCHES", "ONE", "SAME_SIZES_DIFFER", "TRUE_CONDITION", "X", "operators", "parse", "run", "taken"]

ONE = "one = Constant<value_ints = [1]>()"
TRUE_CONDITION = "c = Constant<value = bool {1}>()"
SAME_SIZES_DIFFER = "t0 = Transpose(x) q = Shape<start = 1>(t0) k = Shape<end = 1>(x) same = Equal(q, k) c = Not(same)"
"""A condition that is false, since one size is read of two tensors."""

BRANCHES = """
    y = If(c) < then_branch = taken () => (float[N,4] t) { t = Mul(x, two) },
                else_branch = other () => (float[N,4] e) { e = Neg(x) } >
"""
X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def parse(nodes: str, inputs: str = "", output: str = "float[M,4] y", opset: int = 18) -> ModelProto:
    """A graph of x [S, 4], two, and whatever else."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : {opset}]>
        g (float[S,4] x {inputs}) => ({output}) {{ {nodes} }}
    """)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(2), "two"))
    return model


def run(model: ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def operators(model: ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def taken(model: ModelProto, feeds: dict[str, np.ndarray] | None = None, ifs: int = 0) -> ModelProto:
    """The repaired model, which has so many Ifs left in its main graph, and the outputs that it had."""
    before = model.SerializeToString()
    repaired, repairs = repair_model(model, RTX)
    assert model.SerializeToString() == before
    assert repairs
    assert operators(repaired).count("If") == ifs
    onnx.checker.check_model(repaired, full_check=True)
    feeds = {"x": X} if feeds is None else feeds
    for expected, actual in zip(run(model, feeds), run(repaired, feeds), strict=True):
        np.testing.assert_array_equal(expected, actual)
    return repaired
