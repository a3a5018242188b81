"""How fast engines are, and whether one is faster than another. In: samples of an interleaved run. Out: a verdict.

All engines take turns in each round, so a round's difference of two engines is free of what changes from round to
round, clocks and temperature first of all. The median of these differences is what one engine gains over the other.
What it could as well have been is told by how they scatter: their interquartile range. A gain that is not larger than
that range is a tie, for then a quarter of the rounds or more say next to nothing, or the opposite.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

__all__ = ["ROUNDS", "RUNS", "EngineSamples", "Speed", "Timer", "gain_us", "measure", "noise_us"]

ROUNDS, RUNS = 20, 20
"""Rounds of a timing, and runs of each engine in a round."""

CLOCK_US = 0.5
"""Resolution of the events that time a GPU (CUDA's manual, cudaEventElapsedTime): no difference below it is known."""

GPU = "gpu"
"""Of the kinds of samples the one that candidates differ in; copies and the host's part are the same for all."""


class EngineSamples(Protocol):
    """What a timer gives for one engine: microseconds of each run by kind, round after round."""

    engine: Path
    samples_us: Mapping[str, tuple[float, ...]]


Timer = Callable[..., Sequence[EngineSamples]]
"""`attngraft.runtime.timing.time_engines`, or another function that takes engines, inputs, `rounds`, `runs` and
`progress` and gives an EngineSamples for each engine."""


@dataclass(frozen=True)
class Speed:
    """The GPU time of one engine's runs, replayed from a graph: the median of each round, in microseconds; with several
    profiles the geometric mean over them, so that each counts alike."""

    rounds_us: tuple[float, ...]

    @property
    def us(self) -> float:
        """The median of all rounds."""
        return statistics.median(self.rounds_us)

    @property
    def spread_us(self) -> float:
        """The interquartile range of the rounds."""
        return _interquartile(self.rounds_us)


def gain_us(first: Speed, second: Speed) -> float:
    """By how much `second` is slower: the median of the differences in each round."""
    return statistics.median(_differences(first, second))


def noise_us(first: Speed, second: Speed) -> float:
    """Up to which a gain of two engines of one timing is a tie."""
    return max(_interquartile(_differences(first, second)), CLOCK_US)


def measure(
    engines: Sequence[Path],
    feeds: Sequence[Mapping[str, np.ndarray]],
    timer: Timer,
    progress: Callable[[str], None] | None,
) -> dict[Path, Speed]:
    """Times all engines in turns, on the inputs of each profile."""
    profiles = []
    for inputs in feeds:
        timed = timer(engines, inputs, rounds=ROUNDS, runs=RUNS, progress=progress)
        profiles.append({Path(one.engine): _round_medians(one.samples_us[GPU]) for one in timed})
    return {engine: Speed(_geometric_means([profile[engine] for profile in profiles])) for engine in engines}


def _round_medians(samples: Sequence[float]) -> list[float]:
    """Of samples in the order in which they were taken, as many in each round."""
    runs = max(len(samples) // ROUNDS, 1)
    return [statistics.median(samples[start : start + runs]) for start in range(0, runs * (len(samples) // runs), runs)]


def _geometric_means(profiles: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(math.exp(statistics.fmean(map(math.log, rounds))) for rounds in zip(*profiles, strict=True))


def _differences(first: Speed, second: Speed) -> list[float]:
    return [late - early for early, late in zip(first.rounds_us, second.rounds_us, strict=True)]


def _interquartile(values: Sequence[float]) -> float:
    low, high = np.percentile(values, (25, 75))
    return float(high - low)
