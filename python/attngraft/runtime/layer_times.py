"""GPU time layer by layer. In: an engine and inputs. Out: what TensorRT's profiler reports for every layer.

With a profiler attached, TensorRT puts events around each layer and waits for every run: layers take longer than in a
run without it, and their sum is more than such a run takes. What it is good for is how they compare with each other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from attngraft.engine.layers import EngineLayer, layers_of_inspector
from attngraft.engine.sidecar import EngineCard
from attngraft.errors import EngineError
from attngraft.runtime.sweep import Sweep, describe_shapes, engine_points, fill_inputs
from attngraft.runtime.timed_engine import TimedEngine, opened_engines
from attngraft.runtime.timing import WARM_UP_RUNS, warm_up

__all__ = ["LayerTime", "LayerTimes", "time_layers"]

NO_NODES = (
    "the engine's layers do not tell which ONNX nodes they hold; build it with profiling verbosity DETAILED "
    "(attngraft build does, trtexec takes --profilingVerbosity=detailed)"
)

Run = dict[str, float]
"""Milliseconds by layer name; the times of a name that is reported more than once are added."""


@dataclass(frozen=True)
class LayerTime:
    """One layer and its median GPU time over the runs, in microseconds."""

    layer: EngineLayer
    us: float


@dataclass(frozen=True)
class LayerTimes:
    """All layers of one engine that TensorRT reported, in the order of their first report.

    shapes   of the inputs that were run.
    missing  what the engine does not tell about its layers and how to build it so that it does; empty: nothing.
    """

    engine: Path
    made_by: str
    card: EngineCard | None
    shapes: Mapping[str, tuple[int, ...]]
    runs: int
    layers: tuple[LayerTime, ...]
    missing: str = ""

    @property
    def us(self) -> float:
        """The sum of all layers."""
        return sum(layer.us for layer in self.layers)


def time_layers(
    engine: str | Path,
    inputs: Sweep | None = None,
    *,
    runs: int = 50,
    seed: int = 0,
    device: int = 0,
    progress: Callable[[str], None] | None = None,
) -> LayerTimes:
    """Runs an engine plainly with TensorRT's profiler attached, after a warm-up without it.

    inputs: arrays and shapes of inputs, none of them swept; None for drawn values at the profile's usual shapes.
    Raises EngineError for an engine that does not fit this machine or these inputs, and when TensorRT reports nothing;
    MissingDependency without a GPU or a package.
    """
    if runs < 1:
        raise EngineError(f"{runs} runs: give at least one")
    sweep = inputs or Sweep()
    with opened_engines([engine], device) as (timed,):
        (point,) = engine_points(timed, sweep)
        if progress is not None:
            progress(f"profiling {timed.path} with {timed.label}: {describe_shapes(point.shapes)}")
        timed.prepare(fill_inputs(timed.specs, point.shapes, sweep.given, seed))
        known, missing = _told_layers(timed)
        samples = _profile(timed, runs)
        names = list(dict.fromkeys(name for sample in samples for name in sample))
        layers = tuple(
            LayerTime(known.get(name, EngineLayer(name)), median(sample.get(name, 0.0) for sample in samples) * 1e3)
            for name in names
        )
        return LayerTimes(timed.path, timed.label, timed.card, point.shapes, runs, layers, missing)


def _told_layers(timed: TimedEngine) -> tuple[dict[str, EngineLayer], str]:
    """The layers that the engine tells of, by name, and what it does not tell."""
    inspector = timed.engine.create_engine_inspector()
    text = inspector.get_engine_information(timed.tensorrt.LayerInformationFormat.JSON)
    try:
        layers = layers_of_inspector(text)
    except EngineError as error:
        return {}, str(error)
    return {layer.name: layer for layer in layers}, "" if any(layer.nodes for layer in layers) else NO_NODES


def _profile(timed: TimedEngine, runs: int) -> list[Run]:
    warm_up([functools.partial(_run, timed)])
    reported: Run = {}
    timed.context.profiler = _make_profiler(timed.tensorrt, reported)  # TensorRT's binding keeps it alive
    samples = []
    for _ in range(WARM_UP_RUNS + runs):
        reported.clear()
        _run(timed)
        samples.append(dict(reported))
    if not any(samples):
        raise EngineError(f"{timed.path}: {timed.label} reported no layer's time")
    return samples[WARM_UP_RUNS:]


def _run(timed: TimedEngine) -> None:
    try:
        timed.enqueue()
        timed.stream.wait()
    except EngineError as error:
        raise EngineError(f"{timed.path}: {error}") from None


def _make_profiler(tensorrt: Any, reported: Run) -> Any:
    """TensorRT calls it from C++ for each layer once a run is over, since execution contexts report by themselves."""

    class Profiler(tensorrt.IProfiler):
        def __init__(self) -> None:
            tensorrt.IProfiler.__init__(self)

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            reported[layer_name] = reported.get(layer_name, 0.0) + ms

    return Profiler()
