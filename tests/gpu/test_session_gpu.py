"""Sessions on the GPU: replay against plain runs, arrays of other libraries, streams, threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from attngraft.contract import Role
from attngraft.engine import ShapeRange
from attngraft.errors import EngineError
from attngraft.runtime import DeviceArray, Session
from engine_cases import BuildFunction, attention_inputs

INT64 = TensorProto.INT64

LONG_WORK_CYCLES = 100_000_000
"""Of torch.cuda._sleep: about 50 ms, far longer than a run."""

SHAPES = [(2, 8), (4, 64), (1, 1), (3, 33)]


@pytest.fixture
def session(attention_engine: Path) -> Iterator[Session]:
    with Session(attention_engine) as session:
        yield session


@pytest.fixture
def answers(attention_engine: Path) -> Iterator[Callable[[dict[str, np.ndarray]], np.ndarray]]:
    """The plain session's answer, which replays must equal bit for bit."""
    with Session(attention_engine, cuda_graph=False) as plain:
        yield lambda inputs: plain.run(inputs)["y"]


def on_gpu(inputs: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(value).cuda() for name, value in inputs.items()}


def test_replays_equal_plain_runs(session: Session, answers: Callable[..., np.ndarray]) -> None:
    for seed in range(10):
        inputs = attention_inputs(2, 8, seed)
        np.testing.assert_array_equal(session.run(inputs)["y"], answers(inputs))
    found = session.statistics
    assert (found.plain_runs, found.captures, found.replays, found.fallbacks) == (1, 1, 9, 0)


def test_shapes_change_and_come_back(session: Session, answers: Callable[..., np.ndarray]) -> None:
    for seed, (batch, seq) in enumerate(shape for shape in SHAPES * 2 for _ in range(3)):
        inputs = attention_inputs(batch, seq, seed)
        np.testing.assert_array_equal(session.run(inputs)["y"], answers(inputs))
    found = session.statistics
    # The first shape is captured again, since the second made the buffers grow; the others are confirmed.
    assert (found.captures, found.confirmations, found.plain_runs, found.replays) == (5, 3, 8, 16)


def test_numpy_outputs_do_not_alias(session: Session, answers: Callable[..., np.ndarray]) -> None:
    inputs = [attention_inputs(2, 8, seed) for seed in range(5)]
    outputs = [session.run(values)["y"] for values in inputs]
    for values, output in zip(inputs, outputs):
        np.testing.assert_array_equal(output, answers(values))


def test_torch_in_and_out(session: Session, answers: Callable[..., np.ndarray]) -> None:
    kept = []
    for seed in range(5):
        inputs = attention_inputs(4, 64, seed)
        output = session.run(on_gpu(inputs))["y"]  # new addresses every time
        assert isinstance(output, DeviceArray)
        tensor = torch.from_dlpack(output)
        assert tensor.is_cuda and tensor.dtype == torch.float32
        kept.append((inputs, tensor))
    for inputs, tensor in kept:
        np.testing.assert_array_equal(tensor.cpu().numpy(), answers(inputs))
    assert session.statistics.replays == 4


def test_an_input_changed_in_place_and_then_moved(session: Session, answers: Callable[..., np.ndarray]) -> None:
    first = on_gpu(attention_inputs(2, 8, 0))
    for seed in (1, 2, 3):
        fresh = attention_inputs(2, 8, seed)
        for name, value in fresh.items():
            first[name].copy_(torch.from_numpy(value))
        np.testing.assert_array_equal(session.run(first)["y"].numpy(), answers(fresh))
    moved_inputs = attention_inputs(2, 8, 4)
    moved = on_gpu(moved_inputs)
    first["x"].fill_(float("nan"))  # a graph that read the old address would give NaN
    np.testing.assert_array_equal(session.run(moved)["y"].numpy(), answers(moved_inputs))


def test_host_and_device_inputs_mixed(session: Session, answers: Callable[..., np.ndarray]) -> None:
    inputs = attention_inputs(2, 8)
    mixed = {"x": torch.from_numpy(inputs["x"]).cuda(), Role.KEEP: inputs[Role.KEEP]}
    for _ in range(3):
        np.testing.assert_array_equal(session.run(mixed)["y"].numpy(), answers(inputs))


def test_torch_on_the_host_gives_numpy(session: Session, answers: Callable[..., np.ndarray]) -> None:
    inputs = attention_inputs(2, 8)
    output = session.run({name: torch.from_numpy(value) for name, value in inputs.items()})["y"]
    np.testing.assert_array_equal(output, answers(inputs))


def test_cupy_in_and_out(session: Session, answers: Callable[..., np.ndarray]) -> None:
    for seed in range(3):
        inputs = attention_inputs(2, 8, seed)
        output = session.run({name: cupy.asarray(value) for name, value in inputs.items()})["y"]
        np.testing.assert_array_equal(cupy.asnumpy(cupy.asarray(output)), answers(inputs))
        np.testing.assert_array_equal(cupy.asnumpy(cupy.from_dlpack(output)), answers(inputs))


class InterfaceOnly:
    """A device array with `__cuda_array_interface__` and no DLPack, as pycuda's GPUArray."""

    def __init__(self, tensor: torch.Tensor, **fields: object) -> None:
        self._tensor = tensor
        self.__cuda_array_interface__ = {**tensor.__cuda_array_interface__, "version": 2, **fields}


def test_cuda_array_interface(session: Session, answers: Callable[..., np.ndarray]) -> None:
    for seed, fields in enumerate([{}, {"strides": None}, {"version": 3, "stream": None}, {"version": 3, "stream": 1}]):
        inputs = attention_inputs(2, 8, seed)
        arrays = {name: InterfaceOnly(value, **fields) for name, value in on_gpu(inputs).items()}
        output = session.run(arrays)["y"]
        np.testing.assert_array_equal(torch.as_tensor(output, device="cuda").cpu().numpy(), answers(inputs))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda tensor: tensor,
        InterfaceOnly,
        lambda tensor: InterfaceOnly(tensor, version=3, stream=None),
        lambda tensor: InterfaceOnly(tensor, version=3, stream=1),
    ],
)
def test_work_of_the_default_stream_is_waited_for(
    session: Session, answers: Callable[..., np.ndarray], wrap: Callable[[torch.Tensor], Any]
) -> None:
    inputs = attention_inputs(2, 8, 1)
    arrays = on_gpu(inputs)
    session.run(arrays)
    fresh = {name: torch.from_numpy(value).cuda() for name, value in attention_inputs(2, 8, 2).items()}
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG_WORK_CYCLES)
    for name, value in fresh.items():
        arrays[name].copy_(value)
    output = session.run({name: wrap(value) for name, value in arrays.items()})["y"]
    np.testing.assert_array_equal(output.numpy(), answers(attention_inputs(2, 8, 2)))


@pytest.mark.parametrize("wrap", [lambda tensor: tensor, lambda tensor: InterfaceOnly(tensor, version=3, stream=None)])
def test_a_caller_stream_orders_input_and_output(
    session: Session, answers: Callable[..., np.ndarray], wrap: Callable[[torch.Tensor], Any]
) -> None:
    stream = torch.cuda.Stream()
    arrays = on_gpu(attention_inputs(2, 8, 1))
    fresh = on_gpu(attention_inputs(2, 8, 2))
    session.run(arrays)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG_WORK_CYCLES)
        for name, value in fresh.items():
            arrays[name].copy_(value)
        output = session.run({name: wrap(value) for name, value in arrays.items()}, stream=stream.cuda_stream)["y"]
        assert not stream.query()  # `run` has not waited for the stream
        doubled = torch.from_dlpack(output) * 2
        for value in arrays.values():
            value.zero_()
    stream.synchronize()
    np.testing.assert_array_equal(doubled.cpu().numpy(), 2 * answers(attention_inputs(2, 8, 2)))


def test_numpy_inputs_behind_a_caller_stream_are_not_overwritten(
    session: Session, answers: Callable[..., np.ndarray]
) -> None:
    """Staging memory must not be refilled while an earlier run of a busy stream has still to read it."""
    stream = torch.cuda.Stream()
    keep = torch.ones(2, 1, 8, dtype=torch.bool, device="cuda")
    inputs = [attention_inputs(2, 8, seed) | {Role.KEEP: np.ones((2, 1, 8), bool)} for seed in range(4)]
    session.run({"x": inputs[0]["x"], Role.KEEP: keep})
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG_WORK_CYCLES)
        outputs = [
            session.run({"x": values["x"], Role.KEEP: keep}, stream=stream.cuda_stream)["y"] for values in inputs
        ]
    stream.synchronize()
    for values, output in zip(inputs, outputs):
        np.testing.assert_array_equal(output.numpy(), answers(values))


def test_bf16_arrays(attention_engine_bf16: Path) -> None:
    inputs = on_gpu(attention_inputs(2, 8))
    inputs["x"] = inputs["x"].bfloat16()
    with Session(attention_engine_bf16) as session:
        output = session.run(inputs)["y"]
        assert not hasattr(output, "__cuda_array_interface__")  # which has no name for bfloat16
        tensor = torch.from_dlpack(output)
        assert tensor.dtype == torch.bfloat16
        host = session.run({name: value.cpu() for name, value in inputs.items()})["y"]
    np.testing.assert_array_equal(tensor.float().cpu().numpy(), host.astype(np.float32))
    np.testing.assert_array_equal(output.numpy(), host)


def test_fp16_arrays(attention_engine_fp16: Path) -> None:
    inputs = attention_inputs(2, 8, dtype="float16")
    with Session(attention_engine_fp16) as session:
        tensor = torch.from_dlpack(session.run(on_gpu(inputs))["y"])
        assert tensor.dtype == torch.float16
        np.testing.assert_array_equal(tensor.cpu().numpy(), session.run(inputs)["y"])


@pytest.fixture(scope="module")
def integer_engine(build: BuildFunction) -> Path:
    """ids int64 [n] -> next = ids + 1 (int64), is_large = ids > 5 (bool), small = ids as int32."""
    values = [
        helper.make_tensor_value_info(name, kind, ["n"])
        for name, kind in [
            ("ids", INT64),
            ("next", INT64),
            ("is_large", TensorProto.BOOL),
            ("small", TensorProto.INT32),
        ]
    ]
    constants = [helper.make_tensor(name, INT64, [1], [value]) for name, value in [("one", 1), ("five", 5)]]
    nodes = [
        helper.make_node("Add", ["ids", "one"], ["next"]),
        helper.make_node("Greater", ["ids", "five"], ["is_large"]),
        helper.make_node("Cast", ["ids"], ["small"], to=TensorProto.INT32),
    ]
    graph = helper.make_graph(nodes, "graph", values[:1], values[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return build(model, {"ids": ShapeRange.parse("1:8:64")})


def test_integers_and_booleans(integer_engine: Path) -> None:
    with Session(integer_engine) as session:
        for count in (8, 8, 3):
            ids = np.arange(count, dtype=np.int64) * 2 + (1 << 40)
            ids[0] = 3
            for given in (ids, torch.from_numpy(ids).cuda()):
                outputs = session.run({"ids": given})
                host = {
                    k: v if isinstance(v, np.ndarray) else torch.from_dlpack(v).cpu().numpy()
                    for k, v in outputs.items()
                }
                np.testing.assert_array_equal(host["next"], ids + 1)
                np.testing.assert_array_equal(host["is_large"], ids > 5)
                assert [host[name].dtype for name in ("next", "is_large", "small")] == [np.int64, np.bool_, np.int32]


def test_two_sessions_take_turns(attention_engine: Path, session: Session, answers: Callable[..., np.ndarray]) -> None:
    with Session(attention_engine) as other:
        for seed in range(6):
            for run, (batch, seq) in ((session, (2, 8)), (other, (4, 64))):
                inputs = attention_inputs(batch, seq, seed)
                np.testing.assert_array_equal(run.run(inputs)["y"], answers(inputs))
        assert session.statistics.replays == other.statistics.replays == 5


def test_captures_in_one_thread_while_others_run(attention_engine: Path, answers: Callable[..., np.ndarray]) -> None:
    """One thread captures at every run, others replay, make sessions and allocate; nobody disturbs anybody."""
    stop = threading.Event()
    captured = [attention_inputs(1 + seed % 4, 5 + seed, seed) for seed in range(40)]
    replayed = [attention_inputs(2, 8, seed) for seed in range(40)]
    expected = {id(inputs): answers(inputs) for inputs in captured + replayed}

    def capture() -> int:
        with Session(attention_engine) as run:
            for inputs in captured:
                np.testing.assert_array_equal(run.run(inputs)["y"], expected[id(inputs)])
            return run.statistics.captures

    def replay() -> int:
        with Session(attention_engine) as run:
            while not stop.is_set():
                for inputs in replayed:
                    np.testing.assert_array_equal(run.run(inputs)["y"], expected[id(inputs)])
            return run.statistics.captures

    def allocate() -> int:
        count = 0
        while not stop.is_set():
            count += 1
            tensor = torch.ones(1 << 20, device="cuda")
            assert float(tensor.sum()) == 1 << 20
            del tensor
            torch.cuda.empty_cache()
        return count

    def open_sessions() -> int:
        count = 0
        while not stop.is_set():
            count += 1
            with Session(attention_engine) as run:
                np.testing.assert_array_equal(run.run(replayed[0])["y"], expected[id(replayed[0])])
        return count

    with ThreadPoolExecutor(4) as pool:
        background = [pool.submit(work) for work in (replay, allocate, open_sessions)]
        try:
            assert pool.submit(capture).result(timeout=60) == 40
        finally:
            stop.set()
        assert background[0].result(timeout=60) == 1
        assert min(background[1].result(timeout=60), background[2].result(timeout=60)) > 0


def test_one_session_in_two_threads(session: Session, answers: Callable[..., np.ndarray]) -> None:
    inputs = [attention_inputs(2, 8 + seed % 2, seed) for seed in range(40)]
    expected = [answers(values) for values in inputs]
    with ThreadPoolExecutor(2) as pool:
        outputs = list(pool.map(lambda values: session.run(values)["y"], inputs))
    for output, answer in zip(outputs, expected):
        np.testing.assert_array_equal(output, answer)


def test_outputs_outlive_the_session(attention_engine: Path, answers: Callable[..., np.ndarray]) -> None:
    inputs = attention_inputs(4, 64)
    with Session(attention_engine) as session:
        output = session.run(on_gpu(inputs))["y"]
        tensor = torch.from_dlpack(output)
    np.testing.assert_array_equal(tensor.cpu().numpy(), answers(inputs))
    np.testing.assert_array_equal(output.numpy(), answers(inputs))
    session.close()
    with pytest.raises(EngineError, match="closed"):
        session.run(inputs)


def test_sessions_give_their_memory_back(attention_engine: Path) -> None:
    def cycle() -> int:
        with Session(attention_engine) as session:
            session.run(attention_inputs(4, 64))
        torch.cuda.synchronize()
        return torch.cuda.mem_get_info()[0]

    cycle()
    free = cycle()
    for _ in range(10):
        last = cycle()
    # Ten sessions that kept their memory would hold more: a session takes at least 2 MiB of pool and context.
    assert free - last < 10 * (2 << 20)


def test_the_context_of_the_thread_is_put_back(session: Session) -> None:
    from cuda.bindings import driver

    _, before = driver.cuCtxGetCurrent()
    session.run(attention_inputs(2, 8))
    _, after = driver.cuCtxGetCurrent()
    assert int(before) == int(after) != 0
