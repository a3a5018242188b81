"""Engines with FusedAttention nodes in TensorRT: the results of their ONNX functions, and of the models before."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from attention_cases import TOLERANCES
from onnx import ModelProto, helper
from plugin_models import plugin_node

from attngraft.contract import CONTRACT_VERSION, DOMAIN, CausalMode, EmptyRows, FusedAttention, Layout, Role
from attngraft.engine import ShapeRange
from attngraft.engine.sidecar import read_card
from attngraft.lower import parse_target
from attngraft.lower.functions import FunctionTable
from attngraft.onnx_graph import onnx_dtype
from attngraft.runtime import Session
from attngraft.verify.attention_oracle import fused_attention
from block_cases import assert_engine_equals, block_inputs
from engine_cases import BuildFunction
from native_models import BLOCKS, lowered

HEADS, KV_HEADS, HEAD_SIZE = 8, 2, 64
LONGEST, LARGEST_BATCH = 300, 3

SIZES = [(2, 70, 70), (1, 1, 300), (3, 130, 17), (2, 300, 300)]
"""Batch, queries, keys, within the profile. Packed layouts have as many keys as queries."""

NUMPY_TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}

ALL_ROLES = {
    Role.BIAS: ("float32", (1, HEADS, "queries", "keys")),
    Role.KEEP: ("bool", ("batch", 1, 1, "keys")),
    Role.KV_LENGTHS: ("int32", ("batch",)),
    Role.KV_STARTS: ("int32", ("batch",)),
}
"""Type and shape of each operand."""

Shape = tuple["int | str", ...]


def tensor_shapes(config: FusedAttention) -> dict[str, Shape]:
    """Of q, k and v, or of the packed tensor, in the configuration's layout."""
    if config.is_packed:
        return {"qkv": ("batch", "queries", (config.heads + 2 * config.kv_heads) * HEAD_SIZE)}

    def shape(word: str, heads: int, rows: str) -> Shape:
        return {
            Layout.BHSD: ("batch", heads, rows, HEAD_SIZE),
            Layout.BSHD: ("batch", rows, heads, HEAD_SIZE),
            Layout.BSD: ("batch", rows, heads * HEAD_SIZE),
        }[word]

    sizes = ((config.heads, "queries"), (config.kv_heads, "keys"), (config.kv_heads, "keys"))
    return {name: shape(word, *size) for name, word, size in zip("qkv", config.words, sizes, strict=False)}


def input_types(config: FusedAttention, dtype: str) -> dict[str, tuple[str, Shape]]:
    """Type and shape of every input, in order."""
    tensors = {name: (dtype, shape) for name, shape in tensor_shapes(config).items()}
    operands = {role: ALL_ROLES[role] for role in config.operands}
    if config.is_packed:  # as many keys as queries
        operands = {role: (kind, tuple("queries" if dim == "keys" else dim for dim in shape))
                    for role, (kind, shape) in operands.items()}  # fmt: skip
    return {**tensors, **operands}


def one_node_model(config: FusedAttention, dtype: str) -> ModelProto:
    """The node with its portable function."""
    inputs = input_types(config, dtype)
    node = plugin_node(config, list(inputs), "context")
    values = [helper.make_tensor_value_info(name, onnx_dtype(kind), shape) for name, (kind, shape) in inputs.items()]
    rank = 3 if config.words[-1] == Layout.BSD else 4
    output = helper.make_tensor_value_info("context", onnx_dtype(dtype), [None] * rank)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, CONTRACT_VERSION)]
    model = helper.make_model(helper.make_graph([node], "graph", values, [output]), opset_imports=opsets, ir_version=8)
    table = FunctionTable(model)
    model.graph.node[0].overload = table.overload(config, onnx_dtype(dtype))
    table.add_to(model)
    return model


def profile(inputs: dict[str, tuple[str, Shape]]) -> dict[str, ShapeRange]:
    sizes = {"batch": (1, 2, LARGEST_BATCH), "queries": (1, 70, LONGEST), "keys": (1, 70, LONGEST)}
    return {
        name: ShapeRange(*(tuple(sizes[dim][i] if isinstance(dim, str) else dim for dim in shape) for i in range(3)))
        for name, (_, shape) in inputs.items()
    }


def draw(inputs: dict[str, tuple[str, Shape]], sizes: dict[str, int], seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    keys = sizes["keys"]
    drawn = {}
    for name, (kind, dims) in inputs.items():
        shape = tuple(sizes[dim] if isinstance(dim, str) else dim for dim in dims)
        if name in (Role.KV_LENGTHS, Role.KV_STARTS):
            first, last = (keys // 2, keys + 1) if name == Role.KV_LENGTHS else (0, keys // 2 + 1)
            drawn[name] = rng.integers(first, last, shape).astype(np.int32)
        elif name == Role.KEEP:
            drawn[name] = rng.random(shape) < 0.7
        else:
            drawn[name] = rng.standard_normal(shape).astype(NUMPY_TYPES[kind])
    return drawn


GROUPED = {"heads": HEADS, "kv_heads": KV_HEADS}
EQUAL = {"heads": HEADS, "kv_heads": HEADS}
SCALE = HEAD_SIZE**-0.5

NODES: dict[str, tuple[str, FusedAttention]] = {
    "by heads": ("float16", FusedAttention(scale=SCALE, layout="bhsd", **GROUPED)),
    "heads inside": ("float16", FusedAttention(scale=SCALE, layout="bshd", causal=CausalMode.BOTTOM_RIGHT, **EQUAL)),
    "projections": ("float16", FusedAttention((Role.KEEP,), SCALE, layout="bsd", **GROUPED)),
    "a layout for each": (
        "float16",
        FusedAttention((Role.KV_LENGTHS,), SCALE, layout="bsd,bshd,bhsd,bshd", softcap=5.0, **GROUPED),
    ),
    "packed": ("float16", FusedAttention((Role.KV_LENGTHS,), SCALE, layout="qkv", **EQUAL)),
    "packed, grouped": ("bfloat16", FusedAttention((Role.KEEP,), SCALE, layout="qkv", **GROUPED)),
    "packed by head": ("float16", FusedAttention(scale=SCALE, layout="qkv_by_head", window_left=40, **GROUPED)),
    "every operand": (
        "float16",
        FusedAttention(tuple(ALL_ROLES), SCALE, softcap=9.0, empty_rows=EmptyRows.UNIFORM, layout="bsd", **GROUPED),
    ),
    "every operand in bf16": (
        "bfloat16",
        FusedAttention(tuple(reversed(ALL_ROLES)), SCALE, causal=CausalMode.TOP_LEFT, layout="bhsd", **GROUPED),
    ),
    "tf32": ("float32", FusedAttention((Role.KEEP,), SCALE, layout="bsd", **EQUAL)),
    "fp32, exact": (
        "float32",
        FusedAttention(tuple(ALL_ROLES), SCALE, empty_rows=EmptyRows.UNMASKED, layout="qkv", exact=1, **EQUAL),
    ),
}


def portable(model: ModelProto) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", NODES)
def test_a_node_equals_its_function_and_the_oracle(build: BuildFunction, name: str) -> None:
    dtype, config = NODES[name]
    model, inputs = one_node_model(config, dtype), input_types(config, dtype)
    engine = build(model, profile(inputs))
    card = read_card(engine)
    assert card is not None and card.plugin_layers == 1
    tolerance = TOLERANCES[f"{dtype} exact" if config.exact else dtype]
    reference = portable(model) if dtype != "bfloat16" else None  # NumPy has no bfloat16 to feed
    with Session(engine) as session:
        for seed, (batch, queries, keys) in enumerate(SIZES * 2):  # plain, then replayed
            sizes = {"batch": batch, "queries": queries, "keys": queries if config.is_packed else keys}
            feeds = draw(inputs, sizes, seed)
            actual = session.run(feeds)["context"].astype(np.float64)
            tensors = [feeds[tensor] for tensor in config.tensor_names]
            expected = fused_attention(tensors, config, {role: feeds[role] for role in config.operands})
            np.testing.assert_allclose(actual, expected, atol=tolerance, rtol=tolerance, err_msg=f"{name} {sizes}")
            if reference is not None:
                given = reference.run(None, feeds)[0].astype(np.float64)
                np.testing.assert_allclose(actual, given, atol=tolerance, rtol=tolerance, err_msg=f"{name} {sizes}")


BLOCK_NAMES = (
    "no mask",
    "filled -inf",
    "added input",
    "causal",
    "softcap",
    "torchscript, two layers",
    "one head of keys",
    "head size 8",
)


@pytest.mark.parametrize("name", BLOCK_NAMES)
def test_a_lowered_model_equals_the_original(build: BuildFunction, name: str) -> None:
    block = BLOCKS[name]
    model = block.model()
    inputs = block_inputs(model)
    shapes = {key: ShapeRange.fixed(value.shape) for key, value in inputs.items()}
    engine = build(lowered(model, "attention", parse_target("10.6")), shapes)
    card = read_card(engine)
    assert card is not None and card.plugin_layers == block.sites
    assert_engine_equals(engine, model, inputs)
