"""Inputs of the blocks of native_models.py, and the comparison of an engine with the block that it was made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
from onnx import ModelProto

from attngraft.runtime import Session

BATCH, LENGTH = 2, 48
FP16_TOLERANCE = 1e-2
"""Times the largest magnitude: both round to fp16 after every product."""


def block_inputs(model: ModelProto) -> dict[str, np.ndarray]:
    """Normal values; of the masks, keys at random, and nothing at all for the last row of the batch."""
    rng = np.random.default_rng(0)
    inputs: dict[str, np.ndarray] = {}
    for value in model.graph.input:
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


def assert_engine_equals(engine: Path, model: ModelProto, inputs: dict[str, np.ndarray]) -> None:
    """The engine's `y`, run plainly and replayed, is what ONNX Runtime computes from the model."""
    reference = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = reference.run(None, inputs)[0].astype(np.float32)
    compared = np.isfinite(expected)  # an unguarded row without a key is NaN in the original
    assert compared.any()
    limit = FP16_TOLERANCE * max(1.0, np.abs(expected[compared]).max())
    with Session(engine) as session:
        for _ in range(2):
            actual = session.run(inputs)["y"].astype(np.float32)
            assert np.isfinite(actual[compared]).all()
            assert np.abs(actual - expected)[compared].max() <= limit
