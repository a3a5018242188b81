"""An engine's inputs and outputs. In: a deserialized engine. Out: frozen specifications, and inputs checked by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attngraft.engine.network import DTYPE_NAMES
from attngraft.engine.shapes import ShapeRange, format_shape
from attngraft.errors import EngineError
from attngraft.runtime.arrays import ArrayView

__all__ = [
    "TensorSpec",
    "check_names",
    "check_types_and_ranks",
    "outside_profile",
    "read_tensors",
]


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of an engine."""

    name: str
    dtype: str
    is_input: bool
    profile: ShapeRange | None
    """The shapes that an input may have in the engine's first profile; None for outputs."""


def read_tensors(trt: Any, engine: Any) -> tuple[TensorSpec, ...]:
    """All inputs and outputs, in the engine's order. Raises EngineError for those that a session cannot serve."""
    specs = []
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
        kind = engine.get_tensor_dtype(name).name
        what = f"{'input' if is_input else 'output'} {name!r}"
        if kind not in DTYPE_NAMES:
            raise EngineError(f"{what}: arrays cannot carry type {kind}; cast it in the model")
        if engine.get_tensor_location(name) != trt.TensorLocation.DEVICE:
            raise EngineError(f"{what}: is a shape that TensorRT reads on the host, which a session does not serve")
        if engine.get_tensor_format(name) != trt.TensorFormat.LINEAR:
            raise EngineError(f"{what}: is not in linear format; build the engine without reformat-free formats")
        profile = (
            ShapeRange(*(tuple(shape) for shape in engine.get_tensor_profile_shape(name, 0))) if is_input else None
        )
        specs.append(TensorSpec(name, DTYPE_NAMES[kind], is_input, profile))
    return tuple(specs)


def check_names(specs: tuple[TensorSpec, ...], given: object) -> None:
    """Raises EngineError unless exactly the engine's inputs are given, by name."""
    names = [spec.name for spec in specs if spec.is_input]
    if not isinstance(given, Mapping):
        raise EngineError(f"inputs: {type(given).__name__} has no names; give a dict with {', '.join(names)}")
    unknown = [name for name in given if name not in names]
    if unknown:
        raise EngineError(f"input {unknown[0]!r}: the engine has no such input; its inputs are {', '.join(names)}")
    missing = [name for name in names if name not in given]
    if missing:
        raise EngineError(f"input {missing[0]!r}: is not given; the engine's inputs are {', '.join(names)}")


def check_types_and_ranks(specs: tuple[TensorSpec, ...], views: Mapping[str, ArrayView]) -> None:
    """Raises EngineError for a wrong type or a wrong rank."""
    for spec in specs:
        if spec.profile is None:
            continue
        view = views[spec.name]
        if view.dtype != spec.dtype:
            raise EngineError(f"input {spec.name!r}: is {view.dtype}, but the engine takes {spec.dtype}; convert it")
        if len(view.shape) != len(spec.profile.min):
            raise EngineError(
                f"input {spec.name!r}: {format_shape(view.shape)} has rank {len(view.shape)}, but the engine takes "
                f"{spec.profile}"
            )


def outside_profile(name: str, shape: tuple[int, ...], profile: ShapeRange) -> EngineError:
    """What is said of an input that the engine's only profile does not hold."""
    return EngineError(
        f"input {name!r}: {format_shape(shape)} is outside the engine's profile {profile}; "
        "build the engine with a wider --shape"
    )
