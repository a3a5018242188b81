"""The portable body of FusedAttention equals the oracle: every layout, every mix of the mask, in old and new opsets."""

from __future__ import annotations

from itertools import product

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from attngraft.contract import DOMAIN, FUSED_ATTENTION, CausalMode, EmptyRows, FusedAttention, Layout, Role
from attngraft.errors import ContractError
from attngraft.lower.onnx_function import fused_attention_function
from attngraft.onnx_graph import onnx_dtype
from attngraft.verify.attention_oracle import fused_attention

OPSETS = (11, 13, 17, 18, 21, 23)
SEPARATE_LAYOUTS = (*Layout.SEPARATE, *(",".join(words) for words in product(Layout.SEPARATE, repeat=4)))

TOLERANCE = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
"""Absolute, of sums of at most 7 values below 4: a few roundings in fp32, then one to the output's type."""


def stored(by_heads: np.ndarray, word: str) -> np.ndarray:
    """[B, heads, S, size] in the layout of a word."""
    if word == Layout.BHSD:
        return by_heads
    swapped = by_heads.swapaxes(1, 2)
    return swapped if word == Layout.BSHD else swapped.reshape(*swapped.shape[:2], -1)


def pack(query: np.ndarray, key: np.ndarray, values: np.ndarray, layout: str) -> np.ndarray:
    """[B, heads, S, D] each, in one tensor, by loops over the heads."""
    group = query.shape[1] // key.shape[1]
    if layout == Layout.QKV:
        heads = [*query.swapaxes(0, 1), *key.swapaxes(0, 1), *values.swapaxes(0, 1)]
    else:
        heads = []
        for h in range(key.shape[1]):
            heads += [*query[:, h * group : (h + 1) * group].swapaxes(0, 1), key[:, h], values[:, h]]
    return np.concatenate(heads, axis=-1)


def reference(query: np.ndarray, key: np.ndarray, values: np.ndarray, masked: np.ndarray, empty: str) -> np.ndarray:
    """softmax(masked scores) . values, a row of -inf by the word; [B, H, Sq, Dv] by loops, no contract code."""
    batch, heads, queries, _ = query.shape
    group = heads // key.shape[1]
    context = np.zeros((batch, heads, queries, values.shape[-1]))
    for b, h, i in np.ndindex(batch, heads, queries):
        x = (key[b, h // group] * query[b, h, i]).sum(axis=-1) + masked[b, h, i]
        if np.all(np.isneginf(x)):
            weights = np.full(len(x), 1 / len(x) if empty == EmptyRows.UNIFORM else 0.0)
        else:
            weights = np.exp(x - x.max())
            weights /= weights.sum()
        context[b, h, i] = weights @ values[b, h // group]
    return context


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[np.ndarray], FusedAttention, dict[str, np.ndarray]]:
    """Tensors, a configuration and its operands."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    layout = draw(st.sampled_from((*Layout.PACKED * 10, *SEPARATE_LAYOUTS)))
    dtype = draw(st.sampled_from((np.float32, np.float16, ml_dtypes.bfloat16)))
    kv_heads, group = draw(st.sampled_from((1, 2, 3))), draw(st.sampled_from((1, 1, 2, 3)))
    batch, size = draw(st.integers(1, 3)), draw(st.sampled_from((1, 3, 8)))
    queries, keys, value_size = draw(st.integers(1, 7)), draw(st.integers(1, 7)), draw(st.sampled_from((1, 2, 8)))
    packed = layout in Layout.PACKED
    if packed:
        keys, value_size = queries, size
    query, key, values = (
        generator.normal(size=shape).astype(dtype)
        for shape in (
            (batch, kv_heads * group, queries, size),
            (batch, kv_heads, keys, size),
            (batch, kv_heads, keys, value_size),
        )
    )
    operands = {
        Role.BIAS: generator.normal(size=draw(bias_shapes(batch, kv_heads * group, queries, keys))).astype(
            draw(st.sampled_from((np.float32, dtype)))
        ),
        Role.KEEP: generator.random((batch, 1, draw(st.sampled_from((1, queries))), keys)) < 0.6,
        Role.KV_LENGTHS: generator.integers(-1, keys + 2, batch).astype(np.int32),
        Role.KV_STARTS: generator.integers(-1, keys, batch).astype(np.int32),
    }
    roles = tuple(draw(st.permutations(Role.ALL)))[: draw(st.integers(0, 4))]
    gives_heads = packed or Layout.BSD in layout.split(",") or draw(st.booleans())
    config = FusedAttention(
        operands=roles,
        scale=draw(st.sampled_from((1.0, 0.25))),
        causal=draw(st.sampled_from(CausalMode.ALL)),
        window_left=draw(st.sampled_from((-1, -1, 0, 2))),
        window_right=draw(st.sampled_from((-1, -1, 0, 1))),
        softcap=draw(st.sampled_from((0.0, 2.0))),
        empty_rows=draw(st.sampled_from(EmptyRows.ALL)),
        layout=layout,
        heads=kv_heads * group if gives_heads else 0,
        kv_heads=kv_heads if gives_heads else 0,
    )
    if packed:
        tensors = [pack(query, key, values, layout)]
    else:
        tensors = [stored(*each) for each in zip((query, key, values), config.words, strict=False)]
    return tensors, config, {role: operands[role] for role in roles}


@st.composite
def bias_shapes(draw: st.DrawFn, *scores: int) -> tuple[int, ...]:
    """What broadcasts to the scores."""
    rank = draw(st.integers(0, 4))
    return tuple(draw(st.sampled_from((1, size))) for size in scores[4 - rank :])


def run_function(
    tensors: list[np.ndarray], config: FusedAttention, operands: dict[str, np.ndarray], opset: int
) -> np.ndarray:
    """The function's result in ONNX Runtime, as float32. bfloat16 goes in and out through casts: NumPy has no such
    type."""
    dtype = onnx_dtype(tensors[0].dtype.name)
    names = config.tensor_names
    feeds = {name: tensor.astype(np.float32) for name, tensor in zip(names, tensors, strict=True)}
    for role, operand in operands.items():
        feeds[role] = operand.astype(np.float32) if role == Role.BIAS else operand
    nodes = [helper.make_node("Cast", [name], [f"typed_{name}"], to=dtype) for name in names]
    nodes += [
        helper.make_node(
            FUSED_ATTENTION,
            [*(f"typed_{name}" for name in names), *config.operands],
            ["context"],
            domain=DOMAIN,
            **config.attributes(),
        ),
        helper.make_node("Cast", ["context"], ["out"], to=TensorProto.FLOAT),
    ]
    inputs = [
        helper.make_tensor_value_info(name, onnx_dtype(feed.dtype.name), feed.shape) for name, feed in feeds.items()
    ]
    rank = 4 if config.words[-1] in (Layout.BHSD, Layout.BSHD) else 3
    outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, [None] * rank)]
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs),
        opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)],
        functions=[fused_attention_function(config, dtype, opset)],
        ir_version=8,
    )
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


@settings(max_examples=150)
@given(problems(), st.sampled_from(OPSETS[1:]))
def test_equals_the_oracle(problem: tuple, opset: int) -> None:
    tensors, config, operands = problem
    expected = fused_attention(tensors, config, operands)
    actual = run_function(tensors, config, operands, opset)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, atol=TOLERANCE[tensors[0].dtype.name], rtol=0)


@pytest.mark.parametrize("layout", [*Layout.SEPARATE, "bsd,bshd,bhsd,bsd", *Layout.PACKED])
@pytest.mark.parametrize("opset", OPSETS)
def test_every_layout_in_every_opset(layout: str, opset: int) -> None:
    """Against loops over batch, heads and rows: what the oracle and the body could have in common is not in them."""
    generator = np.random.default_rng(opset)
    keys, value_size = (5, 8) if layout in Layout.PACKED else (4, 2)
    config = FusedAttention(("bias",), layout=layout, heads=4, kv_heads=2, empty_rows=EmptyRows.UNIFORM)
    query, key, values = (
        generator.normal(size=shape).astype(np.float32)
        for shape in ((2, 4, 5, 8), (2, 2, keys, 8), (2, 2, keys, value_size))
    )
    bias = generator.normal(size=(2, 4, 5, keys)).astype(np.float32)
    bias[1, 2, 3] = -np.inf
    if layout in Layout.PACKED:
        tensors = [pack(query, key, values, layout)]
    else:
        tensors = [stored(*each) for each in zip((query, key, values), config.words, strict=False)]
    expected = stored(reference(query, key, values, bias, config.empty_rows), config.words[-1])
    np.testing.assert_allclose(run_function(tensors, config, {"bias": bias}, opset), expected, atol=1e-5)
    np.testing.assert_allclose(fused_attention(tensors, config, {"bias": bias}), expected, atol=1e-5)


def test_function_declares_the_node_attributes() -> None:
    function = fused_attention_function(FusedAttention(), TensorProto.FLOAT, 17, overload="variant2")
    assert set(function.attribute) == {*FusedAttention().attributes(), "plugin_version", "plugin_namespace"}
    assert (function.overload, list(function.input)) == ("variant2", ["q", "k", "v"])


@pytest.mark.parametrize(
    ("shapes", "named"),
    [
        ([(1, 2, 3, 4)], "takes q, k, v"),
        ([(1, 2, 3, 4), (1, 2, 3), (1, 2, 3, 4)], "rank 4"),
        ([(1, 3, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)], "do not agree"),
        ([(1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 4, 4)], "do not agree"),
    ],
)
def test_the_oracle_names_what_does_not_fit(shapes: list[tuple[int, ...]], named: str) -> None:
    with pytest.raises(ContractError, match=named):
        fused_attention([np.zeros(shape, np.float32) for shape in shapes], FusedAttention())
