"""Shapes to build with where nobody gave any: good enough to ask what TensorRT fuses, not to serve with."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import ModelProto

from attngraft.engine.shapes import ShapeRange, model_inputs
from attngraft.errors import BuildError

__all__ = ["default_profile"]

Corners = tuple[int, int, int]

BATCH: Corners = (1, 4, 8)
SEQUENCE: Corners = (1, 64, 128)
"""Long enough for TensorRT's fused attention kernels, short enough for any model's table of positions."""

IMAGE: Corners = (224, 224, 224)
"""Fixed: patches and windows must divide it, and 224 is what vision models are made for."""

CHANNELS: Corners = (3, 3, 3)


def default_profile(model: ModelProto, given: Mapping[str, ShapeRange]) -> dict[str, ShapeRange]:
    """A range for every input with dynamic dimensions that `given` does not name, and what is given as it is.

    Axis 0 is the batch, axes 2 and 3 of a rank-4 input without "mask" in its name are an image's, all others are
    sequences. A symbol has one range everywhere; the symbols of given inputs have theirs. "a + b" is the sum.
    Raises BuildError for an input that is no tensor of known rank, and for a given range of another rank.
    """
    inputs = model_inputs(model)
    symbols: dict[str, Corners] = {}
    for name, shapes in given.items():
        if name in inputs:  # the check of unknown names is the builder's
            _learn(symbols, name, inputs[name], shapes)
    profile = dict(given)
    for name, dims in inputs.items():
        if name not in given and any(not isinstance(dim, int) for dim in dims):
            corners = [_corners(symbols, name, dims, axis) for axis in range(len(dims))]
            profile[name] = ShapeRange(*zip(*corners, strict=True))
    return profile


def _learn(symbols: dict[str, Corners], name: str, dims: tuple, shapes: ShapeRange) -> None:
    if len(shapes.min) != len(dims):
        raise BuildError(f"shape of {name!r}: {shapes} has rank {len(shapes.min)}, the model's input has {len(dims)}")
    for axis, dim in enumerate(dims):
        if isinstance(dim, str):
            symbols.setdefault(dim, (shapes.min[axis], shapes.opt[axis], shapes.max[axis]))


def _corners(symbols: dict[str, Corners], name: str, dims: tuple, axis: int) -> Corners:
    dim = dims[axis]
    if isinstance(dim, int):
        return (dim, dim, dim)
    usual = _usual(name, len(dims), axis)
    if dim is None:
        return usual
    if dim in symbols or "+" not in dim:
        return symbols.setdefault(dim, usual)
    terms = [term.strip() for term in dim.split("+")]
    parts = [(int(term),) * 3 if term.isdigit() else symbols.setdefault(term, SEQUENCE) for term in terms]
    low, opt, high = (sum(part[corner] for part in parts) for corner in range(3))
    return (low, opt, high)


def _usual(name: str, rank: int, axis: int) -> Corners:
    if axis == 0:
        return BATCH
    if rank == 4 and "mask" not in name:
        return CHANNELS if axis == 1 else IMAGE
    return SEQUENCE
