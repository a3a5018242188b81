"""Arrays in and out. In: NumPy, DLPack or `__cuda_array_interface__` objects. Out: their addresses, and DeviceArray."""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from attngraft.errors import EngineError, MissingDependency
from attngraft.runtime import dlpack
from attngraft.runtime.buffers import DeviceBuffer, copy_async
from attngraft.runtime.cuda import LEGACY_STREAM, Event, call, cuda_runtime, device_scope

__all__ = ["ArrayView", "DeviceArray", "Producers", "numpy_dtype", "view_array"]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype of that name; bfloat16 is ml_dtypes'. Raises MissingDependency without ml_dtypes."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise MissingDependency(
            "NumPy arrays of bfloat16 need ml_dtypes; install it with: pip install ml_dtypes"
        ) from None
    return np.dtype(ml_dtypes.bfloat16)


@functools.cache
def _dtype_name(dtype: np.dtype[Any]) -> str:
    """NumPy makes the name anew each time, which takes longer than a copy of a small array."""
    return dtype.name


@functools.cache
def _torch_dtype_name(dtype: object) -> str | None:
    """NumPy's name of torch's type; None for a type that arrays cannot carry."""
    name = str(dtype).removeprefix("torch.")
    return name if name in dlpack.TYPES else None


@dataclass(slots=True, eq=False)  # not frozen, which takes four times as long to make, for each input of each run
class ArrayView:
    """Where an input's data is."""

    shape: tuple[int, ...]
    dtype: str
    host: np.ndarray | None
    """The array, if it is on the host; may be non-contiguous."""
    address: int
    """Device address of contiguous data, if it is on a device; else 0."""
    owner: object
    """Must live until the data has been read."""


class Producers:
    """The streams in which one run's arrays are made, each of which `stream` waits for once."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self._waited_for: set[int] = set()
        self._is_torch_awaited = False
        self._event: Event | None = None

    def next_run(self) -> None:
        """Work that has been put into streams since is to be waited for again."""
        self._waited_for.clear()
        self._is_torch_awaited = False

    def wait_for(self, producer: int) -> None:
        """Makes the stream wait for the work that is in `producer` now."""
        if producer in self._waited_for:
            return
        if self._event is None:
            self._event = Event()
        self._event.record(producer)
        self._event.block(self.stream)
        self._waited_for.add(producer)

    def wait_for_torch(self, torch: Any, device: int) -> None:
        """Makes the stream wait for torch's current one in this thread, which is the same for all tensors of a run."""
        if self._is_torch_awaited:
            return
        # What Triton asks too: the public function makes an object, which takes longer than all else here.
        handle = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self.wait_for(int(torch.cuda.current_stream(device).cuda_stream if handle is None else handle(device)))
        self._is_torch_awaited = True


_HOST_TYPES = (np.ndarray, np.generic)


def view_array(
    name: str,
    value: object,
    device: int,
    stream: int,
    ordered: bool,
    producers: Producers | None = None,
    kind: str = "input",
) -> ArrayView:
    """The data of one input, safe to be read by work that is put into `stream` from now on.

    ordered: the caller has ordered `stream` behind the array's producer, so producers that state no stream need not
    be waited for. producers: those of the run's other inputs. kind: `input` or `output`, for messages.

    Raises EngineError for what is no array, for other devices, and for non-contiguous device arrays.
    """
    if isinstance(value, _HOST_TYPES):
        array = np.asarray(value)
        return ArrayView(array.shape, _dtype_name(array.dtype), array, 0, value)
    if producers is None:
        producers = Producers(stream)
    if isinstance(value, DeviceArray) and value.device == device:
        return value.view(stream)
    torch = sys.modules.get("torch")
    if torch is not None and type(value) is torch.Tensor and value.is_cuda:
        view = _view_torch(torch, value, device, producers)
        if view is not None:
            return view
    what = f"{kind} {name!r}"
    if hasattr(value, "__dlpack_device__"):
        return _view_dlpack(what, value, device, stream)
    if hasattr(value, "__cuda_array_interface__"):
        return _view_cuda_array(what, value, device, ordered, producers)
    raise EngineError(
        f"{what}: {type(value).__name__} is no array; give a NumPy array or one with DLPack or "
        "__cuda_array_interface__ (torch, CuPy, pycuda)"
    )


def _view_torch(torch: Any, value: Any, device: int, producers: Producers) -> ArrayView | None:
    """What DLPack says of a plain contiguous tensor, with no capsule to make and read; None for any other tensor."""
    dtype = _torch_dtype_name(value.dtype)
    if (
        dtype is None
        or value.get_device() != device
        or value.requires_grad
        or value.layout is not torch.strided
        or not value.is_contiguous()
        or value.is_neg()
    ):
        return None
    producers.wait_for_torch(torch, device)
    return ArrayView(tuple(value.shape), dtype, None, value.data_ptr(), value)


def _view_dlpack(what: str, value: Any, device: int, stream: int) -> ArrayView:
    try:
        kind, index = (int(part) for part in value.__dlpack_device__())
        if kind in dlpack.CUDA_DEVICES:
            _check_device(what, index, device)
            capsule = value.__dlpack__(stream=stream)  # the producer makes our stream wait for its own work
        elif kind in dlpack.CPU_DEVICES:
            capsule = value.__dlpack__()
        else:
            raise EngineError(f"{what}: is on DLPack device type {kind}; move it to the GPU or the host")
        view = dlpack.read_capsule(capsule)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise EngineError(f"{what}: its library gives no DLPack capsule ({' '.join(str(error).split())})") from None
    if kind in dlpack.CPU_DEVICES:
        return ArrayView(view.shape, view.dtype, _host_array(what, view), 0, capsule)
    _check_contiguous(what, view.shape, view.strides)
    return ArrayView(view.shape, view.dtype, None, view.address, capsule)


def _host_array(what: str, view: dlpack.CapsuleView) -> np.ndarray:
    try:
        dtype = numpy_dtype(view.dtype)
    except TypeError:
        raise EngineError(f"{what}: has the unsupported type {view.dtype}; convert it") from None
    if 0 in view.shape:
        return np.empty(view.shape, dtype)
    strides = view.strides if view.strides is not None else _contiguous_strides(view.shape)
    reach = sum((dim - 1) * stride for dim, stride in zip(view.shape, strides)) + 1
    block = (ctypes.c_char * (reach * dtype.itemsize)).from_address(view.address)
    flat = np.frombuffer(block, dtype=dtype)
    return np.lib.stride_tricks.as_strided(flat, view.shape, [stride * dtype.itemsize for stride in strides])


@functools.cache
def _device_memory() -> tuple[Any, Any]:
    """The kinds of memory that work on the GPU may read."""
    kinds = cuda_runtime().cudaMemoryType
    return kinds.cudaMemoryTypeDevice, kinds.cudaMemoryTypeManaged


def _view_cuda_array(what: str, value: Any, device: int, ordered: bool, producers: Producers) -> ArrayView:
    interface = value.__cuda_array_interface__
    shape, address = tuple(interface["shape"]), int(interface["data"][0] or 0)
    dtype = np.dtype(interface["typestr"])
    strides = interface.get("strides")
    if strides is not None:
        _check_contiguous(what, shape, tuple(stride // dtype.itemsize for stride in strides))
    if address:
        attributes = call("cudaPointerGetAttributes", address)
        if attributes.type not in _device_memory():
            raise EngineError(f"{what}: its __cuda_array_interface__ does not point to device memory")
        _check_device(what, attributes.device, device)
    _wait_for_producer(interface, ordered, producers)
    return ArrayView(shape, _dtype_name(dtype), None, address, value)


def _wait_for_producer(interface: dict[str, Any], ordered: bool, producers: Producers) -> None:
    """Waits for the stream that version 3 of the interface names, else for the legacy default stream.

    A stream of None should mean that nothing is pending, but pycuda always says None, also behind work of that stream.
    """
    producer = interface.get("stream")
    if producer is not None:
        producers.wait_for(int(producer))
    elif not ordered:
        producers.wait_for(LEGACY_STREAM)


def _check_device(what: str, found: int, expected: int) -> None:
    if found != expected:
        raise EngineError(f"{what}: is on GPU {found}, the session on GPU {expected}; copy it there")


def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _check_contiguous(what: str, shape: tuple[int, ...], strides: tuple[int, ...] | None) -> None:
    if strides is None or 0 in shape:
        return
    wanted = _contiguous_strides(shape)
    if any(dim > 1 and have != want for dim, have, want in zip(shape, strides, wanted)):
        raise EngineError(f"{what}: its device array is not contiguous; make it so (.contiguous() in torch)")


class DeviceArray:
    """An output on the GPU, contiguous and owned by whoever holds it: later runs do not change it.

    Consumers take it without a copy: `torch.from_dlpack(a)`, `cupy.asarray(a)`, or `__cuda_array_interface__` (not for
    bfloat16, which that protocol cannot name). `numpy()` copies it to the host. Its memory is reused once nobody
    holds it and the work of the default stream is done; finish work of other streams before letting it go.
    """

    def __init__(
        self, buffer: DeviceBuffer, shape: tuple[int, ...], dtype: str, device: int, ready: Event | None
    ) -> None:
        self._buffer = buffer
        self._ready = ready
        """Marks the end of the run that makes the data; None if the host has waited for it."""
        self.shape = shape
        self.dtype = dtype
        self.device = device

    @property
    def nbytes(self) -> int:
        return self._buffer.nbytes

    def view(self, stream: int) -> ArrayView:
        """The data, safe to be read by work that is put into `stream` from now on."""
        if self._ready is not None:
            self._ready.block(stream)
        return ArrayView(self.shape, self.dtype, None, self._buffer.address, self)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype == "bfloat16":
            raise AttributeError("__cuda_array_interface__ cannot name bfloat16; use DLPack")
        if self._ready is not None:
            self._ready.wait()
        return {
            "shape": self.shape,
            "typestr": np.dtype(self.dtype).str,
            "data": (self._buffer.address, False),
            "strides": None,
            "stream": None,
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.DEVICE_CUDA, self.device

    def __dlpack__(self, *, stream: int | None = None, **_newer: object) -> Any:
        """A capsule, in order for work of the consumer's `stream` (-1: the consumer does not ask for order)."""
        if self._ready is not None and stream != -1:
            with device_scope(self.device):
                self._ready.block(LEGACY_STREAM if stream is None else int(stream))
        return dlpack.make_capsule(self._buffer.address, self.shape, self.dtype, self.device, self._buffer)

    def numpy(self) -> np.ndarray:
        """A copy on the host."""
        result = np.empty(self.shape, numpy_dtype(self.dtype))
        with device_scope(self.device):
            if self._ready is not None:
                self._ready.wait()
            copy_async(result.ctypes.data, self._buffer.address, self.nbytes, LEGACY_STREAM)
            call("cudaStreamSynchronize", LEGACY_STREAM)
        return result

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, device={self.device})"
