"""The buffers of one session. In: shapes, inputs. Out: device buffers, at fixed addresses while shapes fit.

Inputs are always copied into the session's own buffers and outputs out of them. So an input that moves between runs
is simply copied from its new place, and a captured graph never reads an address that a caller owns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from attngraft.errors import EngineError
from attngraft.runtime.arrays import ArrayView, DeviceArray, numpy_dtype
from attngraft.runtime.block_copy import copy_block, fill_async
from attngraft.runtime.buffers import (
    DeviceBuffer,
    MemoryPool,
    PinnedBuffer,
    Region,
    copy_async,
    region_bytes,
)
from attngraft.runtime.contexts import Layout
from attngraft.runtime.cuda import Event, Stream
from attngraft.runtime.output_allocator import OutputMemory
from attngraft.runtime.tensors import TensorSpec

__all__ = ["Bindings"]

Shape = tuple[int, ...]

GROWTH = 2
"""A buffer that must grow grows at least by this factor: then random shapes move it a few times, not at every record.
Graphs that use a buffer which has moved are lost."""


@dataclass
class _Slot:
    """One tensor's buffers at the current shapes."""

    spec: TensorSpec
    buffer: DeviceBuffer | None
    """None once the session is closed."""
    shape: Shape = ()
    nbytes: int = 0
    pinned: PinnedBuffer | None = None
    staging: np.ndarray | None = None
    """View of `pinned` at the current shape."""
    memory: OutputMemory | None = None
    """Of an output whose shape depends on the inputs' values, instead of `buffer`."""

    @property
    def address(self) -> int:
        """Of the data, at the current shapes."""
        held = self.buffer if self.memory is None else self.memory.buffer
        assert held is not None
        return held.address

    def take(self, shape: Shape, nbytes: int) -> None:
        if shape != self.shape or nbytes != self.nbytes:
            self.shape, self.nbytes, self.staging = shape, nbytes, None

    def stage(self) -> np.ndarray:
        """The pinned staging array, made when the host first needs it: device arrays never do."""
        if self.staging is None:
            if self.pinned is None or self.pinned.nbytes < self.nbytes:
                self.pinned = PinnedBuffer(self.nbytes)
            self.staging = self.pinned.array(self.shape, numpy_dtype(self.spec.dtype))
        return self.staging


class Bindings:
    """Device buffers and staging of every input and output."""

    def __init__(self, specs: tuple[TensorSpec, ...], stream: Stream, device: int) -> None:
        self._pool = MemoryPool(device)
        self._slots = [_Slot(spec, self._pool.allocate(0, stream.handle)) for spec in specs]
        self._inputs = [slot for slot in self._slots if slot.spec.is_input]
        self._outputs = [slot for slot in self._slots if not slot.spec.is_input]
        self._stream = stream
        self._device = device
        self._staged: Event | None = None
        """Behind the last copies from staging memory, while they may be under way."""
        self._event = Event()
        self._layout: Layout | None = None
        self.generation = 0
        """Raised whenever a buffer moves."""

    def take(self, layout: Layout) -> frozenset[int]:
        """Makes room for these shapes; returns the addresses where buffers no longer are. No buffer shrinks."""
        if layout is self._layout:
            return frozenset()
        self._layout = None
        gone = frozenset(
            slot.address for slot, nbytes in zip(self._slots, layout.nbytes) if slot.buffer.nbytes < nbytes
        )
        if gone:
            self._stream.wait()  # buffers about to be freed may be in use
            self.generation += 1
        for slot, shape, nbytes in zip(self._slots, layout.shapes, layout.nbytes):
            slot.take(shape, nbytes)
            if slot.buffer.nbytes < nbytes:
                slot.buffer = self._larger(slot.buffer.nbytes, nbytes)
        for place in layout.unknown:
            self.output_memory(self._slots[place].spec.name)
        self._layout = layout
        return gone

    def _larger(self, held: int, needed: int) -> DeviceBuffer:
        try:
            return self._pool.allocate(max(needed, GROWTH * held), self._stream.handle)
        except EngineError:  # the device is nearly full
            return self._pool.allocate(needed, self._stream.handle)

    def output_memory(self, name: str) -> OutputMemory:
        """Where the output of that name goes, if its shape depends on the inputs' values."""
        slot = next(slot for slot in self._outputs if slot.spec.name == name)
        if slot.memory is None:
            slot.memory = OutputMemory(self._pool, self._stream)
        return slot.memory

    def allocation_error(self) -> str | None:
        """Why an output of unknown shape got no memory since this was asked last; None if it got it."""
        found = None
        for slot in self._outputs:
            if slot.memory is not None and slot.memory.error is not None:
                found, slot.memory.error = str(slot.memory.error), None
        return found

    @property
    def addresses(self) -> tuple[int, ...]:
        """Of all tensors, in the engine's order; 0 for an output that has its memory from an allocator."""
        return tuple(0 if slot.memory is not None else slot.address for slot in self._slots)

    @property
    def outputs(self) -> tuple[Region, ...]:
        """Where the outputs are and how long."""
        return tuple((slot.address, slot.nbytes) for slot in self._outputs if slot.memory is None)

    @property
    def buffer_bytes(self) -> int:
        """Device memory of all buffers."""
        held = [slot.buffer for slot in self._slots] + [slot.memory.buffer for slot in self._slots if slot.memory]
        return sum(buffer.nbytes for buffer in held if buffer is not None)

    @property
    def staging_bytes(self) -> int:
        """Page-locked host memory."""
        return sum(slot.pinned.nbytes for slot in self._slots if slot.pinned is not None)

    def release(self) -> None:
        """Lets go of the buffers. An exception that somebody keeps may keep this object and the slots: its traceback
        holds the frames that it passed."""
        for slot in self._slots:
            if slot.memory is not None:
                slot.memory.buffer = None
            slot.buffer = slot.pinned = slot.staging = slot.memory = None

    def upload(self, views: Mapping[str, ArrayView], pads: Mapping[str, bytes] | None = None) -> None:
        """Copies the inputs into their buffers, in the session's stream.

        pads: the element that an input is filled up with, for inputs smaller than the shape that was taken.
        """
        if self._staged is not None:
            self._staged.wait()  # the last run's copies may still read the staging memory
            self._staged = None
        stream = self._stream.handle
        on_host = False
        for slot in self._inputs:
            view = views[slot.spec.name]
            on_host |= view.host is not None
            if view.shape != slot.shape:
                self._upload_padded(slot, view, pads[slot.spec.name])
            elif view.host is None:
                copy_async(slot.buffer.address, view.address, slot.nbytes, stream)
            else:
                np.copyto(slot.stage(), view.host)
                copy_async(slot.buffer.address, slot.pinned.address, slot.nbytes, stream)
        if on_host:
            self._event.record(stream)
            self._staged = self._event

    def _upload_padded(self, slot: _Slot, view: ArrayView, pad: bytes) -> None:
        dtype = numpy_dtype(slot.spec.dtype)
        stream = self._stream.handle
        if view.host is None:
            fill_async(slot.address, pad, slot.nbytes // dtype.itemsize, stream)
            copy_block(slot.address, slot.shape, view.address, view.shape, dtype.itemsize, stream)
            return
        staging = slot.stage()
        staging[...] = np.frombuffer(pad, dtype)[0]
        staging[tuple(slice(dim) for dim in view.shape)] = view.host
        copy_async(slot.address, slot.pinned.address, slot.nbytes, stream)

    def collect(self) -> None:
        """Takes the shapes that TensorRT has told while it ran, of outputs whose shape depends on the data."""
        for slot in self._outputs:
            if slot.memory is not None:
                slot.take(slot.memory.shape, region_bytes(slot.memory.shape, numpy_dtype(slot.spec.dtype)))

    def download(self, cuts: Mapping[str, Shape] | None = None) -> dict[str, np.ndarray]:
        """The outputs as new NumPy arrays; waits for them. cuts: the leading part to give of outputs that are cut."""
        for slot in self._outputs:
            staging = slot.stage()
            copy_async(slot.pinned.address, slot.address, staging.nbytes, self._stream.handle)
        self._stream.wait()
        results = {}
        for slot in self._outputs:
            cut = cuts.get(slot.spec.name) if cuts else None
            whole = slot.stage()
            results[slot.spec.name] = (whole if cut is None else whole[tuple(slice(dim) for dim in cut)]).copy()
        return results

    def copy_outputs(self, ready: Event | None, cuts: Mapping[str, Shape] | None = None) -> dict[str, DeviceArray]:
        """The outputs as new device arrays. `ready` is recorded behind the copies; without it the host waits."""
        results = {}
        stream = self._stream.handle
        for slot in self._outputs:
            shape = (cuts.get(slot.spec.name) if cuts else None) or slot.shape
            if shape == slot.shape:
                copy = self._pool.allocate(slot.nbytes, stream)
                copy_async(copy.address, slot.address, slot.nbytes, stream)
            else:
                dtype = numpy_dtype(slot.spec.dtype)
                copy = self._pool.allocate(region_bytes(shape, dtype), stream)
                copy_block(copy.address, shape, slot.address, slot.shape, dtype.itemsize, stream)
            results[slot.spec.name] = DeviceArray(copy, shape, slot.spec.dtype, self._device, ready)
        if ready is None:
            self._stream.wait()
        else:
            ready.record(stream)
        return results

    def new_outputs(self, layout: Layout) -> dict[str, DeviceArray]:
        """Device arrays of the outputs' shapes, with nothing in them yet, that are not the session's own buffers."""
        return {
            slot.spec.name: DeviceArray(
                self._pool.allocate(nbytes, self._stream.handle), shape, slot.spec.dtype, self._device, None
            )
            for slot, shape, nbytes in zip(self._slots, layout.shapes, layout.nbytes)
            if not slot.spec.is_input
        }
