"""Arrays of other libraries on the host, DLPack capsules, and the checks of a session's inputs."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import torch

from attngraft.engine import ShapeRange
from attngraft.errors import EngineError
from attngraft.runtime import dlpack
from attngraft.runtime.arrays import ArrayView, Producers, numpy_dtype, view_array
from attngraft.runtime.tensors import TensorSpec, check_names, check_types_and_ranks
from fake_bench import Bench

TORCH_TYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}


def view(value: object) -> ArrayView:
    return view_array("x", value, device=0, stream=0, ordered=False)


@pytest.mark.parametrize("dtype", TORCH_TYPES)
def test_torch_tensors_on_the_host(dtype: str) -> None:
    tensor = torch.arange(24).reshape(2, 3, 4).to(TORCH_TYPES[dtype])[:, 1:, ::2].transpose(0, 2)
    found = view(tensor)
    assert (found.dtype, found.shape) == (dtype, tuple(tensor.shape))
    assert found.host is not None and found.host.dtype == numpy_dtype(dtype)
    assert found.host.tolist() == tensor.tolist()


def test_the_view_keeps_its_owner() -> None:
    found = view(torch.full((1000, 1000), 7.0))
    gc.collect()
    assert (found.host == 7.0).all()


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1, 5, 1)])
def test_shapes_at_the_edge(shape: tuple[int, ...]) -> None:
    for value in (np.ones(shape, np.float32), torch.ones(shape)):
        found = view(value)
        assert found.host is not None
        assert (found.shape, found.host.shape) == (shape, shape)


def test_numpy_arrays_are_taken_as_they_are() -> None:
    value = np.arange(12, dtype=np.float16).reshape(3, 4).T
    found = view(value)
    assert found.host is not None and np.shares_memory(found.host, value)
    assert (found.dtype, found.address) == ("float16", 0)


def test_numpy_bfloat16() -> None:
    assert view(np.ones(3, ml_dtypes.bfloat16)).dtype == "bfloat16"


@pytest.mark.parametrize("value", [[1.0, 2.0], 3.0, "text", None, object()])
def test_what_is_no_array(value: object) -> None:
    with pytest.raises(EngineError, match="input 'x': .* is no array") as raised:
        view(value)
    assert "\n" not in str(raised.value)


def test_a_tensor_that_needs_gradients_is_one_line() -> None:
    with pytest.raises(EngineError, match="input 'x'.*DLPack") as raised:
        view(torch.ones(2, requires_grad=True))
    assert "\n" not in str(raised.value)


def test_a_type_that_arrays_cannot_carry() -> None:
    with pytest.raises(EngineError, match="unsupported type"):
        view(torch.ones(2, dtype=torch.complex64))


class OtherDevice:
    """A DLPack array somewhere else."""

    def __init__(self, kind: int, index: int) -> None:
        self._place = (kind, index)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._place


def test_arrays_on_other_devices() -> None:
    with pytest.raises(EngineError, match="is on GPU 1, the session on GPU 0"):
        view(OtherDevice(dlpack.DEVICE_CUDA, 1))
    with pytest.raises(EngineError, match="DLPack device type 8"):
        view(OtherDevice(8, 0))


class Versioned:
    """A DLPack array that gives the versioned capsule although nobody asked for it."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.DEVICE_CPU, 0

    def __dlpack__(self) -> object:
        return torch.zeros(2).__dlpack__(max_version=(1, 0))


def test_another_kind_of_capsule_is_one_line() -> None:
    with pytest.raises(EngineError, match="input 'x'.*DLPack") as raised:
        view(Versioned())
    assert "\n" not in str(raised.value)


class OnTheGpu:
    """A DLPack array on GPU 0, as far as its capsule says; nothing reads its memory here."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.DEVICE_CUDA, 0

    def __dlpack__(self, *, stream: int) -> object:
        return self._tensor.__dlpack__()


def test_device_arrays_must_be_contiguous() -> None:
    tensor = torch.zeros(3, 4)
    found = view(OnTheGpu(tensor))
    assert (found.host, found.address, found.shape) == (None, tensor.data_ptr(), (3, 4))
    with pytest.raises(EngineError, match="not contiguous"):
        view(OnTheGpu(tensor.T))
    # Strides of dimensions of length 1 mean nothing.
    assert view(OnTheGpu(tensor[:1].T)).shape == (4, 1)


def test_an_offset_into_a_tensor() -> None:
    tensor = torch.arange(12.0)[5:]
    assert view(OnTheGpu(tensor)).address == tensor.data_ptr()


class TensorOnTheGpu:
    """A torch tensor on GPU 0, as far as it is asked for what it is."""

    is_cuda = True
    requires_grad = False
    layout = torch.strided

    def __init__(self, tensor: torch.Tensor, **changes: object) -> None:
        self._tensor = tensor
        self.dtype, self.shape, self.data_ptr = tensor.dtype, tensor.shape, tensor.data_ptr
        self.is_contiguous, self.is_neg = tensor.is_contiguous, tensor.is_neg
        self.get_device = lambda: changes.get("device", 0)
        self.requires_grad = changes.get("requires_grad", False)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.DEVICE_CUDA, self.get_device()

    def __dlpack__(self, *, stream: int) -> object:
        return self._tensor.requires_grad_(self.requires_grad).__dlpack__()


@pytest.fixture
def waited_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The streams in which events are recorded; tensors are TensorOnTheGpu, made in stream 77."""
    seen: list[int] = []
    record = bench.gpu.cudaEventRecord
    monkeypatch.setattr(bench.gpu, "cudaEventRecord", lambda e, s: (seen.append(s), record(e, s))[1], raising=False)
    monkeypatch.setattr(torch, "Tensor", TensorOnTheGpu)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 77, raising=False)
    return seen


@pytest.mark.parametrize("dtype", TORCH_TYPES)
def test_torch_tensors_on_the_gpu_need_no_capsule(
    waited_for: list[int], monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    monkeypatch.delattr(TensorOnTheGpu, "__dlpack__")
    tensors = [torch.zeros(3, 4).to(TORCH_TYPES[dtype]) for _ in range(2)]
    producers = Producers(5)
    for tensor in tensors:
        found = view_array("x", TensorOnTheGpu(tensor), 0, 5, False, producers)
        assert (found.host, found.address, found.shape, found.dtype) == (None, tensor.data_ptr(), (3, 4), dtype)
    assert waited_for == [77]  # once for both
    producers.next_run()
    view_array("x", TensorOnTheGpu(tensors[0]), 0, 5, False, producers)
    assert waited_for == [77, 77]


def test_the_current_stream_is_asked_for_in_every_run(waited_for: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    producers, tensor = Producers(5), TensorOnTheGpu(torch.zeros(3, 4))
    for stream in (77, 78, 77):
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device, stream=stream: stream)
        producers.next_run()
        view_array("x", tensor, 0, 5, False, producers)
    assert waited_for == [77, 78, 77]


def test_a_torch_that_gives_its_current_stream_as_an_object_only(
    waited_for: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch._C, "_cuda_getCurrentRawStream")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=79 + device))
    view(TensorOnTheGpu(torch.zeros(3, 4)))
    assert waited_for == [79]


@pytest.mark.parametrize(
    ("tensor", "changes", "reason"),
    [
        (torch.zeros(3, 4).T, {}, "not contiguous"),
        (torch.zeros(3, 4), {"device": 1}, "is on GPU 1, the session on GPU 0"),
        (torch.zeros(3, 4), {"requires_grad": True}, "DLPack"),
    ],
)
def test_other_torch_tensors_are_refused_as_ever(
    waited_for: list[int], tensor: torch.Tensor, changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(EngineError, match=reason):
        view(TensorOnTheGpu(tensor, **changes))
    assert waited_for == []


class Owner:
    pass


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32"])
def test_a_capsule_made_and_read(dtype: str) -> None:
    capsule = dlpack.make_capsule(0x1000, (2, 3), dtype, 5, Owner())
    found = dlpack.read_capsule(capsule)
    assert (found.address, found.shape, found.strides, found.dtype) == (0x1000, (2, 3), None, dtype)
    assert (found.device_type, found.device) == (dlpack.DEVICE_CUDA, 5)


def test_a_capsule_keeps_its_owner_until_it_is_let_go() -> None:
    owner = Owner()
    alive = weakref.ref(owner)
    capsule = dlpack.make_capsule(0x1000, (2, 3), "float32", 0, owner)
    del owner
    assert alive() is not None
    del capsule
    assert alive() is None


def test_a_consumed_capsule_keeps_its_owner_until_the_consumer_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dlpack, "DEVICE_CUDA", dlpack.DEVICE_CPU)  # so that torch takes it without a GPU
    memory = np.arange(6, dtype=np.float32)
    owner = Owner()
    alive = weakref.ref(owner)
    tensor = torch.utils.dlpack.from_dlpack(dlpack.make_capsule(memory.ctypes.data, (2, 3), "float32", 0, owner))
    del owner
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert alive() is not None
    del tensor
    assert alive() is None


SPECS = (
    TensorSpec("x", "float32", True, ShapeRange.parse("1x8:2x8:4x8")),
    TensorSpec("mask", "bool", True, ShapeRange.parse("1x1:2x1:4x1")),
    TensorSpec("y", "float32", False, None),
)


def test_names() -> None:
    check_names(SPECS, {"mask": 0, "x": 0})
    with pytest.raises(EngineError, match="'z': the engine has no such input; its inputs are x, mask"):
        check_names(SPECS, {"x": 0, "mask": 0, "z": 0})
    with pytest.raises(EngineError, match="'mask': is not given"):
        check_names(SPECS, {"x": 0})
    with pytest.raises(EngineError, match="'y': the engine has no such input"):
        check_names(SPECS, {"x": 0, "mask": 0, "y": 0})


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (np.ones((2, 8)), "is float64, but the engine takes float32"),
        (np.ones((2, 8), np.int32), "is int32, but the engine takes float32"),
        (np.ones((2, 8, 1), np.float32), "2x8x1 has rank 3"),
    ],
)
def test_types_and_ranks(x: np.ndarray, reason: str) -> None:
    mask = view(np.ones((2, 1), bool))
    check_types_and_ranks(SPECS, {"x": view(np.ones((4, 8), np.float32)), "mask": mask})
    with pytest.raises(EngineError, match=reason) as raised:
        check_types_and_ranks(SPECS, {"x": view(x), "mask": mask})
    assert "\n" not in str(raised.value)
