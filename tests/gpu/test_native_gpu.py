"""Lowering `native` in TensorRT: the results of the original in ONNX Runtime, and the faster of its fused kernels."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto

from attngraft.engine import ShapeRange
from attngraft.engine.inspector import fused_kernels_of_file
from attngraft.lower import parse_target
from attngraft.runtime import Session
from engine_cases import BuildFunction
from native_models import BLOCKS, HIDDEN, lowered

DEFAULT_LEVEL = 3
"""TensorRT's own builder level: a lower one may leave the fusion out."""

TENSORRT_10_6 = parse_target("10.6")
BATCH, LENGTH = 2, 48
FP16_TOLERANCE = 1e-2
"""Times the largest magnitude: both round to fp16 after every product."""

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
    inputs = _inputs(model)
    shapes = {key: ShapeRange.fixed(value.shape) for key, value in inputs.items()}
    engine = build(lowered(model, target=TENSORRT_10_6), shapes, optimization_level=DEFAULT_LEVEL)

    kernels = fused_kernels_of_file(engine)[1]
    assert len(kernels) == block.sites
    assert not [kernel for kernel in kernels if "_gemm_mha_v1" in str(kernel)]  # what a NaN guard gets

    reference = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = reference.run(None, inputs)[0].astype(np.float32)
    with Session(engine) as session:
        for _ in range(2):  # plain, then replayed
            actual = session.run(inputs)["y"].astype(np.float32)
            compared = np.isfinite(expected)  # an unguarded row without a key is NaN in the original
            assert compared.any() and np.isfinite(actual[compared]).all()
            limit = FP16_TOLERANCE * max(1.0, np.abs(expected[compared]).max())
            assert np.abs(actual - expected)[compared].max() <= limit


def _inputs(model: ModelProto) -> dict[str, np.ndarray]:
    """Normal values; of the masks, keys at random, and nothing at all for the last row of the batch."""
    rng = np.random.default_rng(0)
    inputs = {"x": rng.standard_normal((BATCH, LENGTH, HIDDEN)).astype(np.float16)}
    for value in model.graph.input:
        if value.name == "x":
            continue
        dims = [
            dim.dim_value or (BATCH if dim.dim_param == "B" else LENGTH) for dim in value.type.tensor_type.shape.dim
        ]
        if value.name == "keep":
            keep = rng.random(dims) < 0.7
            keep[-1] = False
            inputs["keep"] = keep
        else:
            dtype = np.float32 if value.type.tensor_type.elem_type == 1 else np.float16
            inputs[value.name] = rng.standard_normal(dims).astype(dtype)
    return inputs
