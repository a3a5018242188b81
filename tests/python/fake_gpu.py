"""A GPU and a TensorRT of a few lines, in host memory, for the control flow of sessions on machines without either.

Work runs at once, except while its stream is being captured: then it is recorded, with the addresses of that moment,
and a launched graph runs exactly that again. So stale addresses and repeated results show as they would on a GPU.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from cuda.bindings import runtime as real_runtime

SUCCESS = real_runtime.cudaError_t.cudaSuccess
Work = Callable[[], None]


class FakeRuntime:
    """`cuda.bindings.runtime`, as far as the session calls it; enums and structs are the real ones."""

    def __init__(self) -> None:
        self.memory: dict[int, Any] = {}
        self.captures: dict[int, list[Work]] = {}
        self.graphs: dict[int, list[Work]] = {}
        self.launches = 0
        self.pools_destroyed = 0
        self.fail_capture = False
        self._handles = itertools.count(100)

    def __getattr__(self, name: str) -> Any:
        return getattr(real_runtime, name)

    def put(self, stream: int, work: Work) -> None:
        """Runs work, or records it while the stream is captured."""
        if stream in self.captures:
            self.captures[stream].append(work)
        else:
            work()

    def _allocate(self, nbytes: int) -> tuple[Any, int]:
        block = ctypes.create_string_buffer(max(nbytes, 1))
        self.memory[ctypes.addressof(block)] = block
        return SUCCESS, ctypes.addressof(block)

    def _handle(self, *_: object) -> tuple[Any, int]:
        return SUCCESS, next(self._handles)

    def _nothing(self, *_: object) -> tuple[Any]:
        return (SUCCESS,)

    cudaStreamCreateWithFlags = cudaEventCreateWithFlags = cudaMemPoolCreate = _handle  # noqa: N815
    cudaEventRecord = cudaEventSynchronize = cudaStreamWaitEvent = cudaStreamSynchronize = _nothing  # noqa: N815
    cudaStreamDestroy = cudaEventDestroy = cudaMemPoolSetAttribute = _nothing  # noqa: N815
    cudaSetDevice = cudaGraphDestroy = cudaGetLastError = _nothing  # noqa: N815

    def cudaMemPoolDestroy(self, pool: int) -> tuple[Any]:  # noqa: N802
        self.pools_destroyed += 1
        return (SUCCESS,)

    def cudaGetDeviceCount(self) -> tuple[Any, int]:  # noqa: N802
        return SUCCESS, 1

    def cudaMallocFromPoolAsync(self, nbytes: int, pool: int, stream: int) -> tuple[Any, int]:  # noqa: N802
        return self._allocate(nbytes)

    def cudaHostAlloc(self, nbytes: int, flags: int) -> tuple[Any, int]:  # noqa: N802
        return self._allocate(nbytes)

    def cudaFreeAsync(self, address: int, stream: int) -> tuple[Any]:  # noqa: N802
        del self.memory[address]
        return (SUCCESS,)

    def cudaFreeHost(self, address: int) -> tuple[Any]:  # noqa: N802
        del self.memory[address]
        return (SUCCESS,)

    def cudaMemcpyAsync(self, target: int, source: int, nbytes: int, kind: Any, stream: int) -> tuple[Any]:  # noqa: N802
        self.put(stream, lambda: ctypes.memmove(target, source, nbytes))
        return (SUCCESS,)

    def cudaMemsetAsync(self, target: int, value: int, nbytes: int, stream: int) -> tuple[Any]:  # noqa: N802
        self.put(stream, lambda: ctypes.memset(target, value, nbytes))
        return (SUCCESS,)

    def cudaStreamBeginCapture(self, stream: int, mode: Any) -> tuple[Any]:  # noqa: N802
        assert mode == real_runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self.captures[stream] = []
        return (SUCCESS,)

    def cudaStreamEndCapture(self, stream: int) -> tuple[Any, int | None]:  # noqa: N802
        work = self.captures.pop(stream)
        if self.fail_capture:
            return real_runtime.cudaError_t.cudaErrorStreamCaptureInvalidated, None
        _, graph = self._handle()
        self.graphs[graph] = work
        return SUCCESS, graph

    def cudaGraphInstantiate(self, graph: int, flags: int) -> tuple[Any, int]:  # noqa: N802
        _, executable = self._handle()
        self.graphs[executable] = self.graphs.pop(graph)
        return SUCCESS, executable

    def cudaGraphLaunch(self, executable: int, stream: int) -> tuple[Any]:  # noqa: N802
        self.launches += 1
        for work in self.graphs[executable]:
            self.put(stream, work)
        return (SUCCESS,)

    def cudaGraphExecDestroy(self, executable: int) -> tuple[Any]:  # noqa: N802
        del self.graphs[executable]
        return (SUCCESS,)


class FakeDriver:
    """`cuda.bindings.driver`, as far as the session calls it."""

    @staticmethod
    def cuuint64_t(value: int) -> int:
        return value

    @staticmethod
    def cuCtxGetCurrent() -> tuple[int, int]:  # noqa: N802
        return 0, 0


class FakeContext:
    """Computes y = 2 x + 1 over `x` [n, 4] into `y` [n, 4], fp32."""

    def __init__(self, gpu: FakeRuntime) -> None:
        self._gpu = gpu
        self._shape = (0, 0)
        self._addresses: dict[str, int] = {}
        self.fail = False
        self.capturable = True
        self.drift = 0.0
        """Added to the outputs of every run after the first: an engine that is not deterministic."""
        self.replay_error = 0.0
        """Added to the outputs by graphs only."""
        self.contradiction = False
        self.output_shape: tuple[int, ...] | None = None
        self._runs = 0

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self._shape = tuple(shape)
        return True

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        if self.contradiction:
            raise ValueError("__len__() should return >= 0")  # what TensorRT's Dims of rank -1 makes of tuple()
        return self.output_shape or self._shape

    def set_tensor_address(self, name: str, address: int) -> bool:
        self._addresses[name] = address
        return True

    def is_stream_capturable(self, stream: int) -> bool:
        return self.capturable

    def execute_async_v3(self, stream: int) -> bool:
        if self.fail:
            return False
        shape, source, target = self._shape, self._addresses["x"], self._addresses["y"]
        extra = self.replay_error if stream in self._gpu.captures else 0.0

        def work() -> None:
            self._runs += 1
            count = shape[0] * shape[1]
            x = np.frombuffer((ctypes.c_float * count).from_address(source), np.float32)
            y = np.frombuffer((ctypes.c_float * count).from_address(target), np.float32)
            y[:] = 2 * x + 1 + extra + self.drift * self._runs

        self._gpu.put(stream, work)
        return True


class FakeEngine:
    num_io_tensors = 2

    def __init__(self, context: FakeContext) -> None:
        self._context = context

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
        return [(1, 4), (2, 4), (8, 4)]

    def create_execution_context(self) -> FakeContext:
        return self._context


def fake_tensorrt(gpu: FakeRuntime) -> tuple[SimpleNamespace, FakeContext]:
    """A module that stands for `tensorrt`, and the execution context that its engines give."""
    context = FakeContext(gpu)

    class Runtime:
        engine_host_code_allowed = False

        def __init__(self, logger: object) -> None:
            pass

        def deserialize_cuda_engine(self, plan: bytes) -> FakeEngine:
            return FakeEngine(context)

    module = SimpleNamespace(
        __name__="fake_tensorrt",
        __version__="10.6.0",
        ILogger=type("ILogger", (), {}),
        Runtime=Runtime,
        TensorIOMode=SimpleNamespace(INPUT="input"),
        TensorLocation=SimpleNamespace(DEVICE="device"),
        TensorFormat=SimpleNamespace(LINEAR="linear"),
    )
    return module, context


def write_fake_plan(path: Path) -> Path:
    """A file with the header of a TensorRT 10.6 engine and nothing behind it."""
    path.write_bytes(struct.pack("<4s12xQ4B", b"ftrt", 28, 10, 6, 0, 26))
    return path
