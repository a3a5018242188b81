"""Runs in a session's own thread: order, errors, cancellation."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import CancelledError, Future

import numpy as np
import pytest

from attngraft.errors import EngineError
from attngraft.runtime import DeviceArray, Session
from attngraft.runtime.runner import Runner
from fake_bench import Bench, CudaArray, expected, on_device, rows


def test_results_come_in_order_and_with_their_own_values(bench: Bench) -> None:
    done: list[int] = []
    with Session(bench.engine) as run:
        futures = []
        for turn in range(20):
            future = run.submit({"x": rows(1 + turn % 3, turn)})
            future.add_done_callback(lambda _, turn=turn: done.append(turn))
            futures.append(future)
        for turn, future in enumerate(futures):
            np.testing.assert_array_equal(future.result(timeout=30)["y"], expected(rows(1 + turn % 3, turn)))
    assert done == list(range(20))


def test_device_arrays_give_device_arrays(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    on_device(bench, monkeypatch)
    with Session(bench.engine) as run:
        output = run.submit({"x": CudaArray(rows(2))}).result(timeout=30)["y"]
        assert isinstance(output, DeviceArray)
        np.testing.assert_array_equal(output.numpy(), expected(rows(2)))


def test_device_arrays_are_awaited_where_they_are_submitted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer's stream is asked for in the submitting thread, and never with the session's own stream."""
    on_device(bench, monkeypatch)
    asked: list[tuple[str, int]] = []
    with Session(bench.engine) as run:
        own = run._stream.handle

        class Produced(CudaArray):
            def __dlpack_device__(self) -> tuple[int, int]:
                asked.append((threading.current_thread().name, 0))
                return 99, 0

        assert isinstance(run.submit({"x": Produced(rows(1))}).exception(timeout=30), EngineError)
        blocked: list[int] = []
        block = bench.gpu.cudaStreamWaitEvent
        monkeypatch.setattr(
            bench.gpu, "cudaStreamWaitEvent", lambda s, *a: (blocked.append(s), block(s, *a))[1], raising=False
        )
        run.submit({"x": CudaArray(rows(1))}).result(timeout=30)
    assert asked == [(threading.current_thread().name, 0)]
    assert len(blocked) == 2 and blocked[0] != own and blocked[1] == own


def test_errors_are_in_the_future_and_do_not_stop_the_next(bench: Bench) -> None:
    with Session(bench.engine) as run:
        futures = [run.submit({"x": x}) for x in (rows(9), rows(2).astype(np.float64), "no array", rows(2))]
        futures.append(run.submit({}))
        reasons = [future.exception(timeout=30) for future in futures]
        assert [type(reason) for reason in reasons] == [EngineError] * 3 + [type(None), EngineError]
        np.testing.assert_array_equal(futures[3].result()["y"], expected(rows(2)))


def test_close_cancels_what_has_not_begun(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    really_run = Runner.run

    def slow(self: Runner, work: object) -> None:
        begun.set()
        assert go_on.wait(30)
        really_run(self, work)

    monkeypatch.setattr(Runner, "run", slow)
    run = Session(bench.engine)
    futures = [run.submit({"x": rows(2, turn)}) for turn in range(4)]
    assert begun.wait(30)
    closing = threading.Thread(target=run.close)
    closing.start()
    for future in futures[1:]:
        with pytest.raises(CancelledError):
            future.result(timeout=30)
    with pytest.raises(EngineError, match="the session is closed"):
        run.submit({"x": rows(2)})
    go_on.set()
    closing.join(30)
    np.testing.assert_array_equal(futures[0].result(timeout=30)["y"], expected(rows(2)))
    with pytest.raises(EngineError, match="the session is closed"):
        run.submit({"x": rows(2)})
    del futures
    assert not bench.gpu.memory


def test_a_callback_may_close_the_session(bench: Bench) -> None:
    run = Session(bench.engine)
    closed = threading.Event()

    def close(_: Future[object]) -> None:
        run.close()
        closed.set()

    run.submit({"x": rows(2)}).add_done_callback(close)
    assert closed.wait(30)
    assert not bench.gpu.memory


def test_a_session_let_go_ends_its_thread(bench: Bench) -> None:
    run = Session(bench.engine)
    run.submit({"x": rows(2)}).result(timeout=30)
    (thread,) = [thread for thread in threading.enumerate() if thread.name.startswith("attngraft-session")]
    del run
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()
    assert not bench.gpu.memory


def test_runs_and_submissions_of_several_threads(bench: Bench) -> None:
    wrong: list[object] = []
    with Session(bench.engine) as run:

        def work(first: int) -> None:
            for turn in range(30):
                x = rows(1 + (first + turn) % 5, 100 * first + turn)
                given = run.run({"x": x}) if turn % 2 else run.submit({"x": x}).result(timeout=30)
                if not np.array_equal(given["y"], expected(x)):
                    wrong.append((first, turn))

        threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not wrong
        assert run.statistics.plain_runs + run.statistics.replays == 120
