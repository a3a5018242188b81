"""Outputs whose shape depends on the inputs' values: their memory comes while TensorRT runs, so no graph is made."""

from __future__ import annotations

import numpy as np
import pytest

from attngraft.errors import EngineError
from attngraft.runtime import Buckets, Session
from attngraft.runtime.output_allocator import OutputMemory
from fake_bench import Bench, CudaArray, expected, log_calls, on_device, rows

REASON = "the shape of output 'y' depends on the input's values"


def kept(count: int, positive: int) -> np.ndarray:
    """Rows of which the first so many begin with no negative number."""
    x = rows(count, 1)
    x[positive:, 0] = -1
    return x


@pytest.mark.parametrize("kind", ["host", "device"])
def test_outputs_have_the_shape_that_the_run_gave(bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    on_device(bench, monkeypatch)
    bench.behaviour.data_dependent = True
    with Session(bench.engine) as run:
        with pytest.warns(RuntimeWarning, match=REASON) as caught:
            for count, positive in ((8, 3), (8, 8), (8, 0), (2, 1), (8, 5)):
                x = kept(count, positive)
                output = run.run({"x": x if kind == "host" else CudaArray(x)})["y"]
                assert output.shape == (positive, 4)
                np.testing.assert_array_equal(output if kind == "host" else output.numpy(), expected(x[:positive]))
        assert len(caught) == 1
        found = run.statistics
    assert (found.plain_runs, found.fallbacks, found.captures, found.replays) == (5, 5, 0, 0)
    assert found.fallback_reasons == (REASON,)
    assert bench.gpu.launches == 0
    del output
    assert not bench.gpu.memory


def test_earlier_outputs_stay_as_they_are(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    on_device(bench, monkeypatch)
    bench.behaviour.data_dependent = True
    with Session(bench.engine, cuda_graph=False) as run:
        first = run.run({"x": CudaArray(kept(8, 2))})["y"]
        run.run({"x": CudaArray(kept(8, 8))})  # for which the memory has to grow
        np.testing.assert_array_equal(first.numpy(), expected(kept(8, 2)[:2]))
        assert run.statistics.fallbacks == 0  # nobody asked for a graph


def test_memory_that_grows_waits_for_the_work_that_uses_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    on_device(bench, monkeypatch)
    bench.behaviour.data_dependent = True
    with Session(bench.engine, cuda_graph=False) as run:
        outputs = [run.run({"x": CudaArray(kept(8, 1))}, stream=7)]  # which does not wait
        seen = log_calls(bench, monkeypatch, "cudaStreamSynchronize", "cudaFreeAsync")
        outputs.append(run.run({"x": CudaArray(kept(8, 7))}, stream=7))
        assert seen == ["cudaStreamSynchronize", "cudaFreeAsync"]


def test_no_memory_for_an_output_is_said_in_one_line(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.behaviour.data_dependent = True
    with Session(bench.engine, cuda_graph=False) as run:
        with monkeypatch.context() as patch:
            failure = bench.gpu.cudaError_t.cudaErrorMemoryAllocation
            allocate = bench.gpu.cudaMallocFromPoolAsync
            patch.setattr(OutputMemory, "reallocate", refusing(OutputMemory.reallocate, bench, failure, allocate))
            with pytest.raises(EngineError, match="while running: .*cudaErrorMemoryAllocation") as raised:
                run.run({"x": kept(8, 4)})
        assert "\n" not in str(raised.value)
        np.testing.assert_array_equal(run.run({"x": kept(8, 4)})["y"], expected(kept(8, 4)[:4]))


def refusing(reallocate: object, bench: Bench, failure: object, allocate: object) -> object:
    """`reallocate` on a device that is full in that moment."""

    def call(self: OutputMemory, nbytes: int) -> int | None:
        bench.gpu.cudaMallocFromPoolAsync = lambda *_: (failure, None)
        try:
            return reallocate(self, nbytes)
        finally:
            bench.gpu.cudaMallocFromPoolAsync = allocate

    return call


def test_padding_cannot_be_cut_from_such_an_output(bench: Bench) -> None:
    bench.behaviour.data_dependent = True
    buckets = Buckets(sizes={"rows": (4,)}, inputs={"x": {0: "rows"}}, pad={"x": 0}, outputs={"y": {0: "rows"}})
    with Session(bench.engine, cuda_graph=False, buckets=buckets) as run:
        with pytest.raises(EngineError, match="output 'y': its shape depends .* open the session without buckets"):
            run.run({"x": kept(3, 2)})
        np.testing.assert_array_equal(run.run({"x": kept(4, 2)})["y"], expected(kept(4, 2)[:2]))
