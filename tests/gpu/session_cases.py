"""What the tests of sessions share: an engine with two profiles, arrays on the GPU, free memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorrt
import torch

from attngraft.engine.logger import process_logger

WIDTH = 32
SMALL = ((1, 1, WIDTH), (2, 8, WIDTH), (4, 64, WIDTH))
LARGE = ((1, 65, WIDTH), (2, 128, WIDTH), (8, 256, WIDTH))
"""The two profiles of `x`."""


def on_gpu(inputs: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(value).cuda() for name, value in inputs.items()}


def free_bytes() -> int:
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


def two_profile_engine(path: Path) -> Path:
    """y = softmax(x x^T) x over `x` [batch, rows, WIDTH], fp32, made with TensorRT's own interface, without a card."""
    builder = tensorrt.Builder(process_logger(tensorrt))
    network = builder.create_network(1 << int(tensorrt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    plain, turned = tensorrt.MatrixOperation.NONE, tensorrt.MatrixOperation.TRANSPOSE
    x = network.add_input("x", tensorrt.float32, (-1, -1, WIDTH))
    softmax = network.add_softmax(network.add_matrix_multiply(x, plain, x, turned).get_output(0))
    softmax.axes = 1 << 2
    y = network.add_matrix_multiply(softmax.get_output(0), plain, x, plain).get_output(0)
    y.name = "y"
    network.mark_output(y)
    config = builder.create_builder_config()
    config.clear_flag(tensorrt.BuilderFlag.TF32)
    for corners in (SMALL, LARGE):
        profile = builder.create_optimization_profile()
        profile.set_shape("x", *corners)
        config.add_optimization_profile(profile)
    path.write_bytes(builder.build_serialized_network(network, config))
    return path


def reference(x: np.ndarray) -> np.ndarray:
    """What that engine computes, in float64."""
    wide = x.astype(np.float64)
    scores = wide @ wide.transpose(0, 2, 1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ wide
