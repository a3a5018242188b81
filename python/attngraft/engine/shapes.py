"""The shapes that an engine accepts. In: `name=min:opt:max` options and a model. Out: one checked range per input."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from attngraft.errors import BuildError

__all__ = ["ShapeRange", "format_shape", "model_inputs", "parse_shape_option", "resolve_profile"]

Shape = tuple[int, ...]

_SHAPE = re.compile(r"\d+(x\d+)*")
_SCALAR = "scalar"
"""How the shape of rank 0 is written."""


def format_shape(shape: tuple[int | str | None, ...]) -> str:
    """`1x3x224x224`; symbolic dimensions by their name, unknown ones as `?`."""
    return "x".join("?" if dim is None else str(dim) for dim in shape) or _SCALAR


def _parse_shape(text: str, option: str) -> Shape:
    if text == _SCALAR:
        return ()
    if not _SHAPE.fullmatch(text):
        raise BuildError(f"shape {option!r}: {text!r} is not a shape; write dimensions as 1x3x224x224")
    return tuple(int(dim) for dim in text.split("x"))


@dataclass(frozen=True)
class ShapeRange:
    """The smallest, the most usual, and the largest shape of one input: an optimization profile's three corners.

    Raises BuildError on construction unless all three have one rank and min <= opt <= max in every dimension.
    """

    min: Shape
    opt: Shape
    max: Shape

    def __post_init__(self) -> None:
        for corner in ("min", "opt", "max"):
            object.__setattr__(self, corner, tuple(int(dim) for dim in getattr(self, corner)))
        if not len(self.min) == len(self.opt) == len(self.max):
            raise BuildError(f"shape {self}: min, opt and max differ in rank; give all three the input's rank")
        if any(not 0 <= low <= usual <= high for low, usual, high in zip(self.min, self.opt, self.max)):
            raise BuildError(f"shape {self}: every dimension needs 0 <= min <= opt <= max")

    @classmethod
    def fixed(cls, shape: tuple[int, ...]) -> ShapeRange:
        """The range that holds one shape only."""
        return cls(shape, shape, shape)

    @classmethod
    def parse(cls, text: str) -> ShapeRange:
        """`1x3x224x224` for one shape, or `min:opt:max`, for example `1x128:8x384:32x512`."""
        corners = [_parse_shape(part, text) for part in text.split(":")]
        if len(corners) == 1:
            return cls.fixed(corners[0])
        if len(corners) != 3:
            raise BuildError(f"shape {text!r}: {len(corners)} shapes; give one, or three as min:opt:max")
        return cls(*corners)

    @property
    def is_fixed(self) -> bool:
        return self.min == self.max

    def contains(self, shape: tuple[int, ...]) -> bool:
        """Whether a run with this shape is inside the range."""
        return len(shape) == len(self.min) and all(a <= d <= b for a, d, b in zip(self.min, shape, self.max))

    def __str__(self) -> str:
        corners = (self.min,) if self.is_fixed and self.opt == self.min else (self.min, self.opt, self.max)
        return ":".join(format_shape(corner) for corner in corners)


def parse_shape_option(text: str) -> tuple[str, ShapeRange]:
    """Splits `name=min:opt:max` or `name=shape`. A name may hold `=` and `:` itself: the last `=` separates."""
    name, separator, value = text.rpartition("=")
    if not separator or not name:
        raise BuildError(f"shape {text!r}: no input name; write NAME=1x3x224x224 or NAME=min:opt:max")
    return name, ShapeRange.parse(value)


def model_inputs(model: onnx.ModelProto) -> dict[str, tuple[int | str | None, ...]]:
    """Shape by name of each input that is fed at run time; symbolic dimensions are names, unknown ones None."""
    initialized = {tensor.name for tensor in model.graph.initializer}
    found = {}
    for value in model.graph.input:
        if value.name in initialized:
            continue
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type") or not tensor.HasField("shape"):
            raise BuildError(f"input {value.name!r}: not a tensor of known rank; declare its shape in the model")
        found[value.name] = tuple(
            dim.dim_value if dim.HasField("dim_value") else (dim.dim_param or None) for dim in tensor.shape.dim
        )
    return found


def resolve_profile(model: onnx.ModelProto, shapes: Mapping[str, ShapeRange]) -> dict[str, ShapeRange]:
    """One range for each input of the model, fixed inputs included.

    Raises BuildError for an unknown name, a wrong rank, a range that contradicts a fixed dimension, a dynamic input
    without a range, and two ranges of one symbolic dimension that differ.
    """
    inputs = model_inputs(model)
    for name in shapes:
        if name not in inputs:
            raise BuildError(f"shape of {name!r}: the model has no such input; its inputs are {', '.join(inputs)}")
    profile = {name: _resolve_input(name, declared, shapes.get(name)) for name, declared in inputs.items()}
    _check_symbols(inputs, profile)
    return profile


def _resolve_input(name: str, declared: tuple[int | str | None, ...], given: ShapeRange | None) -> ShapeRange:
    if given is None:
        dynamic = [dim for dim in declared if not isinstance(dim, int)]
        if dynamic:
            raise BuildError(
                f"input {name!r} is {format_shape(declared)}, with dynamic dimensions: "
                f"give its shapes as --shape {name}=min:opt:max"
            )
        return ShapeRange.fixed(tuple(dim for dim in declared if isinstance(dim, int)))
    if len(given.min) != len(declared):
        raise BuildError(
            f"shape of {name!r}: {given} has rank {len(given.min)}, but the model's input is {format_shape(declared)}"
        )
    for axis, dim in enumerate(declared):
        if isinstance(dim, int) and not given.min[axis] == given.max[axis] == dim:
            raise BuildError(
                f"shape of {name!r}: {given} contradicts the model, whose dimension {axis} is fixed at {dim}"
            )
    return given


def _check_symbols(inputs: Mapping[str, tuple[int | str | None, ...]], profile: Mapping[str, ShapeRange]) -> None:
    """One symbol is one number at run time, so its ranges must agree wherever it is named."""
    seen: dict[str, tuple[str, tuple[int, int, int]]] = {}
    for name, declared in inputs.items():
        for axis, symbol in enumerate(declared):
            if not isinstance(symbol, str):
                continue
            corner = (profile[name].min[axis], profile[name].opt[axis], profile[name].max[axis])
            first, known = seen.setdefault(symbol, (name, corner))
            if known != corner:
                raise BuildError(
                    f"shapes of {first!r} and {name!r}: dimension {symbol!r} is {_colons(known)} in one and "
                    f"{_colons(corner)} in the other; give both the same"
                )


def _colons(corner: tuple[int, int, int]) -> str:
    return ":".join(str(value) for value in corner)
