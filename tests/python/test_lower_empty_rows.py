"""Rows without an allowed key: zeros as the model's NaN guard gives them, without the guard; all other rows unchanged.

The masks are those of real batches: left padding, holes, sequences without any token, causality over left padding.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from chain_models import LOWEST, MINUS_INFINITY, attention
from onnx import ModelProto, TensorProto
from onnx.reference import ReferenceEvaluator

from attngraft.lower import lower_model
from attngraft.match import match_model

GUARD = "r = Softmax<axis = -1>(m) nan = IsNaN(r) p = Where(nan, zero, r)"
SPREAD = """told = Cast<to = 9>(token_mask) upright = Unsqueeze(told, middle) full = Shape(t)
    spread = Expand(upright, full)"""
"""As exporters write a mask [B, T] of keys."""

BATCH, LENGTH = 4, 6

TOLERANCE = {"float": 2e-6, "float16": 2e-3}
"""Absolute: a few roundings of contexts around 1."""

MASKS = {
    "condition": f"t = MatMul(q, kt) m = Where(condition, t, infinite) {GUARD}",
    "inverted condition": f"t = MatMul(q, kt) m = Where(padded, infinite, t) {GUARD}",
    "integers": f"t = MatMul(q, kt) b = Cast<to = 9>(attention_mask) m = Where(b, t, infinite) {GUARD}",
    "added condition": f"t = MatMul(q, kt) f = Where(condition, zero, infinite) m = Add(t, f) {GUARD}",
    "added input": f"t = MatMul(q, kt) m = Add(t, full_added) {GUARD}",
    "added lowest twice": f"""t = MatMul(q, kt) f = Where(condition, zero, lowest) g = Where(padded, lowest, zero)
        a = Add(t, f) m = Add(a, g) {GUARD}""",
    "two conditions": f"""t = MatMul(q, kt) a = Where(condition, t, infinite) m = Where(lower, a, infinite) {GUARD}""",
    "causal and padding": f"""t = MatMul(q, kt) b = And(condition, lower) m = Where(b, t, infinite) {GUARD}""",
    "mask of keys": f"t = MatMul(q, kt) {SPREAD} m = Where(spread, t, infinite) {GUARD}",
    "causal and mask of keys": f"""t = MatMul(q, kt) {SPREAD}
        last = Gather(full, three) keys = Range(none, last, single) height = Gather(full, two)
        rows = Range(none, height, single) column = Unsqueeze(rows, upright_axis) before = LessOrEqual(keys, column)
        b = And(spread, before) f = Where(b, zero, infinite) m = Add(t, f) {GUARD}""",
    "position bias": f"t = MatMul(q, kt) a = Add(t, full_added) m = Where(condition, a, infinite) {GUARD}",
    "finite fill behind": f"t = MatMul(q, kt) a = Where(condition, t, infinite) m = Where(lower, a, lowest) {GUARD}",
    "softmax in fp32": """t = MatMul(q, kt) w = Cast<to = 1>(t) m = Where(condition, w, infinite32)
        r = Softmax<axis = -1>(m) nan = IsNaN(r) g = Where(nan, zero32, r) p = Cast<to = 10>(g)""",
}
FINITE = ("finite fill behind", "added lowest twice")
"""Whose fills are numbers, in float32 at least, in which ONNX Runtime adds float16 too."""

INPUTS = ("condition", "padded", "attention_mask", "added", "full_added", "token_mask")


def guarded(name: str, dtype: str, opset: int = 17) -> ModelProto:
    chain = MASKS[name]
    lowest = LOWEST if dtype == "float" else -65504.0
    constants = {
        "zero": 0.0,
        "infinite": MINUS_INFINITY,
        "lowest": lowest,
        "zero32": np.float32(0),
        "infinite32": np.float32(MINUS_INFINITY),
        "lower": np.tril(np.ones((LENGTH, LENGTH), bool)),
        "middle": np.array([1, 2]),
        "upright_axis": np.array([1]),
        "none": np.array(0),
        "single": np.array(1),
        "two": np.array(2),
        "three": np.array(3),
    }
    words = chain.replace("(", " ").replace(")", " ").replace(",", " ").split()
    used = {key: value for key, value in constants.items() if key in words}
    return attention(
        chain, inputs=tuple(key for key in INPUTS if key in words), constants=used, dtype=dtype, opset=opset
    )


def keep_masks() -> np.ndarray:
    """bool [B, 1, 1, T]: left padding, right padding, holes, nothing at all."""
    keep = np.ones((BATCH, 1, 1, LENGTH), bool)
    keep[0, ..., :3], keep[1, ..., 4:], keep[2, ..., [0, 2, 3]], keep[3] = False, False, False, False
    return keep


def feeds(model: ModelProto, dtype: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    kind = np.float32 if dtype == "float" else np.float16
    keep = keep_masks()
    added = np.where(np.broadcast_to(keep, (BATCH, 2, LENGTH, LENGTH)), rng.standard_normal((2, LENGTH, LENGTH)), 0.0)
    values = {
        **{name: rng.standard_normal((BATCH, 2, LENGTH, 4)).astype(kind) for name in "qkv"},
        "condition": keep,
        "padded": ~keep,
        "attention_mask": keep.astype(np.int64),
        "token_mask": keep[:, 0, 0].astype(np.int64),
        "full_added": (added if has_condition(model) else np.where(keep, added, -np.inf)).astype(kind),
    }
    return {value.name: values[value.name] for value in model.graph.input}


def has_condition(model: ModelProto) -> bool:
    return any(value.name == "condition" for value in model.graph.input)


def native(model: ModelProto) -> ModelProto:
    sites = match_model(model)
    lowered = lower_model(model, sites, {site.name: "native" for site in sites.sites})
    onnx.checker.check_model(lowered, full_check=True)
    return lowered


def run(model: ModelProto, inputs: dict[str, np.ndarray]) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


def operators(model: ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("opset", [13, 17, 18, 21])
@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize("name", MASKS)
def test_results_are_equal_in_every_row(name: str, dtype: str, opset: int) -> None:
    if name == "softmax in fp32" and dtype == "float":
        dtype = "float16"  # casts that the form is made of
    model = guarded(name, dtype, opset)
    lowered = native(model)
    assert "IsNaN" in operators(model)
    assert "IsNaN" not in operators(lowered)
    inputs = feeds(model, dtype)
    expected, actual = run(model, inputs), run(lowered, inputs)
    np.testing.assert_allclose(actual, expected, atol=TOLERANCE[dtype], rtol=0)
    empty = (expected == 0).all(axis=-1)
    assert empty[3].all() or name in FINITE  # the sequence without any token
    assert (actual[empty] == 0).all()


@pytest.mark.parametrize("name", ["causal and padding", "causal and mask of keys"])
def test_the_rows_of_causality_over_left_padding_are_among_the_empty_ones(name: str) -> None:
    model = guarded(name, "float")
    actual = run(native(model), feeds(model, "float"))
    empty = (actual == 0).all(axis=-1)[:, 0]
    assert empty.sum(axis=1).tolist() == [3, 0, 1, LENGTH]


def test_what_masks_keys_is_searched_without_the_queries() -> None:
    """A mask [B, T] that the model spreads to [B, 1, S, T], causality in it or not: its first key is enough."""
    for name, search in (("mask of keys", "ReduceMax"), ("causal and mask of keys", "ReduceMin")):
        lowered = native(guarded(name, "float"))
        assert ("Expand" in operators(lowered)) == name.startswith("causal")  # there the scores need the whole of it
        (reduced,) = (node for node in lowered.graph.node if node.op_type in ("ReduceMax", "ReduceMin"))
        assert reduced.op_type == search
        probe = onnx.helper.make_tensor_value_info(reduced.output[0], TensorProto.UNDEFINED, None)
        lowered.graph.output.append(probe)
        inputs = feeds(lowered, "float")
        names = [output.name for output in lowered.graph.output]
        found = ReferenceEvaluator(lowered).run(names, inputs)[1]
        assert found.shape == (BATCH, 1, 1, 1)


def test_a_bias_as_low_as_a_fill_counts_beside_keys_that_are_masked() -> None:
    """The only allowed key has -65504 added: its probability is 1, and no part of it goes to the masked ones."""
    model = guarded("position bias", "float16")
    inputs = feeds(model, "float16")
    inputs["condition"] = np.zeros_like(inputs["condition"])
    inputs["condition"][..., 2] = True
    inputs["full_added"] = np.full_like(inputs["full_added"], -65504.0)
    actual = run(native(model), inputs)
    np.testing.assert_array_equal(actual, np.broadcast_to(inputs["v"][:, :, 2:3], actual.shape))


def test_a_score_below_the_lowest_number_makes_no_nan() -> None:
    """In float16 -65504 - 20 is -inf. The reference evaluator computes in it; ONNX Runtime on a CPU in float32."""
    chain = f"t = MatMul(q, kt) f = Where(condition, zero, lowest) m = Add(t, f) {GUARD}"
    constants = {"zero": 0.0, "lowest": -65504.0}
    model = attention(chain, inputs=("condition",), constants=constants, dtype="float16")
    inputs = feeds(model, "float16")
    inputs["q"], inputs["k"] = np.full_like(inputs["q"], -4.0), np.full_like(inputs["k"], 4.0)
    with np.errstate(over="ignore", invalid="ignore"):
        (given,), (actual,) = (ReferenceEvaluator(each).run(None, inputs) for each in (model, native(model)))
    assert (given[3] == 0).all()
    assert np.isfinite(actual).all()
    np.testing.assert_allclose(actual[:3], given[:3], atol=TOLERANCE["float16"])


TWO_LAYERS = """
    s = MatMul(q, kt) m = Where({first}, s, infinite) r = Softmax<axis = -1>(m) nan = IsNaN(r) g = Where(nan, zero, r)
    u = MatMul(g, v) x = MatMul(u, kt) y = Where({second}, x, infinite) a = Softmax<axis = -1>(y) b = IsNaN(a)
    p = Where(b, zero, a)
"""


@pytest.mark.parametrize(("second", "searches"), [("condition", 1), ("other", 2)])
def test_sites_with_the_same_masks_share_one_search(second: str, searches: int) -> None:
    chain = f"other = Not(padded) {TWO_LAYERS.format(first='condition', second=second)}"
    constants = {"zero": 0.0, "infinite": MINUS_INFINITY}
    model = attention(chain, inputs=("condition", "padded"), constants=constants)
    lowered = native(model)
    assert operators(lowered).count("ReduceMax") == searches
    inputs = feeds(model, "float")
    np.testing.assert_allclose(run(lowered, inputs), run(model, inputs), atol=TOLERANCE["float"])


def test_a_mask_that_every_layer_makes_anew_of_one_condition_is_searched_once() -> None:
    """TorchScript gives every layer its own Where, and has scores of several types."""
    chain = f"""s = MatMul(q, kt) f = Where(condition, zero32, infinite32) wide = Cast<to = 1>(s) a = Add(wide, f)
        d = Softmax<axis = -1>(a) e = IsNaN(d) n = Where(e, zero32, d) first = Cast<to = 10>(n)
        u = MatMul(first, v) t = MatMul(u, kt) h = Where(condition, zero, infinite) m = Add(t, h) {GUARD}"""
    constants = {"zero": 0.0, "infinite": MINUS_INFINITY, "zero32": np.float32(0), "infinite32": np.float32("-inf")}
    model = attention(chain, inputs=("condition",), constants=constants, dtype="float16")
    lowered = native(model)
    assert operators(lowered).count("ReduceMax") == 1
    inputs = feeds(model, "float16")
    np.testing.assert_allclose(run(lowered, inputs), run(model, inputs), atol=TOLERANCE["float16"])


def test_sites_that_end_in_another_order_than_they_begin_share_it_too() -> None:
    """The first softmax's product with the values comes last."""
    chain = f"""s = MatMul(q, kt) m = Where(condition, s, infinite) {GUARD}
        x = MatMul(k, kt) y = Where(condition, x, infinite) a = Softmax<axis = -1>(y) b = IsNaN(a)
        e = Where(b, zero, a) early = MatMul(e, v)"""
    model = attention(
        chain,
        inputs=("condition",),
        constants={"zero": 0.0, "infinite": MINUS_INFINITY},
        values="late = MatMul(p, v) out = Add(late, early)",
    )
    lowered = native(model)
    assert operators(lowered).count("ReduceMax") == 1
    inputs = feeds(model, "float")
    np.testing.assert_allclose(run(lowered, inputs), run(model, inputs), atol=TOLERANCE["float"])


@pytest.mark.parametrize("shape", [(), (LENGTH,), (LENGTH, 1), (LENGTH, LENGTH)])
@pytest.mark.parametrize("kept", [False, True])
def test_conditions_of_few_dimensions(shape: tuple[int, ...], kept: bool) -> None:
    condition = np.full(shape, kept)
    constants = {"zero": 0.0, "infinite": MINUS_INFINITY, "flags": condition}
    model = attention(f"t = MatMul(q, kt) m = Where(flags, t, infinite) {GUARD}", constants=constants)
    inputs = feeds(model, "float")
    np.testing.assert_allclose(run(native(model), inputs), run(model, inputs), atol=TOLERANCE["float"])


def test_no_search_where_every_row_has_a_key() -> None:
    chain = f"s = MatMul(q, kt) m = Where(lower, s, infinite) {GUARD}"
    lower = np.tril(np.ones((LENGTH, LENGTH), bool))
    constants = {"zero": 0.0, "infinite": MINUS_INFINITY, "lower": lower}
    lowered = native(attention(chain, constants=constants))
    assert not {"ReduceMax", "IsNaN"} & set(operators(lowered))
