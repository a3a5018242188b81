"""The TensorRT that a model is lowered for."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from importlib import metadata

from attngraft.errors import RewriteError

__all__ = ["RTX", "TENSORRT", "Target", "default_target", "parse_target"]

TENSORRT, RTX = "tensorrt", "rtx"

DISTRIBUTIONS = (
    (TENSORRT, ("tensorrt", "tensorrt_cu13", "tensorrt_cu12", "tensorrt_cu11")),
    (TENSORRT, ("tensorrt_cu13_bindings", "tensorrt_cu12_bindings", "tensorrt_lean", "tensorrt_lean_cu13")),
    (RTX, ("tensorrt_rtx", "tensorrt_rtx_cu13", "tensorrt_rtx_cu12")),
)
"""Python distributions that bring a TensorRT, full ones before the parts that stand for one."""

VERSION = r"\d+(?:\.\d+)*"
SPELLING = re.compile(
    rf"(?:tensorrt[- ])?(?:(?P<rtx>rtx)(?:[- ](?P<rtx_version>{VERSION}))?|(?P<version>{VERSION}))"
    r"(?:@(?P<capability>\d+\.\d))?"
)


@dataclass(frozen=True)
class Target:
    """A TensorRT. kind: "tensorrt" or "rtx". version: numbers as far as they are known, (10, 6); () for any.
    compute_capability: of the GPU, (9, 0); None where it is not known."""

    kind: str
    version: tuple[int, ...] = ()
    compute_capability: tuple[int, ...] | None = None

    def __str__(self) -> str:
        name = "TensorRT-RTX" if self.kind == RTX else "TensorRT"
        device = "" if self.compute_capability is None else "@" + _text(self.compute_capability)
        return " ".join((name, _text(self.version))).strip() + device

    def on(self, compute_capability: str) -> Target:
        """The same on a GPU of that compute capability, "9.0", unless it names one itself."""
        known = self.compute_capability is not None
        return self if known else replace(self, compute_capability=_numbers(compute_capability))

    @property
    def has_attention(self) -> bool:
        """Whether its parser takes the standard Attention operator (IAttention: TensorRT 10.14 and TensorRT-RTX)."""
        return self.kind == RTX or self.version[:2] >= FIRST_WITH_ATTENTION


FIRST_WITH_ATTENTION = (10, 14)


def parse_target(text: str) -> Target:
    """The target of "10.6", "11", "rtx" or "rtx-1.7", each with "@9.0" behind it for a GPU of that compute capability.
    Raises RewriteError for anything else."""
    found = SPELLING.fullmatch(text.strip().lower())
    if found is None:
        raise RewriteError(
            f"target {text!r} is not understood; give a TensorRT version (10.6) or rtx (rtx-1.7), and a compute "
            "capability behind it if you like (10.6@9.0)"
        )
    target = Target(RTX if found["rtx"] else TENSORRT, _numbers(found["version"] or found["rtx_version"] or ""))
    return target.on(found["capability"]) if found["capability"] else target


def default_target() -> Target | None:
    """The TensorRT that is installed, by its Python package; None without one. Nothing is imported."""
    for kind, names in DISTRIBUTIONS:
        for name in names:
            try:
                version = metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
            return Target(kind, _numbers(version)[:2])
    return None


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
