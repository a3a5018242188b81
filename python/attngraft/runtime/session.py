"""Serving an engine. In: an engine file, then inputs run after run. Out: outputs, replayed from one CUDA graph."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from attngraft.engine.backends import load_backend, register_plugins
from attngraft.engine.logger import MessageLog, process_logger
from attngraft.errors import CaptureError, EngineError
from attngraft.plugin_library import plugin_library
from attngraft.runtime.arrays import DeviceArray, view_array
from attngraft.runtime.bindings import Bindings
from attngraft.runtime.cuda import Event, Stream, device_scope, require_device
from attngraft.runtime.graph import CapturedGraph
from attngraft.runtime.preflight import preflight_engine
from attngraft.runtime.tensors import check_names, check_shapes_and_types, read_tensors

__all__ = ["Session", "Statistics"]


@dataclass(frozen=True)
class Statistics:
    """What a session has done so far."""

    plain_runs: int = 0
    """Runs that gave their answer without a graph, the first run at each shape included."""
    captures: int = 0
    replays: int = 0
    """Runs that gave their answer from the graph. The replay that checks a capture is not counted."""
    fallbacks: int = 0
    """Plain runs because the work could not be captured; they are plain runs too."""
    fallback_reason: str | None = None


class Session:
    """One engine on one GPU, with its own stream and buffers.

    The first run at new input shapes is plain, and is then captured into a CUDA graph; the graph is launched once and
    must give the plain run's outputs bit for bit. Later runs at the same shapes replay it. There is one graph at a
    time: TensorRT's context keeps one set of shapes, so a run at other shapes captures anew. What cannot be captured
    runs plainly, with one warning and a reason in `statistics`.

    Inputs are copied into buffers at fixed addresses, and outputs are copied out, so neither moving inputs nor kept
    outputs can be mixed up. A session may be used from several threads: its runs take turns. Sessions do not wait for
    each other.

    Raises EngineError when the engine does not fit this machine (before TensorRT sees it), MissingDependency without
    a GPU, cuda-python, or the TensorRT package.
    """

    def __init__(self, engine: str | Path, *, cuda_graph: bool = True, device: int = 0) -> None:
        self._closed = True  # until everything below has worked
        found = preflight_engine(engine, device=device)
        found.raise_if_unfit()
        require_device(device)
        self._path = found.path
        self._device = device
        self._lock = threading.Lock()
        self._use_graph = cuda_graph
        self._graph: CapturedGraph | None = None
        self._counts: Counter[str] = Counter()
        self._fallback_reason: str | None = None
        self._messages = MessageLog().open()
        try:
            with device_scope(device):
                self._load(found.header.backend, found.card)
        except BaseException:
            self._messages.close()
            raise
        self._closed = False

    def _load(self, backend_name: str, card: Any) -> None:
        backend = load_backend(backend_name)
        # One for each session: a runtime refuses a second engine that carries the same plugin library.
        runtime = backend.module.Runtime(process_logger(backend.module))
        if card is None or card.plugin_embedded:
            # The engine may carry a plugin library; like any engine, it is code that its user trusts.
            runtime.engine_host_code_allowed = True
        if card is not None and card.plugin_library is not None and not card.plugin_embedded:
            register_plugins(backend.module.get_plugin_registry(), plugin_library())
        self._messages.clear()
        engine = runtime.deserialize_cuda_engine(self._path.read_bytes())
        if engine is None:
            raise EngineError(f"{self._path}: {backend.title} cannot load it: {self._reason()}")
        context = engine.create_execution_context()
        if context is None:
            raise EngineError(f"{self._path}: {backend.title} cannot prepare it to run: {self._reason()}")
        self._specs = read_tensors(backend.module, engine)
        self._stream = Stream()
        self._bindings = Bindings(self._specs, context, self._stream, self._device)
        self._context, self._engine, self._runtime = context, engine, runtime

    def _reason(self) -> str:
        return self._messages.plugin_error or self._messages.first_error or "no reason given"

    @property
    def statistics(self) -> Statistics:
        """Counts of runs so far; a snapshot."""
        return Statistics(**self._counts, fallback_reason=self._fallback_reason)

    def run(self, inputs: Mapping[str, Any], *, stream: Any = None) -> dict[str, np.ndarray] | dict[str, DeviceArray]:
        """Runs once. Inputs by name: NumPy arrays, or any with DLPack or `__cuda_array_interface__`.

        Host arrays in: NumPy arrays out. At least one device array in: DeviceArrays out. Outputs are new each time.
        Device arrays must be contiguous and in the device's primary context (pycuda: import pycuda.autoprimaryctx).
        stream: an int handle or an object with `__cuda_stream__`; the run then takes its turn in that stream, and
        with device arrays `run` returns before the work is done. Without it, `run` waits for the outputs.

        Raises EngineError for inputs that do not fit and for errors while running, CaptureError when a replay does not
        equal the plain run.
        """
        with self._lock:
            if self._closed:
                raise EngineError(f"{self._path}: the session is closed; open a new one")
            with device_scope(self._device):
                return self._run(inputs, None if stream is None else _stream_handle(stream))

    def _run(self, inputs: Mapping[str, Any], caller: int | None) -> dict[str, Any]:
        check_names(self._specs, inputs)
        own = self._stream.handle
        if caller is not None:
            before = Event()
            before.record(caller)
            before.block(own)
        views = {
            name: view_array(name, value, self._device, own, ordered=caller is not None)
            for name, value in inputs.items()
        }
        check_shapes_and_types(self._specs, views)
        if self._bindings.resize({name: view.shape for name, view in views.items()}):
            self._drop_graph()
        self._bindings.upload(views)
        self._execute()
        if all(view.host is not None for view in views.values()):
            return self._bindings.download()
        if caller is None:
            return self._bindings.copy_outputs(None)
        after = Event()
        outputs = self._bindings.copy_outputs(after)
        after.block(caller)
        return outputs

    def _execute(self) -> None:
        if self._graph is not None:
            self._graph.launch(self._stream.handle)
            self._counts["replays"] += 1
            return
        self._enqueue()
        if self._use_graph:
            self._capture()
        elif self._fallback_reason is not None:
            self._counts["fallbacks"] += 1
        self._counts["plain_runs"] += 1

    def _enqueue(self) -> None:
        self._messages.clear()
        if not self._context.execute_async_v3(self._stream.handle):
            raise EngineError(f"{self._path}: TensorRT reports an error while running: {self._reason()}")

    def _capture(self) -> None:
        """Captures the run that has just been made. Raises CaptureError when replaying it gives another answer."""
        plain = self._bindings.snapshot()
        try:
            self._check_capturable()
            graph = CapturedGraph.capture(self._stream.handle, self._enqueue)
        except CaptureError as error:
            self._fall_back(str(error))
            return
        self._bindings.poison_outputs()
        graph.launch(self._stream.handle)
        if self._bindings.snapshot() == plain:
            self._graph = graph
            self._counts["captures"] += 1
            return
        graph.destroy()
        self._enqueue()
        if self._bindings.snapshot() == plain:
            raise CaptureError(
                f"{self._path}: the CUDA graph's replay differs from the plain run; use cuda_graph=False"
            )
        self._fall_back("two plain runs differ from each other, so a replay cannot be checked")

    def _check_capturable(self) -> None:
        """TensorRT-RTX knows beforehand, while it is still compiling kernels for a new shape for example."""
        asks = getattr(self._context, "is_stream_capturable", None)
        if asks is not None and not asks(self._stream.handle):
            raise CaptureError("TensorRT says that this work cannot be captured")

    def _fall_back(self, reason: str) -> None:
        self._use_graph = False
        self._fallback_reason = reason
        self._counts["fallbacks"] += 1
        warnings.warn(f"{self._path}: runs without a CUDA graph: {reason}", RuntimeWarning, stacklevel=6)

    def _drop_graph(self) -> None:
        if self._graph is not None:
            self._graph.destroy()
            self._graph = None

    def close(self) -> None:
        """Waits for running work and frees everything on the GPU. A second call does nothing."""
        if self._closed:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            with device_scope(self._device):
                with contextlib.suppress(EngineError):  # a failure of that work was the run's to report
                    self._stream.wait()
                self._drop_graph()
                self._bindings.release()
                del self._bindings
                # TensorRT wants a context gone before its engine, and an engine before its runtime.
                del self._context
                del self._engine
                del self._runtime
                del self._stream
            self._messages.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(EngineError):  # when the process ends, the driver may be gone already
            self.close()


def _stream_handle(stream: Any) -> int:
    """The handle of a caller's stream: an int, or what the CUDA stream protocol returns, `(0, handle)`."""
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is None:
        raise EngineError(
            f"stream: {type(stream).__name__} is no CUDA stream; give its integer handle (torch: stream.cuda_stream)"
        )
    return int(protocol()[1])
