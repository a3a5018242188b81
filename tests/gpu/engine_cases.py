"""The model that most engine and session tests share, and its inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from attngraft.contract import EmptyRows, MaskedSoftmax, Role
from attngraft.engine import ShapeRange
from engine_models import HIDDEN

BuildFunction = Callable[..., Path]

BUILDER_LEVEL = 1
"""Of TensorRT's optimization levels: higher ones search longer, a 12-layer model minutes longer, for faster kernels,
which no test here looks at."""

CONFIG = MaskedSoftmax(operands=(Role.KEEP,), scale=0.25, empty_rows=EmptyRows.UNIFORM)
OPERANDS = {Role.KEEP: ("bool", ("batch", 1, "seq"))}
PROFILE = {
    "x": ShapeRange.parse(f"1x1x{HIDDEN}:2x8x{HIDDEN}:4x64x{HIDDEN}"),
    Role.KEEP: ShapeRange.parse("1x1x1:2x1x8:4x1x64"),
}


def attention_inputs(batch: int, seq: int, seed: int = 0, dtype: str = "float32") -> dict[str, np.ndarray]:
    """Normal values; keys masked at random, the last row of the batch masked as a whole."""
    rng = np.random.default_rng(seed)
    keep = rng.random((batch, 1, seq)) < 0.7
    keep[-1] = False
    return {"x": rng.standard_normal((batch, seq, HIDDEN)).astype(dtype), Role.KEEP: keep}
