"""Timing engines against each other. In: engine files and inputs. Out: samples of every part of a run, interleaved."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attngraft.errors import EngineError
from attngraft.runtime.graph import no_garbage_collection
from attngraft.runtime.timed_engine import MODES, PARTS, TimedEngine, opened_engines

__all__ = ["EngineTimes", "check_request", "time_engines", "time_opened", "warm_up"]

WARM_UP_S = 0.15
"""Of runs before the first sample: an H200's clocks rise for as long after it was idle, 10% of a kernel's time."""

WARM_UP_RUNS = 3
"""At the beginning of every turn: the caches hold the engine before, and its own instructions have to come back."""

REPORT_INTERVAL_S = 1.0

Progress = Callable[[str], None]
Turn = tuple[TimedEngine, str]


@dataclass(frozen=True)
class EngineTimes:
    """What one engine took in one mode, in microseconds, run by run in the order in which they were made.

    mode        "graph" (its work is one CUDA graph, replayed) or "plain" (TensorRT enqueues it each time).
    samples_us  one value a run for each of
                "h2d"      copies of all inputs from page-locked memory to the GPU, by the GPU's events;
                "enqueue"  the CPU's time to put the engine's work into its stream, one call;
                "gpu"      from the end of those copies to the end of the engine's work, by the GPU's events: waiting
                           for the CPU's launches is part of it;
                "d2h"      copies of all outputs back into page-locked memory, by the GPU's events;
                "total"    the CPU's time from before the first copy until the last byte is back; recording the events
                           is part of it.
    """

    engine: Path
    mode: str
    samples_us: Mapping[str, tuple[float, ...]]


def time_engines(
    engines: Sequence[Path],
    inputs: Mapping[str, np.ndarray],
    *,
    modes: Sequence[str] = ("graph",),
    rounds: int = 20,
    runs: int = 20,
    device: int = 0,
    progress: Progress | None = None,
) -> list[EngineTimes]:
    """Times engines on the same inputs in one interleaved run, in the order of `engines`, and of `modes` for each.

    In each round every engine takes its turn in every mode: WARM_UP_RUNS runs that are not counted, then `runs` that
    are. So changes of clock and temperature meet all of them, and the medians of a round may be compared in pairs.
    Before the first round all of them run for WARM_UP_S together. All engines are loaded at once.

    inputs: host arrays by name, which every engine must take; zeros make a GPU faster than it is.

    Raises EngineError for an engine that does not fit this machine or these inputs, or whose work cannot be captured
    although "graph" is asked for; MissingDependency without a GPU or a package.
    """
    check_request(engines, modes, rounds, runs)
    with opened_engines(engines, device) as opened:
        return time_opened(opened, inputs, modes=modes, rounds=rounds, runs=runs, progress=progress)


def check_request(engines: Sequence[Path], modes: Sequence[str], rounds: int, runs: int) -> None:
    """Raises EngineError for what cannot be timed."""
    if not engines:
        raise EngineError("no engine to time; give at least one engine file")
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown or not modes:
        raise EngineError(f"mode {(unknown or ['none'])[0]!r}: not one of {', '.join(MODES)}")
    if rounds < 1 or runs < 1:
        raise EngineError(f"{rounds} rounds of {runs} runs: give at least one of each")


def time_opened(
    opened: Sequence[TimedEngine],
    inputs: Mapping[str, np.ndarray],
    *,
    modes: Sequence[str] = ("graph",),
    rounds: int = 20,
    runs: int = 20,
    seconds: float | None = None,
    progress: Progress | None = None,
) -> list[EngineTimes]:
    """As time_engines, with engines that are loaded already. `seconds`: as many rounds as begin in that time, at least
    one, instead of `rounds`."""
    turns = _prepare(opened, inputs, modes)
    samples: list[list[tuple[float, ...]]] = [[] for _ in turns]
    with no_garbage_collection():
        warm_up([functools.partial(timed.run, mode) for timed, mode in turns])
        for _ in _rounds(rounds, seconds, progress):
            for taken, (timed, mode) in zip(samples, turns):
                for _ in range(WARM_UP_RUNS):
                    timed.run(mode)
                taken += [timed.run(mode) for _ in range(runs)]
    return [
        EngineTimes(timed.path, mode, dict(zip(PARTS, zip(*taken), strict=True)))
        for (timed, mode), taken in zip(turns, samples)
    ]


def _prepare(opened: Sequence[TimedEngine], inputs: Mapping[str, np.ndarray], modes: Sequence[str]) -> list[Turn]:
    for timed in opened:
        timed.prepare(inputs)
        if "graph" in modes:
            timed.capture()
    return [(timed, mode) for timed in opened for mode in modes]


def warm_up(calls: Collection[Callable[[], object]]) -> None:
    """Makes all calls, again and again, until WARM_UP_S have gone by."""
    begin = time.monotonic()
    while time.monotonic() - begin < WARM_UP_S:
        for call in calls:
            call()


def _rounds(rounds: int, seconds: float | None, progress: Progress | None) -> Iterator[int]:
    """Numbers of rounds from 0 on, with a report now and then."""
    begin = reported = time.monotonic()
    number = 0
    while number == 0 or (number < rounds if seconds is None else time.monotonic() - begin < seconds):
        yield number
        number += 1
        now = time.monotonic()
        if progress is not None and now - reported >= REPORT_INTERVAL_S:
            reported = now
            progress(f"  round {number} of {rounds}" if seconds is None else f"  {now - begin:.0f} of {seconds:.0f} s")
