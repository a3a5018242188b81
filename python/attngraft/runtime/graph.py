"""One CUDA graph. In: work that is put into a stream. Out: that work, launched again at the cost of one call."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from attngraft.errors import CaptureError, EngineError
from attngraft.runtime.cuda import call, cuda_runtime

__all__ = ["CapturedGraph"]


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """The collector could free CUDA memory that others left behind, in this thread, and thereby end a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class CapturedGraph:
    """An executable graph. It reads and writes the addresses that its work used when it was captured, and no others."""

    def __init__(self, executable: Any) -> None:
        self._executable = executable

    @classmethod
    def capture(cls, stream: int, enqueue: Callable[[], None]) -> CapturedGraph:
        """Captures what `enqueue` puts into `stream`; nothing runs. The same work must have run plainly once before,
        so that whatever it sets up at its first run is not part of the graph.

        Other threads may allocate and launch meanwhile. Raises CaptureError when something cannot be captured.
        """
        runtime = cuda_runtime()
        mode = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        failure: EngineError | None = None
        with _no_garbage_collection():
            call("cudaStreamBeginCapture", stream, mode)
            try:
                enqueue()
            except EngineError as error:
                failure = error
            status, graph = runtime.cudaStreamEndCapture(stream)
        if failure is not None or status != runtime.cudaError_t.cudaSuccess:
            runtime.cudaGetLastError()
            if graph is not None and int(graph):
                runtime.cudaGraphDestroy(graph)
            raise CaptureError(f"the engine's work cannot be captured into a CUDA graph: {failure or status.name}")
        try:
            return cls(call("cudaGraphInstantiate", graph, 0))
        except EngineError as error:
            raise CaptureError(f"the captured CUDA graph cannot be instantiated: {error}") from None
        finally:
            runtime.cudaGraphDestroy(graph)

    def launch(self, stream: int) -> None:
        """Puts the whole work into `stream`."""
        call("cudaGraphLaunch", self._executable, stream)

    def destroy(self) -> None:
        """Frees the graph; work that is still running must have been waited for."""
        call("cudaGraphExecDestroy", self._executable)
