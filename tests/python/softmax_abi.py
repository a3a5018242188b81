"""MaskedSoftmaxParams from Python: the kernels' border, without TensorRT and without PyTorch.

Mirrors plugin/kernels/masked_softmax.h. `emulated_softmax` runs the kernels' source on the CPU (the test library
`libattngraft_emulated_softmax.so`, CMake option ATTNGRAFT_BUILD_TESTS); tests/gpu runs the kernels themselves.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
from emulated_device import MESSAGE_BYTES, Device, library_path
from mask_abi import MAX_RANK, TYPE_CODES, MaskParams, Operand, aligned_strides

from attngraft.contract import MaskedSoftmax, Role

POISON = 0xFF  # NaN in every floating type
GUARD_BYTES = 256  # before and after an output, to see a write outside of it; keeps the alignment of allocations


class MaskedSoftmaxParams(MaskParams):
    _fields_ = [
        ("scores", ctypes.c_void_p),
        ("probabilities", ctypes.c_void_p),
        ("dims", ctypes.c_int64 * MAX_RANK),
        ("scores_strides", ctypes.c_int64 * MAX_RANK),
        ("probabilities_strides", ctypes.c_int64 * MAX_RANK),
        ("type", ctypes.c_int32),
    ]


def full_dims(shape: tuple[int, ...]) -> tuple[int, ...]:
    """`shape` filled up to rank 6 with ones after the batch dimension; rank 2 has batch 1."""
    batch = shape[:1] if len(shape) > 2 else (1,)
    inner = shape[1:] if len(shape) > 2 else shape
    return batch + (1,) * (MAX_RANK - 1 - len(inner)) + inner


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Element strides of contiguous scores for each of the six dimensions."""
    dims = full_dims(shape)
    return tuple(math.prod(dims[axis + 1 :]) for axis in range(MAX_RANK))


def broadcast_strides(shape: tuple[int, ...], scores: tuple[int, ...]) -> list[int]:
    """Element strides of a contiguous tensor for each of the six score dimensions, 0 where it is broadcast."""
    return spread_strides(aligned_strides(shape, len(scores)))


def spread_strides(strides: list[int]) -> list[int]:
    """Strides, one for each dimension of scores, moved to where these lie among six."""
    batch, inner = (strides[:1], strides[1:]) if len(strides) > 2 else ([0], strides)
    return batch + [0] * (MAX_RANK - 1 - len(inner)) + inner


def make_params(
    scores: int,
    probabilities: int,
    shape: tuple[int, ...],
    dtype: np.dtype,
    config: MaskedSoftmax,
    operands: dict[str, Operand],
) -> MaskedSoftmaxParams:
    """Parameters over device addresses. `operands`: by role."""
    params = MaskedSoftmaxParams(scores=scores, probabilities=probabilities, type=TYPE_CODES[dtype.name])
    params.dims[:] = full_dims(shape)
    params.scores_strides[:] = params.probabilities_strides[:] = contiguous_strides(shape)
    params.set_mask(config, operands, lambda operand: broadcast_strides(operand, shape))
    return params


class AnyCase(Protocol):
    """What softmax_cases.Case has."""

    scores: np.ndarray
    config: MaskedSoftmax
    operands: dict[str, np.ndarray]


MANY_ROWS = Device(multiprocessors=1, has_clusters=1)
"""On one multiprocessor no number of rows is small: clusters serve long rows only."""
FEW_ROWS = Device(multiprocessors=132, has_clusters=1)
WITHOUT_CLUSTERS = Device(multiprocessors=1)


CHUNK_BYTES = 2048
"""Of a long row in shared memory: 64 threads of two vectors, as the emulating library has them."""


def holding(shared_bytes: int = 34_000, multiprocessors: int = 1) -> Device:
    """A device with so much shared memory in a block, where rows are held that touch more than one half of a chunk."""
    return Device(multiprocessors=multiprocessors, has_clusters=1, shared_bytes=shared_bytes)


class MemoryRange(ctypes.Structure):
    _fields_ = [("low", ctypes.c_void_p), ("high", ctypes.c_void_p)]


class EmulatedRun(ctypes.Structure):
    _fields_ = [
        ("device", Device),
        ("seed", ctypes.c_uint32),
        ("readable", ctypes.POINTER(MemoryRange)),
        ("writable", ctypes.POINTER(MemoryRange)),
        ("readable_count", ctypes.c_int32),
        ("writable_count", ctypes.c_int32),
        ("scores_read", ctypes.c_int64),
        ("stored", ctypes.c_int64),
        ("message", ctypes.c_char * MESSAGE_BYTES),
    ]


@cache
def emulation() -> ctypes.CDLL:
    """The emulating library; its struct has the size of the mirror above."""
    library = ctypes.CDLL(str(library_path("softmax")))
    library.attngraft_test_params_size.restype = ctypes.c_size_t
    library.attngraft_test_softmax_policy.restype = ctypes.c_bool
    library.attngraft_test_softmax_rung.restype = ctypes.c_bool
    assert library.attngraft_test_params_size() == ctypes.sizeof(MaskedSoftmaxParams)
    return library


@dataclass(frozen=True)
class Layout:
    """Where scores or probabilities lie in memory: the first element so many elements behind an address that 256
    divides, so many elements unused behind each row, the first two dimensions changed in their order."""

    offset: int = 0
    gap: int = 0
    is_transposed: bool = False


class Placed:
    """An array of `shape` in poisoned memory of its own."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, layout: Layout) -> None:
        is_transposed = layout.is_transposed and len(shape) > 2  # the last dimension stays where it is
        inner = (*shape[1::-1], *shape[2:]) if is_transposed else shape
        rows = math.prod(inner[:-1])
        elements = rows * (inner[-1] + layout.gap) - (layout.gap if rows else 0)
        self._memory = np.full(elements * dtype.itemsize + 3 * GUARD_BYTES, POISON, np.uint8)
        start = -self._memory.ctypes.data % GUARD_BYTES + GUARD_BYTES + layout.offset * dtype.itemsize
        padded = self._memory[start : start + elements * dtype.itemsize].view(dtype)
        steps = np.array(contiguous_strides((*inner[:-1], inner[-1] + layout.gap))[MAX_RANK - len(inner) :])
        if len(inner) > 2:  # the batch comes first, whatever the rank
            steps[0] = math.prod((*inner[1:-1], inner[-1] + layout.gap))
        strides = tuple(int(step) * dtype.itemsize for step in steps)
        view = np.lib.stride_tricks.as_strided(padded, inner, strides)
        self.array = view.swapaxes(0, 1) if is_transposed else view
        self.range = MemoryRange(padded.ctypes.data, padded.ctypes.data + padded.nbytes)
        self._before = None

    def element_strides(self) -> list[int]:
        """One for each of the six dimensions."""
        return spread_strides([step // self.array.itemsize for step in self.array.strides])

    @property
    def address(self) -> int:
        return self.array.ctypes.data

    def remember(self) -> None:
        self._before = self._memory.copy()

    def assert_nothing_else_written(self) -> None:
        """Since `remember`, beside the array's elements."""
        after = self.array.copy()
        self.array[...] = np.frombuffer(b"\0" * self.array.dtype.itemsize, self.array.dtype)[0]
        now = self._memory.copy()
        self._memory[...] = self._before
        self.array[...] = np.frombuffer(b"\0" * self.array.dtype.itemsize, self.array.dtype)[0]
        assert (now == self._memory).all(), "a write outside a tensor"
        self.array[...] = after


@dataclass(frozen=True)
class Emulated:
    """What a run gave: probabilities, and bytes of scores that were read and of probabilities that were stored."""

    probabilities: np.ndarray
    scores_read: int
    stored: int


def policy_of(case: AnyCase, device: Device, source: int = 0, target: int = 0) -> tuple[int, ...]:
    """Strategy, rung, blocks of a row and the mask's kind, where scores and probabilities begin so many elements behind
    an aligned address; masks are aligned."""
    found = (ctypes.c_int32 * 4)()
    operands = {role: (GUARD_BYTES, array.shape, array.dtype) for role, array in case.operands.items()}
    size = case.scores.itemsize
    params = make_params(
        GUARD_BYTES + source * size,
        2 * GUARD_BYTES + target * size,
        case.scores.shape,
        case.scores.dtype,
        case.config,
        operands,
    )
    assert emulation().attngraft_test_softmax_policy(ctypes.byref(params), ctypes.byref(device), found)
    return tuple(found)


NO_RUNG = (0, 0)


def rungs(tensors: int) -> list[tuple[int, int]]:
    """Threads and units of all rungs of vectors, NO_RUNG for those that do not serve masks of this kind."""
    found, pair = [], (ctypes.c_int32 * 2)()
    while emulation().attngraft_test_softmax_rung(len(found), tensors, pair):
        found.append((pair[0], pair[1]))
    return found


def emulated_softmax(
    scores: np.ndarray,
    config: MaskedSoftmax,
    operands: dict[str, np.ndarray],
    *,
    device: Device = MANY_ROWS,
    seed: int = 0,
    in_place: bool = False,
    source: Layout = Layout(),  # noqa: B008 - frozen
    target: Layout = Layout(),  # noqa: B008 - frozen
    mask: Layout = Layout(),  # noqa: B008 - frozen
) -> Emulated:
    """Runs the kernel on copies, bias and keep laid out as `mask` says. The output is poisoned beforehand; reads and
    writes outside the tensors are errors."""
    placed = Placed(scores.shape, scores.dtype, source)
    placed.array[...] = scores
    made = placed if in_place else Placed(scores.shape, scores.dtype, target)
    made.remember()
    layouts = {Role.BIAS: mask, Role.KEEP: mask}
    arrays = {role: Placed(array.shape, array.dtype, layouts.get(role, Layout())) for role, array in operands.items()}
    for role, array in operands.items():
        arrays[role].array[...] = array
    addresses = {role: (arrays[role].range.low, array.shape, array.dtype) for role, array in operands.items()}
    params = make_params(placed.address, made.address, scores.shape, scores.dtype, config, addresses)
    params.scores_strides[:], params.probabilities_strides[:] = placed.element_strides(), made.element_strides()
    readable = _ranges([placed.range, *(array.range for array in arrays.values())])
    run = EmulatedRun(device, seed, readable, _ranges([made.range]), len(readable), 1)
    status = emulation().attngraft_test_emulated_softmax(ctypes.byref(params), ctypes.byref(run))
    assert status == 0, f"status {status}: {run.message.decode()}"
    made.assert_nothing_else_written()
    return Emulated(np.ascontiguousarray(made.array), run.scores_read, run.stored)


def _ranges(ranges: Sequence[MemoryRange]) -> ctypes.Array:
    return (MemoryRange * len(ranges))(*ranges)
