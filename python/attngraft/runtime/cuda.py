"""The few CUDA calls that the runtime needs, with errors raised. In: cuda-python's result tuples. Out: values.

cuda-bindings is imported when the first object that needs a GPU is made, so that importing attngraft needs no CUDA.
"""

from __future__ import annotations

import functools
from types import ModuleType, TracebackType
from typing import Any

from attngraft.errors import EngineError, MissingDependency

__all__ = [
    "LEGACY_STREAM",
    "Event",
    "Stream",
    "call",
    "cuda_driver",
    "cuda_runtime",
    "device_scope",
    "require_device",
    "stream_handle",
]

LEGACY_STREAM = 1
"""Handle of the default stream that all blocking streams synchronise with (cudaStreamLegacy)."""

_EVENT_DISABLE_TIMING = 2  # cudaEventDisableTiming
_STREAM_NON_BLOCKING = 1  # cudaStreamNonBlocking


@functools.cache
def cuda_runtime() -> ModuleType:
    """`cuda.bindings.runtime`. Raises MissingDependency when it is not installed."""
    try:
        from cuda.bindings import runtime
    except ImportError:
        raise MissingDependency(
            "running an engine needs cuda-python; install it with: pip install 'attngraft[runtime]'"
        ) from None
    return runtime


@functools.cache
def cuda_driver() -> ModuleType:
    """`cuda.bindings.driver`. Raises MissingDependency when it is not installed."""
    cuda_runtime()
    from cuda.bindings import driver

    return driver


def call(name: str, *arguments: Any) -> Any:
    """Calls a function of the CUDA runtime; returns its value, a tuple of values, or None. Raises EngineError."""
    result = getattr(cuda_runtime(), name)(*arguments)
    if result[0]:  # any error but cudaSuccess, which is 0
        raise _last_error(name, result[0])
    if len(result) == 1:
        return None
    return result[1] if len(result) == 2 else result[1:]


def _last_error(name: str, error: Any) -> EngineError:
    runtime = cuda_runtime()
    runtime.cudaGetLastError()  # or the next call that checks would report this error again
    text = runtime.cudaGetErrorString(error)[1].decode()
    return EngineError(f"{name}: {error.name} ({text})")


def require_device(index: int) -> None:
    """Raises MissingDependency where there is no GPU, and EngineError where there is none of that index."""
    runtime = cuda_runtime()
    error, count = runtime.cudaGetDeviceCount()
    if error != runtime.cudaError_t.cudaSuccess or not count:
        text = runtime.cudaGetErrorString(error)[1].decode() if error.value else "none is visible"
        raise MissingDependency(
            f"no NVIDIA GPU can be used here ({text}); run the engine on a machine with a GPU and driver"
        )
    if not 0 <= index < count:
        raise EngineError(f"device {index}: this machine has {count} GPU(s), numbered from 0; choose one of them")


_primary_contexts: dict[int, int] = {}
"""Handles, by the index of the GPU. A primary context lives as long as anything that a session holds in it."""


def _current_context() -> int:
    """Handle of the context that is current in this thread; 0 if there is none."""
    _, context = cuda_driver().cuCtxGetCurrent()
    return 0 if context is None else int(context)


class device_scope:
    """`with device_scope(index)` makes a GPU current in this thread, and the thread's former context again at the end.

    The context, not the device, is what is put back: pycuda's contexts are not the device's primary one. Where the
    primary one is current already, as in most runs, nothing is set and nothing put back.
    """

    __slots__ = ("_former", "_index")

    def __init__(self, index: int) -> None:
        self._index = index

    def __enter__(self) -> None:
        former = _current_context()
        self._former = 0
        if former and former == _primary_contexts.get(self._index):
            return
        call("cudaSetDevice", self._index)
        _primary_contexts[self._index] = _current_context()
        self._former = former

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._former:
            cuda_driver().cuCtxSetCurrent(self._former)


class Event:
    """A point in a stream's work."""

    def __init__(self) -> None:
        self._event = call("cudaEventCreateWithFlags", _EVENT_DISABLE_TIMING)

    def record(self, stream: int) -> None:
        call("cudaEventRecord", self._event, stream)

    def block(self, stream: int) -> None:
        """Work put into `stream` from now on waits for the event; the caller does not."""
        call("cudaStreamWaitEvent", stream, self._event, 0)

    def wait(self) -> None:
        """The caller waits."""
        call("cudaEventSynchronize", self._event)

    def __del__(self) -> None:
        if hasattr(self, "_event"):
            cuda_runtime().cudaEventDestroy(self._event)


class Stream:
    """A stream apart from the legacy default stream, so that it can be captured while others work."""

    def __init__(self) -> None:
        self._stream = call("cudaStreamCreateWithFlags", _STREAM_NON_BLOCKING)
        self.handle = int(self._stream)

    def wait(self) -> None:
        """The caller waits for all work of the stream."""
        call("cudaStreamSynchronize", self.handle)

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            cuda_runtime().cudaStreamDestroy(self._stream)


def stream_handle(stream: Any) -> int:
    """The handle of a caller's stream: an int, or what the CUDA stream protocol returns, `(0, handle)`.

    Raises EngineError for anything else.
    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is None:
        raise EngineError(
            f"stream: {type(stream).__name__} is no CUDA stream; give its integer handle (torch: stream.cuda_stream)"
        )
    return int(protocol()[1])
