"""Sizes for symbolic dimensions: one symbol, one size in all inputs; odd sizes are among those tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnx import ModelProto, TensorProto, ValueInfoProto

from attngraft.errors import VerificationError

__all__ = ["InputSpec", "input_specs", "size_plans"]

FLOAT_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


@dataclass(frozen=True)
class InputSpec:
    """A model input: ONNX element type, and dimensions as numbers or symbols (unnamed ones are called by their
    axis)."""

    name: str
    dtype: int
    dims: tuple[int | str, ...]


@dataclass(frozen=True)
class SizePlan:
    """Sizes for the symbols on axis 0, for those of images, and for all others."""

    batch: int
    image: int
    other: int


PLANS = (SizePlan(3, 32, 7), SizePlan(1, 64, 16), SizePlan(2, 224, 8))
"""An odd length first (vectorised kernels have edges there), then lengths that models with windows or patches
divide."""


def input_specs(model: ModelProto) -> tuple[InputSpec, ...]:
    """The inputs that a caller feeds: those that are no initializers. Raises VerificationError for one that is no
    tensor."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    return tuple(_spec(value) for value in model.graph.input if value.name not in initializers)


def size_plans(
    specs: tuple[InputSpec, ...], given: Mapping[str, tuple[int, ...]] | None
) -> list[dict[str, tuple[int, ...]]]:
    """Concrete shapes for all inputs, one dictionary for each plan that differs from the earlier ones.

    `given` fixes the shapes of some inputs; the symbols in them are then known for the others too.
    """
    fixed = _symbols_of_given(specs, given or {})
    plans: list[dict[str, tuple[int, ...]]] = []
    for plan in PLANS:
        shapes = _shapes(specs, plan, fixed) | dict(given or {})
        if shapes not in plans:
            plans.append(shapes)
    return plans


def _spec(value: ValueInfoProto) -> InputSpec:
    if not value.type.HasField("tensor_type"):
        raise VerificationError(f"input {value.name!r} is no tensor; such models cannot be verified, use --no-verify")
    dims = tuple(
        dim.dim_value if dim.HasField("dim_value") else (dim.dim_param or f"axis {axis}")
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
    )
    return InputSpec(value.name, value.type.tensor_type.elem_type, dims)


def _symbols_of_given(specs: tuple[InputSpec, ...], given: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    by_name = {spec.name: spec for spec in specs}
    symbols: dict[str, int] = {}
    for name, shape in given.items():
        if name not in by_name:
            raise VerificationError(f"shape for {name!r}: the model has no such input, only {', '.join(by_name)}")
        dims = by_name[name].dims
        agrees = len(dims) == len(shape) and all(
            size == dim if isinstance(dim, int) else symbols.setdefault(dim, size) == size
            for dim, size in zip(dims, shape, strict=True)
        )
        if not agrees:
            raise VerificationError(f"shape {'x'.join(map(str, shape))} for {name!r} contradicts the model's {dims}")
    return symbols


def _shapes(specs: tuple[InputSpec, ...], plan: SizePlan, fixed: dict[str, int]) -> dict[str, tuple[int, ...]]:
    sizes = dict(fixed)
    for spec in specs:
        is_image = spec.dtype in FLOAT_TYPES and len(spec.dims) == 4 and "mask" not in spec.name
        for axis, dim in enumerate(spec.dims):
            if isinstance(dim, str) and "+" not in dim:
                size = plan.batch if axis == 0 else plan.image if is_image and axis >= 2 else plan.other
                sizes.setdefault(dim, size)
    return {spec.name: tuple(_size(dim, sizes, plan) for dim in spec.dims) for spec in specs}


def _size(dim: int | str, sizes: dict[str, int], plan: SizePlan) -> int:
    """A symbol's size; exporters write "past + sequence" for a dimension that is the sum of two others."""
    if isinstance(dim, int):
        return dim
    terms = [term.strip() for term in dim.split("+")]
    return sum(int(term) if term.isdigit() else sizes.setdefault(term, plan.other) for term in terms)
