"""Serving an engine. In: an engine file, then inputs run after run. Out: outputs, replayed from CUDA graphs."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from attngraft.engine.logger import MessageLog
from attngraft.errors import AttngraftError, EngineError
from attngraft.runtime.arrays import ArrayView, DeviceArray, Producers, view_array
from attngraft.runtime.bindings import Bindings
from attngraft.runtime.bound import BoundRun, bound_work, view_outputs
from attngraft.runtime.buckets import BucketPlan, Buckets
from attngraft.runtime.contexts import Contexts
from attngraft.runtime.cuda import LEGACY_STREAM, Event, Stream, device_scope, require_device, stream_handle
from attngraft.runtime.graph_cache import MAX_GRAPH_BYTES, MAX_GRAPHS, GraphCache
from attngraft.runtime.loading import load_engine, why
from attngraft.runtime.output_allocator import output_allocator
from attngraft.runtime.planner import Planner, Work
from attngraft.runtime.preflight import Preflight, preflight_engine
from attngraft.runtime.profiles import read_profiles
from attngraft.runtime.run_inputs import input_sets
from attngraft.runtime.runner import Runner
from attngraft.runtime.statistics import Statistics
from attngraft.runtime.submit import Worker, failed
from attngraft.runtime.tensors import check_names, read_tensors

__all__ = ["Session", "Statistics"]


class Session:
    """One engine on one GPU, with its own stream, buffers and CUDA graphs.

    The first run at new input shapes is plain, and is then captured into a CUDA graph, which is launched once and must
    give the plain run's outputs bit for bit. Later runs at the same shapes replay it. The first replay after other
    shapes is checked against a plain run in the same way; should it differ, the session keeps one graph at a time from
    there on. What cannot be captured runs plainly, with one warning and a reason in `statistics`.

    Inputs are copied into buffers at fixed addresses, and outputs are copied out, so neither moving inputs nor kept
    outputs can be mixed up; `bind` runs on the caller's memory without copies. A session may be used from several
    threads: its runs take turns. Sessions do not wait for each other.

    buckets: lengths that inputs are padded to. max_graphs, max_graph_bytes: how many graphs are kept, and how much
    device memory they may hold, measured by the device's free memory when they are instantiated and uploaded; the one
    used least recently goes first.

    Raises EngineError when the engine does not fit this machine (before TensorRT sees it) or the buckets do not fit the
    engine, MissingDependency without a GPU, cuda-python, or the TensorRT package.
    """

    def __init__(
        self,
        engine: str | Path,
        *,
        cuda_graph: bool = True,
        device: int = 0,
        buckets: Buckets | None = None,
        max_graphs: int = MAX_GRAPHS,
        max_graph_bytes: int = MAX_GRAPH_BYTES,
    ) -> None:
        self._closed = True  # until everything below has worked
        found = preflight_engine(engine, device=device)
        found.raise_if_unfit()
        require_device(device)
        self._path = found.path
        self._device = device
        self._lock = threading.Lock()
        self._submitting = threading.Lock()
        self._closing = False
        self._worker: Worker | None = None
        self._padded_runs = 0
        self._messages = MessageLog().open()
        try:
            with device_scope(device):
                self._open(found, buckets, cuda_graph, max_graphs, max_graph_bytes)
        except BaseException:
            self._messages.close()
            raise
        self._closed = False

    def _open(
        self, found: Preflight, buckets: Buckets | None, cuda_graph: bool, max_graphs: int, max_graph_bytes: int
    ) -> None:
        self._stream = Stream()
        self._cache = GraphCache(self._stream, max_graphs, max_graph_bytes)
        self._loaded = load_engine(found, functools.partial(why, self._messages))
        trt, engine = self._loaded.trt, self._loaded.engine
        self._specs = read_tensors(trt, engine)
        self._input_names = dict.fromkeys(spec.name for spec in self._specs if spec.is_input)  # an ordered set
        profiles = read_profiles(engine, self._specs)
        bucket_plan = None if buckets is None else BucketPlan(buckets, self._specs, profiles)
        self._pads = {} if bucket_plan is None else bucket_plan.pads
        bindings = self._bindings = Bindings(self._specs, self._stream, self._device)
        reason = functools.partial(why, self._messages, bindings.allocation_error)
        self._contexts = Contexts(
            engine, self._specs, self._stream, reason, lambda name: output_allocator(trt, bindings.output_memory(name))
        )
        self._contexts.of(0)  # so that an engine that does not fit into memory is refused here
        self._planner = Planner(self._specs, profiles, bucket_plan, self._contexts, bindings, self._cache)
        self._runner = Runner(self._path, self._contexts, self._stream, self._cache, self._messages, reason, cuda_graph)
        self._producers = Producers(self._stream.handle)
        self._done = Event()
        self._arrival_stream = Stream()
        self._arrivals = Producers(self._arrival_stream.handle)

    @property
    def statistics(self) -> Statistics:
        """Counts of runs so far, and memory held; of a closed session, as it was in the end. Waits for a run's turn."""
        with self._lock:
            return self._last_statistics if self._closed else self._count()

    def _count(self) -> Statistics:
        return Statistics(
            **self._runner.counts,
            fallback_reasons=tuple(self._runner.fallback_reasons),
            one_graph_reason=self._runner.one_graph_reason,
            padded_runs=self._padded_runs,
            evictions=self._cache.evictions,
            graphs=len(self._cache),
            graph_bytes=self._cache.nbytes,
            buffer_bytes=self._bindings.buffer_bytes,
            staging_bytes=self._bindings.staging_bytes,
        )

    def run(self, inputs: Mapping[str, Any], *, stream: Any = None) -> dict[str, np.ndarray] | dict[str, DeviceArray]:
        """Runs once. Inputs by name: NumPy arrays, or any with DLPack or `__cuda_array_interface__`.

        Host arrays in: NumPy arrays out. At least one device array in: DeviceArrays out. Outputs are new each time.
        Device arrays must be contiguous and in the device's primary context (pycuda: import pycuda.autoprimaryctx).
        stream: an int handle or an object with `__cuda_stream__`; the run then takes its turn in that stream, and
        with device arrays `run` returns before the work is done. Without it, `run` waits for the outputs.

        Raises EngineError for inputs that do not fit and for errors while running, CaptureError when a replay does not
        equal the plain run.
        """
        caller = None if stream is None else stream_handle(stream)
        with self._lock, self._scope():
            self._producers.next_run()
            if caller is not None:
                self._producers.wait_for(caller)
            return self._run(self._views(inputs, self._producers, ordered=caller is not None), caller)

    def submit(self, inputs: Mapping[str, Any]) -> Future[dict[str, Any]]:
        """Runs once in the session's own thread; the future has what `run` returns, or its error.

        Runs begin in the order of submission. Inputs must stay as they are until the future is done; device arrays may
        still be in the making in the current stream of the thread that submits. `close` cancels what has not begun.
        Raises EngineError when the session is closed.
        """
        with self._submitting, self._scope():
            if self._closing:
                raise self._closed_error()
            if self._worker is None:
                self._worker = Worker()
            self._arrivals.next_run()
            try:
                # In a stream of its own: the session's may be captured by another thread at this moment.
                views = self._views(inputs, self._arrivals, ordered=False)
                arrived = Event()
                arrived.record(self._arrivals.stream)
            except AttngraftError as error:
                return failed(error)
            return self._worker.submit(self._run_submitted, views, arrived)

    def _run_submitted(self, views: dict[str, ArrayView], arrived: Event) -> dict[str, Any]:
        with self._lock, self._scope():
            arrived.block(self._stream.handle)
            return self._run(views, None)

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> BoundRun:
        """The engine on the caller's own device memory: its `run` copies nothing.

        inputs: contiguous device arrays of the engine's types, each beginning at a multiple of 256 bytes; their shapes
        hold for every run, and buckets do not pad them. outputs: such arrays of the right shapes for all outputs, or
        None for new DeviceArrays. Each run overwrites the outputs; nothing runs yet. Raises EngineError for arrays that
        do not fit.
        """
        with self._lock, self._scope():
            self._producers.next_run()
            views = self._views(inputs, self._producers, ordered=False)
            profile, layout = self._planner.describe(views)
            if outputs is None:
                outputs = self._bindings.new_outputs(layout)
            written = view_outputs(self._specs, outputs, self._device, self._producers)
            work = bound_work(self._specs, profile.index, layout, views, written)
        return BoundRun(self, work, (views, written), outputs)

    def run_bound(self, work: Work, stream: Any = None) -> None:
        """One run of what `bind` has prepared; `BoundRun.run` is the way to call it."""
        caller = None if stream is None else stream_handle(stream)
        with self._lock, self._scope():
            self._producers.next_run()
            self._producers.wait_for(LEGACY_STREAM if caller is None else caller)
            self._runner.run(work)
            if caller is None:
                self._stream.wait()
            else:
                self._done.record(self._stream.handle)
                self._done.block(caller)

    def warm_up(
        self,
        shapes_or_inputs: Mapping[str, Any] | Iterable[Mapping[str, Any]],
        *,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        """Captures graphs for what is to come, and confirms them, so that the first request is a replay already.

        shapes_or_inputs: one set of inputs or several; by name, arrays or shapes as tuples of int (then values are
        made up, normal ones for floating types, else 1). Other threads' runs take turns with it. Raises as `run`.
        """
        sets = input_sets(self._specs, shapes_or_inputs)
        # Buffers grow first: one that moves later takes its graphs with it. Confirmation needs other shapes in between.
        for step in (self._make_room, self._run, self._confirm):
            for place, inputs in enumerate(sets, start=1):
                with self._lock, self._scope():
                    self._producers.next_run()
                    step(self._views(inputs, self._producers, ordered=False), None)
                if progress is not None and step != self._make_room:
                    progress(f"warm-up: {'captured' if step == self._run else 'confirmed'} {place} of {len(sets)}")

    def _make_room(self, views: dict[str, ArrayView], caller: None) -> None:
        self._planner.plan(views)

    def _confirm(self, views: dict[str, ArrayView], caller: None) -> None:
        if not self._runner.is_settled(self._planner.plan(views).work):
            self._run(views, caller)

    def _views(self, inputs: Mapping[str, Any], producers: Producers, ordered: bool) -> dict[str, ArrayView]:
        """The inputs in the engine's order, safe to be read in the stream of `producers`."""
        if not isinstance(inputs, Mapping) or inputs.keys() != self._input_names.keys():
            check_names(self._specs, inputs)
        device, stream = self._device, producers.stream
        return {name: view_array(name, inputs[name], device, stream, ordered, producers) for name in self._input_names}

    def _run(self, views: dict[str, ArrayView], caller: int | None) -> dict[str, Any]:
        plan = self._planner.plan(views)
        self._bindings.upload(views, self._pads)
        self._runner.run(plan.work)
        self._padded_runs += plan.is_padded
        if plan.work.uncapturable is not None:
            self._bindings.collect()
        if all(view.host is not None for view in views.values()):
            return self._bindings.download(plan.cuts)
        if caller is None:
            return self._bindings.copy_outputs(None, plan.cuts)
        after = Event()
        outputs = self._bindings.copy_outputs(after, plan.cuts)
        after.block(caller)
        return outputs

    def _scope(self) -> device_scope:
        """The session's GPU, for one turn. Raises EngineError when the session is closed."""
        if self._closed:
            raise self._closed_error()
        return device_scope(self._device)

    def _closed_error(self) -> EngineError:
        return EngineError(f"{self._path}: the session is closed; open a new one")

    def close(self) -> None:
        """Cancels submitted runs that have not begun, waits for running work and frees everything on the GPU. A second
        call does nothing."""
        if self._closed:
            return
        with self._submitting:
            self._closing = True
        if self._worker is not None:
            self._worker.close()
        with self._lock:
            if self._closed:
                return
            self._last_statistics = self._count()
            self._closed = True
            with device_scope(self._device):
                with contextlib.suppress(EngineError):  # a failure of that work was the run's to report
                    self._stream.wait()
                self._cache.clear()
                self._bindings.release()
                self._contexts.release()
                self._loaded.release()
                del self._bindings, self._stream, self._arrival_stream
            self._messages.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(AttngraftError):  # when the process ends, the driver may be gone already
            self.close()
