"""Verification finds what is wrong, lets nothing pass by chance, and draws inputs that hurt."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import pytest
from chain_models import FORMS, LOWEST, MINUS_INFINITY, attention
from onnx import ModelProto, TensorProto

from attngraft.contract import DOMAIN
from attngraft.errors import VerificationError
from attngraft.lower import lower_model
from attngraft.match import match_model
from attngraft.onnx_graph import load_model
from attngraft.verify import verify_models
from attngraft.verify.inputs import InputKinds, draw_inputs
from attngraft.verify.inputs import input_kinds as kinds_of_inputs
from attngraft.verify.masks import MASK_PATTERNS, attend_pattern
from attngraft.verify.shapes import size_plans


def elementwise(body: str, kind: str = "float") -> ModelProto:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g ({kind}[N,4] x) => ({kind}[N,4] out) {{ {body} }}'
    return onnx.parser.parse_model(text)


IDENTITY = elementwise("out = Identity(x)")


def with_constant(body: str, value: float, dtype: type = np.float32, kind: str = "float") -> ModelProto:
    model = elementwise(body, kind)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value, dtype), "c"))
    return model


def input_kinds(model: ModelProto) -> InputKinds:
    return kinds_of_inputs(model, match_model(model).sites)


def test_equal_models_pass() -> None:
    report = verify_models(IDENTITY, IDENTITY)
    assert report.passed
    assert report.worst == 0
    report.raise_if_failed()


def test_a_difference_fails_with_output_and_size() -> None:
    report = verify_models(IDENTITY, with_constant("out = Add(x, c)", 0.01))
    assert not report.passed
    assert report.worst == pytest.approx(0.01, rel=1e-3)
    with pytest.raises(VerificationError, match=r"output 'out' differs by 0\.01"):
        report.raise_if_failed()
    assert "DIFFERS" in str(report)


def test_a_difference_within_rounding_passes() -> None:
    assert verify_models(IDENTITY, with_constant("out = Add(x, c)", 1e-6)).passed


def test_new_nan_fails() -> None:
    report = verify_models(
        with_constant("out = Identity(x)", 0), with_constant("y = Abs(x) z = Neg(y) out = Sqrt(z)", 0)
    )
    assert not report.passed
    assert report.outputs[0].new_nan > 0
    with pytest.raises(VerificationError, match="NaN where the original is finite"):
        report.raise_if_failed()


def test_nan_of_the_original_is_reported_apart() -> None:
    original = elementwise("out = Sqrt(x)")
    rewritten = elementwise("y = Sqrt(x) n = IsNaN(y) z = Sub(x, x) out = Where(n, z, y)")
    (row,) = verify_models(original, rewritten).outputs
    assert row.passed
    assert row.nan_in_original > 0
    assert row.compared > 0


def test_nothing_but_nan_does_not_pass() -> None:
    nothing = elementwise("y = Abs(x) z = Neg(y) out = Sqrt(z)")
    report = verify_models(nothing, nothing)
    assert not report.passed
    with pytest.raises(VerificationError, match="nothing could be compared"):
        report.raise_if_failed()


def test_infinities() -> None:
    infinite = with_constant("out = Div(x, c)", 0.0)
    assert verify_models(infinite, infinite).passed
    opposite = with_constant("y = Neg(x) out = Div(y, c)", 0.0)
    report = verify_models(infinite, opposite)
    assert not report.passed
    assert report.worst == np.inf


def test_integers_must_be_equal() -> None:
    whole = elementwise("out = Identity(x)", "int64")
    assert verify_models(whole, whole).passed
    assert not verify_models(whole, with_constant("out = Add(x, c)", 1, np.int64, "int64")).passed


def test_fp16_has_its_own_tolerance() -> None:
    half = elementwise("out = Identity(x)", "float16")
    assert verify_models(half, with_constant("out = Add(x, c)", 1e-3, np.float16, "float16")).passed
    assert not verify_models(half, with_constant("out = Add(x, c)", 0.1, np.float16, "float16")).passed


def test_bfloat16_is_compared_as_float32() -> None:
    chain = "s = MatMul(q, kt) t = Mul(s, c) m = Where(condition, t, f) p = Softmax<axis = -1>(m)"
    constants = {"c": 0.5, "f": float(np.float32(-3.3895314e38))}
    model = attention(chain, inputs=("condition",), constants=constants, dtype="bfloat16")
    sites = match_model(model)
    lowered = lower_model(model, sites, {"p": "softmax"})
    report = verify_models(model, lowered)
    assert report.passed
    assert "bfloat16 was computed as float32" in report.notes[-1]
    original = attention(chain, inputs=("condition",), constants={**constants, "c": 0.25}, dtype="bfloat16")
    assert not verify_models(original, lowered).passed


def test_wrong_polarity_is_caught() -> None:
    form = FORMS["where -inf"]
    model = form.model()
    lowered = lower_model(model, match_model(model), {"p": "softmax"})
    node = next(node for node in lowered.graph.node if node.domain == DOMAIN)
    lowered.graph.node.insert(0, onnx.helper.make_node("Not", [node.input[1]], ["inverted"]))
    next(node for node in lowered.graph.node if node.domain == DOMAIN).input[1] = "inverted"
    assert not verify_models(model, lowered).passed


@pytest.mark.parametrize(("fill", "other"), [(LOWEST, MINUS_INFINITY), (-1e9, MINUS_INFINITY)])
def test_wrong_filling_shows_only_in_a_wholly_masked_row(fill: float, other: float) -> None:
    chain = "s = MatMul(q, kt) m = Where(condition, s, f) p = Softmax<axis = -1>(m)"
    guarded = (
        "s = MatMul(q, kt) m = Where(condition, s, f) w = Softmax<axis = -1>(m) n = IsNaN(w) p = Where(n, zero, w)"
    )
    uniform = attention(chain, inputs=("condition",), constants={"f": fill})
    zeros = attention(guarded, inputs=("condition",), constants={"f": other, "zero": 0.0})
    report = verify_models(uniform, zeros)
    assert not report.passed
    assert "one row masked" in report.outputs[0].case


def test_different_interfaces_are_refused() -> None:
    with pytest.raises(VerificationError, match="different inputs"):
        verify_models(IDENTITY, FORMS["bare"].model())
    renamed = elementwise("out = Identity(x)")
    renamed.graph.node[0].output[0] = renamed.graph.output[0].name = "other"
    with pytest.raises(VerificationError, match="different outputs"):
        verify_models(IDENTITY, renamed)


def test_a_model_that_does_not_load_is_named() -> None:
    broken = elementwise("out = NoSuchOperator(x)")
    with pytest.raises(VerificationError, match="the original model does not load in ONNX Runtime.*--no-verify"):
        verify_models(broken, broken)
    with pytest.raises(VerificationError, match="the rewritten model does not load"):
        verify_models(IDENTITY, broken)


def test_outputs_that_are_no_tensors_are_refused() -> None:
    model = elementwise("out = SequenceConstruct(x)")
    model.graph.output[0].CopyFrom(
        onnx.helper.make_value_info(
            "out", onnx.helper.make_sequence_type_proto(onnx.helper.make_tensor_type_proto(1, None))
        )
    )
    with pytest.raises(VerificationError, match="is no tensor"):
        verify_models(model, model)


def test_sizes_that_the_original_refuses_are_passed_over() -> None:
    model = elementwise("shape = Constant<value = int64[2] {2, 16}>() y = Reshape(x, shape) out = Reshape(y, same)")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([8, 4]), "same"))
    with pytest.raises(VerificationError, match="--shape"):
        verify_models(model, model)
    report = verify_models(model, model, shapes={"x": (8, 4)})
    assert report.passed


def test_given_shapes_fix_the_symbols_of_other_inputs() -> None:
    kinds = input_kinds(FORMS["additive mask"].model())
    for shapes in itertools.chain.from_iterable(size_plans(kinds.specs, {"q": (5, 2, 11, 4)})):
        assert shapes["q"] == (5, 2, 11, 4)
        assert shapes["k"][0] == 5
        assert shapes["added"][0] == 5
    with pytest.raises(VerificationError, match="no such input"):
        size_plans(kinds.specs, {"nothing": (1,)})
    with pytest.raises(VerificationError, match="contradicts"):
        size_plans(kinds.specs, {"q": (5, 3, 11, 4)})


def test_symbols_agree_and_sums_are_understood() -> None:
    model = elementwise("out = Identity(x)")
    for name, dims in (("past", ["N", "past"]), ("mask", ["N", "past + now"]), ("now", ["N", "now"])):
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))
    for shapes in itertools.chain.from_iterable(size_plans(input_kinds(model).specs, None)):
        assert shapes["mask"][1] == shapes["past"][1] + shapes["now"][1]
        assert shapes["mask"][0] == shapes["x"][0]


def test_ids_stay_within_their_table(data_folder: Path) -> None:
    kinds = input_kinds(load_model(data_folder / "bert_sdpa_torchscript.onnx"))
    assert kinds.id_bounds == {"input_ids": 30}
    assert kinds.masks == {"attention_mask"}
    cases = list(draw_inputs(kinds, {"input_ids": (3, 7), "attention_mask": (3, 7)}, seed=0))
    assert [case.label.rsplit(" ", 1)[0] for case in cases] == list(MASK_PATTERNS)
    assert all(0 <= case.feeds["input_ids"].min() <= case.feeds["input_ids"].max() < 30 for case in cases)
    masked = cases[-1].feeds["attention_mask"]
    assert not masked[-1].any()
    assert masked[0].any()


def test_masks_are_found_by_what_they_do() -> None:
    kinds = input_kinds(FORMS["added where, lowest"].model())
    assert kinds.masks == {"padded"}
    assert kinds.inverted == {"padded"}
    added = input_kinds(FORMS["additive mask"].model())
    assert added.additive == added.masks == {"added"}


def test_masks_that_are_true_where_masked_are_found_by_what_they_do() -> None:
    """The input's name says nothing; a model may invert it on the way."""
    for chain, inverted in (
        ("m = Where(condition, s, f)", set()),
        ("m = Where(condition, f, s)", {"condition"}),
        ("n = Not(condition) m = Where(n, s, f)", {"condition"}),
        ("n = Not(condition) e = Identity(n) m = Where(e, f, s)", set()),
    ):
        nodes = f"s = MatMul(q, kt) {chain} p = Softmax<axis = -1>(m)"
        kinds = input_kinds(attention(nodes, inputs=("condition",), constants={"f": MINUS_INFINITY}))
        assert kinds.inverted == inverted
        cases = draw_inputs(kinds, size_plans(kinds.specs, None, kinds.masks)[0][0], seed=0)
        assert all(case.feeds["condition"].all() != bool(inverted) for case in cases if case.label.startswith("full"))


def test_same_seed_same_inputs() -> None:
    kinds = input_kinds(FORMS["bare"].model())
    shapes = size_plans(kinds.specs, None)[0][0]
    first, second, other = (list(draw_inputs(kinds, shapes, seed)) for seed in (1, 1, 2))
    assert all((a.feeds["q"] == b.feeds["q"]).all() for a, b in zip(first, second, strict=True))
    assert (first[0].feeds["q"] != other[0].feeds["q"]).any()


@pytest.mark.parametrize(("name", "early"), [("gpt2_sdpa_dynamo", {"left-padded"}), ("bert_eager_fp16_dynamo", set())])
def test_rows_before_the_first_key_are_known(data_folder: Path, name: str, early: set[str]) -> None:
    """Left padding leaves them where attention is causal."""
    kinds = input_kinds(load_model(data_folder / f"{name}.onnx"))
    cases = list(draw_inputs(kinds, {"input_ids": (2, 6), "attention_mask": (2, 6)}, seed=0))
    assert {case.label.split(" ")[0] for case in cases if case.has_early_rows} == early
    assert [case.has_empty_rows for case in cases] == [False, False, False, False, True]


@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 1, 1, 8), (1, 1), (4, 0)])
def test_patterns(shape: tuple[int, ...]) -> None:
    generator = np.random.default_rng(0)
    patterns = {name: attend_pattern(name, shape, generator) for name in MASK_PATTERNS}
    assert all(pattern.shape == shape for pattern in patterns.values())
    assert patterns["full"].all()
    if 0 in shape:
        return
    rows = {name: pattern.reshape(-1, shape[-1]) for name, pattern in patterns.items()}
    for name in ("right-padded", "left-padded", "holed"):
        assert rows[name].any(axis=1).all()
    assert not rows["one row masked"][-1].any()
    if shape[-1] > 2:
        assert rows["right-padded"][0, 0] and not rows["right-padded"][0, -1]
        assert rows["left-padded"][0, -1] and not rows["left-padded"][0, 0]
