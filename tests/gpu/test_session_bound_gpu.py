"""Runs on the caller's own device memory: no copies, right answers, and little of Python's time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from cuda.bindings import runtime as cudart

from attngraft.errors import EngineError
from attngraft.runtime import DeviceArray, Session
from device_memory import allocations
from engine_cases import attention_inputs
from engine_models import HIDDEN
from session_cases import free_bytes, on_gpu

MOST_ADDED_US = 15
"""What Python may add to one launch of the graph."""


def plain_answer(engine: Path, inputs: dict[str, np.ndarray]) -> np.ndarray:
    with Session(engine, cuda_graph=False) as plain:
        return plain.run(inputs)["y"]


def test_values_are_read_and_written_in_place(attention_engine: Path) -> None:
    arrays = on_gpu(attention_inputs(2, 8))
    y = torch.zeros(2, 8, HIDDEN, device="cuda")
    with Session(attention_engine) as session:
        bound = session.bind(arrays, {"y": y})
        for seed in range(5):
            fresh = attention_inputs(2, 8, seed)
            for name, value in fresh.items():
                arrays[name].copy_(torch.from_numpy(value))
            assert bound.run()["y"] is y
            np.testing.assert_array_equal(y.cpu().numpy(), plain_answer(attention_engine, fresh))
            session.run(attention_inputs(4, 64, seed))  # other shapes, in the session's own buffers
        found = session.statistics
        assert (found.captures, found.one_graph_reason) == (2, None)
        assert found.replays == 6  # each graph is captured, confirmed, and replayed three times
        free = free_bytes()
        assert allocations(lambda: [bound.run() for _ in range(50)]) == 0
        assert free - free_bytes() < 2 << 20  # the driver's smallest block


def test_the_caller_stream_orders_a_bound_run(attention_engine: Path) -> None:
    stream = torch.cuda.Stream()
    arrays = on_gpu(attention_inputs(2, 8, 1))
    values = on_gpu(attention_inputs(2, 8, 2))
    with Session(attention_engine) as session:
        bound = session.bind(arrays)
        assert isinstance(bound.outputs["y"], DeviceArray)
        y = torch.from_dlpack(bound.outputs["y"])
        bound.run()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(100_000_000)
            for name, value in values.items():
                arrays[name].copy_(value)
            bound.run(stream=stream.cuda_stream)
            assert not stream.query()  # `run` has not waited
            copy = y.clone()
            for value in arrays.values():
                value.zero_()
        stream.synchronize()
    np.testing.assert_array_equal(copy.cpu().numpy(), plain_answer(attention_engine, attention_inputs(2, 8, 2)))


@pytest.mark.parametrize(
    ("change", "outputs", "reason"),
    [
        ({"x": np.zeros((2, 8, HIDDEN), np.float32)}, None, "is on the host"),
        ({"x": torch.zeros(2 * 8 * HIDDEN + 1, device="cuda")[1:].view(2, 8, HIDDEN)}, None, "256 bytes"),
        ({"x": torch.zeros(2, HIDDEN, 8, device="cuda").transpose(1, 2)}, None, "not contiguous"),
        ({"x": torch.zeros(2, 8, HIDDEN, device="cuda", dtype=torch.float16)}, None, "is float16"),
        ({}, {"y": torch.zeros(2, 8, 1, device="cuda")}, "but the engine gives float32 2x8x32"),
        ({}, {"y": torch.zeros(2, 8, HIDDEN, device="cuda", dtype=torch.int32)}, "is int32"),
        ({}, {}, "output 'y': is not given"),
    ],
)  # fmt: skip
def test_what_cannot_be_bound(
    attention_engine: Path, change: dict[str, object], outputs: dict[str, object] | None, reason: str
) -> None:
    with Session(attention_engine) as session, pytest.raises(EngineError, match=reason) as raised:
        session.bind({**on_gpu(attention_inputs(2, 8)), **change}, outputs)
    assert "\n" not in str(raised.value)


def test_an_output_in_the_place_of_an_input(attention_engine: Path) -> None:
    arrays = on_gpu(attention_inputs(2, 8))
    with Session(attention_engine) as session, pytest.raises(EngineError, match="share memory"):
        session.bind(arrays, {"y": arrays["x"]})


def median_us(call: Callable[[], object]) -> float:
    """Host time of one call, the GPU's queue never being full."""
    times = []
    for _ in range(10):
        torch.cuda.synchronize()
        for _ in range(50):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)


def test_what_python_adds_to_a_replay(attention_engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays = on_gpu(attention_inputs(2, 8))
    handle = torch.cuda.Stream().cuda_stream
    torch.cuda.synchronize()
    with Session(attention_engine) as session:
        bound = session.bind(arrays, {"y": torch.zeros(2, 8, HIDDEN, device="cuda")})
        bound.run()
        (cached,) = session._cache._graphs.values()
        executable = cached.graph._executable
        bare = median_us(lambda: cudart.cudaGraphLaunch(executable, handle))
        in_place = median_us(lambda: bound.run(stream=handle))
        session.run(arrays)
        copied = median_us(lambda: session.run(arrays, stream=handle))
    with capsys.disabled():
        print(f"\nlaunch {bare:.1f} us; bound run {in_place:.1f} us; run with device arrays {copied:.1f} us")
    assert in_place - bare < MOST_ADDED_US
