"""When a session runs plainly, captures, replays, falls back and refuses; on a GPU made of host memory."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

from attngraft.errors import CaptureError, EngineError
from attngraft.runtime import DeviceArray, Session, cuda
from attngraft.runtime.buffers import MemoryPool
from attngraft.runtime.cuda import LEGACY_STREAM
from fake_bench import Bench, CudaArray, expected, log_calls, on_device, rows
from fake_gpu import SUCCESS, FakeDriver, FakeRuntime


def test_one_plain_run_then_replays(bench: Bench) -> None:
    with Session(bench.engine) as run:
        for first in range(5):
            x = rows(2, first)
            np.testing.assert_array_equal(run.run({"x": x})["y"], expected(x))
        found = run.statistics
    assert (found.plain_runs, found.captures, found.replays, found.fallbacks) == (1, 1, 4, 0)
    assert bench.gpu.launches == 5  # the replay that checks the capture, and four more


def test_without_a_graph(bench: Bench) -> None:
    with Session(bench.engine, cuda_graph=False) as run:
        for first in range(3):
            x = rows(2, first)
            np.testing.assert_array_equal(run.run({"x": x})["y"], expected(x))
        assert (run.statistics.plain_runs, run.statistics.captures, run.statistics.fallbacks) == (3, 0, 0)
    assert bench.gpu.launches == 0


def test_outputs_do_not_alias(bench: Bench) -> None:
    with Session(bench.engine) as run:
        outputs = [run.run({"x": rows(2, first)})["y"] for first in range(4)]
    for first, output in enumerate(outputs):
        np.testing.assert_array_equal(output, expected(rows(2, first)))


def test_a_replay_that_differs_is_never_an_answer(bench: Bench) -> None:
    bench.behaviour.replay_error = 1e-7
    with Session(bench.engine) as run:
        for _ in range(2):
            with pytest.raises(CaptureError, match="replay differs from the plain run"):
                run.run({"x": np.zeros((1, 4), np.float32)})
        assert run.statistics.replays == 0
    assert not bench.gpu.graphs


def test_a_replay_that_writes_nothing_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeRuntime, "cudaGraphLaunch", FakeRuntime._nothing)
    with Session(bench.engine) as run, pytest.raises(CaptureError):
        run.run({"x": rows(1)})


def test_an_engine_that_is_not_deterministic_runs_plainly(bench: Bench) -> None:
    bench.behaviour.drift = 1.0
    with Session(bench.engine) as run:
        with pytest.warns(RuntimeWarning, match="two plain runs differ"):
            run.run({"x": rows(1)})
        run.run({"x": rows(1)})
        assert (run.statistics.plain_runs, run.statistics.replays, run.statistics.fallbacks) == (2, 0, 2)


@pytest.mark.parametrize("cause", ["capture fails", "TensorRT says no"])
def test_what_cannot_be_captured_runs_plainly_and_says_so_once(bench: Bench, cause: str) -> None:
    bench.gpu.fail_capture = cause == "capture fails"
    bench.behaviour.capturable = cause != "TensorRT says no"
    with Session(bench.engine) as run:
        with pytest.warns(RuntimeWarning, match="runs without a CUDA graph") as caught:
            for count in (1, 1, 3):
                np.testing.assert_array_equal(run.run({"x": rows(count)})["y"], expected(rows(count)))
        assert len(caught) == 1
        assert caught[0].filename == __file__
        found = run.statistics
    assert (found.plain_runs, found.captures, found.fallbacks) == (3, 0, 3)
    assert found.fallback_reason is not None and "captured" in found.fallback_reason


def test_an_enqueue_error_is_raised(bench: Bench) -> None:
    with Session(bench.engine) as run:
        bench.behaviour.fail = True
        with pytest.raises(EngineError, match="TensorRT reports an error while running"):
            run.run({"x": rows(2)})
        bench.behaviour.fail = False
        np.testing.assert_array_equal(run.run({"x": rows(2)})["y"], expected(rows(2)))


def test_shapes_that_contradict_each_other(bench: Bench) -> None:
    with Session(bench.engine) as run:
        bench.behaviour.contradiction = True
        with pytest.raises(EngineError, match="shapes do not fit together"):
            run.run({"x": rows(2)})
        bench.behaviour.contradiction = False
        np.testing.assert_array_equal(run.run({"x": rows(2)})["y"], expected(rows(2)))


def test_a_kept_exception_keeps_nothing_on_the_gpu(bench: Bench) -> None:
    """Its traceback holds the frames in which it was raised, and with them the session's innermost objects."""
    with Session(bench.engine) as run:
        run.run({"x": rows(2)})
        bench.behaviour.contradiction = True
        with pytest.raises(EngineError) as kept:
            run.run({"x": rows(3)})
    assert not bench.gpu.memory, kept


def test_a_pool_that_dies_before_its_buffers_is_given_back_with_the_last(bench: Bench) -> None:
    pool = MemoryPool(0)
    buffers = [pool.allocate(4, 0), pool.allocate(4, 0)]
    pool.__del__()  # what the garbage collector may do first, when all of them are garbage together
    del pool
    buffers.pop()
    assert bench.gpu.pools_destroyed == 0
    buffers.pop()
    assert bench.gpu.pools_destroyed == 1


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ({}, "'x': is not given"),
        ({"x": rows(9)}, "outside the engine's profile"),
        ({"x": rows(2).astype(np.float64)}, "is float64"),
        ({"x": rows(2), "z": rows(2)}, "no such input"),
        ([rows(2)], "inputs: list has no names; give a dict with x"),
    ],
)
def test_refused_inputs_leave_the_graph_alone(bench: Bench, inputs: dict[str, np.ndarray], reason: str) -> None:
    with Session(bench.engine) as run:
        run.run({"x": rows(2)})
        with pytest.raises(EngineError, match=reason):
            run.run(inputs)
        run.run({"x": rows(2)})
        assert run.statistics.replays == 1


def test_non_contiguous_numpy_inputs_are_copied(bench: Bench) -> None:
    x = rows(8)[::-2]
    with Session(bench.engine) as run:
        np.testing.assert_array_equal(run.run({"x": x})["y"], expected(x))


def test_everything_is_freed(bench: Bench) -> None:
    run = Session(bench.engine)
    for count in (2, 8, 1):
        run.run({"x": rows(count)})
    run.close()
    run.close()
    gc.collect()
    assert not bench.gpu.memory
    assert not bench.gpu.graphs
    with pytest.raises(EngineError, match="the session is closed"):
        run.run({"x": rows(2)})


def test_a_session_let_go_frees_everything(bench: Bench) -> None:
    run = Session(bench.engine)
    run.run({"x": rows(2)})
    del run
    gc.collect()
    assert not bench.gpu.memory


def test_device_arrays_in_give_device_arrays_out(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    on_device(bench, monkeypatch)
    with Session(bench.engine) as run:
        arrays = [rows(2, first) for first in range(4)]  # at four addresses
        outputs = [run.run({"x": CudaArray(array)})["y"] for array in arrays]
        assert (run.statistics.captures, run.statistics.replays) == (1, 3)
    for array, output in zip(arrays, outputs):
        assert isinstance(output, DeviceArray)
        assert (output.shape, output.dtype, output.nbytes) == ((2, 4), "float32", 32)
        np.testing.assert_array_equal(output.numpy(), expected(array))
        assert output.__cuda_array_interface__["typestr"] == "<f4"
    # Outputs outlive their session, and are freed when nobody holds them.
    assert bench.gpu.memory
    del outputs, output
    gc.collect()
    assert not bench.gpu.memory


@pytest.fixture
def tensors_pass_for_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's tensors on the host say that they are on GPU 0, made in stream 77."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda tensor: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 77, raising=False)


@pytest.mark.usefixtures("tensors_pass_for_the_gpus")
def test_a_tensor_whose_storage_moves_or_whose_shape_changes(bench: Bench) -> None:
    """The same object each time."""
    with Session(bench.engine) as run:
        tensor = torch.from_numpy(rows(2))
        for turn, count in enumerate((2, 2, 3, 2, 3)):
            tensor.set_(torch.from_numpy(rows(count, turn)))
            output = run.run({"x": tensor})["y"]
            np.testing.assert_array_equal(output.numpy(), expected(rows(count, turn)))
        for wrong, reason in ((rows(2).astype(np.int32), "is int32"), (rows(9), "outside the engine's profile")):
            tensor.data = torch.from_numpy(wrong)
            with pytest.raises(EngineError, match=reason):
                run.run({"x": tensor})
        tensor.data = torch.from_numpy(rows(2, 9))
        np.testing.assert_array_equal(run.run({"x": tensor})["y"].numpy(), expected(rows(2, 9)))


@pytest.mark.usefixtures("tensors_pass_for_the_gpus")
def test_the_cuda_calls_of_a_replay(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a microsecond or so: those that are needed, and no others."""
    monkeypatch.setattr(cuda, "_primary_contexts", {0: 4096})
    monkeypatch.setattr(FakeDriver, "cuCtxGetCurrent", staticmethod(lambda: (0, 4096)))
    x = torch.from_numpy(rows(2))
    with Session(bench.engine) as run:
        run.run({"x": x})
        called = [name for name in vars(FakeRuntime) if name.startswith("cuda")]
        seen = log_calls(bench, monkeypatch, *called)
        output = run.run({"x": x})["y"]
        assert seen == [
            "cudaEventRecord",
            "cudaStreamWaitEvent",
            "cudaMemcpyAsync",
            "cudaGraphLaunch",
            "cudaMallocFromPoolAsync",
            "cudaMemcpyAsync",
            "cudaStreamSynchronize",
        ]
        seen.clear()
        del output
        assert seen == ["cudaFreeAsync"]


@pytest.mark.parametrize(
    ("interface", "caller", "waited_for"),
    [
        ({"version": 2}, None, [LEGACY_STREAM]),
        ({"version": 3, "stream": None}, None, [LEGACY_STREAM]),
        ({"version": 3, "stream": 7}, None, [7]),
        ({"version": 2}, 9, [9]),
        ({"version": 3, "stream": None}, 9, [9]),
        ({"version": 3, "stream": 7}, 9, [9, 7]),
    ],
)
def test_which_streams_are_waited_for(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    interface: dict[str, object],
    caller: int | None,
    waited_for: list[int],
) -> None:
    on_device(bench, monkeypatch)
    array = CudaArray(rows(2))
    array.__cuda_array_interface__ |= interface
    with Session(bench.engine) as run:
        run.run({"x": rows(2)})
        recorded: list[int] = []

        def record(event: object, stream: int) -> tuple[object]:
            recorded.append(stream)
            return (SUCCESS,)

        monkeypatch.setattr(bench.gpu, "cudaEventRecord", record, raising=False)
        run.run({"x": array}, stream=caller)
        own = run._stream.handle
    assert [stream for stream in recorded if stream != own] == waited_for


@pytest.mark.parametrize("stream", ["not a stream", 1.5, True, object()])
def test_what_is_no_stream(bench: Bench, stream: object) -> None:
    with Session(bench.engine) as run, pytest.raises(EngineError, match="stream: .* is no CUDA stream"):
        run.run({"x": rows(2)}, stream=stream)


def test_streams_by_handle_and_by_protocol(bench: Bench) -> None:
    protocol = type("Stream", (), {"__cuda_stream__": lambda self: (0, 7)})()
    with Session(bench.engine) as run:
        for stream in (0, 7, protocol):
            np.testing.assert_array_equal(run.run({"x": rows(2)}, stream=stream)["y"], expected(rows(2)))


def test_no_such_device(bench: Bench) -> None:
    with pytest.raises(EngineError, match="device 3: this machine has 1 GPU"):
        Session(bench.engine, device=3)
