"""ONNX Runtime's own operators in standard ones: what ONNX Runtime computes with the one and with the other."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from native_models import RTX, fused_kernels
from onnx import ModelProto

from attngraft.lower import repair_model

B, S, H, HEADS = 3, 5, 16, 2
RNG = np.random.default_rng(0)

NODES = {
    "gelu": ("Gelu(x)", ""),
    "gelu with bias": ("BiasGelu(x, row)", ""),
    "fast gelu": ("FastGelu(x, row)", ""),
    "fast gelu without bias": ("FastGelu(x)", ""),
    "quick gelu": ("QuickGelu<alpha = 1.5>(x)", ""),
    "skip": ("SkipLayerNormalization<epsilon = 0.001>(x, other, scale, row, bias)", ""),
    "skip without bias": ("SkipLayerNormalization(x, other, scale)", ""),
    "attention": ("Attention<num_heads = 2>(x, weights, bias3)", ""),
    "attention, lengths": ("Attention<num_heads = 2>(x, weights, bias3, lengths)", ", int32[B] lengths"),
    "attention, mask": ("Attention<num_heads = 2, scale = 0.3>(x, weights, bias3, mask)", ", int32[B,S] mask"),
    "attention, mask value": (
        "Attention<num_heads = 2, mask_filter_value = -5.0>(x, weights, bias3, mask)",
        ", int32[B,S] mask",
    ),
    "heads": ("MultiHeadAttention<num_heads = 2>(x, other, other)", ""),
    "heads, bias and scale": ("MultiHeadAttention<num_heads = 2, scale = 0.2>(x, other, other, bias3)", ""),
    "heads, mask": ("MultiHeadAttention<num_heads = 2>(x, other, other, , mask)", ", int32[B,S] mask"),
    "heads, lengths": ("MultiHeadAttention<num_heads = 2>(x, x, other, bias3, lengths)", ", int32[B] lengths"),
    "heads, position bias": (
        "MultiHeadAttention<num_heads = 2>(x, other, other, , mask, position)",
        f", int32[B,S] mask, float[B,{HEADS},S,S] position",
    ),
    "attention, position bias": (
        "Attention<num_heads = 2>(x, weights, bias3, mask, , position)",
        f", int32[B,S] mask, float[B,{HEADS},S,S] position",
    ),
}
VALUES = {
    "row": RNG.standard_normal(H).astype(np.float32),
    "bias": RNG.standard_normal(H).astype(np.float32),
    "scale": RNG.standard_normal(H).astype(np.float32),
    "weights": (RNG.standard_normal((H, 3 * H)) / 3).astype(np.float32),
    "bias3": RNG.standard_normal(3 * H).astype(np.float32),
}
FEEDS = {
    "x": RNG.standard_normal((B, S, H)).astype(np.float32),
    "other": RNG.standard_normal((B, S, H)).astype(np.float32),
    "lengths": np.array([S, 2, 0], np.int32),
    "mask": np.array([[1] * S, [0, 1, 1, 0, 1], [0] * S], np.int32),
    "position": RNG.standard_normal((B, HEADS, S, S)).astype(np.float32),
}


def model(node: str, extra: str, opset: int) -> ModelProto:
    other = f", float[B,S,{H}] other" if "other" in node else ""
    made = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>
        g (float[B,S,{H}] x{other}{extra}) => (float[B,S,{H}] y) {{ y = com.microsoft.{node} }}
    """)
    for name in made.graph.node[0].input:
        if name in VALUES:
            made.graph.initializer.append(onnx.numpy_helper.from_array(VALUES[name], name))
    return made


def run(model: ModelProto) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {value.name: FEEDS[value.name] for value in session.get_inputs()})


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("name", NODES)
def test_equals_the_runtimes_own(name: str, opset: int) -> None:
    node, extra = NODES[name]
    given = model(node, extra, opset)
    repaired, (repair,) = repair_model(given, RTX)
    assert "taken apart" in str(repair)
    assert all(node.domain == "" for node in repaired.graph.node)
    onnx.checker.check_model(repaired, full_check=True)
    np.testing.assert_allclose(run(repaired)[0], run(given)[0], atol=2e-5)


@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_embeddings_and_the_count_of_their_mask(masked: bool, positions: bool) -> None:
    made = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (int32[B,S] ids, int32[B,S] segments{", int32[B,S] mask" if masked else ""}
           {", int32[B,S] places" if positions else ""}) => (float[B,S,{H}] y, int32[B] count, float[B,S,{H}] total)
        {{ y, count, total = com.microsoft.EmbedLayerNormalization(ids, segments, words, table, kinds, scale, row) }}
    """)
    made.graph.node[0].input.extend(["mask" if masked else "", "places"] if positions else ["mask"] * masked)
    for name, array in {
        "words": RNG.standard_normal((9, H)).astype(np.float32),
        "table": RNG.standard_normal((7, H)).astype(np.float32),
        "kinds": RNG.standard_normal((2, H)).astype(np.float32),
        **{name: VALUES[name] for name in ("scale", "row")},
    }.items():
        made.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    feeds = {
        "ids": RNG.integers(0, 9, (B, S)).astype(np.int32),
        "segments": RNG.integers(0, 2, (B, S)).astype(np.int32),
        "places": RNG.integers(0, 7, (B, S)).astype(np.int32),
    }
    FEEDS.update(feeds)
    repaired, _ = repair_model(made, RTX)
    onnx.checker.check_model(repaired, full_check=True)
    for expected, actual in zip(run(made), run(repaired), strict=True):
        np.testing.assert_allclose(actual, expected, atol=2e-5)


@pytest.mark.parametrize(
    "node",
    [
        "Attention<num_heads = 2, unidirectional = 1>(x, weights, bias3)",
        "Attention<num_heads = 3>(x, weights, bias3)",
        "Attention<num_heads = 2>(x, weights, bias3, unknown)",
        "MultiHeadAttention<num_heads = 2, unidirectional = 1>(x, x, x)",
        "MultiHeadAttention<num_heads = 2>(x, x, x, , unknown)",
        "GroupQueryAttention<num_heads = 2, kv_num_heads = 1>(x, weights, bias3)",
    ],
)
def test_what_is_not_covered_is_left_alone(node: str) -> None:
    given = model(node, ", int32[N] unknown" if "unknown" in node else "", 17)
    assert repair_model(given, RTX)[0] is given


def test_without_a_target_the_runtimes_operators_stay() -> None:
    given = model(*NODES["attention"], 17)
    assert repair_model(given, None)[0] is given


def test_tensorrt_builds_what_it_did_not() -> None:
    given = model(*NODES["attention, mask"], 17)
    assert fused_kernels(given) is None
    assert fused_kernels(repair_model(given, RTX)[0]) is not None
