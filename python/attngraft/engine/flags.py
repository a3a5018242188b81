"""What may be asked of TensorRT's builder beyond shapes. In: names of flags. Out: a builder configuration with them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from attngraft.engine.backends import Backend
from attngraft.engine.device import describe_device
from attngraft.errors import BuildError

__all__ = [
    "FLAGS",
    "HARDWARE_COMPATIBLE",
    "REFIT",
    "VERSION_COMPATIBLE",
    "WEIGHT_STREAMING",
    "check_flags",
    "set_flags",
]

VERSION_COMPATIBLE = "version_compatible"
"""The engine carries TensorRT's lean runtime, and newer TensorRTs run it."""

HARDWARE_COMPATIBLE = "hardware_compatible"
"""The engine runs on every GPU of compute capability 8.0 and later (TensorRT's level AMPERE_PLUS)."""

WEIGHT_STREAMING = "weight_streaming"
"""Weights may stay in host memory and be brought when they are needed."""

REFIT = "refit"
"""Weights can be replaced in the built engine."""


@dataclass(frozen=True)
class _Flag:
    """`member`: of TensorRT's BuilderFlag; None for the hardware compatibility level. `not_in_rtx`: why TensorRT-RTX
    has it not; None if it has."""

    member: str | None
    not_in_rtx: str | None = None


_FLAGS = {
    VERSION_COMPATIBLE: _Flag("VERSION_COMPATIBLE", "its packages hold no lean runtime to put into the engine"),
    HARDWARE_COMPATIBLE: _Flag(None, "its engines run on all GPUs of compute capability 8.0 and later that it serves"),
    WEIGHT_STREAMING: _Flag("WEIGHT_STREAMING"),
    REFIT: _Flag("REFIT"),
}

FLAGS = tuple(_FLAGS)
"""All names, in the order in which cards show them."""


def check_flags(backend: Backend, names: Iterable[str]) -> tuple[str, ...]:
    """The flags without repetition, in the order of FLAGS.

    Raises BuildError for an unknown name, and for a flag that this TensorRT has not.
    """
    wanted = frozenset(names)
    for name in sorted(wanted):
        if name not in _FLAGS:
            raise BuildError(f"flag {name!r}: not one of {', '.join(FLAGS)}")
        reason = _obstacle(backend, name)
        if reason is not None:
            option = name.replace("_", "-")
            raise BuildError(f"--{option}: {backend.label} cannot do it: {reason}; leave --{option} out")
    return tuple(name for name in FLAGS if name in wanted)


def _obstacle(backend: Backend, name: str) -> str | None:
    flag, trt = _FLAGS[name], backend.module
    if backend.is_rtx and flag.not_in_rtx is not None:
        return flag.not_in_rtx
    if backend.is_rtx and name == REFIT and describe_device() is None:
        return "it compiles engines that can be refitted on a GPU only, and there is none here"
    if flag.member is None:
        known = hasattr(getattr(trt, "HardwareCompatibilityLevel", None), "AMPERE_PLUS")
    else:
        known = hasattr(trt.BuilderFlag, flag.member)
    return None if known else "it does not know this flag"


def set_flags(backend: Backend, config: Any, names: Collection[str]) -> None:
    """Sets flags that `check_flags` let pass."""
    trt = backend.module
    for name in names:
        member = _FLAGS[name].member
        if member is None:
            config.hardware_compatibility_level = trt.HardwareCompatibilityLevel.AMPERE_PLUS
        else:
            config.set_flag(getattr(trt.BuilderFlag, member))
