"""Ties, noise and gains, from samples alone; classes of sites."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from native_models import BLOCKS

from attngraft.engine.builder import BuildResult
from attngraft.engine.sidecar import SiteCard
from attngraft.match import match_model
from attngraft.pick.candidates import site_classes
from attngraft.pick.speed import CLOCK_US, ROUNDS, RUNS, Speed, gain_us, measure, noise_us
from attngraft.pick.trial import Trial
from attngraft.pick.verdict import choose
from attngraft.verify import VerificationReport

RNG = np.random.default_rng(0)


def trial(name: str, us: float, plugins: int = 0, *, jitter: float = 0.0, lowered: str = "keep") -> Trial:
    built = BuildResult(Path(f"{name}.engine"), "rtx", "1.7", plugins, 9, 1, 1.0, ())
    rounds = tuple(us + RNG.uniform(-jitter, jitter, ROUNDS))
    report = VerificationReport((), ())
    return Trial(name, built=built, sites=(SiteCard("p", lowered),), report=report, speed=Speed(rounds))


def test_clear_differences() -> None:
    verdict = choose([trial("keep", 100), trial("attention", 50, 1), trial("softmax", 75, 1)])
    assert (verdict.winner.name, verdict.ties) == ("attention", ())
    assert (verdict.over_plain, verdict.lead) == (2.0, 1.5)
    assert not verdict.gains_nothing


def test_within_the_noise_fewer_plugins_win() -> None:
    trials = [
        trial("attention", 99.5, 12, jitter=4),
        trial("softmax", 100, 6, jitter=4),
        trial("native", 101, jitter=4),
    ]
    verdict = choose(trials)
    assert verdict.winner.name == "native"
    assert set(verdict.ties) == {"attention", "softmax"}
    assert verdict.over_plain is None and verdict.lead is None


def test_an_unsteady_engine_does_not_tie_past_a_steady_one() -> None:
    """It is slower than the plain engine, which is no tie with the fastest."""
    unsteady = replace(trial("native", 103), speed=Speed(tuple(103 + 8.0 * (-1) ** np.arange(ROUNDS))))
    verdict = choose([trial("attention", 100, 1), trial("keep", 102), unsteady])
    assert (verdict.winner.name, verdict.ties) == ("attention", ())


def test_a_steady_difference_is_no_tie_however_small_and_below_the_clock_it_is() -> None:
    near, far = trial("attention", 100, 1), trial("keep", 100 + 2 * CLOCK_US)
    assert choose([near, far]).winner.name == "attention"
    assert choose([near, trial("keep", 100 + CLOCK_US / 2)]).winner.name == "keep"


def test_repairs_alone_are_changes_too() -> None:
    assert choose([trial("auto", 100), trial("keep", 100)]).winner.name == "keep"


def test_noise_is_of_the_differences() -> None:
    drift = RNG.uniform(0, 50, ROUNDS)
    first, second = Speed(tuple(100 + drift)), Speed(tuple(103 + drift))
    assert gain_us(first, second) == pytest.approx(3)
    assert noise_us(first, second) == CLOCK_US
    assert first.spread_us > 10


def test_rounds_and_profiles() -> None:
    """Each round counts by its median; profiles by their geometric mean."""
    spiky = np.tile([1000.0] + [10.0] * (RUNS - 1), ROUNDS)

    def timer(engines: list[Path], inputs: dict, *, rounds: int, runs: int, progress: object) -> list[SimpleNamespace]:
        assert (rounds, runs) == (ROUNDS, RUNS)
        factor = float(inputs["factor"])
        return [SimpleNamespace(engine=engine, samples_us={"gpu": tuple(spiky * factor)}) for engine in engines]

    engine = Path("a.engine")
    speeds = measure([engine], [{"factor": np.float32(1)}, {"factor": np.float32(4)}], timer, None)
    assert speeds[engine].rounds_us == pytest.approx([20.0] * ROUNDS)


def test_classes_by_equal_facts() -> None:
    two = site_classes(match_model(BLOCKS["torchscript, two layers"].model()))
    assert [(group.letter, group.label) for group in two] == [
        ("A", "float16 d64 keep bshd"), ("B", "float32 d64 keep no layout"),
    ]  # fmt: skip
    for name, label in (("causal", "float16 d64 causal bshd"), ("added input", "float16 d64 bias bshd")):
        (group,) = site_classes(match_model(BLOCKS[name].model()))
        assert group.label == label
