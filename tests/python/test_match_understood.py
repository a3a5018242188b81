"""Masks read for what they are: what becomes an attribute or a small tensor, what stays, and that no row tells."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from attngraft.lower import lower_model
from attngraft.match import Site, match_model
from attngraft.onnx_graph import load_model
from attngraft.verify import verify_models
from chain_models import LOWEST, MINUS_INFINITY
from onnx import ModelProto

CAUSAL = """
    shape = Shape(s) rows = Slice(shape, two, three) keys = Slice(shape, three, four)
    square = Concat<axis = 0>(rows, keys) ones = ConstantOfShape<value = float[1] {1.0}>(square)
    below = Trilu<upper = 0>(ones) causal = Cast<to = 9>(below)
"""
PADDING = "wide = Unsqueeze(attention_mask, middle) padding = Cast<to = 9>(wide)"
CONSTANTS: dict[str, object] = {
    "two": np.array([2], np.int64),
    "three": np.array([3], np.int64),
    "four": np.array([4], np.int64),
    "middle": np.array([1, 2], np.int64),
    "zero": 0.0,
    "infinite": MINUS_INFINITY,
}


def attend(body: str, constants: Mapping[str, object] | None = None, dtype: str = "float") -> ModelProto:
    """Attention whose masks `body` makes from `s`, the scores; `m` is what the softmax reads."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        attention ({dtype}[B,2,S,4] q, {dtype}[B,2,S,4] k, {dtype}[B,2,S,4] v, int64[B,S] attention_mask)
            => ({dtype}[B,2,S,4] out)
        {{
            kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt) {body} p = Softmax<axis = -1>(m) out = MatMul(p, v)
        }}
    """)
    numpy_type = np.float16 if dtype == "float16" else np.float32
    for name, value in {**CONSTANTS, **(constants or {})}.items():
        array = np.asarray(value, numpy_type) if isinstance(value, float) else np.asarray(value)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def lowered_alike(model: ModelProto) -> Site:
    """The only site, whose softmax lowering gives what the model gives, wholly masked rows included."""
    sites = match_model(model)
    (site,) = sites.sites
    report = verify_models(model, lower_model(model, sites, {site.name: "softmax"}))
    assert report.passed, str(report)
    assert any("one row masked" in case for case in report.cases)
    return site


def test_second_mask_is_read_where_the_first_ends() -> None:
    """One node has one keep operand: the outer mask becomes it, the inner Where stays in the scores."""
    body = f"{CAUSAL} {PADDING} a = Where(causal, s, infinite) b = Where(padding, zero, infinite) m = Add(a, b)"
    site = lowered_alike(attend(body))
    assert (site.scores, site.config.operands, site.config.empty_rows) == ("a", ("keep",), "zeros")
    assert (site.masks[0].tensors, site.masks[0].unsqueeze) == (("attention_mask",), (1, 2))
    assert [mask.form for mask in site.source_masks] == ["where", "add-where"]


def test_two_finite_fills_stay_the_numbers_that_they_are() -> None:
    """GPT-Neo: where both mask, the sum is -inf, and a wholly masked row is uniform over the other keys alone."""
    body = f"{CAUSAL} {PADDING} a = Where(causal, s, low) b = Where(padding, zero, low) m = Add(a, b)"
    site = lowered_alike(attend(body, {"low": LOWEST}))
    assert site.config.causal == "none"
    assert [mask.role for mask in site.masks] == ["bias"]


def test_finite_fill_beside_a_triangle_of_infinities_stays_a_number() -> None:
    """A row whose allowed keys are all padded is uniform over those, and not over the keys after it."""
    body = f"""
        {CAUSAL} {PADDING} t = Where(causal, zero, infinite) b = Add(s, t) a = Where(padding, zero, low) m = Add(b, a)
    """
    site = lowered_alike(attend(body, {"low": LOWEST}))
    assert [(mask.role, mask.fill) for mask in site.masks] == [("bias", 0.0), ("keep", MINUS_INFINITY)]
    assert site.config.causal == "none"


def test_one_mask_of_both_is_split() -> None:
    body = f"{CAUSAL} {PADDING} both = And(causal, padding) a = Where(both, zero, low) m = Add(s, a)"
    for fill, empty_rows in ((LOWEST, "uniform"), (MINUS_INFINITY, "zeros")):
        site = lowered_alike(attend(body, {"low": fill}))
        assert (site.config.causal, site.config.empty_rows) == ("top_left", empty_rows)
        assert site.masks[0].tensors == ("attention_mask",)


def test_causality_as_an_inverted_triangle() -> None:
    """What lies above the diagonal is filled, as torch.triu and masked_fill write it."""
    body = f"""
        {CAUSAL} above = Trilu<upper = 1>(ones, first) hidden = Cast<to = 9>(above)
        m = Where(hidden, infinite, s)
    """
    site = lowered_alike(attend(body, {"first": np.int64(1)}))
    assert (site.config.causal, site.config.operands, site.masks) == ("top_left", (), ())
    assert site.source_masks[0].invert


def test_fill_that_fp32_tells_apart_stays_additive() -> None:
    body = f"{PADDING} a = Where(padding, zero, low) m = Add(s, a)"
    single = lowered_alike(attend(body, {"low": -1e4}))
    assert [mask.role for mask in single.masks] == ["bias"]
    half = lowered_alike(attend(body, {"low": -1e4}, "float16"))
    assert (half.config.operands, half.config.empty_rows) == (("keep",), "unmasked")


def test_bias_that_may_be_a_mask_keeps_a_finite_fill_additive() -> None:
    body = f"""
        {PADDING} x = Cast<to = 1>(attention_mask) y = Unsqueeze(x, middle) doubled = Add(s, y)
        a = Where(padding, zero, low) m = Add(doubled, a)
    """
    site = lowered_alike(attend(body, {"low": LOWEST}))
    assert "keep" not in site.config.operands


def test_bias_of_weights_stands_beside_the_padding() -> None:
    body = f"{PADDING} b = Add(s, position) a = Where(padding, zero, low) m = Add(b, a)"
    constants = {"low": LOWEST, "position": np.array([0.5, -0.5], np.float32).reshape(1, 2, 1, 1)}
    site = lowered_alike(attend(body, constants))
    assert (site.config.operands, site.config.empty_rows) == (("bias", "keep"), "uniform")
    assert site.masks[1].tensors == ("attention_mask",)


@pytest.mark.parametrize(("dtype", "low", "roles"), [
    ("float16", -65504.0, ("bias",)),
    ("float", LOWEST, ("bias", "keep")),
    ("float", -1e4, ("bias",)),
])  # fmt: skip
def test_fill_in_place_of_a_bias(dtype: str, low: float, roles: tuple[str, ...]) -> None:
    """T5: a row that is masked as a whole is uniform and without the bias; where fp32, in which ONNX Runtime adds half
    types too, tells the scores apart, it is their softmax without the bias, and nothing else says that."""
    body = f"{PADDING} a = Where(padding, position, low) m = Add(s, a)"
    numpy_type = np.float16 if dtype == "float16" else np.float32
    position = np.array([[0.5, -0.5, 2.0]], numpy_type).reshape(1, 1, 3, 1) * np.ones((1, 2, 3, 3), numpy_type)
    model = attend(body, {"low": low, "position": position}, dtype)
    for value in (*model.graph.input, *model.graph.output):  # as many keys as the table of positions has
        value.type.tensor_type.shape.dim[1 if value.name == "attention_mask" else 2].dim_value = 3
    site = lowered_alike(model)
    assert site.config.operands == roles
    if len(roles) == 2:
        assert site.masks[0].tensors == ("position",)
        assert (site.masks[1].tensors, site.config.empty_rows) == (("attention_mask",), "uniform")


@pytest.mark.parametrize("masking", [
    "a = Where(spread, zero, low) m = Add(s, a)",
    "m = Where(spread, s, infinite)",
    "n = Not(spread) m = Where(n, infinite, s)",
    "a = Where(spread, zero, zero) m = Add(s, a)",
])  # fmt: skip
def test_masks_of_nothing_but_true_are_gone(masking: str) -> None:
    """Vision transformers, which have nothing to mask, by way of a function that makes masks for all models."""
    model = attend(f"shape = Shape(s) spread = Expand(yes, shape) {masking}", {"yes": np.array(True), "low": LOWEST})
    sites = match_model(model)
    (site,) = sites.sites
    assert (site.masks, site.source_masks) == ((), ())
    native = lower_model(model, sites, {site.name: "native"})
    assert not {"Where", "Expand", "Add"} & {node.op_type for node in native.graph.node}
    report = verify_models(model, native)
    assert report.passed, str(report)


@pytest.mark.parametrize(
    ("name", "causal", "empty_rows"),
    [
        ("bert_sdpa_torchscript", "none", "zeros"),
        ("bert_eager_fp16_dynamo", "none", "unmasked"),
        ("bert_attentions_dynamo", "none", "uniform"),
        ("gpt2_sdpa_dynamo", "top_left", "uniform"),
        ("llama_eager_fp16_torchscript", "top_left", "unmasked"),
    ],
)
def test_real_exports_lose_the_mask_that_the_exporter_built(
    data_folder: Path, name: str, causal: str, empty_rows: str
) -> None:
    model = load_model(data_folder / f"{name}.onnx")
    sites = match_model(model)
    (site,) = sites.sites
    (mask,) = site.masks
    assert (site.config.causal, site.config.empty_rows) == (causal, empty_rows)
    assert (mask.role, mask.unsqueeze) == ("keep", (1, 2))
    lowered = lower_model(model, sites, {site.name: "softmax"})
    (source,) = site.source_masks
    built = source.added or source.tensors[0]
    assert any(built in node.output for node in model.graph.node)
    assert not any(built in node.output for node in lowered.graph.node)
    report = verify_models(model, lowered)
    assert report.passed, str(report)
