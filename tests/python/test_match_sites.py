"""What is no attention, what cannot be lowered, and what the records say beyond the configuration."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
import pytest
from attngraft.lower import lower_model
from attngraft.match import match_model
from attngraft.match.records import LOWERINGS
from attngraft.onnx_graph import load_model
from attngraft.verify import verify_models
from chain_models import FORMS, attention


def other_reason(model: onnx.ModelProto) -> str:
    """The reason of the only softmax, which must have been left alone."""
    found = match_model(model)
    assert not found.sites
    (other,) = found.others
    return other.reason


def classifier(body: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[B,8] x, float[B,4] y) => (float[B,4] out) {{ {body} }}'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((8, 4), np.float32), "w"))
    return model


def test_classifier_head_is_left_alone() -> None:
    assert "no product of two activations" in other_reason(classifier("s = MatMul(x, w) out = Softmax<axis = -1>(s)"))


def test_gate_whose_weights_come_through_a_transpose_is_left_alone() -> None:
    body = (
        "t = Transpose<perm = [1, 0]>(w) u = Transpose<perm = [1, 0]>(t) s = MatMul(x, u) out = Softmax<axis = -1>(s)"
    )
    assert "no product of two activations" in other_reason(classifier(body))


def test_similarity_that_weighs_no_values_is_left_alone() -> None:
    model = attention(
        "s = MatMul(q, kt) p = Softmax<axis = -1>(s)", outputs="float[B,2,S,T] out", values="out = Identity(p)"
    )
    assert "weighs no values" in other_reason(model)


def test_log_softmax_without_its_exponential_is_left_alone() -> None:
    model = attention("s = MatMul(q, kt) l = LogSoftmax<axis = -1>(s) p = Neg(l)")
    assert "LogSoftmax" in other_reason(model)


def test_softmax_over_another_axis_is_a_site_that_is_kept() -> None:
    model = attention(
        "s = MatMul(k, qt) w = Softmax<axis = -2>(s) p = Transpose<perm = [0, 1, 3, 2]>(w)".replace("qt", "qtt")
    )
    model.graph.node.insert(0, onnx.helper.make_node("Transpose", ["q"], ["qtt"], perm=[0, 1, 3, 2]))
    (site,) = match_model(model).sites
    assert "axis -2" in site.lowerings["softmax"]
    assert site.config is None


def test_float64_scores_are_kept() -> None:
    model = attention("s = MatMul(q, kt) p = Softmax<axis = -1>(s)", dtype="double")
    (site,) = match_model(model).sites
    assert site.lowerings["softmax"] == "scores are float64; MaskedSoftmax takes float32, float16, bfloat16"


def test_mask_that_does_not_broadcast_is_a_reason() -> None:
    model = attention(
        "s = MatMul(q, kt) m = Add(s, b) p = Softmax<axis = -1>(m)", constants={"b": np.zeros((3, 1, 1), np.float32)}
    )
    (site,) = match_model(model).sites
    assert "does not broadcast" in site.lowerings["softmax"]


def test_every_lowering_has_a_word() -> None:
    (site,) = match_model(FORMS["bare"].model()).sites
    assert set(site.lowerings) == set(LOWERINGS)
    assert all(reason is None for reason in site.lowerings.values())


def test_scale_of_query_and_key_stays_in_fp16() -> None:
    chain = "qs = Mul(q, r) ks = Mul(kt, r) s = MatMul(qs, ks) p = Softmax<axis = -1>(s)"
    (half,) = match_model(attention(chain, constants={"r": 0.5}, dtype="float16")).sites
    assert half.config.scale == 1.0
    assert half.bypasses == ()
    assert "overflow" in half.scale.note
    (brain,) = match_model(attention(chain, constants={"r": 0.5}, dtype="bfloat16")).sites
    assert brain.config.scale == 0.25
    assert len(brain.bypasses) == 2


def test_scale_of_query_and_key_stays_when_the_scores_are_read_elsewhere() -> None:
    chain = (
        "qs = Mul(q, r) ks = Mul(kt, r) s = MatMul(qs, ks) t = Mul(s, c) scores = Identity(t) p = Softmax<axis = -1>(t)"
    )
    outputs = "float[B,2,S,4] out, float[B,2,S,T] scores"
    (site,) = match_model(attention(chain, constants={"r": 0.5, "c": 3.0}, outputs=outputs)).sites
    assert site.bypasses == ()
    assert site.config.scale == 3.0


@pytest.mark.parametrize("fill", [-65504.0, -1e4])
def test_half_precision_fills_leave_a_wholly_masked_row_unmasked(fill: float) -> None:
    """In fp32, where the sum is made, they do not absorb the scores: a wholly masked row is as if nothing were
    masked."""
    chain = """
        s = MatMul(q, kt) x = Cast<to = 10>(attention_mask) y = Sub(one, x) a = Mul(y, f) m = Add(s, a)
        p = Softmax<axis = -1>(m)
    """
    model = attention(chain, inputs=("attention_mask",), constants={"one": 1.0, "f": fill}, dtype="float16")
    sites = match_model(model)
    (site,) = sites.sites
    assert (site.config.operands, site.config.empty_rows) == (("keep",), "unmasked")
    report = verify_models(model, lower_model(model, sites, {"p": "softmax"}))
    assert report.passed, str(report)


def test_mask_that_a_symbol_may_make_larger_than_the_scores() -> None:
    model = attention("s = MatMul(q, kt) m = Add(s, added) p = Softmax<axis = -1>(m)", inputs=("added",))
    for value in model.graph.input[:3]:
        value.type.tensor_type.shape.dim[0].dim_value = 1
    (site,) = match_model(model).sites
    assert "does not broadcast" in site.lowerings["softmax"]


def test_rotary_multiplications_are_no_scale() -> None:
    chain = "qs = Mul(q, cos) s = MatMul(qs, kt) p = Softmax<axis = -1>(s)"
    (site,) = match_model(attention(chain, constants={"cos": np.ones((1, 1, 1, 4), np.float32)})).sites
    assert site.scale.places == ()
    assert site.bypasses == ()


def test_casts_to_fp32_and_back_are_absorbed() -> None:
    chain = "s = MatMul(q, kt) w = Cast<to = 1>(s) m = Add(w, b) x = Softmax<axis = -1>(m) p = Cast<to = 10>(x)"
    (site,) = match_model(attention(chain, constants={"b": np.zeros((1, 1, 1, 1), np.float32)}, dtype="float16")).sites
    assert (site.dtype, site.scores, site.probabilities) == ("float16", "s", "p")
    assert site.lowerings["softmax"] is None


def test_cast_without_the_way_back_stays() -> None:
    chain = "s = MatMul(q, kt) w = Cast<to = 1>(s) p = Softmax<axis = -1>(w)"
    model = attention(chain, dtype="float16", values="vf = Cast<to = 1>(v) o = MatMul(p, vf) out = Cast<to = 10>(o)")
    (site,) = match_model(model).sites
    assert (site.dtype, site.scores, site.probabilities) == ("float32", "w", "p")


def test_guard_whose_probabilities_are_read_elsewhere_stays() -> None:
    chain = "s = MatMul(q, kt) w = Softmax<axis = -1>(s) n = IsNaN(w) p = Where(n, zero, w) raw = Identity(w)"
    model = attention(chain, constants={"zero": 0.0}, outputs="float[B,2,S,4] out, float[B,2,S,T] raw")
    (site,) = match_model(model).sites
    assert not site.guard
    assert site.probabilities == "w"


def test_probabilities_as_an_output_are_noticed() -> None:
    model = attention("s = MatMul(q, kt) p = Softmax<axis = -1>(s)", outputs="float[B,2,S,4] out, float[B,2,S,T] p")
    (site,) = match_model(model).sites
    assert site.is_output
    assert len(site.consumers) == 1


def test_names_are_unique() -> None:
    chain = "s = MatMul(q, kt) r = Softmax<axis = -1>(s) u = MatMul(r, k) x = MatMul(u, kt) p = Softmax<axis = -1>(x)"
    model = attention(chain)
    for node in model.graph.node:
        if node.op_type == "Softmax":
            node.name = "attention"
    assert [site.name for site in match_model(model).sites] == ["attention", "attention#2"]


def test_fused_attention_is_a_site_that_is_kept() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 11, opset_import: ["" : 23]> g (float[B,2,S,4] q, float[B,2,T,4] k, float[B,2,T,4] v)'
        " => (float[B,2,S,4] out) { out = Attention<scale = 0.5>(q, k, v) }"
    )
    (site,) = match_model(model).sites
    assert "one fused operator" in site.lowerings["softmax"]
    assert site.scale.value == 0.5


def test_site_in_a_local_function_is_recognised_there() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[B,2,S,4] q, float[B,2,T,4] k, float[B,2,T,4] v) => (float[B,2,S,4] out) { out = local.attend(q, k, v) }
        <opset_import: ["" : 17], domain: "local">
        attend (q, k, v) => (out)
        { kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt) p = Softmax<axis = -1>(s) out = MatMul(p, v) }
    """)
    (site,) = match_model(model).sites
    assert (site.graph, site.config, site.whole) == ("function local::attend", None, None)
    assert "inline" in site.lowerings["softmax"]
    (inlined,) = match_model(onnx.inliner.inline_local_functions(model)).sites
    assert inlined.lowerings["softmax"] is inlined.lowerings["native"] is None


def test_the_model_is_not_changed() -> None:
    model = FORMS["added where, -inf"].model()
    before = model.SerializeToString()
    match_model(model)
    assert model.SerializeToString() == before


@pytest.mark.parametrize(
    ("name", "operands", "scale", "empty_rows", "guard", "dtype", "heads", "head_size", "layout"),
    [
        ("bert_sdpa_torchscript", ("keep",), 8**-0.5, "zeros", True, "float32", 4, 8, "bshd"),
        ("bert_eager_fp16_dynamo", ("keep",), 8**-0.5, "unmasked", False, "float16", 4, 8, "bshd"),
        ("bert_attentions_dynamo", ("keep",), 8**-0.5, "uniform", False, "float32", 4, 8, "bshd"),
        ("gpt2_sdpa_dynamo", ("keep",), 8**-0.5, "uniform", True, "float32", 4, 8, "bshd"),
        ("llama_eager_fp16_torchscript", ("keep",), 8**-0.5, "unmasked", False, "float16", None, 8, None),
        ("sdpa_boolean_dynamo", ("keep",), 0.25, "uniform", True, "float32", 4, 16, None),
    ],
)
def test_real_exports(
    data_folder: Path,
    name: str,
    operands: tuple,
    scale: float,
    empty_rows: str,
    guard: bool,
    dtype: str,
    heads: int | None,
    head_size: int,
    layout: str | None,
) -> None:
    found = match_model(load_model(data_folder / f"{name}.onnx"))
    assert not found.others
    (site,) = found.sites
    assert site.lowerings["softmax"] is None
    assert site.config.operands == operands
    assert site.config.scale == pytest.approx(scale, rel=1e-3)
    assert (site.config.empty_rows, site.guard) == (empty_rows, guard)
    assert (site.dtype, site.heads, site.head_size, site.layout) == (dtype, heads, head_size, layout)
