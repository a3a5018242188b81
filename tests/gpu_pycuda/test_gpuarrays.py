"""pycuda's GPUArrays in, device arrays out. Apart from tests/gpu, since pycuda is compiled at installation."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pycuda.autoprimaryctx  # noqa: F401 - makes the primary context, which TensorRT uses too, current
import pytest
from pycuda import driver, gpuarray

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "gpu"), str(TESTS / "python")]

from attngraft.engine import build_engine  # noqa: E402
from attngraft.runtime import Session  # noqa: E402
from engine_cases import BUILDER_LEVEL, CONFIG, OPERANDS, PROFILE, attention_inputs  # noqa: E402
from engine_models import attention_model  # noqa: E402


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engine")
    onnx.save(attention_model(CONFIG, OPERANDS), folder / "model.onnx")
    return build_engine(
        folder / "model.onnx",
        folder / "model.engine",
        backend="tensorrt",
        shapes=PROFILE,
        optimization_level=BUILDER_LEVEL,
    ).engine_path


def test_gpuarrays_give_what_numpy_gives(engine: Path) -> None:
    with Session(engine) as session:
        for seed in range(3):
            inputs = attention_inputs(2, 8, seed)
            arrays = {name: gpuarray.to_gpu(value) for name, value in inputs.items()}
            output = session.run(arrays)["y"]
            np.testing.assert_array_equal(output.numpy(), session.run(inputs)["y"])
        assert session.statistics.replays == 5


def test_the_current_context_stays(engine: Path) -> None:
    before = driver.Context.get_current()
    with Session(engine) as session:
        session.run({name: gpuarray.to_gpu(value) for name, value in attention_inputs(2, 8).items()})
    assert driver.Context.get_current() == before
    assert (gpuarray.to_gpu(np.arange(4, dtype=np.float32)) * 2).get()[3] == 6
