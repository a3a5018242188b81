"""Many shapes, profiles and threads on one GPU: replays stay the plain run's bits, and memory stays flat."""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from cuda.bindings import runtime as cudart

from attngraft.contract import Role
from attngraft.errors import EngineError
from attngraft.runtime import Buckets, Session
from engine_cases import attention_inputs
from session_cases import WIDTH, free_bytes, on_gpu, reference, two_profile_engine

Answers = Callable[[dict[str, np.ndarray]], np.ndarray]

TOLERANCE = 1e-4
"""Of fp32 against float64, or against other kernels for another length: some hundred roundings of 6e-8."""

FLAT_BYTES = 16 << 20
"""What the driver may take in the meantime, in blocks of 2 MiB. A session that kept what it should let go would hold
more after hundreds of captures."""


@pytest.fixture(scope="module")
def answers(attention_engine: Path) -> Iterator[Answers]:
    """The plain session's answer, which replays must equal bit for bit."""
    lock = threading.Lock()
    with Session(attention_engine, cuda_graph=False) as plain:

        def answer(inputs: dict[str, np.ndarray]) -> np.ndarray:
            with lock:
                return plain.run(inputs)["y"]

        yield answer


@pytest.fixture(scope="module")
def wide_engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_profile_engine(tmp_path_factory.mktemp("profiles") / "model.engine")


def test_shapes_that_come_back_are_confirmed_once_and_then_replayed(attention_engine: Path, answers: Answers) -> None:
    shapes = [(4, 64), (2, 8), (1, 1), (3, 33)]
    with Session(attention_engine) as session:
        for seed, (batch, seq) in enumerate(shapes * 4):
            inputs = attention_inputs(batch, seq, seed)
            np.testing.assert_array_equal(session.run(inputs)["y"], answers(inputs))
        found = session.statistics
    assert found.one_graph_reason is None
    assert (found.captures, found.confirmations, found.replays) == (4, 4, 8)
    assert 0 <= found.graph_bytes < 64 << 20


def test_random_shapes_for_long_keep_memory_flat(attention_engine: Path, answers: Answers) -> None:
    draw = random.Random(0)
    with Session(attention_engine, max_graphs=12) as session:
        session.warm_up({"x": (4, 64, WIDTH), Role.KEEP: (4, 1, 64)})
        free = 0
        for turn in range(900):
            if turn == 300:
                free = free_bytes()
            # A few shapes that come often, and any others.
            batch, seq = draw.choice([(4, 64), (2, 8), (1, 1), (draw.randint(1, 4), draw.randint(1, 64))])
            inputs = attention_inputs(batch, seq, turn)
            expected = answers(inputs)
            if turn % 3 == 0:
                output = session.run(inputs)["y"]
            elif turn % 3 == 1:
                output = session.run(on_gpu(inputs))["y"].numpy()
            else:
                output = session.submit(inputs).result(timeout=60)["y"]
            np.testing.assert_array_equal(output, expected)
        assert free - free_bytes() < FLAT_BYTES
        found = session.statistics
    assert found.graphs <= 12 and found.evictions > 100
    assert found.replays > 300 and found.fallbacks == 0
    assert found.one_graph_reason is None


def test_two_profiles_interleaved(wide_engine: Path) -> None:
    rng = np.random.default_rng(0)
    with Session(wide_engine) as session:
        for turn in range(6):
            for batch, rows in ((2, 8), (8, 256), (4, 64), (1, 65)):
                x = rng.standard_normal((batch, rows, WIDTH)).astype(np.float32)
                np.testing.assert_allclose(session.run({"x": x})["y"], reference(x), rtol=TOLERANCE, atol=TOLERANCE)
        found = session.statistics
        assert found.one_graph_reason is None and found.replays > 8
        with pytest.raises(EngineError, match="profile 0 .*profile 1") as raised:
            session.run({"x": np.zeros((8, 64, WIDTH), np.float32)})  # a batch of the second, a length of the first
        assert "\n" not in str(raised.value)


def test_two_profiles_in_two_threads_and_two_sessions(wide_engine: Path) -> None:
    def work(session: Session, seed: int) -> None:
        rng = np.random.default_rng(seed)
        for turn in range(40):
            shape = ((2, 8), (8, 256), (3, 70))[(seed + turn) % 3]
            x = rng.standard_normal((*shape, WIDTH)).astype(np.float32)
            output = session.run(on_gpu({"x": x}))["y"].numpy() if turn % 2 else session.run({"x": x})["y"]
            np.testing.assert_allclose(output, reference(x), rtol=TOLERANCE, atol=TOLERANCE)

    with Session(wide_engine) as one, Session(wide_engine) as other, ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(work, (one, other)[seed % 2], seed) for seed in range(4)]:
            future.result(timeout=120)
        assert one.statistics.replays > 10 and other.statistics.replays > 10


def test_warm_up_makes_the_first_request_a_replay(attention_engine: Path, answers: Answers) -> None:
    with Session(attention_engine) as session:
        session.warm_up([{"x": (b, s, WIDTH), Role.KEEP: (b, 1, s)} for b, s in ((1, 8), (4, 64), (2, 8))])
        before = session.statistics
        assert (before.captures, before.one_graph_reason) == (3, None)
        for seed, (batch, seq) in enumerate(((2, 8), (1, 8), (4, 64), (1, 8))):
            inputs = attention_inputs(batch, seq, seed)
            np.testing.assert_array_equal(session.run(inputs)["y"], answers(inputs))
        after = session.statistics
    assert (after.replays - before.replays, after.plain_runs - before.plain_runs) == (4, 0)


@pytest.mark.parametrize("kind", ["host", "device"])
def test_buckets(attention_engine: Path, answers: Answers, kind: str) -> None:
    buckets = Buckets(
        sizes={"batch": (4,), "tokens": (16, 64)},
        inputs={"x": {0: "batch", 1: "tokens"}, Role.KEEP: {0: "batch", 2: "tokens"}},
        pad={"x": 0, Role.KEEP: False},
        outputs={"y": {0: "batch", 1: "tokens"}},
    )
    with Session(attention_engine, buckets=buckets) as session:
        for seed, (batch, seq) in enumerate([(4, 64), (3, 33), (1, 1), (2, 16), (4, 17), (3, 64)] * 2):
            inputs = attention_inputs(batch, seq, seed)
            inputs[Role.KEEP][..., 0] = True  # rows without any key would be spread over the padding too
            output = session.run(inputs if kind == "host" else on_gpu(inputs))["y"]
            output = output if kind == "host" else output.numpy()
            np.testing.assert_allclose(output, answers(inputs), rtol=TOLERANCE, atol=TOLERANCE)
        found = session.statistics
    assert (found.captures, found.graphs, found.padded_runs) == (2, 2, 10)


def test_nan_passes_through(attention_engine: Path, answers: Answers) -> None:
    inputs = attention_inputs(2, 8)
    inputs["x"][0, 3] = np.nan
    with Session(attention_engine) as session:
        for turn in range(4):
            session.run(attention_inputs(4, 64, turn))
            output = session.run(inputs)["y"]
            np.testing.assert_array_equal(output, answers(inputs))
            assert np.isnan(output[0]).any() and not np.isnan(output[1]).any()
        assert session.statistics.fallbacks == 0


def test_a_full_device_gives_right_answers(attention_engine: Path, answers: Answers) -> None:
    """With a graph that the driver still has room for, or without one."""
    warm, fresh = attention_inputs(4, 64), attention_inputs(3, 40)
    expected = answers(fresh)
    held = []
    with Session(attention_engine) as session:
        session.run(warm)
        torch.cuda.empty_cache()
        size = 1 << 36
        try:
            while size >= 1 << 16:
                status, address = cudart.cudaMalloc(size)
                if status == cudart.cudaError_t.cudaSuccess:
                    held.append(address)
                else:
                    cudart.cudaGetLastError()
                    size //= 2
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for _ in range(3):
                    np.testing.assert_array_equal(session.run(fresh)["y"], expected)
        finally:
            for address in held:
                cudart.cudaFree(address)
        found = session.statistics
        assert found.captures == 2 or "cudaErrorMemoryAllocation" in str(found.fallback_reason)
        np.testing.assert_array_equal(session.run(warm)["y"], answers(warm))


def test_submissions_are_answered_in_order(attention_engine: Path, answers: Answers) -> None:
    inputs = [attention_inputs(1 + seed % 4, 8 + 8 * (seed % 3), seed) for seed in range(24)]
    with Session(attention_engine) as session:
        futures = [session.submit(values if seed % 2 else on_gpu(values)) for seed, values in enumerate(inputs)]
        for values, future in zip(inputs, futures):
            output = future.result(timeout=60)["y"]
            output = output if isinstance(output, np.ndarray) else output.numpy()
            np.testing.assert_array_equal(output, answers(values))


@pytest.mark.parametrize("how", ["run", "submit"])
def test_tensors_of_the_current_stream_are_awaited(attention_engine: Path, answers: Answers, how: str) -> None:
    """Also by the session's own thread, whose current stream is another."""
    stream = torch.cuda.Stream()
    fresh = attention_inputs(2, 8, 2)
    with Session(attention_engine) as session:
        arrays = on_gpu(attention_inputs(2, 8, 1))
        session.run(arrays)
        values = on_gpu(fresh)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(100_000_000)
            for name, value in values.items():
                arrays[name].copy_(value)
            output = session.run(arrays) if how == "run" else session.submit(arrays).result(timeout=60)
        np.testing.assert_array_equal(output["y"].numpy(), answers(fresh))


def test_outputs_as_inputs_of_another_session(attention_engine: Path, answers: Answers) -> None:
    inputs = attention_inputs(2, 8)
    again = {**inputs, "x": answers(inputs)}
    stream = torch.cuda.Stream()
    with Session(attention_engine) as first, Session(attention_engine) as second:
        for caller in (None, stream.cuda_stream, None):
            hidden = first.run(on_gpu(inputs), stream=caller)["y"]
            output = second.run({"x": hidden, Role.KEEP: inputs[Role.KEEP]}, stream=caller)["y"]
            np.testing.assert_array_equal(output.numpy(), answers(again))
