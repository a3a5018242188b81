"""Whether an engine can run here, asked before TensorRT sees it. In: a file. Out: what it is and what does not fit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attngraft.contract import CONTRACT_VERSION
from attngraft.engine.backends import Backend, load_backend
from attngraft.engine.device import DeviceFacts, describe_device
from attngraft.engine.flags import HARDWARE_COMPATIBLE, VERSION_COMPATIBLE
from attngraft.engine.sidecar import EngineCard, PlanHeader, read_card, read_plan_header
from attngraft.errors import AttngraftError, EngineError
from attngraft.plugin_library import plugin_library

__all__ = ["Preflight", "preflight_engine"]

REBUILD = "build the engine again here: attngraft build"

FIRST_HARDWARE_COMPATIBLE = 8.0
"""Compute capability from which on engines that are built hardware-compatible run."""


@dataclass(frozen=True)
class Preflight:
    """One engine against this machine."""

    path: Path
    header: PlanHeader
    card: EngineCard | None
    """None for an engine that attngraft did not build."""
    problems: tuple[str, ...]
    """One line each, without the engine's path; empty: nothing speaks against running it."""

    def raise_if_unfit(self) -> None:
        """Raises EngineError with the first problem."""
        if self.problems:
            raise EngineError(f"{self.path}: {self.problems[0]}")


def preflight_engine(engine_path: str | Path, *, device: int = 0) -> Preflight:
    """Reads the header and the card of an engine and compares them with the TensorRT, GPU and plugin library here.

    Raises EngineError when there is no such file, it is no engine, or its card is damaged.
    """
    path = Path(engine_path)
    header = read_plan_header(path)
    card = read_card(path)
    problems = (
        *_size_problems(path, header, card),
        *_backend_problems(header, card),
        *_device_problems(header, card, describe_device(device)),
        *_plugin_problems(card),
    )
    return Preflight(path, header, card, problems)


def _size_problems(path: Path, header: PlanHeader, card: EngineCard | None) -> list[str]:
    size = path.stat().st_size
    if size < header.size_bytes:
        return [f"is truncated: {size} of {header.size_bytes} bytes; copy or build it again"]
    if card is not None and size != card.size_bytes:
        return [
            f"has {size} bytes, but its card says {card.size_bytes}: one is not the other's; copy both or build again"
        ]
    return []


def _backend_problems(header: PlanHeader, card: EngineCard | None) -> list[str]:
    try:
        backend = load_backend(header.backend)
    except AttngraftError as error:
        return [f"needs {header.version_text} of a package that is not here: {error}"]
    if card is not None and VERSION_COMPATIBLE in card.flags:
        return _version_compatible_problems(header, backend)
    if _release(backend.version) != _release(header.version_text):
        return [
            f"was built by {backend.title} {header.version_text}, but {backend.version} is installed; "
            f"install {_release(header.version_text)} or {REBUILD}"
        ]
    return []


def _version_compatible_problems(header: PlanHeader, backend: Backend) -> list[str]:
    """A version-compatible engine runs in later TensorRTs; earlier ones do not know how to load it (TensorRT's guide,
    "Version Compatibility")."""
    if _numbers(backend.version) >= _numbers(header.version_text):
        return []
    return [
        f"was built by {backend.title} {header.version_text} for it and later ones, but {backend.version} is "
        f"installed; install {_release(header.version_text)} or later, or {REBUILD}"
    ]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in _release(version).split("."))


def _release(version: str) -> str:
    """Major, minor and patch: the plan's fourth number, the build, is not in every package's version."""
    return ".".join(version.split(".")[:3])


def _device_problems(header: PlanHeader, card: EngineCard | None, device: DeviceFacts | None) -> list[str]:
    if device is None:  # whether a GPU is needed is the caller's to say
        return []
    found = f"{device.name} (compute capability {device.compute_capability})"
    if header.backend == "rtx" and not _rtx_serves(device):
        return [f"TensorRT-RTX does not serve {found}; use another GPU or build with --backend tensorrt"]
    if card is None or card.compute_capability is None or header.backend == "rtx":
        return []
    if HARDWARE_COMPATIBLE in card.flags:
        return _hardware_compatible_problems(device, found)
    if card.compute_capability != device.compute_capability:
        built_on = f"{card.gpu} (compute capability {card.compute_capability})"
        return [f"was built on {built_on}, but this GPU is {found}; {REBUILD}"]
    return []


def _hardware_compatible_problems(device: DeviceFacts, found: str) -> list[str]:
    """TensorRT's level AMPERE_PLUS: GPUs of the Ampere generation and later."""
    if float(device.compute_capability) >= FIRST_HARDWARE_COMPATIBLE:
        return []
    return [
        f"was built for GPUs of compute capability {FIRST_HARDWARE_COMPATIBLE} and later, but this GPU is {found}; "
        "build the engine again here without --hardware-compatible"
    ]


def _rtx_serves(device: DeviceFacts) -> bool:
    try:
        backend: Backend = load_backend("rtx")
    except AttngraftError:  # reported as the backend's problem
        return True
    return hasattr(backend.module.ComputeCapability, f"SM{device.compute_capability.replace('.', '')}")


def _plugin_problems(card: EngineCard | None) -> list[str]:
    if card is None or not card.needs_library:
        return []
    try:
        plugin_library()
    except AttngraftError as error:
        return [f"needs the plugin library {card.plugin_library}: {error}"]
    if card.contract_version != CONTRACT_VERSION:
        return [
            f"needs a plugin library of contract version {card.contract_version}, but {CONTRACT_VERSION} is installed; "
            f"install the attngraft that built it or {REBUILD}"
        ]
    return []
