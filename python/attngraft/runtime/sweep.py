"""Timing over a range of shapes. In: an engine's inputs and sizes. Out: points with their shapes, and their times.

A point is one set of input shapes. Those of the batch and of a length are crossed with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from attngraft.engine.shapes import format_shape
from attngraft.errors import EngineError
from attngraft.runtime.run_inputs import made_up_array
from attngraft.runtime.tensors import TensorSpec
from attngraft.runtime.timed_engine import TimedEngine, opened_engines
from attngraft.runtime.timing import EngineTimes, check_request, time_opened

__all__ = [
    "Length",
    "Point",
    "PointTimes",
    "Sweep",
    "describe_shapes",
    "engine_points",
    "fill_inputs",
    "sweep_engines",
    "sweep_points",
]

Shape = tuple[int, ...]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Length:
    """Dimensions that grow together, as (input, axis), and the sizes that they take."""

    axes: tuple[tuple[str, int], ...]
    sizes: tuple[int, ...]

    @property
    def title(self) -> str:
        """`input_ids.1,attention_mask.1`."""
        return ",".join(f"{name}.{axis}" for name, axis in self.axes)


@dataclass(frozen=True)
class Sweep:
    """Which inputs to time with.

    given    arrays of inputs, whose shapes stay as they are.
    shapes   shapes of inputs that are drawn; the others have their profile's usual one.
    batches  sizes of the first dimension of every drawn input whose first dimension is dynamic; none: as it is.
    length   sizes of other dimensions; None: as they are.
    """

    given: Mapping[str, np.ndarray] = field(default_factory=dict)
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    batches: tuple[int, ...] = ()
    length: Length | None = None


@dataclass(frozen=True)
class Point:
    """The shapes of all inputs at one place of a sweep; batch and length are None where they are not swept."""

    batch: int | None
    length: int | None
    shapes: Mapping[str, Shape]


@dataclass(frozen=True)
class PointTimes:
    """What the engines took at one point, engine by engine and mode by mode."""

    point: Point
    times: tuple[EngineTimes, ...]


def sweep_points(specs: Sequence[TensorSpec], sweep: Sweep) -> list[Point]:
    """The points of a sweep over an engine with these inputs, batches outermost.

    Raises EngineError for inputs and axes that the engine has not.
    """
    inputs = {spec.name: spec for spec in specs if spec.profile is not None}
    _check_names(inputs, sweep)
    base = {
        name: sweep.given[name].shape if name in sweep.given else sweep.shapes.get(name, spec.profile.opt)
        for name, spec in inputs.items()
    }
    batched = [name for name, spec in inputs.items() if name not in sweep.given and _is_batched(spec)]
    if sweep.batches and not batched:
        raise EngineError(
            "batch: no input has a dynamic first dimension; build the engine with --shape NAME=MIN:OPT:MAX"
        )
    points = []
    for batch in sweep.batches or (None,):
        for length in sweep.length.sizes if sweep.length else (None,):
            shapes = dict(base)
            for name in batched if batch is not None else ():
                shapes[name] = (batch, *shapes[name][1:])
            for name, axis in sweep.length.axes if length is not None else ():
                shapes[name] = (*shapes[name][:axis], length, *shapes[name][axis + 1 :])
            points.append(Point(batch, length, shapes))
    return points


def engine_points(timed: TimedEngine, sweep: Sweep) -> list[Point]:
    """sweep_points of an engine that is loaded; errors name it."""
    try:
        return sweep_points(timed.specs, sweep)
    except EngineError as error:
        raise EngineError(f"{timed.path}: {error}") from None


def _check_names(inputs: Mapping[str, TensorSpec], sweep: Sweep) -> None:
    listed = ", ".join(inputs)
    axes = sweep.length.axes if sweep.length else ()
    for name in (*sweep.given, *sweep.shapes, *(name for name, _ in axes)):
        if name not in inputs:
            raise EngineError(f"input {name!r}: the engine has no such input; its inputs are {listed}")
    for name in (*sweep.shapes, *(name for name, _ in axes)):
        if name in sweep.given:
            raise EngineError(f"input {name!r}: comes from a file, so its shape is given; leave one of the two out")
    for name, axis in axes:
        rank = len(sweep.shapes.get(name, inputs[name].profile.opt))
        if axis >= rank:
            raise EngineError(f"length {name}.{axis}: input {name!r} has rank {rank}; axes are numbered from 0")


def _is_batched(spec: TensorSpec) -> bool:
    return bool(spec.profile.min) and spec.profile.min[0] < spec.profile.max[0]


def fill_inputs(
    specs: Sequence[TensorSpec], shapes: Mapping[str, Shape], given: Mapping[str, np.ndarray], seed: int
) -> dict[str, np.ndarray]:
    """Arrays of these shapes for all inputs: those that are given, and drawn ones."""
    generator = np.random.default_rng(seed)
    return {
        spec.name: given[spec.name] if spec.name in given else made_up_array(shapes[spec.name], spec.dtype, generator)
        for spec in specs
        if spec.is_input
    }


def sweep_engines(
    engines: Sequence[Path],
    sweep: Sweep,
    *,
    modes: Sequence[str] = ("graph",),
    rounds: int = 20,
    runs: int = 20,
    seconds: float | None = None,
    seed: int = 0,
    device: int = 0,
    progress: Progress | None = None,
) -> tuple[list[str], list[PointTimes]]:
    """Times engines at every point of a sweep, interleaved as time_engines does; they are loaded once.

    Returns the TensorRT that serves each engine, with its version, and the times. Every point is checked against
    every engine's inputs before the first is timed. Raises EngineError as time_engines does.
    """
    check_request(engines, modes, rounds, runs)
    with opened_engines(engines, device) as opened:
        specs = opened[0].specs
        points = engine_points(opened[0], sweep)
        dtypes = {spec.name: spec.dtype for spec in specs} | {name: a.dtype.name for name, a in sweep.given.items()}
        for point in points:
            _check_point(opened, point, dtypes)
        measured = []
        for number, point in enumerate(points, start=1):
            if progress is not None:
                progress(
                    f"timing {len(engines)} engine(s), point {number} of {len(points)}: {describe_shapes(point.shapes)}"
                )
            inputs = fill_inputs(specs, point.shapes, sweep.given, seed)
            times = time_opened(
                opened, inputs, modes=modes, rounds=rounds, runs=runs, seconds=seconds, progress=progress
            )
            measured.append(PointTimes(point, tuple(times)))
        return [timed.label for timed in opened], measured


def _check_point(opened: Sequence[TimedEngine], point: Point, dtypes: Mapping[str, str]) -> None:
    for timed in opened:
        try:
            timed.fit(point.shapes, {name: dtypes[name] for name in point.shapes})
        except EngineError as error:
            raise EngineError(f"{error} (inputs: {describe_shapes(point.shapes)})") from None


def describe_shapes(shapes: Mapping[str, Shape]) -> str:
    """`input_ids 8x128, attention_mask 8x128`."""
    return ", ".join(f"{name} {format_shape(shape)}" for name, shape in shapes.items())
