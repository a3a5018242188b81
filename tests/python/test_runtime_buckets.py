"""Shape buckets: lengths padded to few sizes and outputs cut back, and whatever is ambiguous refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attngraft.engine import ShapeRange
from attngraft.errors import EngineError
from attngraft.runtime import Buckets, Session
from attngraft.runtime.buckets import BucketPlan
from attngraft.runtime.profiles import Profile
from attngraft.runtime.tensors import TensorSpec
from fake_bench import Bench, CudaArray, expected, on_device, rows

ROWS = Buckets(sizes={"rows": (2, 4)}, inputs={"x": {0: "rows"}}, pad={"x": -7.5}, outputs={"y": {0: "rows"}})


@pytest.mark.parametrize("kind", ["host", "device"])
def test_lengths_between_buckets_share_a_graph(bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    on_device(bench, monkeypatch)
    with Session(bench.engine, buckets=ROWS) as run:
        for turn, count in enumerate((4, 3, 4, 3, 2, 1, 2)):
            x = rows(count, turn)
            output = run.run({"x": x if kind == "host" else CudaArray(x)})["y"]
            assert output.shape == (count, 4)
            np.testing.assert_array_equal(output if kind == "host" else output.numpy(), expected(x))
        found = run.statistics
    assert (found.captures, found.padded_runs, found.replays) == (2, 3, 5)


@pytest.mark.parametrize("kind", ["host", "device"])
def test_the_engine_sees_the_pad_value(bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    on_device(bench, monkeypatch)
    with Session(bench.engine, buckets=ROWS) as run:
        run.run({"x": rows(4, 100)})  # what is left in the buffer must not be taken for padding
        x = rows(3)
        run.run({"x": x if kind == "host" else CudaArray(x)})
        address = run._bindings.addresses[0]
        held = np.frombuffer(bench.gpu.memory[address], np.uint8)
        start = address - held.ctypes.data
        seen = held[start : start + 64].view(np.float32).reshape(4, 4)
        np.testing.assert_array_equal(seen, np.vstack([x, np.full((1, 4), -7.5, np.float32)]))


def test_a_length_above_all_buckets_runs_as_it_is(bench: Bench) -> None:
    with Session(bench.engine, buckets=ROWS) as run:
        for count in (7, 8):
            np.testing.assert_array_equal(run.run({"x": rows(count)})["y"], expected(rows(count)))
        assert run.statistics.padded_runs == 0
        with pytest.raises(EngineError, match="9x4 is outside the engine's profile"):
            run.run({"x": rows(9)})


def test_warm_up_pads_too(bench: Bench) -> None:
    with Session(bench.engine, buckets=ROWS) as run:
        run.warm_up([{"x": (3, 4)}, {"x": (1, 4)}])
        plain = run.statistics.plain_runs
        for count in (4, 1, 3, 2):
            np.testing.assert_array_equal(run.run({"x": rows(count)})["y"], expected(rows(count)))
        assert run.statistics.plain_runs == plain


def test_an_output_without_the_axis_it_is_said_to_have(bench: Bench) -> None:
    wrong = Buckets(sizes={"rows": (2, 8)}, inputs={"x": {0: "rows"}}, pad={"x": 0}, outputs={"y": {1: "rows"}})
    with Session(bench.engine, buckets=wrong) as run:
        run.run({"x": rows(2)})
        with pytest.raises(EngineError, match="output 'y' is 8x4, whose axis 1 is not 'rows' of length 8"):
            run.run({"x": rows(3)})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sizes": {"rows": (4, 2)}}, "rising"),
        ({"sizes": {"rows": (2, 2)}}, "rising"),
        ({"sizes": {"rows": (0, 2)}}, "above 0"),
        ({"sizes": {"rows": ()}}, "give lengths"),
        ({"sizes": {"rows": (2,), "columns": (4,)}}, "axis 'columns': no input has it"),
        ({"sizes": {}}, "axis 'rows' has no sizes"),
        ({"outputs": {"y": {0: "row"}}}, "axis 'row' has no sizes"),
        ({"pad": {}}, "input 'x' needs both"),
        ({"pad": {"x": 0, "z": 0}}, "input 'z' needs both"),
    ],
)
def test_buckets_that_contradict_themselves(change: dict[str, Any], reason: str) -> None:
    fields = {name: getattr(ROWS, name) for name in ("sizes", "inputs", "pad", "outputs")}
    with pytest.raises(EngineError, match=reason) as raised:
        Buckets(**fields | change)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"inputs": {"z": {0: "rows"}}, "pad": {"z": 0}}, "no input 'z'; its inputs are x"),
        ({"inputs": {"x": {2: "rows"}}}, "input 'x' has no axis 2; its axes are 0 to 1"),
        ({"inputs": {"x": {-1: "rows"}}}, "input 'x' has no axis -1"),
        ({"outputs": {}}, "output 'y' is not in Buckets.outputs"),
        ({"outputs": {"y": {}, "w": {}}}, "no output 'w'; its outputs are y"),
        ({"sizes": {"rows": (2, 9)}}, "axis 'rows': 9 is in none of the engine's profiles"),
        ({"pad": {"x": 1e39}}, "1e\\+39 is no value of type float32"),
        ({"pad": {"x": "0x"}}, "is no number"),
    ],
)
def test_buckets_that_do_not_fit_the_engine(bench: Bench, change: dict[str, Any], reason: str) -> None:
    fields = {name: getattr(ROWS, name) for name in ("sizes", "inputs", "pad", "outputs")}
    buckets = Buckets(**fields | change)
    with pytest.raises(EngineError, match=reason) as raised:
        Session(bench.engine, buckets=buckets)
    assert "\n" not in str(raised.value)


def plan_of_two_inputs() -> BucketPlan:
    specs = (
        TensorSpec("ids", "int64", True, ShapeRange.parse("1x1:4x64:8x128")),
        TensorSpec("mask", "bool", True, ShapeRange.parse("1x1x1x1:4x1x64x64:8x1x128x128")),
        TensorSpec("hidden", "float32", False, None),
        TensorSpec("pooled", "float32", False, None),
    )
    profile = Profile(0, {spec.name: spec.profile for spec in specs if spec.profile is not None})
    buckets = Buckets(
        sizes={"batch": (4, 8), "tokens": (64, 128)},
        inputs={"ids": {0: "batch", 1: "tokens"}, "mask": {0: "batch", 2: "tokens", 3: "tokens"}},
        pad={"ids": 1, "mask": False},
        outputs={"hidden": {0: "batch", 1: "tokens"}, "pooled": {0: "batch"}},
    )
    return BucketPlan(buckets, specs, (profile,))


def test_two_axes_in_two_inputs() -> None:
    plan = plan_of_two_inputs()
    assert plan.pads == {"ids": (1).to_bytes(8, "little"), "mask": b"\0"}
    padding = plan.pad({"ids": (3, 65), "mask": (3, 1, 65, 65)})
    assert padding is not None
    assert padding.shapes == {"ids": (4, 128), "mask": (4, 1, 128, 128)}
    outputs = {"hidden": (4, 128, 768), "pooled": (4, 768)}
    assert plan.cuts(padding, outputs) == {"hidden": (3, 65, 768), "pooled": (3, 768)}
    # Only one of both axes is between buckets.
    padding = plan.pad({"ids": (4, 65), "mask": (4, 1, 65, 65)})
    assert padding is not None and plan.cuts(padding, outputs) == {"hidden": (4, 65, 768)}
    assert plan.pad({"ids": (8, 64), "mask": (8, 1, 64, 64)}) is None


def test_inputs_that_differ_in_one_axis() -> None:
    with pytest.raises(EngineError, match="'ids' and 'mask': axis 'tokens' has length 65 in one and 64") as raised:
        plan_of_two_inputs().pad({"ids": (4, 65), "mask": (4, 1, 65, 64)})
    assert "\n" not in str(raised.value)


def test_a_pad_value_that_the_type_rounds_is_taken_and_one_that_it_lacks_is_not() -> None:
    half = (TensorSpec("x", "float16", True, ShapeRange.parse("1:2:8")), TensorSpec("y", "float16", False, None))
    whole = (TensorSpec("x", "int32", True, ShapeRange.parse("1:2:8")), TensorSpec("y", "int32", False, None))
    profile = (Profile(0, {"x": ShapeRange.parse("1:2:8")}),)

    def pads(specs: tuple[TensorSpec, ...], value: float) -> bytes:
        buckets = Buckets(sizes={"n": (8,)}, inputs={"x": {0: "n"}}, pad={"x": value}, outputs={"y": {0: "n"}})
        return BucketPlan(buckets, specs, profile).pads["x"]

    assert np.frombuffer(pads(half, 0.1), np.float16)[0] == np.float16(0.1)
    assert np.isneginf(np.frombuffer(pads(half, -np.inf), np.float16)[0])
    for specs, value in ((half, 1e6), (whole, 0.5), (whole, 1 << 40), (whole, np.nan)):
        with pytest.raises(EngineError, match="is no value of type"):
            pads(specs, value)
