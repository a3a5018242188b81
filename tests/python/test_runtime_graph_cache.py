"""Several graphs in one session: kept, confirmed, let go, and never the source of a wrong answer."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest

from attngraft.errors import CaptureError, EngineError
from attngraft.runtime import Session
from fake_bench import Bench, CudaArray, expected, log_calls, on_device, rows


def check(run: Session, count: int, first: float = 0.0) -> None:
    x = rows(count, first)
    np.testing.assert_array_equal(run.run({"x": x})["y"], expected(x))


def test_a_shape_that_comes_back_is_not_captured_again(bench: Bench) -> None:
    with Session(bench.engine) as run:
        for count in (8, 2, 1, 8, 2, 1, 8, 2, 1):
            check(run, count, first=count)
        found = run.statistics
    assert (found.captures, found.confirmations, found.replays, found.evictions) == (3, 3, 3, 0)
    assert (found.plain_runs, found.graphs, found.fallbacks) == (6, 3, 0)
    assert found.graph_bytes == 3 * bench.gpu.graph_bytes


def test_a_shape_that_stays_needs_no_confirmation(bench: Bench) -> None:
    with Session(bench.engine) as run:
        for count in (2, 2, 2):
            check(run, count)
        assert (run.statistics.confirmations, run.statistics.replays) == (0, 2)


def test_a_graph_is_confirmed_while_its_context_is_at_other_shapes(bench: Bench) -> None:
    """Replayed after its own shapes are set again, a stale graph would pass."""
    bench.behaviour.stale = True
    with Session(bench.engine) as run:
        check(run, 8)
        check(run, 2)
        with pytest.warns(RuntimeWarning, match="one graph is kept at a time") as caught:
            check(run, 8)
        assert len(caught) == 1 and caught[0].filename == __file__
        assert run.statistics.one_graph_reason is not None
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # said once
            for count in (2, 2, 8, 1, 1, 1):
                check(run, count)
                assert run.statistics.graphs == 1
        found = run.statistics
    # Two at first, one more for the shape that was not confirmed, then one at each change.
    assert (found.captures, found.confirmations, found.replays) == (6, 1, 3)
    assert found.fallbacks == 0


def test_with_one_graph_a_shape_that_cannot_be_captured_does_not_leave_a_stale_one(bench: Bench) -> None:
    bench.behaviour.stale = True
    with Session(bench.engine) as run:
        check(run, 8)
        check(run, 2)
        with pytest.warns(RuntimeWarning, match="one graph"):
            check(run, 8)
        bench.gpu.fail_capture = True
        with pytest.warns(RuntimeWarning, match="without a CUDA graph"):
            check(run, 2)
        bench.gpu.fail_capture = False
        check(run, 8)
        check(run, 8)


def test_an_engine_that_begins_to_differ_between_runs_is_not_called_stale(bench: Bench) -> None:
    with Session(bench.engine) as run:
        check(run, 8)
        check(run, 2)
        bench.behaviour.drift = 1.0
        with pytest.warns(RuntimeWarning, match="two plain runs differ"):
            run.run({"x": rows(8)})
        assert run.statistics.one_graph_reason is None
        assert (run.statistics.graphs, run.statistics.fallbacks) == (1, 1)


@pytest.mark.parametrize(("is_stale", "replays"), [(False, 150), (True, 8)])
def test_random_shapes_from_two_profiles_never_give_a_wrong_answer(bench: Bench, is_stale: bool, replays: int) -> None:
    bench.behaviour.profiles = 2
    bench.behaviour.stale = is_stale
    draw = random.Random(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Session(bench.engine, max_graphs=12) as run:
            for turn in range(300):
                x = rows(draw.randint(1, 8), turn, columns=draw.choice((4, 8)))
                np.testing.assert_array_equal(run.run({"x": x})["y"], expected(x))
            found = run.statistics
    assert found.plain_runs + found.replays == 300
    assert found.replays > replays
    assert (found.one_graph_reason is not None) == is_stale


def test_graphs_that_use_a_buffer_that_moved_are_gone(bench: Bench) -> None:
    with Session(bench.engine) as run:
        check(run, 2)
        check(run, 3)
        assert run.statistics.graphs == 1  # the buffers grew
        check(run, 4)
        assert run.statistics.graphs == 2  # they had grown by a factor
        check(run, 8)
        found = run.statistics
        assert (found.graphs, found.evictions, found.captures) == (1, 3, 4)
        for count in (1, 2, 3, 8):
            check(run, count)
    assert not bench.gpu.graphs


def test_no_buffer_goes_before_the_work_that_uses_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is freed in the order of another stream than the session's, so the host must wait in between."""
    on_device(bench, monkeypatch)
    with Session(bench.engine) as run:
        kept = [run.run({"x": CudaArray(rows(1))}, stream=7)]  # which does not wait
        seen = log_calls(bench, monkeypatch, "cudaStreamSynchronize", "cudaFreeAsync", "cudaGraphExecDestroy")
        kept.append(run.run({"x": CudaArray(rows(8))}, stream=7))
        assert "cudaFreeAsync" in seen and "cudaGraphExecDestroy" in seen
        assert seen[0] == "cudaStreamSynchronize"


def test_the_graph_used_least_recently_goes_first(bench: Bench) -> None:
    with Session(bench.engine, max_graphs=2) as run:
        for count in (8, 2, 8, 1):  # the graph of 2 goes for that of 1
            check(run, count)
        assert (run.statistics.graphs, run.statistics.evictions, run.statistics.captures) == (2, 1, 3)
        check(run, 8)
        check(run, 1)
        assert run.statistics.captures == 3
        check(run, 2)
        assert (run.statistics.captures, len(bench.gpu.graphs)) == (4, 2)


def test_graphs_hold_no_more_memory_than_allowed(bench: Bench) -> None:
    with Session(bench.engine, max_graph_bytes=2 * bench.gpu.graph_bytes) as run:
        for count in (8, 7, 6, 5, 8, 7):
            check(run, count)
            assert run.statistics.graph_bytes <= 2 * bench.gpu.graph_bytes
        assert run.statistics.graphs == 2
    with Session(bench.engine, max_graph_bytes=0) as run:
        for count in (8, 8, 2, 2):
            check(run, count)
        assert (run.statistics.graphs, run.statistics.replays) == (1, 2)  # the last one stays, whatever it holds


@pytest.mark.parametrize("limits", [{"max_graphs": 0}, {"max_graph_bytes": -1}])
def test_limits_that_keep_no_graph(bench: Bench, limits: dict[str, int]) -> None:
    with pytest.raises(EngineError, match="cuda_graph=False") as raised:
        Session(bench.engine, **limits)
    assert "\n" not in str(raised.value)


def test_a_full_device_makes_room_by_letting_graphs_go(bench: Bench) -> None:
    with Session(bench.engine) as run:
        check(run, 8)
        check(run, 7)
        bench.gpu.most_graphs = 2
        check(run, 6)
        found = run.statistics
        assert (found.graphs, found.evictions, found.captures, found.fallbacks) == (1, 2, 3, 0)


def test_a_device_without_room_for_any_graph_runs_plainly(bench: Bench) -> None:
    with Session(bench.engine) as run:
        check(run, 8)
        bench.gpu.most_graphs = 0
        with pytest.warns(RuntimeWarning, match="cudaErrorMemoryAllocation") as caught:
            check(run, 2)
            check(run, 2)
        assert len(caught) == 1
        found = run.statistics
        assert (found.graphs, found.evictions, found.fallbacks) == (0, 1, 2)
        assert found.fallback_reason is not None and "cudaErrorMemoryAllocation" in found.fallback_reason
        bench.gpu.most_graphs = None  # other shapes are tried again
        check(run, 3)
        check(run, 3)
        assert (run.statistics.graphs, run.statistics.replays) == (1, 1)


def test_an_upload_that_fails_leaves_no_graph(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = bench.gpu.cudaError_t.cudaErrorMemoryAllocation
    monkeypatch.setattr(bench.gpu, "cudaGraphUpload", lambda *_: (failure,), raising=False)
    with Session(bench.engine) as run:
        with pytest.warns(RuntimeWarning, match="cudaGraphUpload"):
            check(run, 2)
        assert not bench.gpu.graphs


def test_one_shape_that_cannot_be_captured_leaves_the_others_their_graphs(bench: Bench) -> None:
    with Session(bench.engine) as run:
        check(run, 8)
        bench.behaviour.capturable = False
        with pytest.warns(RuntimeWarning, match="TensorRT says"):
            check(run, 2)
        bench.behaviour.capturable = True
        for count in (8, 8, 2, 8):
            check(run, count)
        assert (run.statistics.replays, run.statistics.fallbacks) == (2, 2)


def test_a_wrong_replay_at_capture_is_an_error_at_every_shape(bench: Bench) -> None:
    with Session(bench.engine) as run:
        check(run, 8)
        bench.behaviour.replay_error = 1e-3
        for count in (2, 2, 3):
            with pytest.raises(CaptureError):
                run.run({"x": rows(count)})
        check(run, 8)  # a confirmation: its graph was captured before the fault


def test_an_error_in_a_confirmation_leaves_the_session_usable(bench: Bench) -> None:
    with Session(bench.engine) as run:
        check(run, 8)
        check(run, 2)
        bench.behaviour.fail = True
        with pytest.raises(EngineError, match="while running"):
            run.run({"x": rows(8)})
        bench.behaviour.fail = False
        for count in (8, 2, 8, 2):
            check(run, count)


def test_nan_passes_through_checks_and_replays(bench: Bench) -> None:
    x = rows(2)
    x[1, 2] = np.nan
    with Session(bench.engine) as run:
        for count in (8, 2, 8, 2, 2):
            given = x if count == 2 else rows(count)
            np.testing.assert_array_equal(run.run({"x": given})["y"], expected(given))
        assert (run.statistics.confirmations, run.statistics.replays, run.statistics.fallbacks) == (2, 1, 0)


def test_memory_that_does_not_suffice_for_buffers(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with Session(bench.engine) as run:
        check(run, 2)
        allocate = bench.gpu.cudaMallocFromPoolAsync
        failure = bench.gpu.cudaError_t.cudaErrorMemoryAllocation
        monkeypatch.setattr(bench.gpu, "cudaMallocFromPoolAsync", lambda *_: (failure, None), raising=False)
        with pytest.raises(EngineError, match="cudaErrorMemoryAllocation"):
            run.run({"x": rows(8)})
        monkeypatch.setattr(bench.gpu, "cudaMallocFromPoolAsync", allocate, raising=False)
        for count in (8, 2, 8, 2):
            check(run, count)


def test_warm_up_makes_the_first_request_a_replay(bench: Bench) -> None:
    said: list[str] = []
    with Session(bench.engine) as run:
        run.warm_up([{"x": (1, 4)}, {"x": [8, 4]}, {"x": rows(2)}], progress=said.append)
        before = run.statistics
        assert (before.captures, before.confirmations, before.evictions) == (3, 3, 0)
        for count in (8, 1, 2, 1, 8):
            check(run, count)
        after = run.statistics
    assert after.replays - before.replays == 5
    assert after.plain_runs == before.plain_runs
    assert said[0] == "warm-up: captured 1 of 3" and said[-1] == "warm-up: confirmed 3 of 3"


def test_warm_up_of_one_shape(bench: Bench) -> None:
    with Session(bench.engine) as run:
        run.warm_up({"x": (2, 4)})
        check(run, 2)
        assert (run.statistics.plain_runs, run.statistics.replays) == (1, 1)


@pytest.mark.parametrize(
    ("given", "reason"),
    [({"z": (1, 4)}, "no such input"), ({"x": (9, 4)}, "outside the engine's profile"), ({"x": "1x4"}, "is no array")],
)
def test_warm_up_with_what_does_not_fit(bench: Bench, given: dict[str, object], reason: str) -> None:
    with Session(bench.engine) as run, pytest.raises(EngineError, match=reason):
        run.warm_up(given)


def test_two_sessions_have_graphs_of_their_own(bench: Bench) -> None:
    with Session(bench.engine) as one, Session(bench.engine) as other:
        for count in (8, 2, 8, 2):
            check(one, count)
            check(other, 9 - count)
        assert (one.statistics.graphs, other.statistics.graphs) == (2, 2)
        one.close()
        check(other, 1)
        check(other, 7)
        assert other.statistics.replays == 1
    assert not bench.gpu.graphs and not bench.gpu.memory


def test_a_session_on_the_second_device(bench: Bench) -> None:
    bench.gpu.devices = 2
    with Session(bench.engine, device=1) as run:
        bench.gpu.device = 0
        check(run, 2)
        assert bench.gpu.device == 1  # no context was current before, so none is put back


def test_statistics_outlive_the_session_and_say_what_is_held(bench: Bench) -> None:
    with Session(bench.engine) as run:
        check(run, 8)
        found = run.statistics
        assert found.buffer_bytes == 2 * 8 * 4 * 4 and found.staging_bytes == found.buffer_bytes
    assert run.statistics == found
