"""One engine whose runs are timed part by part. In: an engine file and inputs. Out: microseconds of each part of a run.

It is loaded as a session loads it, but inputs and outputs stay in page-locked memory of its own, so that nothing is
timed beside what every server of the engine has to do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

from attngraft.engine.logger import MessageLog
from attngraft.errors import CaptureError, EngineError
from attngraft.runtime.arrays import ArrayView, numpy_dtype
from attngraft.runtime.bindings import Bindings
from attngraft.runtime.buffers import PinnedBuffer, copy_async
from attngraft.runtime.contexts import Contexts, Layout
from attngraft.runtime.cuda import Event, Stream, call, device_scope, require_device
from attngraft.runtime.graph import CapturedGraph
from attngraft.runtime.graph_cache import GraphKey
from attngraft.runtime.loading import load_engine, why
from attngraft.runtime.preflight import preflight_engine
from attngraft.runtime.profiles import choose_profile, read_profiles
from attngraft.runtime.tensors import check_names, check_types_and_ranks, read_tensors

__all__ = ["MODES", "PARTS", "TimedEngine", "TimingEvent", "opened_engines"]

PARTS = ("h2d", "enqueue", "gpu", "d2h", "total")
"""Of one run, in the order in which `TimedEngine.run` gives them."""

MODES = ("graph", "plain")

_EVENT_DEFAULT = 0  # cudaEventDefault: with timing, waited for by spinning

Copy = tuple[int, int, int]
"""Target, source and bytes."""


class TimingEvent(Event):
    """A point in a stream's work that remembers when the GPU came to it, to about 0.5 microseconds."""

    def __init__(self) -> None:
        self._event = call("cudaEventCreateWithFlags", _EVENT_DEFAULT)

    def us_since(self, earlier: TimingEvent) -> float:
        """Microseconds of the GPU's clock between two events that both have been reached."""
        return float(call("cudaEventElapsedTime", earlier._event, self._event)) * 1e3


class TimedEngine:
    """One engine with a stream, buffers, and a context for each profile. All of it is to be used inside
    `device_scope`.

    Raises EngineError when the engine does not fit this machine.
    """

    def __init__(self, path: str | Path, *, device: int = 0) -> None:
        found = preflight_engine(path, device=device)
        found.raise_if_unfit()
        self.path, self.card = found.path, found.card
        self._graph: CapturedGraph | None = None
        self._messages = MessageLog().open()
        try:
            self._loaded = load_engine(found, self._reason)
            self.specs = read_tensors(self.tensorrt, self.engine)
            self._profiles = read_profiles(self.engine, self.specs)
            self.stream = Stream()
            self._contexts = Contexts(self.engine, self.specs, self.stream, self._reason)
            self._bindings = Bindings(self.specs, self.stream, device)
            self._profile = 0
            self._contexts.of(self._profile)  # so that an engine that does not fit into memory is refused here
        except BaseException as error:
            self._messages.close()
            raise self._named(error) from None
        self._marks = tuple(TimingEvent() for _ in range(4))
        self._pinned: list[PinnedBuffer] = []
        self._to_device: list[Copy] = []
        self._to_host: list[Copy] = []

    @property
    def context(self) -> Any:
        """TensorRT's execution context for the inputs that were last made room for."""
        return self._contexts.of(self._profile).context

    @property
    def engine(self) -> Any:
        """TensorRT's engine."""
        return self._loaded.engine

    @property
    def tensorrt(self) -> Any:
        """The TensorRT package that serves it."""
        return self._loaded.trt

    @property
    def label(self) -> str:
        """TensorRT and its version."""
        return self._loaded.label

    def fit(self, shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str]) -> None:
        """Makes room for inputs of these shapes and types, in the first profile that holds them. A graph of other ones
        is gone.

        Raises EngineError for inputs that the engine has not, for types and shapes that it does not take, and for an
        output whose shape depends on the inputs' values.
        """
        self._drop_graph()
        try:
            check_names(self.specs, shapes)
            views = {name: ArrayView(shape, dtypes[name], None, 0, None) for name, shape in shapes.items()}
            check_types_and_ranks(self.specs, views)
            self._layout = self._set(shapes)
        except EngineError as error:
            raise self._named(error) from None

    def _set(self, shapes: Mapping[str, tuple[int, ...]]) -> Layout:
        """Sets a context to these shapes and to buffers that hold them."""
        self._profile = choose_profile(self._profiles, shapes).index
        context = self._contexts.of(self._profile)
        layout = context.describe(shapes)
        for place in layout.unknown:
            raise EngineError(
                f"output {self.specs[place].name!r}: its shape depends on the input's values, which is not timed"
            )
        self._bindings.take(layout)
        inputs = tuple(shape for spec, shape in zip(self.specs, layout.shapes) if spec.is_input)
        context.prepare(GraphKey(self._profile, inputs, self._bindings.addresses))
        return layout

    def prepare(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Puts these host arrays into page-locked memory and runs once, plainly. A graph of other inputs is gone.

        Raises EngineError for inputs that do not fit and when TensorRT fails.
        """
        arrays = {name: np.asarray(array) for name, array in inputs.items()}
        self.fit(
            {name: array.shape for name, array in arrays.items()},
            {name: array.dtype.name for name, array in arrays.items()},
        )
        try:
            self._stage(arrays)
            for copy in self._to_device:
                copy_async(*copy, self.stream.handle)
            self._messages.clear()  # what was said before is not this run's failure
            self.enqueue()
            self.stream.wait()
        except EngineError as error:
            raise self._named(error) from None

    def _stage(self, inputs: Mapping[str, np.ndarray]) -> None:
        self._pinned, self._to_device, self._to_host = [], [], []
        places = zip(self.specs, self._bindings.addresses, self._layout.shapes, self._layout.nbytes)
        for spec, address, shape, nbytes in places:
            pinned = PinnedBuffer(nbytes)
            self._pinned.append(pinned)
            if spec.is_input:
                np.copyto(pinned.array(shape, numpy_dtype(spec.dtype)), inputs[spec.name])
                self._to_device.append((address, pinned.address, nbytes))
            else:
                self._to_host.append((pinned.address, address, nbytes))

    def capture(self) -> None:
        """Captures the work of `prepare`'s run. Raises EngineError, with the reason, where it cannot be captured."""
        self._drop_graph()
        try:
            asks = getattr(self.context, "is_stream_capturable", None)
            if asks is not None and not asks(self.stream.handle):
                raise CaptureError("TensorRT says that this work cannot be captured into a CUDA graph")
            self._graph = CapturedGraph.capture(self.stream.handle, self.enqueue)
        except CaptureError as error:
            raise EngineError(f"{self.path}: {error}; it can be timed in mode plain") from None

    def enqueue(self) -> None:
        """Puts the engine's work into the stream, without a graph. Raises EngineError."""
        if not self.context.execute_async_v3(self.stream.handle):
            raise EngineError(f"TensorRT reports an error while running: {self._reason()}")

    def replay(self) -> None:
        """Puts the captured work into the stream."""
        assert self._graph is not None, "capture() comes first"
        self._graph.launch(self.stream.handle)

    def run(self, mode: str) -> tuple[float, ...]:
        """One run; microseconds of each of PARTS.

        h2d, gpu and d2h lie between events of the GPU. As in trtexec, `gpu` includes what the GPU waits for the CPU
        after the inputs are there: a launch that takes longer than the copies before it, and every launch where an
        engine's own are slower than its kernels. enqueue is the CPU's time for one call, Python's part in it included.
        total is wall time; the calls that copy, and that record four events, are in it.
        """
        launch: Callable[[], None] = self.replay if mode == "graph" else self.enqueue
        stream, (begin, copied, worked, back) = self.stream.handle, self._marks
        started = perf_counter_ns()
        begin.record(stream)
        for copy in self._to_device:
            copy_async(*copy, stream)
        copied.record(stream)
        called = perf_counter_ns()
        launch()
        returned = perf_counter_ns()
        worked.record(stream)
        for copy in self._to_host:
            copy_async(*copy, stream)
        back.record(stream)
        back.wait()
        finished = perf_counter_ns()
        return (
            copied.us_since(begin),
            (returned - called) / 1e3,
            worked.us_since(copied),
            back.us_since(worked),
            (finished - started) / 1e3,
        )

    def _reason(self) -> str:
        return why(self._messages)

    def _named(self, error: BaseException) -> BaseException:
        """The same error with the engine's path in front; others than EngineError as they are."""
        if not isinstance(error, EngineError) or str(error).startswith(str(self.path)):
            return error
        return EngineError(f"{self.path}: {error}")

    def _drop_graph(self) -> None:
        if self._graph is not None:
            self._graph.destroy()
            self._graph = None

    def close(self) -> None:
        """Waits for running work and frees everything on the GPU."""
        with contextlib.suppress(EngineError):  # a failure of that work was its run's to report
            self.stream.wait()
        self._drop_graph()
        self._bindings.release()
        self._contexts.release()
        self._loaded.release()
        self._pinned = []
        del self._bindings
        self._messages.close()


@contextmanager
def opened_engines(engines: Sequence[str | Path], device: int = 0) -> Iterator[tuple[TimedEngine, ...]]:
    """All engines, loaded at once on one GPU, which is current until the end.

    Raises EngineError when one does not fit or cannot be loaded, MissingDependency without a GPU or a package.
    """
    opened: list[TimedEngine] = []
    require_device(device)
    with device_scope(device):
        try:
            for engine in engines:
                opened.append(TimedEngine(engine, device=device))
            yield tuple(opened)
        finally:
            for timed in reversed(opened):
                timed.close()
