"""Timing of engines: what each part of a run is, who takes turns with whom, what is warmed up and what is refused."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from pathlib import Path

import cuda.bindings
import numpy as np
import pytest

from attngraft.engine.shapes import ShapeRange
from attngraft.errors import EngineError
from attngraft.runtime.cuda import cuda_driver, cuda_runtime
from attngraft.runtime.layer_times import NO_NODES, time_layers
from attngraft.runtime.sweep import Length, Sweep, fill_inputs, sweep_engines, sweep_points
from attngraft.runtime.tensors import TensorSpec
from attngraft.runtime.timed_engine import PARTS, opened_engines
from attngraft.runtime.timing import WARM_UP_RUNS, WARM_UP_S, time_engines
from timed_gpu import COPY_US, GRAPH_LAUNCH_US, LAYERS_MS, PLAIN_LAUNCH_US, WORK_US, TimedMachine


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TimedMachine]:
    found = TimedMachine(tmp_path)
    found.patch(monkeypatch, cuda.bindings)
    yield found
    gc.collect()  # what is left must be freed by the GPU that it is from
    cuda_runtime.cache_clear()
    cuda_driver.cache_clear()


def rows(count: int) -> np.ndarray:
    return np.arange(count * 4, dtype=np.float32).reshape(count, 4) + 1


INPUTS = {"x": rows(2)}


@pytest.mark.parametrize(("mode", "launch"), [("plain", PLAIN_LAUNCH_US), ("graph", GRAPH_LAUNCH_US)])
def test_what_each_part_of_a_run_is(machine: TimedMachine, mode: str, launch: int) -> None:
    (times,) = time_engines([machine.engine("fast.engine")], INPUTS, modes=(mode,), rounds=2, runs=3)
    assert (times.engine.name, times.mode) == ("fast.engine", mode)
    assert tuple(times.samples_us) == PARTS
    waited = launch - COPY_US  # the GPU has copied long before the launch is there
    expected = {
        "h2d": COPY_US,
        "enqueue": launch,
        "gpu": waited + WORK_US["fast.engine"],
        "d2h": COPY_US,
        "total": launch + WORK_US["fast.engine"] + COPY_US,
    }
    for part, samples in times.samples_us.items():
        assert samples == pytest.approx([expected[part]] * 6), part


def test_inputs_are_timed_in_the_profile_that_holds_them(machine: TimedMachine) -> None:
    """The engine's profiles take up to 8x4, and from 1x2 to 32x8."""
    machine.behaviour.profiles = 2
    engine = machine.engine("fast.engine")
    with opened_engines([engine]) as (timed,):
        for inputs, profile in ((INPUTS, 0), ({"x": np.ones((20, 6), np.float32)}, 1), (INPUTS, 0)):
            timed.prepare(inputs)
            timed.capture()
            timed.run("graph")
            assert timed.context.active_optimization_profile == profile
            (to_host,) = timed._to_host
            answer = (ctypes.c_float * inputs["x"].size).from_address(to_host[0])
            np.testing.assert_array_equal(np.ravel(answer), 2 * inputs["x"].ravel() + 1)
        with pytest.raises(EngineError, match="outside each of the engine's profiles"):
            timed.prepare({"x": np.ones((40, 4), np.float32)})


def test_every_engine_and_mode_takes_its_turn_in_every_round(machine: TimedMachine) -> None:
    engines = [machine.engine("fast.engine"), machine.engine("slow.engine")]
    found = time_engines(engines, INPUTS, modes=("plain", "graph"), rounds=3, runs=2)
    order = [(name, mode) for name in ("fast.engine", "slow.engine") for mode in ("plain", "graph")]
    assert [(times.engine.name, times.mode) for times in found] == order
    measured = [turn for _ in range(3) for turn in order for _ in range(WARM_UP_RUNS + 2)]
    assert machine.gpu.ran[-len(measured) :] == measured
    assert {len(samples) for times in found for samples in times.samples_us.values()} == {6}
    assert found[0].samples_us["total"][0] < found[2].samples_us["total"][0]


def test_all_engines_run_for_a_while_before_the_first_round(machine: TimedMachine) -> None:
    engines = [machine.engine("fast.engine"), machine.engine("slow.engine")]
    time_engines(engines, INPUTS, rounds=1, runs=1)
    warm_up = machine.gpu.ran[2 : -2 * (WARM_UP_RUNS + 1)]  # behind the plain run of each
    assert warm_up[:4] == [("fast.engine", "graph"), ("slow.engine", "graph")] * 2
    each = sum(GRAPH_LAUNCH_US + COPY_US + us for us in WORK_US.values())
    assert len(warm_up) / 2 == -(-WARM_UP_S * 1e6 // each)


def test_seconds_in_place_of_rounds(machine: TimedMachine) -> None:
    """A round of the fast engine takes 23 runs of 108 us."""
    engine = machine.engine("fast.engine")
    told: list[str] = []
    options = {"modes": ("graph",), "runs": 20, "progress": told.append}
    _, (point,) = sweep_engines([engine], Sweep(), seconds=0.1, **options)
    assert len(point.times[0].samples_us["gpu"]) == 20 * 41
    _, (point,) = sweep_engines([engine], Sweep(), seconds=1e-6, **options)
    assert len(point.times[0].samples_us["gpu"]) == 20
    told.clear()
    sweep_engines([engine], Sweep(), seconds=3, **options)
    assert told == ["timing 1 engine(s), point 1 of 1: x 2x4", *(f"  {second} of 3 s" for second in (1, 2))]


def test_the_answer_is_computed_and_nothing_stays_behind(machine: TimedMachine) -> None:
    with opened_engines([machine.engine("fast.engine")]) as (timed,):
        timed.prepare(INPUTS)
        timed.capture()
        timed.run("graph")
        (to_host,) = timed._to_host
        answer = (ctypes.c_float * 8).from_address(to_host[0])
        np.testing.assert_array_equal(np.reshape(answer, (2, 4)), 2 * INPUTS["x"] + 1)
    del timed
    machine.contexts.clear()
    gc.collect()
    assert not machine.gpu.memory
    assert not machine.gpu.graphs


def test_what_cannot_be_captured_is_an_error_with_the_reason(machine: TimedMachine) -> None:
    engine = machine.engine("fast.engine")
    machine.gpu.fail_capture = True
    with pytest.raises(EngineError, match=r"fast\.engine: .*captured.*StreamCaptureInvalidated.*mode plain"):
        time_engines([engine], INPUTS)
    assert len(time_engines([engine], INPUTS, modes=("plain",), rounds=1, runs=1)) == 1
    machine.gpu.fail_capture = False
    with opened_engines([engine]) as (timed,):
        timed.prepare(INPUTS)
        machine.behaviour.capturable = False
        with pytest.raises(EngineError, match=r"TensorRT says that this work cannot be captured"):
            timed.capture()


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ({"x": rows(9)}, "fast.engine: input 'x': 9x4 is outside the engine's profile 1x4:2x4:8x4"),
        ({"x": rows(2).astype(np.float16)}, "fast.engine: input 'x': is float16"),
        ({}, "fast.engine: input 'x': is not given"),
        ({"x": rows(2), "z": rows(2)}, "fast.engine: input 'z': the engine has no such input"),
    ],
)
def test_inputs_that_do_not_fit(machine: TimedMachine, inputs: dict[str, np.ndarray], reason: str) -> None:
    with pytest.raises(EngineError) as caught:
        time_engines([machine.engine("fast.engine")], inputs)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"modes": ("fast",)}, "mode 'fast'"),
        ({"rounds": 0}, "0 rounds"),
        ({"runs": 0}, "0 runs"),
        ({"modes": ()}, "none"),
    ],
)
def test_requests_that_make_no_sense(machine: TimedMachine, options: dict, reason: str) -> None:
    with pytest.raises(EngineError, match=reason):
        time_engines([machine.engine("fast.engine")], INPUTS, **options)


def test_no_engines_and_broken_ones(machine: TimedMachine) -> None:
    with pytest.raises(EngineError, match="no engine to time"):
        time_engines([], INPUTS)
    good, broken = machine.engine("fast.engine"), machine.engine("broken.engine")
    with pytest.raises(EngineError, match=r"broken\.engine: TensorRT cannot load it"):
        time_engines([good, broken], INPUTS)
    machine.contexts.clear()
    gc.collect()
    assert not machine.gpu.memory


def test_an_error_while_running_names_the_engine(machine: TimedMachine) -> None:
    with opened_engines([machine.engine("fast.engine")]) as (timed,):
        machine.behaviour.fail = True
        with pytest.raises(EngineError, match=r"fast\.engine: TensorRT reports an error while running"):
            timed.prepare(INPUTS)


IDS = TensorSpec("ids", "int64", True, ShapeRange.parse("1x8:2x64:8x128"))
MASK = TensorSpec("mask", "float32", True, ShapeRange.parse("1x1x8:2x1x64:8x1x128"))
TABLE = TensorSpec("table", "bfloat16", True, ShapeRange.parse("4x4"))
OUTPUT = TensorSpec("y", "float32", False, None)
SPECS = (IDS, MASK, TABLE, OUTPUT)


def test_points_of_a_sweep() -> None:
    length = Length((("ids", 1), ("mask", 2)), (16, 32))
    points = sweep_points(SPECS, Sweep(batches=(1, 8), length=length))
    assert [(point.batch, point.length) for point in points] == [(1, 16), (1, 32), (8, 16), (8, 32)]
    assert points[2].shapes == {"ids": (8, 16), "mask": (8, 1, 16), "table": (4, 4)}
    assert length.title == "ids.1,mask.2"
    (point,) = sweep_points(SPECS, Sweep(given={"table": np.ones((3, 3))}, shapes={"ids": (5, 9)}))
    assert (point.batch, point.length) == (None, None)
    assert point.shapes == {"ids": (5, 9), "mask": (2, 1, 64), "table": (3, 3)}


@pytest.mark.parametrize(
    ("sweep", "reason"),
    [
        (Sweep(shapes={"idx": (1, 8)}), "'idx': the engine has no such input; its inputs are ids, mask, table"),
        (Sweep(given={"y": np.ones(1)}), "'y': the engine has no such input"),
        (Sweep(length=Length((("id", 1),), (4,))), "'id': the engine has no such input"),
        (Sweep(length=Length((("ids", 2),), (4,))), "length ids.2: input 'ids' has rank 2"),
        (Sweep(given={"ids": np.ones((2, 8))}, shapes={"ids": (1, 8)}), "'ids': comes from a file"),
        (Sweep(given={"ids": np.ones((2, 8))}, length=Length((("ids", 1),), (4,))), "'ids': comes from a file"),
    ],
)
def test_sweeps_over_what_is_not_there(sweep: Sweep, reason: str) -> None:
    with pytest.raises(EngineError) as caught:
        sweep_points(SPECS, sweep)
    assert reason in str(caught.value)


def test_a_batch_needs_a_dynamic_dimension() -> None:
    with pytest.raises(EngineError, match="no input has a dynamic first dimension"):
        sweep_points((TABLE, OUTPUT), Sweep(batches=(1,)))


def test_drawn_inputs_are_not_zeros() -> None:
    table = np.full((4, 4), 7.0)
    shapes = {"ids": (2, 8), "mask": (2, 1, 8), "table": (4, 4)}
    drawn = fill_inputs(SPECS, shapes, {}, seed=0)
    assert {name: (array.shape, array.dtype.name) for name, array in drawn.items()} == {
        "ids": ((2, 8), "int64"),
        "mask": ((2, 1, 8), "float32"),
        "table": ((4, 4), "bfloat16"),
    }
    assert np.count_nonzero(drawn["mask"]) == 16 and 0.3 < drawn["mask"].std() < 3
    assert np.count_nonzero(drawn["table"].astype(np.float32)) == 16
    assert fill_inputs(SPECS, shapes, {"table": table}, seed=0)["table"] is table


def test_a_sweep_is_timed_point_by_point(machine: TimedMachine) -> None:
    engines = [machine.engine("fast.engine"), machine.engine("slow.engine")]
    told: list[str] = []
    made_by, points = sweep_engines(
        engines, Sweep(batches=(1, 8)), modes=("plain",), rounds=1, runs=2, progress=told.append
    )
    assert made_by == ["TensorRT 10.6.0"] * 2
    assert [(p.point.batch, len(p.times), len(p.times[1].samples_us["gpu"])) for p in points] == [(1, 2, 2), (8, 2, 2)]
    assert told == ["timing 2 engine(s), point 1 of 2: x 1x4", "timing 2 engine(s), point 2 of 2: x 8x4"]


def test_every_point_is_checked_before_the_first_is_timed(machine: TimedMachine) -> None:
    with pytest.raises(EngineError, match=r"9x4 is outside the engine's profile .*\(inputs: x 9x4\)"):
        sweep_engines([machine.engine("fast.engine")], Sweep(batches=(1, 9)))
    assert machine.gpu.ran == []


def test_layer_times(machine: TimedMachine) -> None:
    told: list[str] = []
    found = time_layers(machine.engine("fast.engine"), Sweep(shapes={"x": (3, 4)}), runs=5, progress=told.append)
    assert told[0].endswith("with TensorRT 10.6.0: x 3x4")
    assert {layer.layer.name: round(layer.us, 6) for layer in found.layers} == {
        name: 1e3 * ms for name, ms in LAYERS_MS.items()
    }
    assert found.us == pytest.approx(100)
    assert found.layers[0].layer.nodes == ("/layer.0/Softmax",)
    assert (found.layers[2].layer.kind, found.missing, found.runs) == ("", "", 5)


@pytest.mark.parametrize(
    ("layers", "missing"),
    [(["only", "names"], "the engine has no layer information"), ([{"Name": "a", "LayerType": "gemm"}], NO_NODES)],
)
def test_an_engine_that_tells_nothing_of_its_layers(machine: TimedMachine, layers: list, missing: str) -> None:
    machine.layers = layers
    found = time_layers(machine.engine("fast.engine"), runs=1)
    assert found.missing.startswith(missing)
    assert found.us == pytest.approx(100)


def test_a_profiler_that_hears_nothing(machine: TimedMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timed_gpu.LAYERS_MS", {})
    with pytest.raises(EngineError, match=r"fast\.engine: TensorRT 10\.6\.0 reported no layer's time"):
        time_layers(machine.engine("fast.engine"), runs=1)
    with pytest.raises(EngineError, match="0 runs"):
        time_layers(machine.engine("fast.engine"), runs=0)
