"""The `attention` lowering: what is absorbed of the data's way, what stays outside, and that the model is the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from attention_models import BY_HEADS, CONTEXT, FUSED, JOIN, MOVED, SEPARATE, SPLIT, Moved
from chain_models import FORMS
from onnx import ModelProto
from projected_models import PROJECTED_FORMS
from rare_forms import RARE_FORMS

from attngraft.contract import DOMAIN, CausalMode, EmptyRows, FusedAttention, Role
from attngraft.errors import RewriteError
from attngraft.lower import choose_lowerings, lower_model, strip_functions
from attngraft.match import Site, match_model
from attngraft.verify import verify_models

TURNED = "kt = Transpose<perm = [0, 1, 3, 2]>(k)"
LOWEST = float(np.finfo(np.float32).min)

ABSORBED = {**MOVED, **PROJECTED_FORMS}


def only_site(model: ModelProto) -> Site:
    (site,) = match_model(model).sites
    assert site.lowerings["attention"] is None, site.lowerings["attention"]
    return site


def lowered(model: ModelProto) -> ModelProto:
    sites = match_model(model)
    result = lower_model(model, sites, dict.fromkeys((site.name for site in sites.sites), "attention"))
    onnx.checker.check_model(result, full_check=False)
    return result


def fused_nodes(model: ModelProto) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.domain == DOMAIN]


@pytest.mark.parametrize("name", ABSORBED)
def test_form(name: str) -> None:
    form = ABSORBED[name]
    model = form.model()
    site = only_site(model)
    config = site.attention.config
    assert (config.layout, (config.heads, config.kv_heads)) == (form.layout, form.heads)
    assert site.attention.outside == form.outside
    result = lowered(model)
    assert tuple(node.op_type for node in result.graph.node) == form.left
    (node,) = fused_nodes(result)
    attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
    read = FusedAttention.from_attributes(attributes)
    assert read == replace(config, scale=read.scale) and read.scale == pytest.approx(config.scale)
    assert (attributes["plugin_version"], attributes["plugin_namespace"]) == (b"1", b"attngraft")
    report = verify_models(model, result)
    assert report.passed, str(report)


def proved(model: ModelProto) -> tuple[Site, ModelProto]:
    """The only site, and the model with it lowered, which is the same."""
    site = only_site(model)
    result = lowered(model)
    report = verify_models(model, result)
    assert report.passed, str(report)
    return site, result


@pytest.mark.parametrize("name", [name for name, form in {**FORMS, **RARE_FORMS}.items() if form.native is None])
def test_every_form_of_masking_is_lowered_or_refused_with_its_reason(name: str) -> None:
    model = {**FORMS, **RARE_FORMS}[name].model()
    for site in match_model(model).sites:
        reason = site.lowerings["attention"]
        assert (site.attention is None) == (reason is not None)
        if reason is None:
            assert fused_nodes(proved(model)[1])
        else:
            assert any(part in reason for part in ("read by", "filled with", "another rounding", "before the scale")), (
                reason
            )


def test_padding_and_causality_are_operands_and_attributes() -> None:
    body = f"""
        {SPLIT} s = MatMul(qh, kt) t = Mul(s, scale) m = Where(mask, t, fill) shape = Shape(mask)
        p = Softmax<axis = -1>(m) c = MatMul(p, vh) {JOIN}
    """
    model = Moved(f"{SEPARATE}, bool[B,1,1,T] mask", body, "bsd", constants={"fill": np.float32(LOWEST)}).model()
    site, _ = proved(model)
    config = site.attention.config
    assert (config.operands, config.empty_rows) == (("keep",), EmptyRows.UNIFORM)
    body = f"{SPLIT} s = MatMul(qh, kt) t = Mul(s, scale) {{}} p = Softmax<axis = -1>(m) c = MatMul(p, vh) {JOIN}"
    triangle = """
        ones = Constant<value = bool[1,1] {1}>() sizes = Shape<start = -2>(t) square = Expand(ones, sizes)
        lower = Trilu<upper = 0>(square) m = Where(lower, t, minus)
    """
    model = Moved(SEPARATE, body.format(triangle), "bsd", constants={"minus": np.float32(-np.inf)}).model()
    site, result = proved(model)
    assert (site.attention.config.causal, site.attention.config.operands) == (CausalMode.TOP_LEFT, ())
    assert [node.op_type for node in result.graph.node] == [FUSED]


def test_softcap_and_half_precision() -> None:
    body = f"""
        {TURNED} s = MatMul(q, kt) u = Mul(s, c) w = Tanh(u) t = Mul(w, d) p = Softmax<axis = -1>(t)
        out = MatMul(p, v)
    """
    half = {"c": np.float16(0.05), "d": np.float16(20.0)}
    model = Moved(
        BY_HEADS.replace("float", "float16"), body, "bhsd", constants=half, output="float16[B,4,S,8] out"
    ).model()
    site, result = proved(model)
    assert site.attention.config.softcap == 20.0
    assert site.attention.config.scale == pytest.approx(1.0, rel=1e-3)
    assert [node.op_type for node in result.graph.node] == [FUSED]


def test_a_second_product_in_fp32_gives_half_type_cast_behind_the_node() -> None:
    """The context is fp32 in the model, and the values are cast to it: the node takes them as they were."""
    body = f"""
        {TURNED} s = MatMul(q, kt) w = Cast<to = 1>(s) p = Softmax<axis = -1>(w) vw = Cast<to = 1>(v)
        c = MatMul(p, vw) ct = Transpose<perm = [0, 2, 1, 3]>(c) out = Reshape(ct, joined)
    """
    model = Moved(BY_HEADS.replace("float", "float16"), body, "bhsd").model()
    site, result = proved(model)
    assert (site.whole.dtype, site.whole.context_dtype) == ("float16", "float32")
    assert [node.op_type for node in result.graph.node] == [FUSED, "Cast"]


def test_values_that_are_fp32_are_cast_to_the_type_of_query_and_key() -> None:
    inputs = "float16[B,4,S,8] q, float16[B,4,T,8] k, float[B,4,T,8] v"
    body = f"{TURNED} s = MatMul(q, kt) w = Cast<to = 1>(s) p = Softmax<axis = -1>(w) out = MatMul(p, v)"
    site, result = proved(Moved(inputs, body, "bhsd", output=CONTEXT).model())
    assert site.whole.wide == ("v",)
    assert [node.op_type for node in result.graph.node] == ["Cast", FUSED, "Cast"]


def masked(chain: str, extra: str, **constants: object) -> ModelProto:
    """`chain` from the scores s [B,4,S,T] to the softmax's input m."""
    body = f"{TURNED} s = MatMul(q, kt) {chain} p = Softmax<axis = -1>(m) out = MatMul(p, v)"
    return Moved(f"{BY_HEADS}{extra}", body, "bhsd", output=CONTEXT, constants=constants).model()


def test_a_fill_that_swallows_scores_is_added_where_more_is_added_behind_it() -> None:
    chain = "f = Where(allowed, s, fill) m = Add(f, added)"
    model = masked(chain, ", bool[B,1,S,T] allowed, float[B,1,1,T] added", fill=np.float32(LOWEST))
    site, result = proved(model)
    assert [mask.form for mask in site.attention.masks] == ["where", "add"]
    assert site.attention.config.operands == (Role.BIAS,)
    assert [node.op_type for node in result.graph.node] == ["Where", "Add", FUSED]


def test_a_fill_behind_a_bias_made_of_products_is_not_allowed() -> None:
    """DeBERTa: what the positions add is a product too, and no mask."""
    chain = """
        r = MatMul(q, positions) sizes = Shape(r) first = ConstantOfShape<value = int64[1] {0}>(sizes)
        g = GatherElements<axis = 3>(r, first) b = Add(s, g) m = Where(allowed, b, fill)
    """
    model = masked(chain, ", bool[B,1,1,T] allowed, float[1,4,8,T] positions", fill=np.float32(LOWEST))
    site, _ = proved(model)
    assert site.attention.config.operands == (Role.BIAS, Role.KEEP)
    assert site.attention.config.empty_rows == EmptyRows.UNIFORM


REFUSED: dict[str, tuple[ModelProto, str]] = {
    "probabilities are an output": (
        Moved(
            BY_HEADS,
            f"{TURNED} s = MatMul(q, kt) p = Softmax<axis = -1>(s) out = MatMul(p, v)",
            "",
            output=f"{CONTEXT}, float[B,4,S,T] p",
        ).model(),
        "the probabilities are an output",
    ),
    "probabilities are read twice": (
        Moved(
            BY_HEADS,
            f"{TURNED} s = MatMul(q, kt) p = Softmax<axis = -1>(s) out = MatMul(p, v) mean = ReduceMean<axes = [1]>(p)",
            "",
            output=f"{CONTEXT}, float[B,1,S,T] mean",
        ).model(),
        "the probabilities are read by 2 nodes",
    ),
    "another thing between": (
        masked("m = Clip(s, least)", "", least=np.float32(-5.0)),
        "Clip lies between the product and the softmax",
    ),
    "rank 2": (
        Moved(
            "float[S,8] q, float[T,8] k, float[T,8] v",
            "kt = Transpose<perm = [1, 0]>(k) s = MatMul(q, kt) p = Softmax<axis = -1>(s) out = MatMul(p, v)",
            "",
            output="float[S,8] out",
        ).model(),
        "its scores have rank 2; FusedAttention takes [B, H, Sq, Sk]",
    ),
    "large heads": (
        Moved(
            "float[B,4,S,520] q, float[B,4,T,520] k, float[B,4,T,8] v",
            f"{TURNED} s = MatMul(q, kt) p = Softmax<axis = -1>(s) out = MatMul(p, v)",
            "",
            output=CONTEXT,
        ).model(),
        "its heads have size 520; FusedAttention takes 1 to 512",
    ),
    "large values": (
        Moved(
            "float[B,S,64] q, float[B,T,64] k, float[B,T,1088] v",
            "out = Attention<q_num_heads = 2, kv_num_heads = 2>(q, k, v)",
            "",
            output="float[B,S,1088] out",
            opset=23,
        ).model(),
        "its heads have size 544",
    ),
    "doubles": (
        Moved(
            BY_HEADS.replace("float", "double"),
            f"{TURNED} s = MatMul(q, kt) p = Softmax<axis = -1>(s) out = MatMul(p, v)",
            "",
            output="double[B,4,S,8] out",
        ).model(),
        "its tensors are float64; FusedAttention takes float32, float16, bfloat16",
    ),
    "one query for all": (
        Moved(
            "float[1,4,S,8] q, float[B,4,T,8] k, float[B,4,T,8] v",
            f"{TURNED} s = MatMul(q, kt) p = Softmax<axis = -1>(s) out = MatMul(p, v)",
            "",
            output=CONTEXT,
        ).model(),
        "query, key and values have different batch sizes",
    ),
    "one query head for all": (
        Moved(
            "float[B,1,S,8] q, float[B,4,T,8] k, float[B,4,T,8] v",
            f"{TURNED} s = MatMul(q, kt) p = Softmax<axis = -1>(s) out = MatMul(p, v)",
            "",
            output=CONTEXT,
        ).model(),
        "1 query heads are no multiple of 4 key heads",
    ),
    "one key head, several of values": (
        Moved(
            "float[B,4,S,8] q, float[B,1,T,8] k, float[B,4,T,8] v",
            f"{TURNED} s = MatMul(q, kt) p = Softmax<axis = -1>(s) out = MatMul(p, v)",
            "",
            output=CONTEXT,
        ).model(),
        "key and values have different numbers of heads (1, 4)",
    ),
    "no number of heads": (
        Moved(SEPARATE, "out = Attention<scale = 0.5>(q, k, v)", "", opset=23).model(),
        "its numbers of heads are not known",
    ),
    "a fill that does not swallow": (
        masked(
            "f = Where(allowed, s, fill) m = Add(f, added)",
            ", bool[B,1,S,T] allowed, float[B,1,1,T] added",
            fill=np.float32(-1e9),
        ),
        "scores are filled with -1e+09, and masked or biased besides",
    ),
    "a bias, then an additive mask": (
        masked("b = Add(s, bias) m = Add(b, added)", ", float[B,1,1,T] added", bias=np.ones((1, 4, 3, 5), np.float32)),
        "several masks are added, whose sum has another rounding than one after the other",
    ),
    "merged heads under a mask of unknown rank": (
        Moved(
            "float[N,S,8] q, float[N,T,8] k, float[N,T,8] v, float[N,S,T] added",
            """
            kt = Transpose<perm = [0, 2, 1]>(k) s = MatMul(q, kt) a = com.microsoft.Unknown(added) m = Add(s, a)
            p = Softmax<axis = -1>(m) out = MatMul(p, v)
            """,
            "",
            output="float[N,S,8] out",
        ).model(),
        "the rank of a mask is not known",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_its_reason(name: str) -> None:
    model, reason = REFUSED[name]
    sites = match_model(model)
    (site,) = sites.sites
    assert site.attention is None
    assert reason in site.lowerings["attention"]
    with pytest.raises(RewriteError, match="--lower attention"):
        choose_lowerings(sites, "attention")
    with pytest.raises(RewriteError, match="cannot take lowering 'attention'"):
        lower_model(model, sites, {site.name: "attention"})


def two_sites(second: str) -> ModelProto:
    """Two sites one after the other under the same inverted padding mask, the second with the scale `second`."""
    body = f"""
        k1 = Transpose<perm = [0, 1, 3, 2]>(k) s1 = MatMul(q, k1) m1 = Where(padding, fill, s1)
        p1 = Softmax<axis = -1>(m1) c1 = MatMul(p1, v)
        s2 = MatMul(c1, k1) t2 = Mul(s2, {second}) m2 = Where(padding, fill, t2)
        p2 = Softmax<axis = -1>(m2) out = MatMul(p2, v)
    """
    constants = {"fill": np.float32(LOWEST), "first": np.float32(1.0), "other": np.float32(0.5)}
    return Moved(f"{BY_HEADS}, bool[B,1,1,T] padding", body, "bhsd", output=CONTEXT, constants=constants).model()


@pytest.mark.parametrize(("second", "functions"), [("first", [""]), ("other", ["", "variant2"])])
def test_sites_share_operands_and_functions(second: str, functions: list[str]) -> None:
    model = two_sites(second)
    result = lowered(model)
    assert [node.op_type for node in result.graph.node] == ["Not", FUSED, FUSED]
    assert [function.overload for function in result.functions] == functions
    assert [node.overload for node in fused_nodes(result)] == [functions[0], functions[-1]]
    assert verify_models(model, result).passed
    stripped = strip_functions(result)
    assert not stripped.functions and not any(node.overload for node in stripped.graph.node)


def test_lowerings_mix_in_one_model() -> None:
    model = two_sites("other")
    result = lower_model(model, match_model(model), {"p1": "softmax", "p2": "attention"})
    assert [node.op_type for node in fused_nodes(result)] == ["MaskedSoftmax", FUSED]
    assert [(function.name, function.overload) for function in result.functions] == [("MaskedSoftmax", ""), (FUSED, "")]
    assert verify_models(model, result).passed


def test_a_lowered_site_is_left_alone() -> None:
    again = match_model(lowered(MOVED["projections"].model()))
    assert not again.sites
    assert [other.reason for other in again.others] == ["it is attngraft::FusedAttention already"]


def test_a_site_in_a_subgraph() -> None:
    body = f"""
        out = If(flag) <
            then_branch = a () => (float[B,S,32] x) {{
                {SPLIT} s = MatMul(qh, kt) p = Softmax<axis = -1>(s) c = MatMul(p, vh)
                ct = Transpose<perm = [0, 2, 1, 3]>(c) x = Reshape(ct, joined)
            }},
            else_branch = b () => (float[B,S,32] y) {{ y = Identity(q) }}
        >
    """
    model = Moved(f"bool flag, {SEPARATE}", body, "bsd", constants={"force": 0}).model()
    for name, value in (("split", [0, 0, 4, 8]), ("joined", [0, 0, 32])):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    site, result = proved(model)
    assert (site.graph, site.attention.config.layout) == ("out/then_branch", "bsd")
    (choice,) = result.graph.node
    (inner,) = (item.g for item in choice.attribute if item.name == "then_branch")
    assert [node.op_type for node in inner.node] == [FUSED]
