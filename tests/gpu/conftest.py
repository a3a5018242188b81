"""What the GPU tests share. Without a GPU or TensorRT they end at once, with status 1: never skipped, never passed."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import sys
from collections.abc import Mapping
from pathlib import Path

import onnx
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))  # engine_models is shared with the tests on the CPU

from attngraft.engine import ShapeRange, build_engine  # noqa: E402
from engine_cases import BUILDER_LEVEL, CONFIG, OPERANDS, PROFILE, BuildFunction  # noqa: E402
from engine_models import attention_model  # noqa: E402


def pytest_sessionstart(session: pytest.Session) -> None:
    """Ends the run where it cannot test anything."""
    if why := _missing():
        pytest.exit(f"tests/gpu cannot run: {why}", returncode=1)
    for package in ("torch", "cupy"):  # imported where what they warn of is not yet an error; their tests do miss them
        with contextlib.suppress(ImportError):
            importlib.import_module(package)


def _missing() -> str | None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver (libcuda.so.1)"
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return "no NVIDIA GPU"
    for package in ("tensorrt", "cuda.bindings.runtime"):
        try:
            importlib.import_module(package)
        except (ImportError, OSError) as error:
            return f"{package} cannot be imported ({error})"
    return None


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> BuildFunction:
    """Builds a model with TensorRT; returns the engine's path, beside which the model is as `model.onnx`."""

    def build_model(model: onnx.ModelProto, shapes: Mapping[str, ShapeRange] | None = None, **options: object) -> Path:
        folder = tmp_path_factory.mktemp("engine")
        onnx.save(model, folder / "model.onnx")
        built = build_engine(
            folder / "model.onnx",
            folder / "model.engine",
            backend="tensorrt",
            shapes=shapes,
            **{"tf32": False, "optimization_level": BUILDER_LEVEL, **options},
        )
        return built.engine_path

    return build_model


@pytest.fixture(scope="session")
def attention_engine(build: BuildFunction) -> Path:
    """Two sites with a padding mask, fp32, dynamic batch and sequence."""
    return build(attention_model(CONFIG, OPERANDS), PROFILE)


@pytest.fixture(scope="session")
def attention_engine_fp16(build: BuildFunction) -> Path:
    return build(attention_model(CONFIG, OPERANDS, dtype="float16"), PROFILE)


@pytest.fixture(scope="session")
def attention_engine_bf16(build: BuildFunction) -> Path:
    return build(attention_model(CONFIG, OPERANDS, dtype="bfloat16"), PROFILE)
