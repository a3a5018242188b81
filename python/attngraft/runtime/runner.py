"""Plain runs, captures and replays. In: work at fixed shapes and addresses. Out: its outputs, never a wrong replay's.

A graph is checked against a plain run, bit for bit and with its outputs overwritten before, twice: when it is captured,
and when it is first replayed after its context has served other shapes (https://github.com/NVIDIA/TensorRT/issues/3798).
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from attngraft.engine.logger import MessageLog
from attngraft.errors import CaptureError, EngineError
from attngraft.runtime.buffers import poison_regions, read_regions
from attngraft.runtime.contexts import Contexts, ExecutionContext
from attngraft.runtime.cuda import Stream
from attngraft.runtime.graph import CapturedGraph, GraphMemoryError
from attngraft.runtime.graph_cache import CachedGraph, GraphCache, GraphKey
from attngraft.runtime.planner import Work

__all__ = ["Runner"]

KEPT_REASONS = 1024
"""Shapes that are remembered as not to be captured. When they are full, all are forgotten and tried again."""

TOLD_REASONS = 32
"""Different reasons that are warned of and listed; a reason may name something that differs each time."""

UNEQUAL_RUNS = "two plain runs differ from each other, so a replay cannot be checked"

STALE = (
    "a graph replayed after its context had served other shapes differs from the plain run, so one graph is kept at a "
    "time and other shapes capture anew"
)


class Runner:
    """Runs work by a graph where there is one that can be relied on, else plainly, and captures it then."""

    def __init__(
        self,
        path: Path,
        contexts: Contexts,
        stream: Stream,
        cache: GraphCache,
        messages: MessageLog,
        reason: Callable[[], str],
        use_graphs: bool,
    ) -> None:
        self._path = path
        self._reason = reason
        self._contexts = contexts
        self._stream = stream
        self._cache = cache
        self._messages = messages
        self._use_graphs = use_graphs
        self._plain_only: dict[GraphKey, str] = {}
        self.counts: Counter[str] = Counter()
        self.fallback_reasons: list[str] = []
        self.one_graph_reason: str | None = None

    def run(self, work: Work) -> None:
        """Puts the work into the session's stream; a replay may still be under way afterwards.

        Raises EngineError when TensorRT reports an error, CaptureError when a fresh graph's replay differs.
        """
        cached = self._cache.get(work.key)
        if cached is not None:
            if cached.is_trusted or self._contexts.of(work.key.profile).served == work.key:
                cached.graph.launch(self._stream.handle)
                self.counts["replays"] += 1
                return
            if self.one_graph_reason is None:
                self._confirm(work, cached)
                return
            self._cache.evict(work.key)
        self._enqueue(work)
        if self._use_graphs:
            self._capture_or_say_why(work)
        self.counts["plain_runs"] += 1

    def is_settled(self, work: Work) -> bool:
        """Whether its graph needs no confirmation now, or there is none."""
        cached = self._cache.get(work.key)
        return (
            cached is None
            or cached.is_trusted
            or self.one_graph_reason is not None
            or self._contexts.of(work.key.profile).served == work.key
        )

    def _enqueue(self, work: Work) -> None:
        """One plain run."""
        context = self._contexts.of(work.key.profile)
        context.prepare(work.key)
        self._enqueue_prepared(context)

    def _enqueue_prepared(self, context: ExecutionContext) -> None:
        self._messages.clear()
        if not context.context.execute_async_v3(self._stream.handle):
            raise EngineError(f"{self._path}: TensorRT reports an error while running: {self._reason()}")

    def _replay_and_read(self, work: Work, graph: CapturedGraph) -> list[bytes]:
        """What the graph writes, and nothing that was there before."""
        poison_regions(work.outputs, self._stream)
        graph.launch(self._stream.handle)
        return read_regions(work.outputs, self._stream)

    def _capture_or_say_why(self, work: Work) -> None:
        """Captures the run that has just been made. Raises CaptureError when replaying it gives another answer."""
        reason = work.uncapturable or self._plain_only.get(work.key)
        if reason is not None:
            self._fall_back(work, reason)
            return
        if self.one_graph_reason is not None:
            self._cache.evict_all()
        try:
            graph = self._capture(self._contexts.of(work.key.profile))
        except CaptureError as error:
            self._fall_back(work, str(error))
            return
        plain = read_regions(work.outputs, self._stream)
        if self._replay_and_read(work, graph) == plain:
            self._cache.add(work.key, graph)
            self.counts["captures"] += 1
            return
        graph.destroy()
        self._enqueue(work)
        if read_regions(work.outputs, self._stream) == plain:
            raise CaptureError(
                f"{self._path}: the CUDA graph's replay differs from the plain run; use cuda_graph=False"
            )
        self._fall_back(work, UNEQUAL_RUNS)

    def _capture(self, context: ExecutionContext) -> CapturedGraph:
        # TensorRT-RTX knows beforehand, while it is still compiling kernels for a new shape for example.
        asks = getattr(context.context, "is_stream_capturable", None)
        if asks is not None and not asks(self._stream.handle):
            raise CaptureError("TensorRT says that this work cannot be captured")

        def enqueue() -> None:
            self._enqueue_prepared(context)

        try:
            return CapturedGraph.capture(self._stream.handle, enqueue)
        except GraphMemoryError:
            if not self._cache.evict_all():
                raise
        return CapturedGraph.capture(self._stream.handle, enqueue)

    def _confirm(self, work: Work, cached: CachedGraph) -> None:
        """Replays the graph while its context is at other shapes, then runs plainly, whose answer stays."""
        replayed = self._replay_and_read(work, cached.graph)
        self._enqueue(work)
        plain = read_regions(work.outputs, self._stream)
        self.counts["plain_runs"] += 1
        self.counts["confirmations"] += 1
        if replayed == plain:
            cached.is_trusted = True
            return
        self._cache.evict(work.key)
        self._enqueue(work)
        if read_regions(work.outputs, self._stream) != plain:
            self._fall_back(work, UNEQUAL_RUNS)
            return
        self._cache.evict_all()
        self.one_graph_reason = STALE
        self._warn(STALE)
        self._capture_or_say_why(work)

    def _fall_back(self, work: Work, reason: str) -> None:
        """Counts a plain run for want of a graph; a reason is told once."""
        if len(self._plain_only) >= KEPT_REASONS:
            self._plain_only.clear()
        self._plain_only[work.key] = reason
        self.counts["fallbacks"] += 1
        if reason not in self.fallback_reasons and len(self.fallback_reasons) < TOLD_REASONS:
            self.fallback_reasons.append(reason)
            self._warn(f"runs without a CUDA graph: {reason}")

    def _warn(self, text: str) -> None:
        warnings.warn(f"{self._path}: {text}", RuntimeWarning, stacklevel=_depth_of_caller())


def _depth_of_caller() -> int:
    """`stacklevel`, seen from the function that calls this one, of the first frame outside the runtime."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("attngraft.runtime"):
        depth, frame = depth + 1, frame.f_back
    return depth
