"""Which softmaxes are attention: unusual forms that are, pooling and gates that are not, and bodies of control flow."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from attngraft.lower import lower_model
from attngraft.match import match_model
from attngraft.verify import verify_models
from chain_models import attention
from onnx import ModelProto

HEADS = np.array([[0.75, 0.25], [0.5, 0.5]], np.float32)

FORMS: dict[str, tuple[ModelProto, str]] = {
    "talking heads: Einsum": (
        attention(
            's = MatMul(q, kt) w = Softmax<axis = -1>(s) p = Einsum<equation = "bhij,gh->bgij">(w, mix)',
            constants={"mix": HEADS},
        ),
        "Einsum lies between the softmax and the values",
    ),
    "talking heads: convolution": (
        attention(
            "s = MatMul(q, kt) t = Conv(s, mix) w = Softmax<axis = -1>(t) p = Conv(w, mix)",
            constants={"mix": HEADS.reshape(2, 2, 1, 1)},
        ),
        "Conv lies between the product and the softmax",
    ),
    "talking heads: linear layers": (
        attention(
            """
            s = MatMul(q, kt) a = Transpose<perm = [0, 2, 3, 1]>(s) b = MatMul(a, mix)
            t = Transpose<perm = [0, 3, 1, 2]>(b) w = Softmax<axis = -1>(t) c = Transpose<perm = [0, 2, 3, 1]>(w)
            d = MatMul(c, mix) p = Transpose<perm = [0, 3, 1, 2]>(d)
            """,
            constants={"mix": HEADS},
        ),
        "Transpose lies between the product and the softmax",
    ),
    "scores put together from blocks": (
        attention(
            """
            s = MatMul(q, kt) shape = Shape(s) base = ConstantOfShape(shape) block = Gather<axis = 0>(s, first)
            t = ScatterND(base, place, block) p = Softmax<axis = -1>(t)
            """,
            constants={"first": np.array([0], np.int64), "place": np.array([[0]], np.int64)},
        ),
        "ScatterND lies between the product and the softmax",
    ),
    "attention sink beside the scores": (
        attention(
            """
            s = MatMul(q, kt) shape = Shape(s) rows = Slice(shape, zero, three) target = Concat<axis = 0>(rows, one)
            sinks = Expand(sink, target) both = Concat<axis = -1>(s, sinks) w = Softmax<axis = -1>(both)
            p = Slice(w, zero, minus, three)
            """,
            constants={
                "sink": np.zeros((1, 2, 1, 1), np.float32),
                "zero": np.array([0], np.int64),
                "one": np.array([1], np.int64),
                "three": np.array([3], np.int64),
                "minus": np.array([-1], np.int64),
            },
        ),
        "Concat lies between the product and the softmax",
    ),
    "Swin: position bias, then a mask of windows in rank 5": (
        attention(
            """
            s = MatMul(q, kt) b = Add(s, position) shape = Shape(b)
            heads = Slice(shape, one, four) apart = Concat<axis = 0>(minus, one, heads) w5 = Reshape(b, apart)
            m5 = Add(w5, windows) m = Reshape(m5, shape) p = Softmax<axis = -1>(m)
            """,
            constants={
                "position": np.array([0.5, -0.5], np.float32).reshape(2, 1, 1),
                "windows": np.zeros((1, 1, 1, 1, 1), np.float32),
                "minus": np.array([-1], np.int64),
                "one": np.array([1], np.int64),
                "four": np.array([4], np.int64),
            },
        ),
        "a Reshape of the scores lies between the product and the softmax",
    ),
    "softmax1": (
        attention(
            """
            s = MatMul(q, kt) x = ReduceMax<axes = [-1]>(s) y = Sub(s, x) e = Exp(y) total = ReduceSum(e, last)
            more = Add(total, one) p = Div(e, more)
            """,
            constants={"one": 1.0, "last": np.array([-1], np.int64)},
        ),
        "the exponentials are divided by their sum and something more (softmax1), which is no softmax",
    ),
    "mask of transposed scores": (
        attention(
            """
            qt = Transpose<perm = [0, 1, 3, 2]>(q) s = MatMul(k, qt) m = Add(s, position) w = Softmax<axis = -2>(m)
            p = Transpose<perm = [0, 1, 3, 2]>(w)
            """,
            constants={"position": np.zeros((2, 1, 1), np.float32)},
        ),
        "masks of transposed scores",
    ),
    "mask added before the softcap": (
        attention(
            "s = MatMul(q, kt) m = Add(s, added) t = Tanh(m) p = Softmax<axis = -1>(t)",
            inputs=("added",),
        ),
        "a mask is added before the softcap",
    ),
    "mask before the softcap": (
        attention(
            "s = MatMul(q, kt) m = Where(condition, s, f) t = Tanh(m) p = Softmax<axis = -1>(t)",
            inputs=("condition",),
            constants={"f": -1e9},
        ),
        "a mask lies before the softcap",
    ),
    "two softcaps": (
        attention("s = MatMul(q, kt) t = Tanh(s) u = Tanh(t) p = Softmax<axis = -1>(u)"),
        "Tanh occurs twice between the product and the softmax",
    ),
    "two tensors of values": (
        attention(
            "s = MatMul(q, kt) p = Softmax<axis = -1>(s) second = MatMul(p, k)",
            outputs="float[B,2,S,4] out, float[B,2,S,4] second",
        ),
        "the probabilities weigh more than one tensor of values",
    ),
    "probabilities multiplied from the right": (
        attention(
            "s = MatMul(q, kt) p = Softmax<axis = -1>(s)",
            values="""
                vt = Transpose<perm = [0, 1, 3, 2]>(v) pt = Transpose<perm = [0, 1, 3, 2]>(p) o = MatMul(vt, pt)
                out = Transpose<perm = [0, 1, 3, 2]>(o)
            """,
        ),
        "Transpose lies between the softmax and the values",
    ),
    "Einsum of another layout": (
        attention(
            """
            qs = Transpose<perm = [0, 2, 1, 3]>(q) ks = Transpose<perm = [0, 2, 1, 3]>(k)
            s = Einsum<equation = "bihd,bjhd->bhij">(qs, ks) p = Softmax<axis = -1>(s)
            """
        ),
        "the product is Einsum 'bihd,bjhd->bhij', which is no MatMul of its operands",
    ),
    "cast of the scores": (
        attention(
            "s = MatMul(q, kt) n = Cast<to = 10>(s) w = Cast<to = 1>(n) x = Cast<to = 10>(w) y = Cast<to = 1>(x)"
            " p = Softmax<axis = -1>(y)"
        ),
        "a cast from float32 to float16 changes the scores",
    ),
    "values of another type": (
        attention(
            "qd = Cast<to = 11>(q) kd = Cast<to = 11>(kt) s = MatMul(qd, kd) w = Softmax<axis = -1>(s)"
            " p = Cast<to = 1>(w)"
        ),
        "query, key and values have different types (float32, float64)",
    ),
    "quantised scores and probabilities": (
        attention(
            """
            s = MatMul(q, kt) i = QuantizeLinear(s, step, zero) t = DequantizeLinear(i, step, zero)
            w = Softmax<axis = -1>(t) j = QuantizeLinear(w, step, zero) p = DequantizeLinear(j, step, zero)
            """,
            constants={"step": 0.0625, "zero": np.int8(0)},
        ),
        "DequantizeLinear lies between the product and the softmax",
    ),
    "factorised attention": (
        attention(
            "w = Softmax<axis = 2>(k) kt2 = Transpose<perm = [0, 1, 3, 2]>(w) c = MatMul(kt2, v) p = Identity(c)",
            values="out = MatMul(q, p)",
        ),
        "factorised attention: the softmax normalises keys or queries, and no scores exist",
    ),
}
"""Attention that no lowering takes from Q, K and V to the context, with the reason why."""


@pytest.mark.parametrize(("model", "reason"), FORMS.values(), ids=FORMS)
def test_is_attention_without_a_whole_form(model: ModelProto, reason: str) -> None:
    onnx.checker.check_model(model, full_check=True)
    found = match_model(model)
    assert not found.others
    (site,) = found.sites
    assert site.lowerings["native"] == reason
    assert site.whole is None


@pytest.mark.parametrize("name", [name for name in FORMS if name not in ("values of another type",)])
def test_is_lowered_to_the_same_function_where_it_can_be(name: str) -> None:
    model, _ = FORMS[name]
    sites = match_model(model)
    (site,) = sites.sites
    if site.lowerings["softmax"] is not None:
        assert site.config is None
        return
    report = verify_models(model, lower_model(model, sites, {site.name: "softmax"}))
    assert report.passed, str(report)


def left_alone(inputs: str, output: str, body: str, constants: Mapping[str, np.ndarray]) -> str:
    """The reason of the only softmax, which must have been left alone."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => ({output}) {{ {body} }}')
    for name, value in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    onnx.checker.check_model(model, full_check=True)
    found = match_model(model)
    assert not found.sites
    (other,) = found.others
    return other.reason


def test_mixture_gate_is_left_alone() -> None:
    """The router of a mixture of experts: its softmax scales what the experts give."""
    reason = left_alone(
        "float[B,S,8] x",
        "float[4,B,S,8] out",
        """
        h = MatMul(x, gate) g = Softmax<axis = -1>(h) apart = Transpose<perm = [2, 0, 1]>(g)
        wide = Unsqueeze(apart, last) e = MatMul(x, experts) out = Mul(e, wide)
        """,
        {
            "gate": np.ones((8, 4), np.float32),
            "experts": np.ones((4, 1, 8, 8), np.float32),
            "last": np.array([3], np.int64),
        },
    )
    assert "no product of two activations" in reason


def test_pooling_with_weights_alone_is_left_alone() -> None:
    """MobileViTv2: the softmax of a projection weighs a sum, and nothing queries."""
    reason = left_alone(
        "float[B,S,8] x",
        "float[B,1,8] out",
        "h = MatMul(x, w) g = Softmax<axis = 1>(h) weighed = Mul(x, g) out = ReduceSum(weighed, axis)",
        {"w": np.ones((8, 1), np.float32), "axis": np.array([1], np.int64)},
    )
    assert "no product of two activations" in reason


def test_gate_that_multiplies_values_without_scores_is_left_alone() -> None:
    """softmax(x . W) . y is a gate: the weights are right of the activation, and nothing queries the result."""
    reason = left_alone(
        "float[B,S,8] x, float[B,4,8] y",
        "float[B,S,8] out",
        "h = MatMul(x, w) g = Softmax<axis = -1>(h) out = MatMul(g, y)",
        {"w": np.ones((8, 4), np.float32)},
    )
    assert "no product of two activations" in reason


def test_similarity_of_two_towers_is_left_alone() -> None:
    reason = left_alone(
        "float[B,8] text, float[C,8] image",
        "float[B,C] out",
        "t = Transpose<perm = [1, 0]>(image) s = MatMul(text, t) l = Mul(s, scale) out = Softmax<axis = -1>(l)",
        {"scale": np.float32(100.0).reshape(())},
    )
    assert "weighs no values" in reason


BODY = """
    s = MatMul(q, kt) t = Mul(s, c) m = Add(t, added) p = Softmax<axis = -1>(m) {output} = MatMul(p, v)
"""


def test_site_in_the_branches_of_an_if_is_lowered_in_place() -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (bool flag, float[B,2,S,4] q, float[B,2,S,4] k, float[B,2,S,4] v, float[B,1,1,S] added)
            => (float[B,2,S,4] out)
        {{
            kt = Transpose<perm = [0, 1, 3, 2]>(k) c = Constant<value = float {{0.5}}>()
            out = If(flag) <
                then_branch = a () => (float[B,2,S,4] x) {{ {BODY.format(output="x")} }},
                else_branch = b () => (float[B,2,S,4] y) {{ y = Identity(q) }}
            >
        }}
    """)
    sites = match_model(model)
    (site,) = sites.sites
    assert site.graph.endswith("then_branch")
    assert site.lowerings["native"] is site.lowerings["softmax"] is None
    assert (site.config.scale, site.config.operands, site.whole.query) == (0.5, ("bias",), "q")
    report = verify_models(model, lower_model(model, sites, {site.name: "softmax"}))
    assert report.passed, str(report)


def test_site_in_the_body_of_a_loop_is_lowered_in_place() -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[B,2,S,4] q0, float[B,2,S,4] k, float[B,2,S,4] v, float[B,1,1,S] added) => (float[B,2,S,4] out)
        {{
            kt = Transpose<perm = [0, 1, 3, 2]>(k) c = Constant<value = float {{0.5}}>()
            trips = Constant<value = int64 {{3}}>() go = Constant<value = bool {{1}}>()
            out = Loop(trips, go, q0) <
                body = b (int64 i, bool again, float[B,2,S,4] q) => (bool more, float[B,2,S,4] x)
                {{ more = Identity(again) {BODY.format(output="x")} }}
            >
        }}
    """)
    sites = match_model(model)
    (site,) = sites.sites
    assert site.graph.endswith("body")
    assert site.lowerings["native"] is site.lowerings["softmax"] is None
    report = verify_models(model, lower_model(model, sites, {site.name: "softmax"}))
    assert report.passed, str(report)
