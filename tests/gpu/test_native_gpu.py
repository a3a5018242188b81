"""Lowering `native` in TensorRT: the results of the original in ONNX Runtime, and the faster of its fused kernels."""

from __future__ import annotations

import pytest

from attngraft.engine import ShapeRange
from attngraft.engine.inspector import fused_kernels_of_file
from attngraft.lower import parse_target
from block_cases import assert_engine_equals, block_inputs
from engine_cases import BuildFunction
from native_models import BLOCKS, lowered

DEFAULT_LEVEL = 3
"""TensorRT's own builder level: a lower one may leave the fusion out."""

TENSORRT_10_6 = parse_target("10.6")

NAMES = (
    "no mask",
    "roots, added -inf, guard",
    "filled -inf",
    "added input",
    "causal",
    "softmax in fp32",
    "torchscript",
    "torchscript, two layers",
    "guard between casts",
    "one head of keys",
)
"""The fp16 blocks of an opset that TensorRT 10.6 knows, which `native` brings into a fused form. Those that add fp16's
lowest number are not among them: what a wholly masked row gives there depends on where the sum is rounded."""


@pytest.mark.parametrize("name", NAMES)
def test_native_is_equal_and_fused(build: BuildFunction, name: str) -> None:
    block = BLOCKS[name]
    model = block.model()
    inputs = block_inputs(model)
    shapes = {key: ShapeRange.fixed(value.shape) for key, value in inputs.items()}
    engine = build(lowered(model, target=TENSORRT_10_6), shapes, optimization_level=DEFAULT_LEVEL)

    kernels = fused_kernels_of_file(engine)[1]
    assert len(kernels) == block.sites
    assert not [kernel for kernel in kernels if "_gemm_mha_v1" in str(kernel)]  # what a NaN guard gets

    assert_engine_equals(engine, model, inputs)
