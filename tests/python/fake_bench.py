"""A session's surroundings on the GPU in host memory, and the arrays that its tests use."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import cuda.bindings
import numpy as np
import pytest

from attngraft.engine.backends import Backend
from attngraft.runtime import loading, preflight
from attngraft.runtime.cuda import cuda_driver, cuda_runtime
from fake_gpu import SUCCESS, FakeDriver, FakeRuntime
from fake_tensorrt import Behaviour, fake_tensorrt, write_fake_plan


@dataclass
class Bench:
    """A fake GPU, what its engines do, and the file of one."""

    gpu: FakeRuntime
    behaviour: Behaviour
    engine: Path


def open_bench(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Puts the fakes in the places of CUDA and TensorRT."""
    gpu = FakeRuntime()
    module, behaviour = fake_tensorrt(gpu)
    monkeypatch.setattr(cuda.bindings, "runtime", gpu)
    monkeypatch.setattr(cuda.bindings, "driver", FakeDriver(gpu))
    cuda_runtime.cache_clear()
    cuda_driver.cache_clear()
    for user in (preflight, loading):
        monkeypatch.setattr(user, "load_backend", lambda name: Backend("tensorrt", "TensorRT", module))
    monkeypatch.setattr(preflight, "describe_device", lambda index: None)
    yield Bench(gpu, behaviour, write_fake_plan(folder / "model.engine"))
    gc.collect()  # what is left must be freed by the GPU that it is from
    cuda_runtime.cache_clear()
    cuda_driver.cache_clear()


def rows(count: int, first: float = 0.0, columns: int = 4) -> np.ndarray:
    """Rising numbers [count, columns], fp32."""
    return np.arange(count * columns, dtype=np.float32).reshape(count, columns) + np.float32(first)


def expected(x: np.ndarray) -> np.ndarray:
    """What the fake engine makes of its input."""
    return 2 * x + 1


class CudaArray:
    """What pycuda and CuPy give: a `__cuda_array_interface__`, here over host memory."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.__cuda_array_interface__ = array.__array_interface__ | {"version": 2}


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy whose data begins at a multiple of 256 bytes, as device memory does."""
    memory = np.empty(array.nbytes + 256, np.uint8)
    start = -memory.ctypes.data % 256
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def log_calls(bench: Bench, monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    """The names of these CUDA calls from now on, in order."""
    seen: list[str] = []
    for name in names:
        function = getattr(bench.gpu, name)
        monkeypatch.setattr(
            bench.gpu, name, lambda *a, f=function, name=name: (seen.append(name), f(*a))[1], raising=False
        )
    return seen


def on_device(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets every address pass for one on the fake GPU."""
    place = SimpleNamespace(type=bench.gpu.cudaMemoryType.cudaMemoryTypeDevice, device=0)
    monkeypatch.setattr(bench.gpu, "cudaPointerGetAttributes", lambda address: (SUCCESS, place), raising=False)
