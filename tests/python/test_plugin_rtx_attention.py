"""Networks with FusedAttention through TensorRT-RTX's parser and builder: every layout, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from plugin_models import ROLE_INPUTS, Inputs, build, plugin_node, save_graph, write_model

from attngraft.contract import FusedAttention

HEADS, KV_HEADS, HEAD_SIZE, VALUE_SIZE = 12, 4, 64, 32


def attention_inputs(words: tuple[str, ...], element_type: int = TensorProto.FLOAT16) -> Inputs:
    """q, k and v in layouts of their own."""

    def shape(word: str, heads: int, rows: str, size: int) -> list:
        shapes = {
            "bhsd": ["batch", heads, rows, size],
            "bshd": ["batch", rows, heads, size],
            "bsd": ["batch", rows, heads * size],
        }
        return shapes[word]

    return {
        "q": (element_type, shape(words[0], HEADS, "queries", HEAD_SIZE)),
        "k": (element_type, shape(words[1], KV_HEADS, "keys", HEAD_SIZE)),
        "v": (element_type, shape(words[2], KV_HEADS, "keys", VALUE_SIZE)),
    }


@pytest.mark.parametrize(
    ("layout", "context"),
    [
        ("bhsd", [-1, HEADS, -1, VALUE_SIZE]),
        ("bshd", [-1, -1, HEADS, VALUE_SIZE]),
        ("bsd", [-1, -1, HEADS * VALUE_SIZE]),
        ("bsd,bshd,bhsd,bshd", [-1, -1, HEADS, VALUE_SIZE]),
        ("bhsd,bhsd,bsd,bsd", [-1, -1, HEADS * VALUE_SIZE]),
    ],
)
def test_builds_in_every_layout(tmp_path: Path, layout: str, context: list[int]) -> None:
    config = FusedAttention(layout=layout, heads=HEADS, kv_heads=KV_HEADS)
    built = build(write_model(tmp_path / "model.onnx", config, attention_inputs(config.words)))
    assert built["plugins"] == ["site"] and built["bytes"] > 0, built["errors"]
    assert built["output"] == context


@pytest.mark.parametrize(
    ("layout", "kv_heads"), [("qkv", HEADS), ("qkv", KV_HEADS), ("qkv_by_head", HEADS), ("qkv_by_head", KV_HEADS)]
)
def test_builds_over_a_packed_projection(tmp_path: Path, layout: str, kv_heads: int) -> None:
    config = FusedAttention(layout=layout, heads=HEADS, kv_heads=kv_heads)
    inputs = {"qkv": (TensorProto.FLOAT16, ["batch", "queries", (HEADS + 2 * kv_heads) * HEAD_SIZE])}
    built = build(write_model(tmp_path / "model.onnx", config, inputs))
    assert built["plugins"] == ["site"] and built["bytes"] > 0, built["errors"]
    assert built["output"] == [-1, -1, HEADS * HEAD_SIZE]


@pytest.mark.parametrize("element_type", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_builds_with_every_operand(tmp_path: Path, element_type: int) -> None:
    roles = ("kv_starts", "keep", "kv_lengths", "bias")
    config = FusedAttention(operands=roles, causal="bottom_right", window_left=16, softcap=50.0, exact=1)
    inputs = {**attention_inputs(config.words, element_type), **{role: ROLE_INPUTS[role] for role in roles}}
    built = build(write_model(tmp_path / "model.onnx", config, inputs))
    assert built["plugins"] == ["site"] and built["bytes"] > 0, built["errors"]


def test_builds_between_projections(tmp_path: Path) -> None:
    width = HEADS * HEAD_SIZE
    weights = [
        numpy_helper.from_array(np.zeros((width, size), np.float16), name)
        for name, size in (("w_qkv", 3 * width), ("w_out", width))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w_qkv"], ["qkv"]),
        plugin_node(FusedAttention(layout="qkv", heads=HEADS, kv_heads=HEADS), ["qkv"], "context"),
        helper.make_node("MatMul", ["context", "w_out"], ["y"]),
    ]
    built = build(
        save_graph(tmp_path / "model.onnx", nodes, {"x": (TensorProto.FLOAT16, ["batch", 7, width])}, weights)
    )
    assert built["plugins"] == ["site"] and built["bytes"] > 0, built["errors"]
    assert built["output"] == [-1, 7, width]


def test_builds_over_a_cache(tmp_path: Path) -> None:
    """Keys and values that are put together in the network: their bounds come from TensorRT's arithmetic."""
    new, cache = ["batch", KV_HEADS, 1, HEAD_SIZE], ["batch", KV_HEADS, "past", HEAD_SIZE]
    inputs = {
        "q": (TensorProto.FLOAT16, ["batch", HEADS, 1, HEAD_SIZE]),
        **{name: (TensorProto.FLOAT16, new) for name in ("k", "v")},
        **{name: (TensorProto.FLOAT16, cache) for name in ("past_k", "past_v")},
    }
    nodes = [
        helper.make_node("Concat", ["past_k", "k"], ["keys"], axis=2),
        helper.make_node("Concat", ["past_v", "v"], ["values"], axis=2),
        plugin_node(FusedAttention(layout="bhsd,bhsd,bhsd,bshd"), ["q", "keys", "values"], "context"),
    ]
    built = build(save_graph(tmp_path / "model.onnx", nodes, inputs))
    assert built["plugins"] == ["site"] and built["bytes"] > 0, built["errors"]
    assert built["output"] == [-1, 1, HEADS, HEAD_SIZE]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"k": ["batch", KV_HEADS, "keys", 48]}, "k: its head size is 48, that of q is 64"),
        ({"v": ["batch", 3, "keys", VALUE_SIZE]}, "v: its number of heads is 3, that of k is 4"),
        ({"q": ["batch", 10, "queries", HEAD_SIZE]}, "q: its 10 heads are no multiple of the 4 of k and v"),
        ({"q": ["batch", "queries", HEADS * HEAD_SIZE]}, "q: rank 3; layout bhsd has rank 4"),
        ({"v": ["batch", KV_HEADS, "keys", 640]}, "v: head size 640 is not in 1 to 512"),
        ({"q": ["batch", HEADS, 77, HEAD_SIZE]}, "keep: has 76 where the scores have 77 in dimension 2"),
    ],
)
def test_shapes_that_do_not_fit_is_refused(tmp_path: Path, changed: dict, reason: str) -> None:
    config = FusedAttention(operands=("keep",))
    inputs = {**attention_inputs(config.words), "keep": (TensorProto.BOOL, [76, "keys"])}
    inputs |= {name: (TensorProto.FLOAT16, shape) for name, shape in changed.items()}
    built = build(write_model(tmp_path / "model.onnx", config, inputs))
    assert built["bytes"] == 0
    assert any(f"[attngraft] FusedAttention 'site': {reason}" in error for error in built["errors"]), built["errors"]


def test_an_illegal_layout_is_named(tmp_path: Path) -> None:
    config = FusedAttention()
    built = build(write_model(tmp_path / "model.onnx", config, attention_inputs(config.words), layout="bsd"))
    expected = (
        "[attngraft] FusedAttention 'site' cannot be created: "
        "field 'heads': layout 'bsd' needs the number of heads, 1 or more"
    )
    assert built["bytes"] == 0 and expected in built["errors"]


def test_mixed_types_builds_nothing(tmp_path: Path) -> None:
    config = FusedAttention()
    inputs = attention_inputs(config.words) | {"k": (TensorProto.FLOAT, attention_inputs(config.words)["k"][1])}
    built = build(write_model(tmp_path / "model.onnx", config, inputs))
    assert built["bytes"] == 0 and built["errors"]
