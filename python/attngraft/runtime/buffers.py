"""Memory of a session: a pool on the device, buffers from it at fixed addresses, and pinned staging on the host."""

from __future__ import annotations

import ctypes
import functools
import math
from typing import Any

import numpy as np

from attngraft.errors import EngineError
from attngraft.runtime.cuda import LEGACY_STREAM, Stream, call, cuda_driver, cuda_runtime, device_scope

__all__ = [
    "DeviceBuffer",
    "MemoryPool",
    "PinnedBuffer",
    "Region",
    "copy_async",
    "copy_kind",
    "poison_regions",
    "read_regions",
    "region_bytes",
]

Region = tuple[int, int]
"""Device address and bytes."""

POISON = 0xA5
"""Byte that outputs are filled with before a replay is checked, so that old results cannot pass for new ones."""

_KEEP_ALL = 2**64 - 1
"""Release threshold of the pool: memory is kept for the next run rather than given back at every synchronisation."""


@functools.cache
def copy_kind() -> Any:
    """The kind of copy whose addresses say from where to where. An enum's member takes long to look up in each run."""
    return cuda_runtime().cudaMemcpyKind.cudaMemcpyDefault


def copy_async(target: int, source: int, nbytes: int, stream: int) -> None:
    """Copies between any two of host and device; the addresses say which."""
    if nbytes:
        call("cudaMemcpyAsync", target, source, nbytes, copy_kind(), stream)


def region_bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Bytes of a contiguous array."""
    return math.prod(shape) * dtype.itemsize


def read_regions(regions: tuple[Region, ...], stream: Stream) -> list[bytes]:
    """What is there once the stream's work is done, for comparison."""
    copies = [np.empty(nbytes, np.uint8) for _, nbytes in regions]
    for (address, nbytes), copy in zip(regions, copies):
        copy_async(copy.ctypes.data, address, nbytes, stream.handle)
    stream.wait()
    return [copy.tobytes() for copy in copies]


def poison_regions(regions: tuple[Region, ...], stream: Stream) -> None:
    """Overwrites what is there, in the order of the stream."""
    for address, nbytes in regions:
        if nbytes:
            call("cudaMemsetAsync", address, POISON, nbytes, stream.handle)


class MemoryPool:
    """Device memory from which allocation waits for nobody. It lives until its last buffer is freed.

    It counts its buffers, since the garbage collector finalises what dies together in any order: whichever of the pool
    and the last buffer goes last gives the pool back.
    """

    def __init__(self, device: int) -> None:
        self.device = device
        self._buffers = 0
        self._is_dropped = False
        self._pool: Any = None
        runtime = cuda_runtime()
        properties = runtime.cudaMemPoolProps()
        properties.allocType = runtime.cudaMemAllocationType.cudaMemAllocationTypePinned
        properties.location.type = runtime.cudaMemLocationType.cudaMemLocationTypeDevice
        properties.location.id = device
        self._pool = call("cudaMemPoolCreate", properties)
        threshold = cuda_driver().cuuint64_t(_KEEP_ALL)
        call("cudaMemPoolSetAttribute", self._pool, runtime.cudaMemPoolAttr.cudaMemPoolAttrReleaseThreshold, threshold)

    def allocate(self, nbytes: int, stream: int) -> DeviceBuffer:
        """A buffer that work in `stream` may use at once."""
        # An address is needed for an empty tensor too: TensorRT refuses a null one.
        address = int(call("cudaMallocFromPoolAsync", max(nbytes, 1), self._pool, stream))
        self._buffers += 1
        return DeviceBuffer(self, address, nbytes)

    def free(self, address: int) -> None:
        """Frees a buffer in the order of the legacy default stream. Buffers call this, nobody else."""
        try:
            with device_scope(self.device):
                cuda_runtime().cudaFreeAsync(address, LEGACY_STREAM)
        except EngineError:  # when the process ends, the driver may be gone already, and the memory with it
            pass
        self._buffers -= 1
        self._destroy_if_unused()

    def _destroy_if_unused(self) -> None:
        if self._is_dropped and self._buffers == 0 and self._pool is not None:
            cuda_runtime().cudaMemPoolDestroy(self._pool)
            self._pool = None

    def __del__(self) -> None:
        self._is_dropped = True
        self._destroy_if_unused()


class DeviceBuffer:
    """Device memory at one address for as long as this object lives.

    Freed in the order of the legacy default stream: work of that stream, and work that others have finished, is safe.
    """

    def __init__(self, pool: MemoryPool, address: int, nbytes: int) -> None:
        self._pool = pool
        self.address = address
        self.nbytes = nbytes

    def __del__(self) -> None:
        self._pool.free(self.address)


class PinnedBuffer:
    """Page-locked host memory, from which copies to the device run beside other work."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = max(nbytes, 1)
        self.address = int(call("cudaHostAlloc", self.nbytes, 0))

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """A view of the buffer's start. The buffer must outlive it."""
        count = int(np.prod(shape, dtype=np.int64))
        block = (ctypes.c_char * (count * dtype.itemsize)).from_address(self.address)
        return np.frombuffer(block, dtype=dtype, count=count).reshape(shape)

    def __del__(self) -> None:
        if hasattr(self, "address"):
            cuda_runtime().cudaFreeHost(self.address)
