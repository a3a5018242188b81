"""fp16 models that turn fp32 by accident: the half type goes on from the context, and stops where fp32 is meant."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from native_models import BLOCKS, lowered
from onnx import ModelProto, TensorProto

from attngraft.lower.narrow import narrow_from
from attngraft.lower.tensor_types import TensorTypes
from attngraft.verify import verify_models

HALF, FULL = TensorProto.FLOAT16, TensorProto.FLOAT


def model(nodes: str, declared: str = "float16", **stored: np.ndarray) -> ModelProto:
    """fp16 x -> y, whose `c` is x cast up: what lowering `native` leaves behind a context."""
    text = f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float16[B,8] x, float[B,8] other) => ({declared}[B,8] y) {{ c = Cast<to = 1>(x) {nodes} }}
    """
    parsed = onnx.parser.parse_model(text)
    for name, value in {"w": np.eye(8, dtype=np.float32), **stored}.items():
        parsed.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return parsed


ONE_TYPE = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "PRelu", "Mod", "Sum"), 0),
    **dict.fromkeys(("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"), 0),
    "Where": 1,
}
"""Elementwise operators and the first of the inputs that TensorRT 10.6 wants in one type, for Pow beyond what ONNX asks
for."""


def mixed_operands(made: ModelProto) -> list[str]:
    """Nodes with operands of several types."""
    types = TensorTypes(made)
    nodes = (node for node in made.graph.node if node.op_type in ONE_TYPE)
    return [
        f"{node.op_type} {node.output[0]}"
        for node in nodes
        if len({types.of(name) for name in node.input[ONE_TYPE[node.op_type] :]}) > 1
    ]


def narrowed(nodes: str, declared: str = "float16", **stored: np.ndarray) -> tuple[ModelProto, TensorTypes]:
    made = model(nodes, declared, **stored)
    narrow_from(made, ["c"], HALF)
    onnx.checker.check_model(made)
    onnx.shape_inference.infer_shapes(made, strict_mode=True, check_type=True)
    assert not mixed_operands(made)
    return made, TensorTypes(made)


def test_weights_are_cast_in_the_graph_and_not_read() -> None:
    made, types = narrowed("a = MatMul(c, w) b = Add(a, v) y = Relu(b)", v=np.ones(8, np.float32))
    assert [types.of(name) for name in "aby"] == [HALF] * 3
    stored = {tensor.name: tensor.data_type for tensor in made.graph.initializer}
    assert stored == {"w": FULL, "v": FULL}
    assert sum(node.op_type == "Cast" for node in made.graph.node) == 2


def test_weights_behind_identity_nodes_are_weights() -> None:
    _, types = narrowed("v = Identity(u) a = Add(c, v) y = Relu(a)", u=np.ones(8, np.float32))
    assert types.of("a") == HALF


def test_numbers_stay_in_range() -> None:
    made, types = narrowed("a = Mul(c, k) m = Max(a, low) y = Relu(m)", k=np.float32(0.5), low=np.float32(-3e38))
    assert types.of("m") == HALF
    numbers = [onnx.numpy_helper.to_array(t) for t in made.graph.initializer if t.name.endswith("_narrow")]
    assert sorted(float(number) for number in numbers) == [-65504.0, 0.5]


def test_residuals_that_were_cast_up_are_read_before_the_cast() -> None:
    made, types = narrowed("r = Cast<to = 1>(x) a = Add(c, r) y = Relu(a)")
    assert types.of("a") == HALF
    (add,) = (node for node in made.graph.node if node.op_type == "Add")
    assert list(add.input) == ["c", "x"]


@pytest.mark.parametrize("exponent", [np.float32(3), np.int64(3)])
def test_an_exponent_has_its_base_s_type(exponent: np.generic) -> None:
    """GPT-2's activation raises to the power of a stored 3."""
    made, types = narrowed("a = Pow(c, e) y = Relu(a)", e=exponent)
    assert types.of("a") == HALF
    (power,) = (node for node in made.graph.node if node.op_type == "Pow")
    assert types.of(power.input[1]) == HALF


def test_an_exponent_that_is_computed_in_fp32_is_a_border() -> None:
    _, types = narrowed("a = Relu(c) b = Pow(a, other) y = Relu(b)", "float")
    assert [types.of(name) for name in "aby"] == [HALF, FULL, FULL]


def test_comparisons_compare_in_one_type() -> None:
    chain = "g = Greater(c, other) l = Less(c, k) b = And(g, l) a = Where(b, c, z) y = Relu(a)"
    made, types = narrowed(chain, k=np.float32(2), z=np.float32(0))
    assert types.of("a") == HALF
    assert not mixed_operands(made)


def test_fp32_activations_are_a_border() -> None:
    _, types = narrowed("a = Relu(c) b = Add(a, other) y = Relu(b)", "float")
    assert [types.of(name) for name in "aby"] == [HALF, FULL, FULL]


def test_a_cast_of_the_model_is_meant_until_weights_follow() -> None:
    """As in Gemma's norms, which TorchScript does not cast back."""
    _, types = narrowed("a = Relu(c) n = Cast<to = 1>(a) s = Sigmoid(n) m = MatMul(s, w) y = Relu(m)")
    assert [types.of(name) for name in "ansmy"] == [HALF, FULL, FULL, HALF, HALF]


def test_an_output_declared_fp32_is_cast_up_last() -> None:
    """TorchScript declares GPT-2's logits so; as fp32, their product alone takes longer than two layers' attention."""
    made, types = narrowed("a = Relu(c) y = MatMul(a, w)", "float")
    (product,) = (node for node in made.graph.node if node.op_type == "MatMul")
    assert [types.of(name) for name in (*product.input, *product.output)] == [HALF] * 3
    assert [value.type.tensor_type.elem_type for value in made.graph.output] == [FULL]
    assert (made.graph.node[-1].op_type, list(made.graph.node[-1].output)) == ("Cast", ["y"])


def test_an_output_declared_fp32_that_is_read_again() -> None:
    made = model("y = MatMul(c, w) b = Relu(y) e = Exp(c) d = Add(b, e) z = MatMul(d, w)", "float")
    made.graph.output.append(onnx.helper.make_tensor_value_info("z", FULL, ["B", 8]))
    narrow_from(made, ["c"], HALF)
    onnx.checker.check_model(made)
    onnx.shape_inference.infer_shapes(made, strict_mode=True, check_type=True)
    assert not mixed_operands(made)


def test_operators_that_are_not_known_are_a_border() -> None:
    _, types = narrowed("a = CumSum(c, axis) y = Relu(a)", "float", axis=np.int64(1))
    assert types.of("a") == FULL


def test_shapes_and_indices_are_no_matter_of_type() -> None:
    _, types = narrowed("s = Shape(c) r = Reshape(c, s) n = IsNaN(r) k = Where(n, z, r) y = Relu(k)", z=np.float32(0))
    assert [types.of(name) for name in "rky"] == [HALF] * 3


def test_what_a_subgraph_reads_keeps_its_type() -> None:
    branch = "then_branch = t () => (float[B,8] n) { n = Relu(a) }, else_branch = e () => (float[B,8] m) { m = Abs(a) }"
    _, types = narrowed(f"a = Sigmoid(c) f = Constant<value = bool[1] {{1}}>() y = If(f) < {branch} >", "float")
    assert types.of("a") == FULL


def test_a_context_that_is_an_output_stays_what_it_is_declared_to_be() -> None:
    made = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float16[B,8] x) => (float[B,8] c) { c = Cast<to = 1>(x) }
    """)
    assert narrow_from(made, ["c"], HALF) == 0
    assert made.graph.node[0].op_type == "Cast"


@pytest.mark.parametrize("lower", ["native", "auto"])
def test_two_layers_end_in_the_half_type(lower: str) -> None:
    given = BLOCKS["torchscript, two layers"].model()
    native = lowered(given, lower)
    types = TensorTypes(native)
    products = [node for node in native.graph.node if node.op_type == "MatMul"]
    assert len(products) == 11
    assert {types.of(node.output[0]) for node in products} == {HALF}
    assert not mixed_operands(native)
    assert verify_models(given, native).passed
