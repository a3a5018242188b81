"""Shape buckets: few sizes instead of many, so that few graphs serve all. In: shapes. Out: padded ones, and the cuts.

Nothing is guessed. An axis has a name of the caller's choice, which says which axes of inputs and outputs have one and
the same length; TensorRT's engines keep no names of axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from attngraft.engine.shapes import format_shape
from attngraft.errors import EngineError
from attngraft.runtime.arrays import numpy_dtype
from attngraft.runtime.profiles import Profile
from attngraft.runtime.tensors import TensorSpec

__all__ = ["Buckets", "BucketPlan"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Buckets:
    """Which lengths named axes are padded to, with what, and which output axes are cut back.

        Buckets(
            sizes={"tokens": (64, 128, 256)},
            inputs={"input_ids": {1: "tokens"}, "attention_mask": {1: "tokens"}},
            pad={"input_ids": 0, "attention_mask": 0},
            outputs={"last_hidden_state": {1: "tokens"}, "pooled": {}},
        )

    A length goes to the smallest size that is not below it; one above all sizes stays as it is. Padding stands behind
    the values. The model must not let it reach what is kept, which a mask padded with "not there" sees to.
    Raises EngineError, here and when a session takes it, for whatever is not said or said twice.
    """

    sizes: Mapping[str, Sequence[int]]
    """Lengths of each named axis, rising."""
    inputs: Mapping[str, Mapping[int, str]]
    """Of each padded input, the axis' name by its place, counted from 0."""
    pad: Mapping[str, float]
    """The value that each padded input is filled up with."""
    outputs: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """Of each output of the engine, the names of its padded axes by their places; {} for one that has none."""

    def __post_init__(self) -> None:
        used = {name for axes in self.inputs.values() for name in axes.values()}
        for name, sizes in self.sizes.items():
            if not sizes or any(size < 1 for size in sizes) or list(sizes) != sorted(set(sizes)):
                raise EngineError(f"buckets of axis {name!r}: {tuple(sizes)}; give lengths above 0, each once, rising")
            if name not in used:
                raise EngineError(f"buckets of axis {name!r}: no input has it; name its place in Buckets.inputs")
        named = used | {name for axes in self.outputs.values() for name in axes.values()}
        unsized = sorted(named - set(self.sizes))
        if unsized:
            raise EngineError(f"buckets: axis {unsized[0]!r} has no sizes; give them in Buckets.sizes")
        if set(self.pad) != set(self.inputs):
            odd = sorted(set(self.pad) ^ set(self.inputs))[0]
            raise EngineError(
                f"buckets: input {odd!r} needs both its axes in Buckets.inputs and a value in Buckets.pad"
            )


@dataclass(frozen=True)
class Padding:
    """What buckets make of one set of input shapes."""

    shapes: Mapping[str, Shape]
    """All inputs' padded shapes."""
    lengths: Mapping[str, tuple[int, int]]
    """Of each axis that is padded, its length and the padded one."""


class BucketPlan:
    """Buckets that fit one engine. Raises EngineError for tensors, axes and values that do not."""

    def __init__(self, buckets: Buckets, specs: tuple[TensorSpec, ...], profiles: tuple[Profile, ...]) -> None:
        self._buckets = buckets
        inputs = {spec.name: spec for spec in specs if spec.is_input}
        outputs = [spec.name for spec in specs if not spec.is_input]
        self.pads = {name: _pad_bytes(name, value, inputs) for name, value in buckets.pad.items()}
        """The element that each padded input is filled up with, as bytes."""
        for name, axes in buckets.inputs.items():
            rank = len(profiles[0].ranges[name].min)
            _check_axes(f"input {name!r}", axes, rank)
        unsaid = [name for name in outputs if name not in buckets.outputs]
        if unsaid:
            raise EngineError(
                f"buckets: output {unsaid[0]!r} is not in Buckets.outputs; say which of its axes are padded, or {{}}"
            )
        unknown = [name for name in buckets.outputs if name not in outputs]
        if unknown:
            raise EngineError(f"buckets: the engine has no output {unknown[0]!r}; its outputs are {', '.join(outputs)}")
        for axis, sizes in buckets.sizes.items():
            for size in sizes:
                self._check_size(axis, size, profiles)

    def _check_size(self, axis: str, size: int, profiles: tuple[Profile, ...]) -> None:
        places = [
            (name, at) for name, axes in self._buckets.inputs.items() for at, found in axes.items() if found == axis
        ]
        for profile in profiles:
            if all(profile.ranges[name].min[at] <= size <= profile.ranges[name].max[at] for name, at in places):
                return
        raise EngineError(
            f"buckets of axis {axis!r}: {size} is in none of the engine's profiles ({', '.join(map(str, profiles))})"
        )

    def pad(self, shapes: Mapping[str, Shape]) -> Padding | None:
        """Padded shapes; None where nothing is to be padded. Raises EngineError when inputs differ in
        an axis' length."""
        lengths: dict[str, tuple[str, int]] = {}
        for name, axes in self._buckets.inputs.items():
            for place, axis in axes.items():
                length = shapes[name][place]
                first, known = lengths.setdefault(axis, (name, length))
                if known != length:
                    raise EngineError(
                        f"inputs {first!r} and {name!r}: axis {axis!r} has length {known} in one and {length} in the "
                        "other; give both the same"
                    )
        padded = {}
        for axis, (_, length) in lengths.items():
            size = next((size for size in self._buckets.sizes[axis] if size >= length), length)
            if size != length:
                padded[axis] = (length, size)
        if not padded:
            return None
        grown = dict(shapes)
        for name, axes in self._buckets.inputs.items():
            grown[name] = tuple(
                padded[axes[place]][1] if axes.get(place) in padded else dim for place, dim in enumerate(shapes[name])
            )
        return Padding(grown, padded)

    def cuts(self, padding: Padding, outputs: Mapping[str, Shape]) -> dict[str, Shape]:
        """The part to keep of each output that has a padded axis. Raises EngineError for an output without such an axis
        where one was named, or of another length."""
        cuts = {}
        for name, shape in outputs.items():
            kept = list(shape)
            for place, axis in self._buckets.outputs[name].items():
                if axis not in padding.lengths:
                    continue
                length, size = padding.lengths[axis]
                if not 0 <= place < len(shape) or shape[place] != size:
                    raise EngineError(
                        f"buckets: output {name!r} is {format_shape(shape)}, whose axis {place} is not {axis!r} of "
                        f"length {size}; correct Buckets.outputs"
                    )
                kept[place] = length
            if tuple(kept) != shape:
                cuts[name] = tuple(kept)
        return cuts


def _check_axes(what: str, axes: Mapping[int, str], rank: int) -> None:
    for place in axes:
        if not 0 <= place < rank:
            raise EngineError(f"buckets: {what} has no axis {place}; its axes are 0 to {rank - 1}")


def _pad_bytes(name: str, value: float, inputs: Mapping[str, TensorSpec]) -> bytes:
    if name not in inputs:
        raise EngineError(f"buckets: the engine has no input {name!r}; its inputs are {', '.join(inputs)}")
    dtype = numpy_dtype(inputs[name].dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        try:
            element = np.asarray(value).astype(dtype)
        except (TypeError, ValueError):
            raise EngineError(f"buckets: pad of input {name!r}: {value!r} is no number") from None
    exact = dtype.kind in "fV" or element == value  # a float may be rounded, but not become infinite
    if element.ndim or not exact or (np.isfinite(value) and not np.isfinite(element.astype(np.float64))):
        raise EngineError(f"buckets: pad of input {name!r}: {value!r} is no value of type {inputs[name].dtype}")
    return element.tobytes()
