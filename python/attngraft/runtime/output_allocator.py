"""Outputs whose shape depends on the inputs' values. In: TensorRT's requests while it runs. Out: memory and the shape.

TensorRT asks for the memory in the middle of a run, so such a run cannot be captured into a graph.
"""

from __future__ import annotations

from typing import Any

from attngraft.errors import AttngraftError
from attngraft.runtime.buffers import DeviceBuffer, MemoryPool
from attngraft.runtime.cuda import Stream

__all__ = ["OutputMemory", "output_allocator"]


class OutputMemory:
    """One output's buffer, which grows as TensorRT asks, and the shape of the last run."""

    def __init__(self, pool: MemoryPool, stream: Stream) -> None:
        self._pool = pool
        self._stream = stream
        self.buffer: DeviceBuffer | None = None
        self.shape: tuple[int, ...] = ()
        self.error: AttngraftError | None = None
        """Why there was no memory; None if there was."""

    def reallocate(self, nbytes: int) -> int | None:
        """The address of at least `nbytes`; None if there is no such memory. Never raises: TensorRT's C++ calls it."""
        try:
            if self.buffer is None or self.buffer.nbytes < nbytes:
                self._stream.wait()  # the last run's copies may still read the buffer that goes
                self.buffer = None
                self.buffer = self._pool.allocate(nbytes, self._stream.handle)
        except AttngraftError as error:
            self.error = error
            return None
        return self.buffer.address


def output_allocator(trt: Any, memory: OutputMemory) -> Any:
    """TensorRT's face of `memory`, an `IOutputAllocator` of the package `trt`, for one output."""

    class Allocator(trt.IOutputAllocator):
        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)

        def reallocate_output(self, tensor_name: str, current: Any, size: int, alignment: int) -> int | None:
            return memory.reallocate(size)

        def reallocate_output_async(
            self, tensor_name: str, current: Any, size: int, alignment: int, stream: Any
        ) -> int | None:
            return memory.reallocate(size)

        def notify_shape(self, tensor_name: str, shape: Any) -> None:
            memory.shape = tuple(shape)

    return Allocator()
