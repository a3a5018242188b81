"""Fused attention nodes as input: what is recorded repeats them exactly, and what cannot be repeated has a reason."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from attngraft.match import Site, match_model
from attngraft.verify import verify_models
from onnx import ModelProto
from whole_models import rebuilt

QKV = "float[B,4,S,8] q, float[B,4,T,8] k, float[B,4,T,8] v"
GROUPED = "float[B,4,S,8] q, float[B,2,T,8] k, float[B,2,T,8] v"
PACKED = "float[B,S,32] q, float[B,T,16] k, float[B,T,16] v"
MULTI_HEAD = "float[B,S,32] q, float[B,S,32] k, float[B,S,32] v"


def model(inputs: str, body: str, *, output: str = "float[B,4,S,8] out", opset: int = 23) -> ModelProto:
    return onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]>
        attention ({inputs}) => ({output}) {{ {body} }}
    """)


def only_site(given: ModelProto) -> Site:
    found = match_model(given)
    assert not found.others
    (site,) = found.sites
    return site


EXACT = {
    "plain": model(QKV, "out = Attention(q, k, v)"),
    "scale": model(QKV, "out = Attention<scale = 0.25>(q, k, v)"),
    "opset 24": model(QKV, "out = Attention<scale = 0.25>(q, k, v)", opset=24),
    "condition": model(QKV + ", bool[B,1,S,T] condition", "out = Attention(q, k, v, condition)"),
    "additive": model(QKV + ", float[B,1,S,T] added", "out = Attention(q, k, v, added)"),
    "causal": model(QKV, "out = Attention<is_causal = 1>(q, k, v)"),
    "causal with a condition": model(
        QKV + ", bool[B,1,S,T] condition", "out = Attention<is_causal = 1>(q, k, v, condition)"
    ),
    "softcap before the mask": model(QKV + ", float[B,1,S,T] added", "out = Attention<softcap = 2.0>(q, k, v, added)"),
    "grouped heads": model(GROUPED, "out = Attention(q, k, v)"),
    "rank 3": model(PACKED, "out = Attention<q_num_heads = 4, kv_num_heads = 2>(q, k, v)", output="float[B,S,32] out"),
    "MultiHeadAttention": model(
        MULTI_HEAD, "out = com.microsoft.MultiHeadAttention<num_heads = 4>(q, k, v)", output="float[B,S,32] out"
    ),
    "MultiHeadAttention with a bias": model(
        MULTI_HEAD + ", float[1,4,S,S] added",
        'e = com.microsoft.MultiHeadAttention<num_heads = 4, scale = 0.25>(q, k, v, "", "", added) out = Identity(e)',
        output="float[B,S,32] out",
    ),
    "MultiHeadAttention, causal": model(
        MULTI_HEAD,
        "out = com.microsoft.MultiHeadAttention<num_heads = 4, unidirectional = 1>(q, k, v)",
        output="float[B,S,32] out",
    ),
}


@pytest.mark.parametrize("given", EXACT.values(), ids=EXACT)
def test_record_repeats_the_node(given: ModelProto) -> None:
    site = only_site(given)
    assert site.lowerings["native"] is None
    assert "one fused operator" in site.lowerings["softmax"]
    assert (site.whole.heads, site.heads, site.head_size) == (4, 4, 8)
    report = verify_models(given, rebuilt(given))
    assert report.passed, str(report)


def test_wholly_masked_rows_are_zeros() -> None:
    """As behind a guard: the specification's words and ONNX Runtime's result."""
    site = only_site(EXACT["condition"])
    assert site.guard
    assert site.config.empty_rows == "zeros"
    report = verify_models(EXACT["condition"], rebuilt(EXACT["condition"]))
    assert any("one row masked" in case for case in report.cases)


def test_what_the_attributes_say() -> None:
    site = only_site(model(GROUPED, "out = Attention<scale = 0.5, softcap = 3.0, is_causal = 1>(q, k, v)"))
    assert (site.whole.scale, site.whole.softcap, site.whole.causal) == (0.5, 3.0, "top_left")
    assert (site.whole.layout, site.whole.heads, site.whole.kv_heads) == ("bhsd", 4, 2)
    assert (site.config.causal, site.config.softcap) == ("top_left", 3.0)
    assert only_site(EXACT["plain"]).whole.scale == pytest.approx(8**-0.5)
    assert only_site(EXACT["rank 3"]).whole.layout == "bsd"


REFUSED = {
    "appends to a cache": model(
        QKV + ", float[B,4,P,8] pk, float[B,4,P,8] pv", 'out, nk, nv = Attention(q, k, v, "", pk, pv)'
    ),
    "keys' lengths": model(QKV + ", int64[B] n", 'out = Attention(q, k, v, "", "", "", n)', opset=24),
    "another output of the node": model(
        QKV,
        "out, nk, nv, scores = Attention(q, k, v)",
        output="float[B,4,S,8] out, float[B,4,S,T] scores",
    ),
    "head size that is not known": model(
        "float[B,4,S,D] q, float[B,4,T,D] k, float[B,4,T,D] v", "out = Attention(q, k, v)", output="float[B,4,S,D] out"
    ),
    "rank of the operands": model(
        "float[B,S] q, float[B,S] k, float[B,S] v", "out = Attention(q, k, v)", output="float[B,S] out"
    ),
    "different types": model(
        "float16[B,4,S,8] q, float16[B,4,T,8] k, float[B,4,T,8] v",
        "out = Attention(q, k, v)",
        output="float16[B,4,S,8] out",
    ),
    "contains the projections": model(
        "float[B,S,32] x, float[32,96] w, float[96] b",
        "out = com.microsoft.Attention<num_heads = 4>(x, w, b)",
        output="float[B,S,32] out",
    ),
    "keeps its own cache": model(
        MULTI_HEAD + ", int32[B] n, int32 total",
        'out = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 4>(q, k, v, "", "", n, total)',
        output="float[B,S,32] out",
    ),
    "no plain attention": model(
        "float[B,S,32] x, float[32,96] w, float[96] b",
        "out = com.microsoft.LongformerAttention<num_heads = 4, window = 2>(x, w, b, b, w, b, b)",
        output="float[B,S,32] out",
    ),
    "packed in one tensor": model(
        "float[B,S,4,3,8] q",
        "out = com.microsoft.MultiHeadAttention<num_heads = 4>(q)",
        output="float[B,S,32] out",
    ),
    "key_padding_mask": model(
        MULTI_HEAD + ", int32[B,S] mask",
        'out = com.microsoft.MultiHeadAttention<num_heads = 4>(q, k, v, "", mask)',
        output="float[B,S,32] out",
    ),
    "the projections' bias": model(
        MULTI_HEAD + ", float[96] b",
        "out = com.microsoft.MultiHeadAttention<num_heads = 4>(q, k, v, b)",
        output="float[B,S,32] out",
    ),
    "lengths that are not known to be equal": model(
        "float[B,S,32] q, float[B,T,32] k, float[B,T,32] v",
        "out = com.microsoft.MultiHeadAttention<num_heads = 4, unidirectional = 1>(q, k, v)",
        output="float[B,S,32] out",
    ),
}


@pytest.mark.parametrize(("reason", "given"), REFUSED.items(), ids=REFUSED)
def test_node_that_cannot_be_repeated_says_why(reason: str, given: ModelProto) -> None:
    site = only_site(given)
    assert reason in site.lowerings["native"]
    assert (site.whole, site.config, site.source_masks) == (None, None, ())
    assert site.lowerings["keep"] is None


def test_padding_is_read_out_of_a_condition() -> None:
    body = """
        padded = Cast<to = 9>(attention_mask) wide = Unsqueeze(padded, axes) shape = Shape(q) keys = Shape(k)
        out = Attention(q, k, v, wide)
    """
    given = model("float[B,4,S,8] q, float[B,4,S,8] k, float[B,4,S,8] v, int64[B,S] attention_mask", body)
    given.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 2], np.int64), "axes"))
    site = only_site(given)
    (mask,) = site.masks
    assert (mask.tensors, mask.unsqueeze, mask.role) == (("attention_mask",), (1, 2), "keep")
    assert site.source_masks[0].tensors == ("wide",)
    assert site.config.empty_rows == "zeros"


def test_bias_and_padding_are_told_apart_in_one_additive_mask() -> None:
    """T5: what is added is a position bias plus 0 or float32's lowest value."""
    body = """
        wide = Unsqueeze(attention_mask, axes) x = Cast<to = 1>(wide) y = Sub(one, x) padding = Mul(y, lowest)
        added = Add(position, padding) out = Attention(q, k, v, added)
    """
    inputs = "float[B,4,S,8] q, float[B,4,S,8] k, float[B,4,S,8] v, int64[B,S] attention_mask"
    given = model(inputs, body)
    constants = {
        "axes": np.array([1, 2], np.int64),
        "one": np.float32(1),
        "position": np.arange(4, dtype=np.float32).reshape(1, 4, 1, 1),
        "lowest": np.asarray(np.finfo(np.float32).min),
    }
    for name, value in constants.items():
        given.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    site = only_site(given)
    assert [(mask.role, mask.tensors) for mask in site.masks] == [
        ("bias", ("position",)),
        ("keep", ("attention_mask",)),
    ]
    assert site.config.empty_rows == "uniform"
    assert [mask.tensors for mask in site.source_masks] == [("added",)]
    report = verify_models(given, rebuilt(given))
    assert report.passed, str(report)
