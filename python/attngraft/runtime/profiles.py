"""An engine's optimization profiles. In: a deserialized engine, then shapes. Out: the first profile that holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attngraft.engine.shapes import ShapeRange, format_shape
from attngraft.errors import EngineError
from attngraft.runtime.tensors import TensorSpec, outside_profile

__all__ = ["Profile", "choose_profile", "read_profiles"]


@dataclass(frozen=True)
class Profile:
    """One optimization profile: the shapes that each input may have in it."""

    index: int
    ranges: Mapping[str, ShapeRange]

    def contains(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether every input's shape is inside."""
        return all(self.ranges[name].contains(shape) for name, shape in shapes.items())

    def __str__(self) -> str:
        return f"profile {self.index} (" + ", ".join(f"{name} {ranges}" for name, ranges in self.ranges.items()) + ")"


def read_profiles(engine: Any, specs: tuple[TensorSpec, ...]) -> tuple[Profile, ...]:
    """All profiles of an engine, in its order; at least one."""
    names = [spec.name for spec in specs if spec.is_input]
    return tuple(
        Profile(
            index,
            {
                name: ShapeRange(*(tuple(shape) for shape in engine.get_tensor_profile_shape(name, index)))
                for name in names
            },
        )
        for index in range(max(engine.num_optimization_profiles, 1))
    )


def choose_profile(profiles: tuple[Profile, ...], shapes: Mapping[str, tuple[int, ...]]) -> Profile:
    """The first profile that holds all inputs' shapes. Raises EngineError that names all profiles when none does."""
    for profile in profiles:
        if profile.contains(shapes):
            return profile
    if len(profiles) == 1:
        (only,) = profiles
        name = next(name for name, shape in shapes.items() if not only.ranges[name].contains(shape))
        raise outside_profile(name, shapes[name], only.ranges[name])
    given = ", ".join(f"{name} {format_shape(shape)}" for name, shape in shapes.items())
    raise EngineError(
        f"inputs {given}: are outside each of the engine's profiles, {', '.join(map(str, profiles))}; "
        "build the engine with one that holds them"
    )
