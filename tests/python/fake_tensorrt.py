"""A TensorRT of a few lines, on the GPU in host memory, whose engines can be made to go wrong."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from fake_gpu import FakeRuntime


@dataclass
class Behaviour:
    """What the engines are like, and what can be made to go wrong in them."""

    profiles: int = 1
    fail: bool = False
    capturable: bool = True
    drift: float = 0.0
    """Added to the outputs of every run after the first: an engine that is not deterministic."""
    replay_error: float = 0.0
    """Added to the outputs by graphs only."""
    stale: bool = False
    """A graph whose context has other shapes than at capture adds 1 to its outputs (TensorRT issue 3798)."""
    contradiction: bool = False
    data_dependent: bool = False
    """`y` has the rows of `x` that begin with no negative number; its memory comes from an output allocator."""
    no_context: bool = False
    runs: int = 0


class FakeContext:
    """Computes y = 2 x + 1 over `x` [n, m] into `y` [n, m], fp32."""

    def __init__(self, gpu: FakeRuntime, behaviour: Behaviour | None = None) -> None:
        self._gpu = gpu
        self._behaviour = behaviour or Behaviour()
        self._shape = (0, 0)
        self._addresses: dict[str, int] = {}
        self._allocator: Any = None
        self._ran: set[tuple[tuple[int, ...], int, int]] = set()
        self.active_optimization_profile = 0

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        self.active_optimization_profile = profile
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        low, _, high = PROFILES[self.active_optimization_profile]
        assert all(a <= dim <= b for a, dim, b in zip(low, shape, high)), "outside the context's profile"
        self._shape = tuple(shape)
        return True

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        if self._behaviour.contradiction:
            raise ValueError("__len__() should return >= 0")  # what TensorRT's Dims of rank -1 makes of tuple()
        return (-1, self._shape[1]) if self._behaviour.data_dependent else self._shape

    def set_tensor_address(self, name: str, address: int) -> bool:
        self._addresses[name] = address
        return True

    def set_output_allocator(self, name: str, allocator: Any) -> bool:
        self._allocator = allocator
        return True

    def is_stream_capturable(self, stream: int) -> bool:
        return self._behaviour.capturable

    def execute_async_v3(self, stream: int) -> bool:
        if self._behaviour.fail:
            return False
        if self._allocator is not None:
            return self._run_data_dependent(stream)
        shape, source, target = self._shape, self._addresses["x"], self._addresses["y"]
        is_captured = stream in self._gpu.captures
        assert not is_captured or (shape, source, target) in self._ran, "captured before it has run plainly"
        self._ran.add((shape, source, target))
        error = self._behaviour.replay_error if is_captured else 0.0

        def work() -> None:
            behaviour = self._behaviour
            behaviour.runs += 1
            extra = error + 1.0 if is_captured and behaviour.stale and self._shape != shape else error
            count = shape[0] * shape[1]
            x, y = _floats(source, count), _floats(target, count)
            y[:] = 2 * x + 1 + extra + behaviour.drift * behaviour.runs

        self._gpu.put(stream, work)
        return True

    def _run_data_dependent(self, stream: int) -> bool:
        assert stream not in self._gpu.captures, "TensorRT asks for memory, which no capture survives"
        rows, columns = self._shape
        x = _floats(self._addresses["x"], rows * columns).reshape(self._shape)
        kept = 2 * x[x[:, 0] >= 0] + 1
        address = self._allocator.reallocate_output_async("y", None, kept.nbytes, 256, stream)
        if not address:
            return False
        _floats(address, kept.size)[:] = kept.ravel()
        self._allocator.notify_shape("y", kept.shape)
        return True


def _floats(address: int, count: int) -> np.ndarray:
    return np.frombuffer((ctypes.c_float * count).from_address(address), np.float32)


PROFILES = [[(1, 4), (2, 4), (8, 4)], [(1, 2), (16, 8), (32, 8)]]
"""The shapes of `x` in the engine's two profiles, of which a test may take the first alone."""


class FakeEngine:
    num_io_tensors = 2

    def __init__(self, gpu: FakeRuntime, behaviour: Behaviour) -> None:
        self._gpu = gpu
        self._behaviour = behaviour
        self.num_optimization_profiles = behaviour.profiles

    def get_tensor_name(self, index: int) -> str:
        return ("x", "y")[index]

    def get_tensor_mode(self, name: str) -> str:
        return {"x": "input", "y": "output"}[name]

    def get_tensor_dtype(self, name: str) -> Any:
        return SimpleNamespace(name="FLOAT")

    def get_tensor_location(self, name: str) -> str:
        return "device"

    def get_tensor_format(self, name: str) -> str:
        return "linear"

    def get_tensor_profile_shape(self, name: str, profile: int) -> list[tuple[int, int]]:
        return PROFILES[profile]

    def create_execution_context(self) -> FakeContext | None:
        return None if self._behaviour.no_context else FakeContext(self._gpu, self._behaviour)


def fake_tensorrt(gpu: FakeRuntime) -> tuple[SimpleNamespace, Behaviour]:
    """A module that stands for `tensorrt`, and the behaviour of its engines, which may be changed at any time."""
    behaviour = Behaviour()

    class Runtime:
        engine_host_code_allowed = False

        def __init__(self, logger: object) -> None:
            pass

        def deserialize_cuda_engine(self, plan: bytes) -> FakeEngine:
            return FakeEngine(gpu, behaviour)

    module = SimpleNamespace(
        __name__="fake_tensorrt",
        __version__="10.6.0",
        ILogger=type("ILogger", (), {}),
        IOutputAllocator=type("IOutputAllocator", (), {}),
        Runtime=Runtime,
        TensorIOMode=SimpleNamespace(INPUT="input"),
        TensorLocation=SimpleNamespace(DEVICE="device"),
        TensorFormat=SimpleNamespace(LINEAR="linear"),
    )
    return module, behaviour


def write_fake_plan(path: Path) -> Path:
    """A file with the header of a TensorRT 10.6 engine and nothing behind it."""
    path.write_bytes(struct.pack("<4s12xQ4B", b"ftrt", 28, 10, 6, 0, 26))
    return path
