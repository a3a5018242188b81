"""Picking the fastest engine: what is tried, what is left out and why, which is kept, and what is said of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from pick_support import SHAPES, Arrays, Runner, Timer, recipe_of, save_block

from attngraft.engine import ShapeRange
from attngraft.engine.sidecar import read_card
from attngraft.errors import BuildError, CaptureError, EngineError, MissingDependency, VerificationError
from attngraft.pick import PickResult, pick_fastest
from attngraft.pick import fastest as fastest_module
from attngraft.pick import search
from attngraft.report.pick import pick_json, pick_lines
from native_models import HIDDEN

KEEP, NATIVE, ATTENTION, SOFTMAX, AUTO = range(5)
"""Numbers of the uniform candidates, by which the timer tells their engines."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_block(tmp_path)


def refuse(*_: object) -> None:
    """In place of from_onnx_runtime."""
    raise VerificationError("ONNX Runtime has no kernel for it")


def pick(model: Path, timer: Timer | None = None, runner: Runner | None = None, **options: object) -> PickResult:
    return pick_fastest(recipe_of(model, **options), run=runner or Runner(model), timer=timer or Timer())


def by_name(result: PickResult) -> dict[str, dict]:
    return {one["name"]: one for one in pick_json(result)["candidates"]}


def test_the_fastest_is_kept_with_its_card(model: Path) -> None:
    timer = Timer({KEEP: 200.0, NATIVE: 150.0, ATTENTION: 100.0, SOFTMAX: 180.0}, jitter=1.0)
    result = pick(model, timer)
    assert result.verdict.winner.name == "attention"
    assert result.verdict.ties == ()
    assert result.verdict.over_plain == pytest.approx(2.0, rel=0.1)
    assert result.verdict.lead == pytest.approx(1.5, rel=0.1)
    assert not result.verdict.gains_nothing
    card = read_card(result.engine_path)
    assert (card.plugin_layers, card.source) == (1, "model.onnx")
    assert [site.lowering for site in card.sites] == ["attention"]
    assert (card.worst_difference.of, card.worst_difference.against) == ("engine", "ONNX Runtime")
    assert 0 <= card.worst_difference.difference <= card.worst_difference.tolerance
    assert sorted(path.name for path in model.parent.iterdir()) == ["model.onnx", "picked.engine", "picked.engine.json"]


def test_equal_models_are_built_once_and_all_are_in_the_table(model: Path) -> None:
    timer, runner = Timer({NATIVE: 90.0}), Runner(model)
    result = pick(model, timer, runner)
    found = by_name(result)
    assert list(found) == ["keep", "native", "attention", "softmax", "auto"]
    assert found["auto"]["same_as"] == "native"
    assert [numbers for numbers, _ in timer.calls] == [[KEEP, NATIVE, ATTENTION, SOFTMAX]]
    assert runner.opened == [0, 0, 1, 1]
    assert {name: one["lowered"] for name, one in found.items() if not one["same_as"]} == {
        "keep": {"keep": 1}, "native": {"native": 1}, "attention": {"attention": 1}, "softmax": {"softmax": 1},
    }  # fmt: skip


def test_a_tie_goes_to_fewer_plugins_and_then_to_fewer_changes(model: Path) -> None:
    result = pick(model, Timer({KEEP: 100.4, NATIVE: 100.2, ATTENTION: 100.0, SOFTMAX: 130.0}, jitter=5.0))
    assert result.verdict.winner.name == "keep"
    assert set(result.verdict.ties) == {"native", "attention"}
    assert result.verdict.gains_nothing
    assert "nothing is gained over the model as it is" in pick_lines(pick_json(result))[-1]


def test_drift_that_all_share_is_no_noise(model: Path) -> None:
    """Rounds differ by 20 us, engines by 3 us in each of them."""
    result = pick(model, Timer({ATTENTION: 97.0}))
    assert result.verdict.winner.name == "attention"
    assert result.verdict.ties == ()
    assert result.verdict.winner.speed.spread_us > 3


@pytest.mark.parametrize("wrong", [lambda y: y + 0.5, lambda y: np.full_like(y, np.nan), lambda y: y[..., :-1]])
def test_a_wrong_engine_is_never_picked(model: Path, wrong: object) -> None:
    timer = Timer({ATTENTION: 10.0, SOFTMAX: 10.0, NATIVE: 50.0})
    result = pick(model, timer, Runner(model, wrong=wrong))
    assert result.verdict.winner.name == "native"
    found = by_name(result)
    for name in ("attention", "softmax"):
        assert "output 'y'" in found[name]["failure"]
        assert found[name]["gpu_us"] is None
    assert timer.calls[0][0] == [KEEP, NATIVE]


@pytest.mark.parametrize("rows", ["without a key", "all"])
def test_rows_without_a_key_may_be_those_of_the_plain_engine(model: Path, rows: str) -> None:
    @contextmanager
    def run(engine: Path) -> Iterator[Callable[[Arrays], Arrays]]:
        """TensorRT's own attention gives other rows without a key, and here others too."""
        is_plain = read_card(engine).plugin_layers == 0
        with Runner(model)(engine) as compute:

            def differing(inputs: Arrays) -> Arrays:
                empty = ~np.asarray(inputs["keep"], bool).any(axis=-1)[:, 0]
                where = np.broadcast_to(empty if rows == "without a key" else True, inputs["x"].shape[:2])
                return {name: np.where(where[..., None], y + is_plain * 0.5, y) for name, y in compute(inputs).items()}

            yield differing

    result = pick(model, Timer({NATIVE: 50.0}), run)
    failures = {one["name"]: one["failure"] for one in pick_json(result)["candidates"]}
    if rows == "all":
        assert result.verdict.winner.name == "attention"
        assert "differs by 0.5" in failures["keep"] and "differs by 0.5" in failures["native"]
    else:
        assert result.verdict.winner.name == "native"
        assert set(failures.values()) == {None}
        assert any("in rows without a key" in note for note in pick_json(result)["notes"])


@pytest.mark.parametrize(("usual", "fails"), [(0.013, {"softmax"}), (0.05, {"keep", "native", "attention", "softmax"})])
def test_engines_may_be_as_far_away_as_tensorrt_usually_is(model: Path, usual: float, fails: set[str]) -> None:
    """In shares of the largest number: what the engine of the model as it is, and each other one, is wrong by."""

    @contextmanager
    def run(engine: Path) -> Iterator[Callable[[Arrays], Arrays]]:
        share = {KEEP: 1.0, NATIVE: 1.0, ATTENTION: 2.5, SOFTMAX: 4.0}[int(engine.stem)] * usual
        with Runner(model)(engine) as compute:
            yield lambda inputs: {
                name: y + y.dtype.type(share * max(1.0, np.nanmax(np.abs(y)))) for name, y in compute(inputs).items()
            }

    recipe = recipe_of(model)
    if len(fails) == 4:
        with pytest.raises(BuildError, match="no candidate is left"):
            pick_fastest(recipe, run=run, timer=Timer())
    else:
        result = pick_fastest(recipe, run=run, timer=Timer({ATTENTION: 50.0}))
        assert {one["name"] for one in pick_json(result)["candidates"] if one["failure"]} == fails
        assert result.verdict.winner.name == "attention"


def test_all_wrong_is_an_error_and_leaves_what_was_there(model: Path) -> None:
    recipe = recipe_of(model)
    recipe.engine.write_bytes(b"the old engine")
    with pytest.raises(BuildError, match="no candidate is left: keep: .* cannot run; native: ") as raised:
        pick_fastest(recipe, run=Runner(model, error=EngineError("it cannot run")), timer=Timer())
    assert "\n" not in str(raised.value)
    assert recipe.engine.read_bytes() == b"the old engine"
    assert sorted(path.name for path in model.parent.iterdir()) == ["model.onnx", "picked.engine"]


def test_nan_in_the_reference_is_reported_and_not_compared(tmp_path: Path) -> None:
    model = save_block(tmp_path, "filled -inf")  # a row without a key is NaN in it
    shapes = {"x": SHAPES["x"], "keep": ShapeRange.parse("1x1x1x1:2x1x1x6:2x1x1x8")}
    result = pick(model, profiles=(shapes,), runner=Runner(model, wrong=lambda y: np.nan_to_num(y)))
    content = pick_json(result)
    assert by_name(result)["attention"]["failure"] is None  # zeros where the original has NaN
    nan = {one["nan_in_reference"] for one in content["candidates"] if one["worst"]}
    assert len(nan) == 1 and min(nan) >= 6 * HIDDEN
    assert f"{min(nan)} elements are NaN in the reference and were not compared" in pick_lines(content)
    assert read_card(result.engine_path).worst_difference.nan == min(nan)


def test_several_profiles_are_all_checked_and_timed(model: Path) -> None:
    small = {
        "x": ShapeRange.parse(f"1x1x{HIDDEN}:1x3x{HIDDEN}:1x4x{HIDDEN}"),
        "keep": ShapeRange.parse("1x1x1x1:1x1x3x3:1x1x4x4"),
    }
    timer = Timer({NATIVE: 90.0})
    result = pick(model, timer, profiles=(SHAPES, small))
    assert [shapes["x"] for _, shapes in timer.calls] == [(2, 6, HIDDEN), (1, 3, HIDDEN)]
    cases = result.verdict.winner.report.cases
    for shape in (f"2x6x{HIDDEN}", f"1x3x{HIDDEN}", f"1x1x{HIDDEN}"):
        assert any(shape in case for case in cases), cases
    assert read_card(result.engine_path).profiles == (SHAPES, small)


def test_without_onnx_runtime_the_plain_engine_is_the_reference(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "from_onnx_runtime", refuse)
    runner = Runner(model, wrong=lambda y: y + 0.5)
    result = pick(model, Timer({ATTENTION: 10.0, NATIVE: 50.0}), runner)
    assert result.against == "plain engine"
    assert result.verdict.winner.name == "native"
    assert "differs by 0.5" in by_name(result)["attention"]["failure"]
    assert any("has no kernel for it" in note for note in result.notes)
    with pytest.raises(BuildError, match="nothing to compare it with: ONNX Runtime has no kernel for it"):
        pick(model, runner=Runner(model, error=EngineError("it cannot run")))


def test_mixes_of_classes(tmp_path: Path) -> None:
    """Two sites of different types: each class is changed alone, then what gains is put together."""
    model = save_block(tmp_path, "torchscript, two layers")
    singles = {5: 130.0, 6: 170.0, 7: 160.0, 8: 135.0, 9: 120.0, 10: 170.0}
    timer = Timer({KEEP: 200.0, NATIVE: 150.0, ATTENTION: 140.0, SOFTMAX: 180.0, **singles, 11: 110.0})
    result = pick(model, timer)
    assert list(by_name(result))[5:] == [
        "attention, A keep", "attention, A native", "attention, A softmax",
        "attention, B keep", "attention, B native", "attention, B softmax",
        "attention, A keep, B native",
    ]  # fmt: skip
    assert [len(numbers) for numbers, _ in timer.calls] == [4, 10, 11]
    assert result.verdict.winner.name == "attention, A keep, B native"
    card = read_card(result.engine_path)
    assert [site.lowering for site in card.sites] == ["keep", "native"]
    assert card.plugin_layers == 0
    table = pick_lines(pick_json(result))
    assert "A: 1 sites, float16 d64 keep bshd" in table
    assert "B: 1 sites, float32 d64 keep no layout" in table
    assert json.loads(json.dumps(pick_json(result))) == pick_json(result)


def test_one_class_that_gains_is_not_put_together_with_others(tmp_path: Path) -> None:
    model = save_block(tmp_path, "torchscript, two layers")
    slow = {number: 150.0 for number in range(5, 11)}
    result = pick(model, Timer({KEEP: 200.0, NATIVE: 150.0, ATTENTION: 140.0, SOFTMAX: 180.0, **slow, 8: 130.0}))
    assert len(result.trials) == 11
    assert result.verdict.winner.name == "attention, B keep"


def test_no_gpu_is_said_before_anything_is_built(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastest_module, "describe_device", lambda: None)
    with pytest.raises(MissingDependency, match="--pick fastest runs and times engines, and there is no NVIDIA GPU"):
        pick_fastest(recipe_of(model))
    assert list(model.parent.iterdir()) == [model]


def test_a_bfloat16_model_without_onnx_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its outputs are compared as numbers, not bit by bit; one engine is off by less than the type's roundings."""
    model = save_block(tmp_path, "bf16")
    monkeypatch.setattr(search, "from_onnx_runtime", refuse)

    @contextmanager
    def run(engine: Path) -> Iterator[Callable[[dict], dict]]:
        shift = 0.02 * read_card(engine).plugin_layers
        yield lambda inputs: {"y": (np.ones(inputs["x"].shape) + shift).astype(ml_dtypes.bfloat16)}

    result = pick_fastest(recipe_of(model), run=run, timer=Timer({ATTENTION: 10.0}))
    assert result.verdict.winner.name == "attention"
    worst = by_name(result)["attention"]["worst"]
    assert 0.01 < worst["difference"] < 0.03 and worst["tolerance"] == pytest.approx(0.08)


def test_timing_falls_back_to_plain_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def time_engines(engines: object, inputs: object, *, modes: tuple[str, ...], progress: object) -> list[str]:
        asked.append(modes)
        if modes == ("graph",):
            raise CaptureError("it synchronises")
        return ["times"]

    monkeypatch.setitem(sys.modules, "attngraft.runtime.timing", SimpleNamespace(time_engines=time_engines))
    said: list[str] = []
    assert fastest_module._time_engines([], {}, progress=said.append) == ["times"]
    assert asked == [("graph",), ("plain",)]
    assert said == ["pick: timing plain runs, since an engine cannot be captured: it synchronises"]
