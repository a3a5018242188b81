"""Sites from Q, K and V to the context: what is named, in which type, and that the record repeats the model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from attngraft.match import Site, match_model
from attngraft.verify import verify_models
from chain_models import attention
from onnx import ModelProto
from whole_models import rebuilt


def graph(inputs: str, body: str, output: str, constants: Mapping[str, object] | None = None) -> ModelProto:
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> g ({inputs}) => ({output}) {{ {body} }}
    """)
    for name, value in (constants or {}).items():
        array = np.asarray(value, np.float32) if isinstance(value, float) else np.asarray(value)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def only_site(model: ModelProto) -> Site:
    found = match_model(model)
    assert not found.others
    (site,) = found.sites
    return site


def repeats(model: ModelProto) -> Site:
    """The only site, whose record gives what the model gives."""
    site = only_site(model)
    assert site.lowerings["native"] is None
    report = verify_models(model, rebuilt(model))
    assert report.passed, str(report)
    return site


def test_factors_on_query_and_key_belong_to_the_scale_in_half_precision_too() -> None:
    chain = "qs = Mul(q, r) ks = Mul(kt, r) s = MatMul(qs, ks) t = Mul(s, c) p = Softmax<axis = -1>(t)"
    site = repeats(attention(chain, constants={"r": 0.5, "c": 3.0}, dtype="float16"))
    assert (site.whole.query, site.whole.key, site.whole.key_transposed) == ("q", "k", False)
    assert site.whole.scale == pytest.approx(0.75)
    assert (site.config.scale, site.whole.dtype) == (3.0, "float16")


def test_factor_before_the_transpose_and_a_second_one() -> None:
    body = """
        ks = Mul(k, r) kd = Div(ks, d) kst = Transpose<perm = [0, 1, 3, 2]>(kd) s = MatMul(q, kst)
        p = Softmax<axis = -1>(s)
    """
    site = repeats(attention(body, constants={"r": 0.5, "d": 4.0}))
    assert (site.whole.key, site.whole.key_transposed, site.whole.scale) == ("k", False, 0.125)


def test_key_that_is_transposed_together_with_its_heads() -> None:
    model = graph(
        "float[B,2,S,4] q, float[B,T,2,4] k, float[B,2,T,4] v",
        "kt = Transpose<perm = [0, 2, 3, 1]>(k) s = MatMul(q, kt) p = Softmax<axis = -1>(s) out = MatMul(p, v)",
        "float[B,2,S,4] out",
    )
    site = repeats(model)
    assert (site.whole.key, site.whole.key_transposed) == ("kt", True)


def test_softmax_and_second_product_in_fp32_behind_casts() -> None:
    """What the TorchScript exporter makes of SDPA in half precision: the context is cast back later, if at all."""
    chain = "s = MatMul(q, kt) w = Cast<to = 1>(s) p = Softmax<axis = -1>(w)"
    values = "vw = Cast<to = 1>(v) o = MatMul(p, vw) out = Cast<to = 10>(o)"
    site = repeats(attention(chain, dtype="float16", values=values))
    assert (site.whole.values, site.whole.context) == ("v", "out")
    assert (site.whole.dtype, site.whole.context_dtype, site.widened) == ("float16", "float16", True)
    left = attention(
        chain,
        dtype="float16",
        values="vw = Cast<to = 1>(v) wide = MatMul(p, vw) out = Cast<to = 10>(wide) w2 = Identity(wide)",
    )
    site = repeats(left)
    assert (site.whole.context, site.whole.context_dtype) == ("wide", "float32")


def test_product_in_fp32_of_half_precision_operands() -> None:
    """GPT-J and GPT-Neo."""
    chain = (
        "qw = Cast<to = 1>(q) kw = Cast<to = 1>(kt) s = MatMul(qw, kw) w = Softmax<axis = -1>(s) p = Cast<to = 10>(w)"
    )
    site = repeats(attention(chain, dtype="float16"))
    assert (site.whole.query, site.whole.key, site.whole.dtype, site.widened) == ("q", "kt", "float16", True)


def test_values_that_are_fp32_beside_half_precision_operands() -> None:
    """ModernBERT's second layer in a half-precision export."""
    model = graph(
        "float16[B,2,S,4] q, float16[B,2,T,4] k, float[B,2,T,4] v",
        """
        kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt) w = Cast<to = 1>(s) p = Softmax<axis = -1>(w)
        out = MatMul(p, v)
        """,
        "float[B,2,S,4] out",
    )
    site = repeats(model)
    assert (site.whole.wide, site.whole.context_dtype) == (("v",), "float32")


def test_softmax_over_the_last_axis_but_one_of_transposed_scores() -> None:
    model = graph(
        "float[B,2,S,4] q, float[B,2,T,4] k, float[B,2,T,4] v",
        """
        qt = Transpose<perm = [0, 1, 3, 2]>(q) s = MatMul(k, qt) t = Mul(s, c) w = Softmax<axis = 2>(t)
        p = Transpose<perm = [0, 1, 3, 2]>(w) out = MatMul(p, v)
        """,
        "float[B,2,S,4] out",
        {"c": 0.5},
    )
    site = repeats(model)
    assert (site.whole.query, site.whole.key, site.whole.key_transposed) == ("q", "k", False)
    assert "axis 2" in site.lowerings["softmax"]


def test_heads_merged_with_the_batch() -> None:
    """BLOOM and torch.baddbmm: products of rank 3, a bias of rank 3, a mask of rank 4."""
    body = """
        qm = Reshape(q, merged) km = Reshape(k, merged) kt = Transpose<perm = [0, 2, 1]>(km) vm = Reshape(v, merged)
        alibi = Reshape(slopes, row) s = MatMul(qm, kt) t = Mul(s, c) b = Add(t, alibi)
        whole = Shape(q) rows = Slice(whole, zero, three)
        keys = Shape<start = 2, end = 3>(k) target = Concat<axis = 0>(rows, keys) u = Reshape(b, target)
        m = Add(u, added)
        w = Softmax<axis = -1>(m) again = Shape(b) p = Reshape(w, again) o = MatMul(p, vm) apart = Shape(q)
        out = Reshape(o, apart)
    """
    constants = {
        "c": 0.5,
        "merged": np.array([-1, 5, 4], np.int64),
        "row": np.array([-1, 1, 5], np.int64),
        "zero": np.array([0], np.int64),
        "three": np.array([3], np.int64),
    }
    inputs = "float[B,2,5,4] q, float[B,2,5,4] k, float[B,2,5,4] v, float[B,2,5] slopes, float[B,1,1,5] added"
    site = repeats(graph(inputs, body, "float[B,2,5,4] out", constants))
    whole = site.whole
    assert (whole.query, whole.key, whole.values, whole.context) == ("q", "k", "v", "out")
    assert (whole.heads, whole.key_transposed) == (2, False)
    assert [mask.split_heads for mask in site.source_masks] == [2, 0]


@pytest.mark.parametrize("rank", [2, 3, 5])
def test_scores_of_other_ranks(rank: int) -> None:
    batch = "".join(f"B{axis}," for axis in range(rank - 2))
    perm = [*range(rank - 2), rank - 1, rank - 2]
    model = graph(
        f"float[{batch}S,4] q, float[{batch}T,4] k, float[{batch}T,4] v",
        f"kt = Transpose<perm = {perm}>(k) s = MatMul(q, kt) p = Softmax<axis = {rank - 1}>(s) out = MatMul(p, v)",
        f"float[{batch}S,4] out",
    )
    assert repeats(model).rank == rank


def test_gemm_and_fused_matmul() -> None:
    gemm = graph(
        "float[S,4] q, float[T,4] k, float[T,4] v",
        "s = Gemm<transB = 1, alpha = 0.5>(q, k) p = Softmax<axis = -1>(s) out = Gemm(p, v)",
        "float[S,4] out",
    )
    assert repeats(gemm).whole.scale == 0.5
    fused = graph(
        "float[B,S,4] q, float[B,T,4] k, float[B,T,4] v",
        """
        s = com.microsoft.FusedMatMul<transB = 1, alpha = 0.25>(q, k) p = Softmax<axis = -1>(s)
        out = MatMul(p, v)
        """,
        "float[B,S,4] out",
    )
    assert (repeats(fused).whole.scale, only_site(fused).whole.key_transposed) == (0.25, False)


def test_probabilities_that_are_returned_or_averaged_leave_the_site_whole() -> None:
    outputs = "float[B,2,S,4] out, float[B,S,T] mean"
    model = attention(
        "s = MatMul(q, kt) p = Softmax<axis = -1>(s) mean = ReduceMean<axes = [1], keepdims = 0>(p)", outputs=outputs
    )
    site = repeats(model)
    assert len(site.consumers) == 2


def test_learned_query_is_attention() -> None:
    """Attention pooling: the query is a weight, keys and values come from one sequence."""
    model = graph(
        "float[B,T,4] x",
        "kt = Transpose<perm = [0, 2, 1]>(x) s = MatMul(query, kt) p = Softmax<axis = -1>(s) out = MatMul(p, x)",
        "float[B,1,4] out",
        {"query": np.full((1, 1, 4), 0.5, np.float32)},
    )
    assert repeats(model).whole.query == "query"


def test_mask_before_the_scale_is_scaled_with_it() -> None:
    """GPT-J's order of old."""
    chain = "s = MatMul(q, kt) m = Where(condition, s, f) t = Div(m, d) p = Softmax<axis = -1>(t)"
    site = repeats(attention(chain, inputs=("condition",), constants={"f": -1e9, "d": 2.0}))
    assert site.source_masks[0].fill == -5e8
    grown = attention(chain, inputs=("condition",), constants={"f": -3e38, "d": 0.25})
    assert only_site(grown).source_masks[0].fill == -np.inf


def test_masks_stay_as_the_model_has_them() -> None:
    """Nearest to the product first, whatever was read out of them."""
    chain = """
        s = MatMul(q, kt) b = Add(s, full_added) a = Where(condition, zero, f) m = Add(b, a)
        p = Softmax<axis = -1>(m)
    """
    site = only_site(attention(chain, inputs=("full_added", "condition"), constants={"zero": 0.0, "f": -np.inf}))
    assert [(mask.form, mask.tensors, mask.added) for mask in site.source_masks] == [
        ("add", ("full_added",), None),
        ("add-where", ("condition",), "a"),
    ]


def test_softmax_written_out_whose_sum_is_in_fp32() -> None:
    chain = """
        s = MatMul(q, kt) sw = Cast<to = 1>(s) xw = ReduceMax<axes = [-1]>(sw) x = Cast<to = 10>(xw) y = Sub(s, x)
        e = Exp(y) wide = Cast<to = 1>(e)
        t = ReduceSum(wide, last) total = Cast<to = 10>(t) p = Div(e, total)
    """
    site = repeats(attention(chain, constants={"last": np.array([-1], np.int64)}, dtype="float16"))
    assert (site.whole.dtype, site.lowerings["softmax"]) == ("float16", None)


IN_RANK_3 = """
    all = Shape(k) rows = Slice(all, second_last, last) width = Slice(all, last, end)
    front = Slice(all, start, second_last)
    merged = Concat<axis = 0>({merged}) k3 = Reshape(k, merged) kt3 = Transpose<perm = [0, 2, 1]>(k3)
    parted = Concat<axis = 0>(front, width, rows) kt = Reshape(kt3, parted)
    raw = MatMul(q, kt) s = Mul(raw, scale) p = Softmax<axis = -1>(s) c = MatMul(p, v)
"""
BOUNDS = {"start": [0], "second_last": [-2], "last": [-1], "end": [np.iinfo(np.int64).max], "scale": 0.125}


def test_a_key_transposed_in_rank_3_is_taken_from_before() -> None:
    inputs = "float[b,4,s,8] q, float[b,4,t,8] k, float[b,4,t,8] v"
    body = IN_RANK_3.format(merged="last, rows, width")
    site = repeats(graph(inputs, body, "float[b,4,s,8] c", BOUNDS))
    assert (site.whole.key, site.whole.key_transposed) == ("k", False)


def test_a_reshape_to_rank_3_that_cuts_rows_is_no_transposition() -> None:
    inputs = "float[b,4,s,8] q, float[b,4,8,8] k, float[b,4,8,8] v"
    body = IN_RANK_3.format(merged="last, four, sixteen")
    site = only_site(graph(inputs, body, "float[b,4,s,8] c", BOUNDS | {"four": [4], "sixteen": [16]}))
    assert (site.whole.key, site.whole.key_transposed) == ("kt", True)
