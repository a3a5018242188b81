"""Tensors as strided views of another: which element of the source stands at an index.

An axis is a tuple of runs, outermost first; an index of the axis is parted among them, and each step along a run moves
by its stride in the flat source. A repeated axis has a run of stride 0. Sizes and strides are polynomials of the
model's sizes, so equal views are equal for every input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

from attngraft.match.meaning.polynomials import ONE, ZERO, Polynomial, divide

__all__ = ["Axis", "Run", "Strided", "contiguous"]


@dataclass(frozen=True)
class Run:
    size: Polynomial
    stride: Polynomial


Axis = tuple[Run, ...]
Dims = Sequence[Polynomial]


@dataclass(frozen=True)
class Strided:
    """A view. Its axes are in normal form: no run has size 1, and no two that follow each other are one."""

    axes: tuple[Axis, ...]
    offset: Polynomial = ZERO

    @property
    def dims(self) -> tuple[Polynomial, ...]:
        return tuple(_size(axis) for axis in self.axes)

    def transposed(self, perm: Sequence[int]) -> Strided:
        return replace(self, axes=tuple(self.axes[axis] for axis in perm))

    def reshaped(self, dims: Dims) -> Strided | None:
        """None where the new axes are not proved to be made of whole runs, or of runs that can be parted."""
        pending = [run for axis in self.axes for run in axis][::-1]
        axes = []
        for dim in dims:
            axis = _take(pending, dim)
            if axis is None:
                return None
            axes.append(axis)
        return None if pending else Strided(tuple(map(_normal, axes)), self.offset)

    def sliced(self, axis: int, first: Polynomial, length: Polynomial) -> Strided | None:
        """Indices from `first` on. None where an axis of several runs is cut elsewhere than between whole outer
        steps."""
        if self.dims[axis] == length:
            return self
        if not self.axes[axis]:
            return None
        outer, *inner = self.axes[axis]
        within = _size(tuple(inner))
        skipped, kept = divide(first, within), divide(length, within)
        if skipped is None or kept is None:
            return None
        cut = _normal((Run(kept, outer.stride), *inner))
        return Strided(self._with_axis(axis, cut), self.offset + skipped * outer.stride)

    def expanded(self, dims: Dims) -> Strided | None:
        """Broadcast to `dims`, of which there may be more than axes."""
        axes: list[Axis] = [()] * (len(dims) - len(self.axes)) + list(self.axes)
        if len(axes) != len(dims):
            return None
        for place, (axis, dim) in enumerate(zip(axes, dims, strict=True)):
            if not axis:
                axes[place] = _normal((Run(dim, ZERO),))
            elif _size(axis) != dim:
                return None
        return Strided(tuple(axes), self.offset)

    def tiled(self, repeats: Dims) -> Strided:
        """Each axis as a whole as often in succession as `repeats` says."""
        pairs = zip(self.axes, repeats, strict=True)
        return Strided(tuple(_normal((Run(times, ZERO), *axis)) for axis, times in pairs), self.offset)

    def repeated(self, axis: int, times: Polynomial) -> Strided:
        """Each element of an axis `times` in succession."""
        return Strided(self._with_axis(axis, _normal((*self.axes[axis], Run(times, ZERO)))), self.offset)

    def joined(self, axis: int) -> Strided:
        """An axis and the next one as one."""
        merged = _normal((*self.axes[axis], *self.axes[axis + 1]))
        return replace(self, axes=(*self.axes[:axis], merged, *self.axes[axis + 2 :]))

    def without_axes(self, gone: set[int]) -> Strided:
        return replace(self, axes=tuple(axis for place, axis in enumerate(self.axes) if place not in gone))

    def _with_axis(self, place: int, axis: Axis) -> tuple[Axis, ...]:
        return (*self.axes[:place], axis, *self.axes[place + 1 :])


def contiguous(dims: Dims) -> Strided:
    """The whole of a tensor with these dimensions."""
    axes: list[Axis] = []
    stride = ONE
    for dim in reversed(dims):
        axes.append(_normal((Run(dim, stride),)))
        stride = stride * dim
    return Strided(tuple(reversed(axes)))


def _size(axis: Axis) -> Polynomial:
    return reduce(lambda left, run: left * run.size, axis, ONE)


def _normal(runs: Sequence[Run]) -> Axis:
    found: list[Run] = []
    for run in runs:
        if run.size == ONE:
            continue
        if found and found[-1].stride == run.size * run.stride:
            run = Run(found.pop().size * run.size, run.stride)
        found.append(run)
    return tuple(found)


def _take(pending: list[Run], dim: Polynomial) -> Axis | None:
    """Takes runs that make up `dim` from the end of `pending`, where the outermost is; the last of them may be
    parted."""
    axis: list[Run] = []
    while dim != ONE:
        if not pending:
            return None
        run = pending.pop()
        rest = divide(dim, run.size)
        if rest is not None:
            axis.append(run)
            dim = rest
            continue
        inner = divide(run.size, dim)
        if inner is None:
            return None
        axis.append(Run(dim, inner * run.stride))
        pending.append(Run(inner, run.stride))
        dim = ONE
    return tuple(axis)
