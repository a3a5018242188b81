"""What a record says beside the arithmetic: which operator it was, what was assumed, how the model has its masks."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from attngraft.match import Site, match_model
from attngraft.report.phrases import mask_text
from chain_models import LOWEST, attention
from onnx import ModelProto, TensorProto
from test_match_fused import model as fused

COMPLEMENT = """
    s = MatMul(q, kt) x = Cast<to = 1>(attention_mask) y = Sub(one, x) a = Mul(y, f) m = Add(s, a)
    p = Softmax<axis = -1>(m)
"""
QKV = "float[B,4,S,8] q, float[B,4,S,8] k, float[B,4,S,8] v"
PACKED = "float[B,S,32] q, float[B,S,32] k, float[B,S,32] v"


def only_site(model: ModelProto) -> Site:
    (site,) = match_model(model).sites
    return site


@pytest.mark.parametrize(
    ("model", "operator"),
    [
        (attention("s = MatMul(q, kt) p = Softmax<axis = -1>(s)"), "Softmax"),
        (attention("s = MatMul(q, kt) l = LogSoftmax<axis = -1>(s) p = Exp(l)"), "LogSoftmax"),
        (attention("s = MatMul(q, kt) e = Exp(s) t = ReduceSum<keepdims = 1>(e, last) p = Div(e, t)"), "by hand"),
        (fused(QKV, "out = Attention(q, k, v)"), "Attention"),
        (
            fused(PACKED, "out = com.microsoft.MultiHeadAttention<num_heads = 4>(q, k, v)", output="float[B,S,32] out"),
            "com.microsoft::MultiHeadAttention",
        ),
    ],
    ids=["Softmax", "LogSoftmax", "by hand", "Attention", "MultiHeadAttention"],
)
def test_the_operator(model: ModelProto, operator: str) -> None:
    if operator == "by hand":
        model.graph.initializer.add(name="last", data_type=TensorProto.INT64, dims=[1], int64_data=[-1])
    assert only_site(model).operator == operator


def test_an_integer_mask_that_the_model_computes_with_is_taken_as_zero_and_one() -> None:
    site = only_site(attention(COMPLEMENT, inputs=("attention_mask",), constants={"one": 1.0, "f": LOWEST}))
    assert [(mask.tensors, mask.taken_as_zero_one) for mask in site.masks] == [(("attention_mask",), True)]
    assert "taken as 0 and 1" in mask_text(site)


def test_a_boolean_or_tested_mask_is_not_assumed_to_be_anything() -> None:
    tested = COMPLEMENT.replace(
        "x = Cast<to = 1>(attention_mask)", "b = Cast<to = 9>(attention_mask) x = Cast<to = 1>(b)"
    )
    site = only_site(attention(tested, inputs=("attention_mask",), constants={"one": 1.0, "f": LOWEST}))
    assert [mask.taken_as_zero_one for mask in site.masks] == [False]
    where = "s = MatMul(q, kt) a = Where(condition, zero, f) m = Add(s, a) p = Softmax<axis = -1>(m)"
    site = only_site(attention(where, inputs=("condition",), constants={"zero": 0.0, "f": LOWEST}))
    assert [mask.taken_as_zero_one for mask in site.masks] == [False]


@pytest.mark.parametrize("fill", [-65504.0, -1e4])
def test_a_fill_that_does_not_absorb_the_scores_is_known_to_the_whole_site(fill: float) -> None:
    """A wholly masked row is as if nothing were masked, and a known fill tells that it cannot be NaN."""
    where = "s = MatMul(q, kt) a = Where(condition, zero, f) m = Add(s, a) p = Softmax<axis = -1>(m)"
    site = only_site(attention(where, inputs=("condition",), constants={"zero": 0.0, "f": fill}, dtype="float16"))
    assert site.config.empty_rows == "unmasked"
    (source,) = site.source_masks
    assert (source.form, source.tensors, source.fill, source.added) == ("add-where", ("condition",), fill, "a")


def test_an_added_number_that_masks_nothing_stays_a_tensor() -> None:
    where = "s = MatMul(q, kt) a = Where(condition, zero, f) m = Add(s, a) p = Softmax<axis = -1>(m)"
    site = only_site(attention(where, inputs=("condition",), constants={"zero": 0.0, "f": -1.0}))
    assert [(mask.form, mask.tensors) for mask in site.source_masks] == [("add", ("a",))]


SPREAD = """
    s = MatMul(q, kt) told = Cast<to = 9>(padding) upright = Unsqueeze(told, middle) full = Shape(s)
    spread = Expand(upright, full) {mask}
"""

CONSTANTS = {
    "middle": np.array([1, 2]),
    "zero": 0.0,
    "infinite": -np.inf,
    "places": np.linspace(0, 1, 36, dtype=np.float32).reshape(1, 1, 6, 6),
}


def spread(mask: str, padding: str = "int64[B,T] padding") -> ModelProto:
    """Attention with a mask of keys [B, T] that the model spreads over the queries."""
    model = attention(
        SPREAD.format(mask=mask),
        constants={"middle": np.array([1, 2]), "zero": 0.0, "infinite": -np.inf, "one": np.array(1)},
    )
    text = onnx.parser.parse_graph(f"g ({padding}) => (float x) {{ x = Identity(x0) }}")
    model.graph.input.extend(text.input)
    return model


FILLED = "m = Where(spread, s, infinite) p = Softmax<axis = -1>(m)"
ADDED = "f = Where(spread, zero, infinite) m = Add(s, f) p = Softmax<axis = -1>(m)"


@pytest.mark.parametrize("mask", [FILLED, ADDED])
def test_a_mask_that_is_spread_from_one_of_keys(mask: str) -> None:
    key_mask = only_site(spread(mask)).key_mask
    assert key_mask is not None
    assert (key_mask.tensors, key_mask.unsqueeze, key_mask.invert) == (("padding",), (1, 2), False)


def test_a_mask_that_is_spread_from_one_of_keys_with_causality() -> None:
    site = only_site(spread("tri = Trilu<upper = 0>(spread) " + FILLED.replace("spread,", "tri,")))
    assert (site.config.causal, site.config.operands) == ("top_left", ("keep",))
    assert (site.key_mask.tensors, site.key_mask.unsqueeze) == (("padding",), (1, 2))


@pytest.mark.parametrize(
    "model",
    [
        spread(FILLED, "int64[N,T] padding"),
        spread(FILLED.replace("infinite", "zero")),
        spread(f"b = Add(s, places) {FILLED.replace('s,', 'b,')}"),
        spread("tri = Trilu<upper = 0>(spread, one) " + FILLED.replace("spread,", "tri,")),
        attention(
            "s = MatMul(q, kt) m = Where(condition, s, f) p = Softmax<axis = -1>(m)",
            inputs=("condition",),
            constants={"f": -np.inf},
        ),
    ],
    ids=["another batch size", "a number that masks nothing", "a bias beside it", "another corner", "not spread"],
)
def test_no_mask_of_keys_alone(model: ModelProto) -> None:
    assert only_site(model).key_mask is None
