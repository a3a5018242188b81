"""Padding and cutting on the device, on a GPU made of host memory."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from attngraft.runtime.block_copy import copy_block, fill_async
from fake_bench import Bench


@pytest.mark.parametrize(
    ("small", "large", "calls"),
    [
        ((3,), (5,), 1),
        ((), (), 1),
        ((2, 3), (2, 3), 1),
        ((2, 3), (4, 3), 1),
        ((2, 3), (2, 5), 1),
        ((2, 3), (4, 5), 1),
        ((2, 3, 4), (2, 5, 4), 1),
        ((2, 3, 4), (5, 5, 4), 1),
        ((2, 3, 4), (2, 3, 7), 1),
        ((2, 3, 4), (2, 5, 7), 2),
        ((2, 3, 4, 5), (3, 4, 4, 6), 2),
        ((2, 1, 3, 3), (2, 1, 6, 6), 2),
        ((0, 3), (2, 3), 0),
    ],
)
def test_a_corner_goes_both_ways(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, small: tuple[int, ...], large: tuple[int, ...], calls: int
) -> None:
    count = []
    for name in ("cudaMemcpy2DAsync", "cudaMemcpyAsync"):
        copy = getattr(bench.gpu, name)
        monkeypatch.setattr(bench.gpu, name, lambda *a, copy=copy: (count.append(1), copy(*a))[1], raising=False)
    block = np.arange(1, np.prod(small, dtype=int) + 1, dtype=np.int64).reshape(small)
    corner = tuple(slice(dim) for dim in small)
    whole = np.full(large, -1, np.int64)
    copy_block(whole.ctypes.data, large, block.ctypes.data, small, 8, 0)
    assert len(count) == calls
    np.testing.assert_array_equal(whole[corner], block)
    assert (whole == -1).sum() == whole.size - block.size
    back = np.zeros_like(block)
    copy_block(back.ctypes.data, small, whole.ctypes.data, large, 8, 0)
    np.testing.assert_array_equal(back, block)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (np.bool_, True),
        (np.int8, -3),
        (np.uint8, 200),
        (np.float16, -1e4),
        (ml_dtypes.bfloat16, -1e4),
        (np.float32, -np.inf),
        (np.int32, 7),
        (np.int64, -5),
        (np.int64, 1 << 33),
        (np.int64, 0),
    ],
)
def test_any_element_can_fill(bench: Bench, dtype: type, value: float) -> None:
    array = np.zeros(7, dtype)
    fill_async(array.ctypes.data, np.asarray(value).astype(dtype).tobytes(), 5, 0)
    assert (array[:5] == np.asarray(value).astype(dtype)).all()
    assert (array[5:] == 0).all()
    fill_async(array.ctypes.data, bytes(8), 0, 0)
