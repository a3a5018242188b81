"""One CUDA graph. In: work that is put into a stream. Out: that work, launched again at the cost of one call."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from attngraft.errors import CaptureError, EngineError
from attngraft.runtime.cuda import call, cuda_runtime

__all__ = ["CapturedGraph", "GraphMemoryError", "no_garbage_collection"]

_NO_MEMORY = ("cudaErrorMemoryAllocation", "out of memory", "OutOfMemory")
"""How CUDA and TensorRT say in their errors that the device is full."""


class GraphMemoryError(CaptureError):
    """A graph could not be made for want of device memory; freeing some may help."""


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """The collector could free CUDA memory that others left behind, in this thread, and thereby end a capture; and it
    takes longer than a run that is timed."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _capture_error(text: str) -> CaptureError:
    return (GraphMemoryError if any(word in text for word in _NO_MEMORY) else CaptureError)(text)


def _free_bytes() -> int:
    """Free memory of the current device."""
    free, _ = call("cudaMemGetInfo")
    return int(free)


class CapturedGraph:
    """An executable graph. It reads and writes the addresses that its work used when it was captured, and no others."""

    def __init__(self, executable: Any, nbytes: int = 0) -> None:
        self._executable = executable
        self.nbytes = nbytes
        """Device memory that it holds: by how much the device's free memory (cudaMemGetInfo) fell while it was
        instantiated and uploaded. The driver takes memory in blocks, so one graph may count 0 and the next for both;
        what others allocate or free at that moment is in it too."""

    @classmethod
    def capture(cls, stream: int, enqueue: Callable[[], None]) -> CapturedGraph:
        """Captures what `enqueue` puts into `stream`, and uploads it; nothing runs. The same work must have run plainly
        once before, so that whatever it sets up at its first run is not part of the graph.

        Other threads may allocate and launch meanwhile. Raises GraphMemoryError when the device has no memory left for
        it, CaptureError when something cannot be captured.
        """
        graph = _record(stream, enqueue)
        try:
            before = _free_bytes()
            executable = call("cudaGraphInstantiate", graph, 0)
            try:
                call("cudaGraphUpload", executable, stream)
                call("cudaStreamSynchronize", stream)
            except EngineError:
                cuda_runtime().cudaGraphExecDestroy(executable)
                raise
            return cls(executable, max(before - _free_bytes(), 0))
        except EngineError as error:
            raise _capture_error(f"the captured CUDA graph cannot be instantiated: {error}") from None
        finally:
            cuda_runtime().cudaGraphDestroy(graph)

    def launch(self, stream: int) -> None:
        """Puts the whole work into `stream`."""
        call("cudaGraphLaunch", self._executable, stream)

    def destroy(self) -> None:
        """Frees the graph; work that is still running must have been waited for."""
        call("cudaGraphExecDestroy", self._executable)


def _record(stream: int, enqueue: Callable[[], None]) -> Any:
    """The graph of what `enqueue` puts into `stream`, in thread-local mode: other threads go on."""
    runtime = cuda_runtime()
    mode = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
    failure: EngineError | None = None
    with no_garbage_collection():
        call("cudaStreamBeginCapture", stream, mode)
        try:
            enqueue()
        except EngineError as error:
            failure = error
        status, graph = runtime.cudaStreamEndCapture(stream)
    if failure is None and status == runtime.cudaError_t.cudaSuccess:
        return graph
    runtime.cudaGetLastError()
    if graph is not None and int(graph):
        runtime.cudaGraphDestroy(graph)
    raise _capture_error(f"the engine's work cannot be captured into a CUDA graph: {failure or status.name}")
