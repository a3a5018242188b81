"""A GPU of a few lines, in host memory, for the control flow of sessions on machines without one.

Work runs at once, except while its stream is being captured: then it is recorded, with the addresses of that moment,
and a launched graph runs exactly that again. So stale addresses and repeated results show as they would on a GPU.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

from cuda.bindings import runtime as real_runtime

SUCCESS = real_runtime.cudaError_t.cudaSuccess
Work = Callable[[], None]

ALIGNMENT = 256
"""Of all memory, as CUDA's own."""


class FakeRuntime:
    """`cuda.bindings.runtime`, as far as the session calls it; enums and structs are the real ones."""

    def __init__(self) -> None:
        self.memory: dict[int, Any] = {}
        self.captures: dict[int, list[Work]] = {}
        self.graphs: dict[int, list[Work]] = {}
        self.launches = 0
        self.pools_destroyed = 0
        self.fail_capture = False
        self.devices = 1
        self.device = 0
        """The current one."""
        self.bytes_free = 1 << 30
        """Free memory of the device, apart from what graphs hold."""
        self.graph_bytes = 1 << 20
        """What each graph holds once it is uploaded."""
        self.most_graphs: int | None = None
        """How many executable graphs the device has room for; None: any number."""
        self.uploaded: set[int] = set()
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
        block = ctypes.create_string_buffer(max(nbytes, 1) + ALIGNMENT)
        address = -(-ctypes.addressof(block) // ALIGNMENT) * ALIGNMENT
        self.memory[address] = block
        return SUCCESS, address

    def _handle(self, *_: object) -> tuple[Any, int]:
        return SUCCESS, next(self._handles)

    def _nothing(self, *_: object) -> tuple[Any]:
        return (SUCCESS,)

    cudaStreamCreateWithFlags = cudaEventCreateWithFlags = cudaMemPoolCreate = _handle  # noqa: N815
    cudaEventRecord = cudaEventSynchronize = cudaStreamWaitEvent = cudaStreamSynchronize = _nothing  # noqa: N815
    cudaStreamDestroy = cudaEventDestroy = cudaMemPoolSetAttribute = _nothing  # noqa: N815
    cudaGraphDestroy = cudaGetLastError = _nothing  # noqa: N815

    def cudaSetDevice(self, device: int) -> tuple[Any]:  # noqa: N802
        self.device = device
        return (SUCCESS,)

    def cudaMemGetInfo(self) -> tuple[Any, int, int]:  # noqa: N802
        return SUCCESS, self.bytes_free - self.graph_bytes * len(self.uploaded), 1 << 31

    def cudaMemPoolDestroy(self, pool: int) -> tuple[Any]:  # noqa: N802
        self.pools_destroyed += 1
        return (SUCCESS,)

    def cudaGetDeviceCount(self) -> tuple[Any, int]:  # noqa: N802
        return SUCCESS, self.devices

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

    def cudaMemcpy2DAsync(  # noqa: N802
        self, target: int, target_pitch: int, source: int, source_pitch: int, width: int, height: int, kind: Any, s: int
    ) -> tuple[Any]:
        assert width <= min(target_pitch, source_pitch)

        def work() -> None:
            for row in range(height):
                ctypes.memmove(target + row * target_pitch, source + row * source_pitch, width)

        self.put(s, work)
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
        if self.most_graphs is not None and len(self.graphs) > self.most_graphs:
            del self.graphs[executable]
            return real_runtime.cudaError_t.cudaErrorMemoryAllocation, None
        return SUCCESS, executable

    def cudaGraphUpload(self, executable: int, stream: int) -> tuple[Any]:  # noqa: N802
        assert stream not in self.captures
        self.uploaded.add(executable)
        return (SUCCESS,)

    def cudaGraphLaunch(self, executable: int, stream: int) -> tuple[Any]:  # noqa: N802
        self.launches += 1
        for work in self.graphs[executable]:
            self.put(stream, work)
        return (SUCCESS,)

    def cudaGraphExecDestroy(self, executable: int) -> tuple[Any]:  # noqa: N802
        del self.graphs[executable]
        self.uploaded.discard(executable)
        return (SUCCESS,)


class FakeDriver:
    """`cuda.bindings.driver`, as far as the session calls it."""

    def __init__(self, gpu: FakeRuntime) -> None:
        self._gpu = gpu

    @staticmethod
    def cuuint64_t(value: int) -> int:
        return value

    @staticmethod
    def cuCtxGetCurrent() -> tuple[int, int]:  # noqa: N802
        return 0, 0

    def _fill(self, target: int, value: int, itemsize: int, pitch: int, count: int, stream: int) -> tuple[int]:
        def work() -> None:
            for place in range(count):
                ctypes.memmove(target + place * pitch, value.to_bytes(itemsize, "little"), itemsize)

        self._gpu.put(stream, work)
        return (0,)

    def cuMemsetD8Async(self, target: int, value: int, count: int, stream: int) -> tuple[int]:  # noqa: N802
        return self._fill(target, value, 1, 1, count, stream)

    def cuMemsetD16Async(self, target: int, value: int, count: int, stream: int) -> tuple[int]:  # noqa: N802
        return self._fill(target, value, 2, 2, count, stream)

    def cuMemsetD32Async(self, target: int, value: int, count: int, stream: int) -> tuple[int]:  # noqa: N802
        return self._fill(target, value, 4, 4, count, stream)

    def cuMemsetD2D32Async(  # noqa: N802
        self, target: int, pitch: int, value: int, width: int, height: int, stream: int
    ) -> tuple[int]:
        assert width == 1
        return self._fill(target, value, 4, pitch, height, stream)
