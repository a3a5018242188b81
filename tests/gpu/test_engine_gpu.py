"""Engines with the plugin in TensorRT against ONNX Runtime and the float64 oracle."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
import tensorrt

from attngraft.contract import CausalMode, EmptyRows, MaskedSoftmax, Role
from attngraft.engine import ShapeRange
from attngraft.engine.logger import process_logger
from attngraft.engine.sidecar import read_card, read_plan_header
from attngraft.runtime import Session
from attngraft.verify import oracle
from engine_cases import CONFIG, OPERANDS, PROFILE, BuildFunction, attention_inputs
from engine_models import attention_model, many_sites_model

# Absolute, for values of about 1: fp32 without TF32 differs in summation order only; fp16 and bf16 round every
# intermediate tensor of two layers to 11 and 8 bits.
TOLERANCES = {"float32": 2e-5, "float16": 2e-2, "bfloat16": 1.5e-1}

SHAPES = [(1, 1), (2, 8), (4, 64), (3, 33)]


def reference(inputs: dict[str, np.ndarray], dtype: str) -> np.ndarray:
    """ONNX Runtime's answer in fp32, from the weights and inputs rounded to `dtype`."""
    rounded = attention_model(CONFIG, OPERANDS, dtype=dtype)
    model = attention_model(CONFIG, OPERANDS)
    for exact, source in zip(model.graph.initializer, rounded.graph.initializer):
        values = onnx.numpy_helper.to_array(source).astype(np.float32)
        exact.CopyFrom(onnx.numpy_helper.from_array(values, exact.name))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, {**inputs, "x": inputs["x"].astype(np.float32)})[0]


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_attention_equals_onnx_runtime(dtype: str, request: pytest.FixtureRequest) -> None:
    fixture = {"float32": "attention_engine", "float16": "attention_engine_fp16", "bfloat16": "attention_engine_bf16"}
    numpy_type = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    with Session(request.getfixturevalue(fixture[dtype])) as session:
        for seed, (batch, seq) in enumerate(SHAPES * 2):
            inputs = attention_inputs(batch, seq, seed, numpy_type)
            output = session.run(inputs)["y"]
            assert output.dtype == numpy_type
            error = np.abs(output.astype(np.float32) - reference(inputs, dtype)).max()
            assert error <= TOLERANCES[dtype], (batch, seq, error)


CONFIGS = [
    MaskedSoftmax(),
    MaskedSoftmax(scale=-0.5, causal=CausalMode.TOP_LEFT),
    MaskedSoftmax(causal=CausalMode.BOTTOM_RIGHT, window_left=3, empty_rows=EmptyRows.UNIFORM),
    MaskedSoftmax(window_left=2, window_right=4, softcap=2.0),
    MaskedSoftmax(operands=(Role.BIAS,), scale=0.125),
    MaskedSoftmax(operands=(Role.KEEP,), empty_rows=EmptyRows.ZEROS),
    MaskedSoftmax(operands=(Role.KEEP,), empty_rows=EmptyRows.UNMASKED),
    MaskedSoftmax(operands=(Role.KV_LENGTHS,)),
    MaskedSoftmax(operands=(Role.KV_STARTS, Role.KV_LENGTHS), empty_rows=EmptyRows.UNIFORM),
    MaskedSoftmax(
        operands=(Role.BIAS, Role.KEEP, Role.KV_LENGTHS, Role.KV_STARTS), causal=CausalMode.TOP_LEFT, softcap=9.0
    ),
    MaskedSoftmax(operands=(Role.KEEP, Role.BIAS), causal=CausalMode.BOTTOM_RIGHT, empty_rows=EmptyRows.UNMASKED),
]
KEEP_TYPES = {"float32": "bool", "float16": "int32", "bfloat16": "int64"}
"""One of TensorRT's types for `keep` in each engine."""

# Half a unit in the last place of a probability near 1, and what fp32 arithmetic adds.
SOFTMAX_TOLERANCES = {"float32": 1e-5, "float16": 6e-4, "bfloat16": 4.5e-3}


@pytest.mark.parametrize(
    ("dtype", "bias_dtype"),
    [(dtype, bias) for dtype in SOFTMAX_TOLERANCES for bias in sorted({dtype, "float32"})],
)
def test_all_roles_equal_the_oracle(build: BuildFunction, dtype: str, bias_dtype: str) -> None:
    operands = {
        Role.BIAS: (bias_dtype, (1, "heads", 1, "keys")),
        Role.KEEP: (KEEP_TYPES[dtype], ("batch", 1, "queries", "keys")),
        Role.KV_LENGTHS: ("int32", ("batch",)),
        Role.KV_STARTS: ("int32", ("batch",)),
    }
    model = many_sites_model(CONFIGS, ("batch", "heads", "queries", "keys"), operands, dtype=dtype)
    engine = build(
        model,
        {
            "scores": ShapeRange.parse("1x1x1x1:2x4x16x64:4x8x64x600"),
            Role.BIAS: ShapeRange.parse("1x1x1x1:1x4x1x64:1x8x1x600"),
            Role.KEEP: ShapeRange.parse("1x1x1x1:2x1x16x64:4x1x64x600"),
            Role.KV_LENGTHS: ShapeRange.parse("1:2:4"),
            Role.KV_STARTS: ShapeRange.parse("1:2:4"),
        },
    )
    with Session(engine) as session:
        for seed, shape in enumerate([(2, 4, 16, 64), (3, 2, 7, 129), (1, 1, 1, 1), (4, 8, 5, 577), (1, 3, 64, 24)]):
            _compare_with_oracle(session, shape, dtype, bias_dtype, seed)


def _compare_with_oracle(
    session: Session, shape: tuple[int, int, int, int], dtype: str, bias_dtype: str, seed: int
) -> None:
    batch, heads, queries, keys = shape
    types = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
    rng = np.random.default_rng(seed)
    keep = (rng.random((batch, 1, queries, keys)) < 0.6) * (rng.random((batch, 1, queries, 1)) < 0.9)
    inputs = {
        "scores": (3 * rng.standard_normal(shape)).astype(types[dtype]),
        Role.BIAS: rng.standard_normal((1, heads, 1, keys)).astype(types[bias_dtype]),
        Role.KEEP: keep.astype(KEEP_TYPES[dtype]),
        Role.KV_LENGTHS: rng.integers(0, keys + 1, batch).astype(np.int32),
        Role.KV_STARTS: rng.integers(0, max(keys // 2, 1), batch).astype(np.int32),
    }
    outputs = session.run(inputs)
    for index, config in enumerate(CONFIGS):
        expected = oracle.masked_softmax(inputs["scores"], config, **{role: inputs[role] for role in config.operands})
        actual = outputs[f"p_{index}"].astype(np.float64)
        error = np.abs(actual - expected).max()
        assert error <= SOFTMAX_TOLERANCES[dtype], (config, shape, error)
        assert not actual[expected == 0].any(), (config, shape)


def test_the_engine_itself_holds_the_plugin_layers(attention_engine: Path) -> None:
    runtime = tensorrt.Runtime(process_logger(tensorrt))
    runtime.engine_host_code_allowed = True
    engine = runtime.deserialize_cuda_engine(attention_engine.read_bytes())
    information = engine.create_engine_inspector().get_engine_information(tensorrt.LayerInformationFormat.JSON)
    kinds = [layer["LayerType"] for layer in json.loads(information)["Layers"]]
    assert sum("plugin" in kind.lower() for kind in kinds) == 2, kinds


def test_card_and_header(attention_engine: Path) -> None:
    card, header = read_card(attention_engine), read_plan_header(attention_engine)
    assert card is not None
    assert (card.backend, card.plugin_layers, card.plugin_embedded) == ("tensorrt", 2, True)
    assert header.backend == "tensorrt"
    assert header.version_text.startswith(".".join(card.tensorrt_version.split(".")[:3]))
    assert header.size_bytes == card.size_bytes == attention_engine.stat().st_size
    assert card.gpu is not None and card.compute_capability is not None


def test_timing_cache_is_written_and_read(build: BuildFunction, tmp_path: Path) -> None:
    model, cache = attention_model(CONFIG, OPERANDS), tmp_path / "timing.cache"
    build(model, PROFILE, timing_cache=cache)
    size = cache.stat().st_size
    assert size > 0
    build(model, PROFILE, timing_cache=cache)
    assert cache.stat().st_size >= size


def test_the_whole_model_from_onnx_runtime_to_the_engine_is_one_file(attention_engine: Path) -> None:
    """The portable model, functions included, is what ONNX Runtime runs and what the engine was built from."""
    inputs = attention_inputs(2, 8)
    portable = onnxruntime.InferenceSession(str(attention_engine.with_name("model.onnx"))).run(None, inputs)[0]
    with Session(attention_engine) as session:
        np.testing.assert_allclose(session.run(inputs)["y"], portable, atol=TOLERANCES["float32"], rtol=0)
