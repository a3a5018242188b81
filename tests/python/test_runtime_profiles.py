"""Engines with several optimization profiles: which one is used, and contexts that do not disturb each other."""

from __future__ import annotations

import numpy as np
import pytest

from attngraft.engine import ShapeRange
from attngraft.errors import EngineError
from attngraft.runtime import Session
from attngraft.runtime.profiles import Profile, choose_profile
from fake_bench import Bench, expected, rows

NARROW = Profile(0, {"x": ShapeRange.parse("1x4:2x4:8x4"), "mask": ShapeRange.parse("1:2:8")})
WIDE = Profile(1, {"x": ShapeRange.parse("1x2:16x8:32x8"), "mask": ShapeRange.parse("1:16:32")})


def test_the_first_profile_that_holds_all_inputs() -> None:
    assert choose_profile((NARROW, WIDE), {"x": (8, 4), "mask": (8,)}) is NARROW
    assert choose_profile((NARROW, WIDE), {"x": (8, 4), "mask": (9,)}) is WIDE
    assert choose_profile((WIDE, NARROW), {"x": (8, 4), "mask": (8,)}) is WIDE


def test_none_holds_the_shapes() -> None:
    with pytest.raises(EngineError) as raised:
        choose_profile((NARROW, WIDE), {"x": (33, 4), "mask": (1,)})
    said = str(raised.value)
    assert "\n" not in said
    for part in ("x 33x4", "mask 1", "profile 0 (x 1x4:2x4:8x4, mask 1:2:8)", "profile 1 (x 1x2:16x8:32x8"):
        assert part in said
    with pytest.raises(EngineError, match="input 'mask': 9 is outside the engine's profile 1:2:8"):
        choose_profile((NARROW,), {"x": (8, 4), "mask": (9,)})


def test_two_profiles_interleaved(bench: Bench) -> None:
    """Each context has its own shapes: going from one profile to the other needs no confirmation."""
    bench.behaviour.profiles = 2
    bench.behaviour.stale = True
    with Session(bench.engine) as run:
        for turn in range(5):
            for count, columns in ((32, 8), (2, 4)):
                x = rows(count, turn, columns)
                np.testing.assert_array_equal(run.run({"x": x})["y"], expected(x))
        found = run.statistics
    assert (found.captures, found.replays, found.confirmations, found.one_graph_reason) == (2, 8, 0, None)


def test_a_shape_outside_the_first_profile_needs_the_second(bench: Bench) -> None:
    with Session(bench.engine) as run, pytest.raises(EngineError, match="outside the engine's profile 1x4:2x4:8x4"):
        run.run({"x": rows(9)})
    bench.behaviour.profiles = 2
    with Session(bench.engine) as run:
        np.testing.assert_array_equal(run.run({"x": rows(9)})["y"], expected(rows(9)))
        with pytest.raises(EngineError, match="outside each of the engine's profiles, profile 0 .*, profile 1 "):
            run.run({"x": rows(33)})


def test_a_context_is_made_when_it_is_needed(bench: Bench) -> None:
    bench.behaviour.profiles = 2
    with Session(bench.engine) as run:
        run.run({"x": rows(2)})
        bench.behaviour.no_context = True  # as when the device is full
        with pytest.raises(EngineError, match="cannot prepare the engine to run with profile 1"):
            run.run({"x": rows(9)})
        run.run({"x": rows(2)})
        assert run.statistics.replays == 1


def test_an_engine_that_cannot_be_prepared_is_refused_at_once(bench: Bench) -> None:
    bench.behaviour.no_context = True
    with pytest.raises(EngineError, match="profile 0"):
        Session(bench.engine)
    assert not bench.gpu.memory
