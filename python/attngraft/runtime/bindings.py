"""The buffers of one session. In: shapes, inputs. Out: TensorRT's tensor addresses, fixed for as long as shapes fit.

Inputs are always copied into the session's own buffers and outputs out of them. So an input that moves between runs
is simply copied from its new place, and a captured graph never reads an address that a caller owns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attngraft.engine.shapes import format_shape
from attngraft.errors import EngineError
from attngraft.runtime.arrays import ArrayView, DeviceArray, numpy_dtype
from attngraft.runtime.buffers import DeviceBuffer, MemoryPool, PinnedBuffer, copy_async
from attngraft.runtime.cuda import Event, Stream, call
from attngraft.runtime.tensors import TensorSpec

__all__ = ["Bindings"]

POISON = 0xA5
"""Byte that outputs are filled with before a replay is checked, so that old results cannot pass for new ones."""


@dataclass
class _Slot:
    """One tensor's buffers at the current shapes."""

    spec: TensorSpec
    buffer: DeviceBuffer | None
    """None once the session is closed."""
    shape: tuple[int, ...] = ()
    nbytes: int = 0
    pinned: PinnedBuffer | None = None
    staging: np.ndarray | None = None
    """View of `pinned` at the current shape."""

    def stage(self) -> np.ndarray:
        """The pinned staging array, made when the host first needs it: device arrays never do."""
        if self.staging is None:
            if self.pinned is None or self.pinned.nbytes < self.nbytes:
                self.pinned = PinnedBuffer(self.nbytes)
            self.staging = self.pinned.array(self.shape, numpy_dtype(self.spec.dtype))
        return self.staging


class Bindings:
    """Device buffers and staging of every input and output."""

    def __init__(self, specs: tuple[TensorSpec, ...], context: Any, stream: Stream, device: int) -> None:
        self._pool = MemoryPool(device)
        self._slots = [_Slot(spec, self._pool.allocate(0, stream.handle)) for spec in specs]
        self._inputs = [slot for slot in self._slots if slot.spec.is_input]
        self._outputs = [slot for slot in self._slots if not slot.spec.is_input]
        self._context = context
        self._stream = stream
        self._device = device
        self._staged = Event()
        self._shapes: dict[str, tuple[int, ...]] | None = None

    def resize(self, shapes: dict[str, tuple[int, ...]]) -> bool:
        """Takes these input shapes; True if they are new, and with them whatever was captured is stale.

        Raises EngineError when TensorRT refuses a shape, shapes contradict each other, or an output's shape depends on
        the data.
        """
        if shapes == self._shapes:
            return False
        self._stream.wait()  # buffers about to be freed may be in use
        self._shapes = None  # an error below must not leave half of the old shapes in force
        for slot in self._inputs:
            if not self._context.set_input_shape(slot.spec.name, shapes[slot.spec.name]):
                raise EngineError(
                    f"input {slot.spec.name!r}: TensorRT refuses shape {format_shape(shapes[slot.spec.name])}"
                )
        for slot in self._slots:
            shape = shapes[slot.spec.name] if slot.spec.is_input else self._output_shape(slot.spec.name)
            self._fit(slot, shape)
        self._shapes = shapes
        return True

    def _output_shape(self, name: str) -> tuple[int, ...]:
        """Not by infer_shapes: TensorRT 10.6's binding raises its error without the interpreter's lock, and crashes."""
        try:
            shape = tuple(self._context.get_tensor_shape(name))
        except ValueError:  # the shape's rank is -1, which is how TensorRT says that it has none
            raise EngineError(f"output {name!r}: has no shape; the inputs' shapes do not fit together") from None
        if any(dim < 0 for dim in shape):
            raise EngineError(
                f"output {name!r}: its shape depends on the input's values, which a session does not serve"
            )
        return shape

    def _fit(self, slot: _Slot, shape: tuple[int, ...]) -> None:
        slot.shape, slot.staging = shape, None
        slot.nbytes = math.prod(shape) * numpy_dtype(slot.spec.dtype).itemsize
        if slot.buffer.nbytes < slot.nbytes:
            slot.buffer = self._pool.allocate(slot.nbytes, self._stream.handle)
        if not self._context.set_tensor_address(slot.spec.name, slot.buffer.address):
            raise EngineError(f"tensor {slot.spec.name!r}: TensorRT refuses its buffer")

    def release(self) -> None:
        """Lets go of the buffers and of TensorRT's context. An exception that somebody keeps may keep this object and
        the slots: its traceback holds the frames that it passed."""
        for slot in self._slots:
            slot.buffer = slot.pinned = slot.staging = None
        self._context = None

    def upload(self, views: Mapping[str, ArrayView]) -> None:
        """Copies the inputs into their buffers, in the session's stream."""
        self._staged.wait()  # the last run's copies may still read the staging memory
        for slot in self._inputs:
            view = views[slot.spec.name]
            if view.host is None:
                copy_async(slot.buffer.address, view.address, slot.nbytes, self._stream.handle)
            else:
                np.copyto(slot.stage(), view.host)
                copy_async(slot.buffer.address, slot.stage().ctypes.data, slot.nbytes, self._stream.handle)
        self._staged.record(self._stream.handle)

    def download(self) -> dict[str, np.ndarray]:
        """The outputs as new NumPy arrays; waits for them."""
        for slot in self._outputs:
            copy_async(slot.stage().ctypes.data, slot.buffer.address, slot.nbytes, self._stream.handle)
        self._stream.wait()
        return {slot.spec.name: slot.stage().copy() for slot in self._outputs}

    def copy_outputs(self, ready: Event | None) -> dict[str, DeviceArray]:
        """The outputs as new device arrays. `ready` is recorded behind the copies; without it the host waits."""
        results = {}
        for slot in self._outputs:
            copy = self._pool.allocate(slot.nbytes, self._stream.handle)
            copy_async(copy.address, slot.buffer.address, slot.nbytes, self._stream.handle)
            results[slot.spec.name] = DeviceArray(copy, slot.shape, slot.spec.dtype, self._device, ready)
        if ready is None:
            self._stream.wait()
        else:
            ready.record(self._stream.handle)
        return results

    def snapshot(self) -> list[bytes]:
        """The outputs' bytes, for comparison; waits for them."""
        return [array.tobytes() for array in self.download().values()]

    def poison_outputs(self) -> None:
        """Overwrites the outputs, in the session's stream."""
        for slot in self._outputs:
            if slot.nbytes:
                call("cudaMemsetAsync", slot.buffer.address, POISON, slot.nbytes, self._stream.handle)
