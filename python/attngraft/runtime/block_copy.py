"""A block of an array within a larger one, on the device: what padding and un-padding are made of."""

from __future__ import annotations

import itertools
import math

from attngraft.errors import EngineError
from attngraft.runtime.buffers import copy_async, copy_kind
from attngraft.runtime.cuda import call, cuda_driver

__all__ = ["copy_block", "fill_async"]

Shape = tuple[int, ...]


def copy_block(target: int, target_shape: Shape, source: int, source_shape: Shape, itemsize: int, stream: int) -> None:
    """Copies the leading corner that two contiguous device arrays share, element by element at the same indices.

    One call where they differ in one axis; else one for each index of the axes before the last that differs.
    """
    common = tuple(min(a, b) for a, b in zip(target_shape, source_shape))
    if 0 in common:
        return
    differ = [axis for axis in range(len(common)) if target_shape[axis] != source_shape[axis]]
    last = differ[-1] if differ else 0
    row = math.prod(common[last:]) * itemsize
    # The axis before the last that differs gives the rows of a 2-D copy; equal axes before it join it.
    first = last
    while first > 0 and (first == last or first not in differ):
        first -= 1
    rows = math.prod(common[first:last])
    target_pitch = math.prod(target_shape[last:]) * itemsize
    source_pitch = math.prod(source_shape[last:]) * itemsize
    for index in itertools.product(*(range(dim) for dim in common[:first])):
        _copy_rows(
            target + _offset(index, target_shape) * itemsize,
            target_pitch,
            source + _offset(index, source_shape) * itemsize,
            source_pitch,
            row,
            rows,
            stream,
        )


def _offset(index: Shape, shape: Shape) -> int:
    """Elements before the block at that index of the leading axes."""
    return sum(place * math.prod(shape[axis + 1 :]) for axis, place in enumerate(index))


def _copy_rows(
    target: int, target_pitch: int, source: int, source_pitch: int, row: int, rows: int, stream: int
) -> None:
    if rows == 1:  # a pitch has a limit, which one long row might pass
        copy_async(target, source, row, stream)
        return
    call("cudaMemcpy2DAsync", target, target_pitch, source, source_pitch, row, rows, copy_kind(), stream)


def fill_async(target: int, value: bytes, count: int, stream: int) -> None:
    """Writes an element of 1, 2, 4 or 8 bytes `count` times. Raises EngineError when CUDA refuses."""
    if not count:
        return
    driver = cuda_driver()
    number = int.from_bytes(value, "little")
    if len(value) == 8:
        # There is no fill of 8 bytes: both halves, each a column of a matrix with two.
        low, high = number & 0xFFFFFFFF, number >> 32
        _check(driver.cuMemsetD2D32Async(target, 8, low, 1, count, stream))
        _check(driver.cuMemsetD2D32Async(target + 4, 8, high, 1, count, stream))
        return
    fill = {1: driver.cuMemsetD8Async, 2: driver.cuMemsetD16Async, 4: driver.cuMemsetD32Async}[len(value)]
    _check(fill(target, number, count, stream))


def _check(result: tuple[object, ...]) -> None:
    if int(result[0]):  # type: ignore[call-overload]
        raise EngineError(f"padding on the device failed: {result[0]}")
