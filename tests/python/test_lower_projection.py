"""Zeros of rows without a key, behind the output projection: where they can go there, and that nothing else changes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from chain_models import MINUS_INFINITY, attention
from onnx import ModelProto
from test_lower_empty_rows import BATCH, GUARD, LENGTH, feeds, native, operators, run

from attngraft.match import Projection, match_model
from attngraft.verify import verify_models
from attngraft.verify.inside import made_in

WIDTH = 5
"""Columns of the projection."""

TOLERANCE = {"float": 2e-6, "float16": 5e-3}
"""Absolute: sums of eight products of numbers around 1, in another order."""

MASKED = f"t = MatMul(q, kt) m = Where(condition, t, infinite) {GUARD}"
JOIN = "c = MatMul(p, v) ct = Transpose<perm = [0, 2, 1, 3]>(c) cr = Reshape(ct, joined)"
FLATTEN = """
    shape = Shape(cr) lead = Slice(shape, first, third) flat = Reshape(cr, rows) back = Concat<axis = 0>(lead, width)
"""

PROJECTIONS = {
    "MatMul": f"{JOIN} o = MatMul(cr, w) out = Add(o, bias)",
    "MatMul, bias first": f"{JOIN} o = MatMul(cr, w) out = Add(bias, o)",
    "MatMul is the output": f"{JOIN} out = MatMul(cr, w)",
    "MatMul behind Identity": f"{JOIN} same = Identity(cr) o = MatMul(same, w) out = Add(o, bias)",
    "computed weights": f"{JOIN} wt = Transpose(transposed) o = MatMul(cr, wt) out = Add(o, bias)",
    "Gemm": f"{JOIN} {FLATTEN} g = Gemm(flat, w, bias) out = Reshape(g, back)",
    "Gemm at once": """c = MatMul(p, v) ct = Transpose<perm = [0, 2, 1, 3]>(c) lead_of = Shape(ct)
        lead = Slice(lead_of, first, third) flat = Reshape(ct, rows) back = Concat<axis = 0>(lead, width)
        g = Gemm(flat, w, bias) out = Reshape(g, back)""",
    "Gemm, factors": f"""{JOIN} {FLATTEN} g = Gemm<alpha = 0.5, beta = 3.0>(flat, w, bias) s = Reshape(g, back)
        out = Add(s, s)""",
    "Gemm, transposed weights": f"{JOIN} {FLATTEN} g = Gemm<transB = 1>(flat, transposed, bias) out = Reshape(g, back)",
    "Gemm, a row": f"{JOIN} {FLATTEN} g = Gemm(flat, w, row) out = Reshape(g, back)",
    "Gemm without bias": f"{JOIN} {FLATTEN} g = Gemm(flat, w) out = Reshape(g, back)",
}

STAYING = {
    "read twice": f"{JOIN} o = MatMul(cr, w) x = ReduceSum(cr, last) out = Add(o, x)",
    "a context that is read twice": f"""{JOIN} o = MatMul(cr, w) x = ReduceSum<keepdims = 0>(c, heads_axis)
        y = ReduceSum(x, last) out = Add(o, y)""",
    "two projections": f"{JOIN} o = MatMul(cr, w) x = MatMul(cr, w) out = Add(o, x)",
    "heads that are not merged": """c = MatMul(p, v) o = MatMul(c, tall) ot = Transpose<perm = [0, 2, 1, 3]>(o)
        out = ReduceSum<keepdims = 0>(ot, third)""",
    "heads and rows mixed": "c = MatMul(p, v) cr = Reshape(c, joined) o = MatMul(cr, w) out = Add(o, bias)",
    "something added before": f"{JOIN} a = Add(cr, one) o = MatMul(a, w) out = Add(o, bias)",
    "an activation as weights": f"""{JOIN} h = ReduceSum<keepdims = 0>(q, outer) column = Reshape(h, upright)
        y = Mul(column, row) o = MatMul(cr, y) out = Add(o, bias)""",
    "transposed rows": f"""{JOIN} {FLATTEN} ft = Transpose(flat) g = Gemm<transA = 1>(ft, w, bias)
        out = Reshape(g, back)""",
    "a bias for each row": f"{JOIN} {FLATTEN} b = Expand(bias, tall_shape) g = Gemm(flat, w, b) out = Reshape(g, back)",
    "rows that are not put back": f"{JOIN} {FLATTEN} g = Gemm(flat, w, bias) gu = Unsqueeze(g, at) out = Identity(gu)",
}
"""Where the zeros stay with the context."""


def projected(values: str, chain: str = MASKED, dtype: str = "float", opset: int = 17, **more: object) -> ModelProto:
    rng = np.random.default_rng(1)
    kind = np.float32 if dtype == "float" else np.float16
    weights = rng.standard_normal((8, WIDTH)).astype(kind)
    constants = {
        "zero": 0.0,
        "one": 1.0,
        "infinite": MINUS_INFINITY,
        "w": weights,
        "transposed": np.ascontiguousarray(weights.T),
        "tall": rng.standard_normal((4, WIDTH)).astype(kind),
        "bias": rng.standard_normal(WIDTH).astype(kind),
        "row": rng.standard_normal((1, WIDTH)).astype(kind),
        "joined": np.array([0, -1, 8] if "Reshape(c, joined)" in values else [0, 0, 8]),
        "rows": np.array([-1, 8]),
        "width": np.array([WIDTH]),
        "tall_shape": np.array([BATCH * LENGTH, WIDTH]),
        "first": np.array([0]),
        "third": np.array([2]),
        "at": np.array([0]),
        "heads_axis": np.array([1]),
        "last": np.array([-1]),
        "outer": np.array([0, 2]),
        "upright": np.array([-1, 1]),
        **more,
    }
    text = f"{chain} {values}"
    words = set(text.replace("(", " ").replace(")", " ").replace(",", " ").split())
    used = {key: value for key, value in constants.items() if key in words}
    inputs = ("condition",) if "condition" in words else ()
    outputs = f"float[B,S,{WIDTH}] out" if "gu" not in words else f"float[one,rows,{WIDTH}] out"
    return attention(chain, inputs=inputs, constants=used, dtype=dtype, opset=opset, values=values, outputs=outputs)


def projection(model: ModelProto) -> Projection | None:
    (site,) = match_model(model).sites
    return site.projection


def zeroed(model: ModelProto) -> str:
    """The tensor of a lowered model in whose place rows without a key get something else."""
    has_key = {name for node in model.graph.node if node.op_type in ("Cast", "Squeeze") for name in node.output}
    (choice,) = (node for node in model.graph.node if node.op_type == "Where" and node.input[0] in has_key)
    return choice.input[1]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("opset", [13, 17, 18, 21])
@pytest.mark.parametrize("name", PROJECTIONS)
def test_zeros_go_behind_the_projection(name: str, opset: int, dtype: str) -> None:
    model = projected(PROJECTIONS[name], dtype=dtype, opset=opset)
    lowered = native(model)
    assert zeroed(lowered) == f"{projection(model).tensors[-1]}_unguarded"
    inputs = feeds(model, dtype)
    expected, actual = run(model, inputs), run(lowered, inputs)
    np.testing.assert_allclose(actual, expected, atol=TOLERANCE[dtype], rtol=0)
    np.testing.assert_array_equal(actual[3], expected[3])  # the sequence without any token: to the last bit


@pytest.mark.parametrize("name", STAYING)
def test_zeros_stay_with_the_context(name: str) -> None:
    model = projected(STAYING[name])
    assert projection(model) is None
    lowered = native(model)
    assert "/native/MatMul" in zeroed(lowered)  # the product with the values
    inputs = feeds(model, "float")
    np.testing.assert_allclose(run(lowered, inputs), run(model, inputs), atol=1e-5)


def test_masks_that_differ_between_heads() -> None:
    """The first head has no key at all: its part of the row is zero, and the other's is not."""
    flags = np.ones((1, 2, 1, LENGTH), bool)
    flags[:, 0] = False
    chain = f"t = MatMul(q, kt) m = Where(flags, t, infinite) {GUARD}"
    model = projected(PROJECTIONS["MatMul"], chain, flags=flags)
    assert projection(model) is None
    inputs = feeds(model, "float")
    np.testing.assert_allclose(run(native(model), inputs), run(model, inputs), atol=TOLERANCE["float"])


@pytest.mark.parametrize("shape", [(LENGTH,), (LENGTH, LENGTH), (1, LENGTH, LENGTH), (1, 1, 1, LENGTH)])
@pytest.mark.parametrize("name", ["MatMul", "Gemm"])
def test_masks_of_every_rank(name: str, shape: tuple[int, ...]) -> None:
    flags = np.random.default_rng(2).random(shape) < 0.5
    flags.reshape(-1, LENGTH)[-1] = False
    chain = f"t = MatMul(q, kt) m = Where(flags, t, infinite) {GUARD}"
    model = projected(PROJECTIONS[name], chain, flags=flags)
    lowered = native(model)
    assert projection(model).mask_has_heads == (len(shape) == 4)
    inputs = feeds(model, "float")
    np.testing.assert_allclose(run(lowered, inputs), run(model, inputs), atol=TOLERANCE["float"])


def test_rows_that_are_not_a_number_without_the_zeros() -> None:
    """Beside a position bias the fill stays -inf, and an empty row is NaN until it is chosen away."""
    chain = f"t = MatMul(q, kt) a = Add(t, places) m = Where(condition, a, infinite) {GUARD}"
    places = np.random.default_rng(3).standard_normal((1, 1, LENGTH, LENGTH)).astype(np.float32)
    model = projected(PROJECTIONS["Gemm"], chain, places=places)
    lowered = native(model)
    assert zeroed(lowered) == "out_unguarded"
    inputs = feeds(model, "float")
    expected = run(model, inputs)
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(run(lowered, inputs), expected, atol=TOLERANCE["float"])


@pytest.mark.parametrize("name", ["MatMul", "Gemm", "Gemm at once"])
def test_no_tensor_keeps_its_name_with_other_values(name: str) -> None:
    """Whoever compares models tensor by tensor finds the same under the same name."""
    model = projected(PROJECTIONS[name])
    lowered = native(model)
    *changed, last = projection(model).tensors
    assert changed[0] == "c"
    assert made_in(lowered, changed) == ()
    assert made_in(lowered, [last]) == (last,)
    assert verify_models(model, lowered).passed


def test_the_projection_is_compared_where_the_context_is_gone() -> None:
    model = projected(PROJECTIONS["MatMul"])
    wrong = native(model)
    choice = next(node for node in wrong.graph.node if node.output[0] == "o")
    choice.input[2] = "one"  # ones in place of zeros
    wrong.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(1), "one"))
    report = verify_models(model, wrong)
    assert {row.name for row in report.outputs if not row.passed} == {"out", "o (inside)"}


def test_two_layers_share_the_condition() -> None:
    second = """x = Reshape(out1, split) q2 = Transpose<perm = [0, 2, 1, 3]>(x) s2 = MatMul(q2, kt)
        m2 = Where(condition, s2, infinite) r2 = Softmax<axis = -1>(m2) n2 = IsNaN(r2) p2 = Where(n2, zero, r2)
        c2 = MatMul(p2, v) c2t = Transpose<perm = [0, 2, 1, 3]>(c2) c2r = Reshape(c2t, joined) out = MatMul(c2r, w)"""
    square = np.random.default_rng(4).standard_normal((8, 8)).astype(np.float32)
    model = projected(f"{JOIN} out1 = MatMul(cr, square) {second}", square=square, split=np.array([0, 0, 2, 4]))
    lowered = native(model)
    assert operators(lowered).count("ReduceMax") == operators(lowered).count("Squeeze") == 1
    assert [node.input[1] for node in lowered.graph.node if node.output[0] in ("out", "out1")] == [
        "out1_unguarded",
        "out_unguarded",
    ]
    inputs = feeds(model, "float")
    np.testing.assert_allclose(run(lowered, inputs), run(model, inputs), atol=1e-5)


def test_in_a_branch_of_an_if_zeros_stay_with_the_context() -> None:
    inner = projected(PROJECTIONS["MatMul"])
    assert projection(inner) is not None
    branch, stored = onnx.GraphProto(), list(inner.graph.initializer)
    branch.CopyFrom(inner.graph)
    del branch.input[:], branch.initializer[:]
    choice = onnx.helper.make_tensor_value_info("choice", onnx.TensorProto.BOOL, [])
    node = onnx.helper.make_node("If", ["choice"], ["result"], "if", then_branch=branch, else_branch=branch)
    result = onnx.helper.make_tensor_value_info("result", onnx.TensorProto.FLOAT, ["B", "S", WIDTH])
    graph = onnx.helper.make_graph([node], "outer", [choice, *inner.graph.input], [result], stored)
    model = onnx.helper.make_model(graph, opset_imports=inner.opset_import, ir_version=8)
    lowered = native(model)
    body = ModelProto(graph=lowered.graph.node[0].attribute[0].g)
    assert "/native/MatMul" in zeroed(body)
    assert "c" in {name for each in body.graph.node for name in each.output}
    inputs = {"choice": np.array(True), **feeds(inner, "float")}
    np.testing.assert_allclose(run(lowered, inputs), run(model, inputs), atol=TOLERANCE["float"])
