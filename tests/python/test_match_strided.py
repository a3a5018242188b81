"""Strided views against NumPy, which moves real data; and with sizes that only a run tells."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attngraft.match.attention.strided import Strided, contiguous
from attngraft.match.meaning import Polynomial
from attngraft.match.meaning.polynomials import Size

B, S = Polynomial.of(Size("B")), Polynomial.of(Size("S"))


def numbers(*values: int) -> tuple[Polynomial, ...]:
    return tuple(map(Polynomial.of, values))


def elements(strided: Strided) -> np.ndarray:
    """The source's element at each index, for views of known sizes."""
    flat = np.asarray(int(strided.offset.constant))
    for axis in strided.axes:
        steps = np.zeros(1, np.int64)
        for run in axis:
            steps = np.add.outer(steps, np.arange(run.size.constant) * int(run.stride.constant)).reshape(-1)
        flat = np.add.outer(flat, steps)
    return flat


@st.composite
def moves(draw: st.DrawFn) -> tuple[np.ndarray, Strided | None]:
    """An array of its own indices and the view, after the same random moves; None once a view cannot follow."""
    shape = draw(st.lists(st.sampled_from((1, 2, 3, 4, 6)), min_size=1, max_size=4))
    array = np.arange(math.prod(shape)).reshape(shape)
    strided: Strided | None = contiguous(numbers(*shape))
    for move in draw(
        st.lists(st.sampled_from(("transpose", "reshape", "slice", "expand", "tile", "repeat")), max_size=5)
    ):
        if strided is None or array.size > 5000:
            break
        axis = draw(st.integers(0, array.ndim - 1))
        if move == "transpose":
            perm = draw(st.permutations(range(array.ndim)))
            array, strided = array.transpose(perm), strided.transposed(perm)
        elif move == "reshape":
            target = draw(st.sampled_from(targets(array.shape)))
            array, strided = array.reshape(target), strided.reshaped(numbers(*target))
        elif move == "slice":
            first = draw(st.integers(0, array.shape[axis] - 1))
            length = draw(st.integers(1, array.shape[axis] - first))
            array = array.take(range(first, first + length), axis)
            strided = strided.sliced(axis, *numbers(first, length))
        elif move == "expand":
            target = (2, *(3 if size == 1 else size for size in array.shape))
            array, strided = np.broadcast_to(array, target), strided.expanded(numbers(*target))
        elif move == "tile":
            times = [2 if place == axis else 1 for place in range(array.ndim)]
            array, strided = np.tile(array, times), strided.tiled(numbers(*times))
        else:
            array, strided = array.repeat(2, axis), strided.repeated(axis, Polynomial.of(2))
    return array, strided


def targets(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Shapes of as many elements: flat, two axes merged, and one parted in two."""
    found = [(math.prod(shape),)]
    found += [(*shape[:k], shape[k] * shape[k + 1], *shape[k + 2 :]) for k in range(len(shape) - 1)]
    return found + [
        (*shape[:k], shape[k] // part, part, *shape[k + 1 :])
        for k in range(len(shape))
        for part in (2, 3)
        if shape[k] % part == 0
    ]


@given(moves())
def test_equals_numpy(moved: tuple[np.ndarray, Strided | None]) -> None:
    array, strided = moved
    if strided is not None:
        assert tuple(dim.constant for dim in strided.dims) == array.shape
        np.testing.assert_array_equal(elements(strided), array)


def test_what_is_laid_out_alike_is_equal() -> None:
    """A transposition and its inverse, a reshape and its inverse, and merging in two ways give the same view."""
    whole = contiguous((B, S, *numbers(4, 8)))
    by_heads = whole.transposed((0, 2, 1, 3))
    assert by_heads != whole and by_heads.transposed((0, 2, 1, 3)) == whole
    assert contiguous((B, S, Polynomial.of(32))).reshaped(whole.dims) == whole
    merged = by_heads.reshaped((B * Polynomial.of(4), S, Polynomial.of(8)))
    assert merged is not None and merged.reshaped(by_heads.dims) == by_heads


@pytest.mark.parametrize(
    "target", [(S, B, *numbers(32)), (B, S, *numbers(3, 8)), (B, *numbers(32)), (B, S, Polynomial.of(32), S)]
)
def test_a_reshape_that_is_not_proved_gives_none(target: tuple[Polynomial, ...]) -> None:
    assert contiguous((B, S, Polynomial.of(32))).reshaped(target) is None


def test_other_moves_that_are_no_views() -> None:
    repeated = contiguous(numbers(4)).repeated(0, Polynomial.of(2))
    assert repeated.sliced(0, *numbers(1, 4)) is None
    assert contiguous((B, S)).expanded((S, S)) is None
    assert contiguous((B, S)).expanded((S,)) is None
    assert contiguous((B, *numbers(1))).sliced(1, *numbers(0, 0)) is None
