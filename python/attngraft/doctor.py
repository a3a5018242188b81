"""Is this machine ready? In: nothing, or an engine. Out: one check a part, with what to do when it is not there."""

from __future__ import annotations

import importlib
import platform
import sys
from collections import Counter
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from attngraft.contract import CONTRACT_VERSION
from attngraft.engine.backends import BACKENDS, load_backend
from attngraft.engine.device import describe_device, driver_version
from attngraft.engine.sidecar import EngineCard
from attngraft.errors import AttngraftError
from attngraft.plugin_library import plugin_library
from attngraft.runtime.preflight import preflight_engine

__all__ = ["Check", "diagnose"]

OLDEST_PYTHON = (3, 10)
BYTES_PER_GIB = 1 << 30


@dataclass(frozen=True)
class Check:
    """One part of the machine."""

    name: str
    ok: bool | None
    """True: fine. False: broken or missing, and required. None: absent, and only some work needs it."""
    detail: str
    remedy: str = ""
    """What to do; empty when `ok`."""


def diagnose(engine: str | Path | None = None, *, device: int = 0) -> list[Check]:
    """Checks everything that attngraft uses; with an engine, whether that engine can run here.

    Never raises for what it finds: that is in the checks. Imports TensorRT where it is installed.
    """
    checks = [
        _check_python(),
        _check_required("onnx", "reads and writes models"),
        _check_required("onnxruntime", "verifies rewritten models"),
        _check_plugin(),
        *_check_backends(),
        _check_gpu(device),
        _check_optional("cuda-bindings", "cuda.bindings", "runs engines", "pip install 'attngraft[runtime]'"),
        _check_optional("torch", "torch", "exports models", "pip install 'attngraft[export]'"),
    ]
    if engine is not None:
        checks.append(_check_engine(engine, device))
    return checks


def _failed(name: str, ok: bool | None, message: str) -> Check:
    """A check from an error's line, which says what to do behind its last semicolon."""
    detail, _, remedy = message.rpartition("; ")
    return Check(name, ok, detail or remedy, remedy if detail else "")


def _check_python() -> Check:
    found = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < OLDEST_PYTHON:
        return Check("Python", False, found, f"use Python {'.'.join(map(str, OLDEST_PYTHON))} or newer")
    return Check("Python", True, found)


def _installed(package: str, module: str) -> tuple[str | None, str]:
    """Version of a package that can be imported, else None and why not."""
    try:
        importlib.import_module(module)
        return metadata.version(package), ""
    except metadata.PackageNotFoundError:
        return "of unknown version", ""
    except (ImportError, OSError) as error:
        return None, " ".join(str(error).split())


def _check_required(package: str, use: str) -> Check:
    version, reason = _installed(package, package)
    if version is None:
        return Check(package, False, f"{use}: cannot be imported ({reason})", f"pip install {package}")
    return Check(package, True, version)


def _check_optional(package: str, module: str, use: str, remedy: str) -> Check:
    version, reason = _installed(package, module)
    if version is None:
        return Check(package, None, f"{use}: cannot be imported ({reason})", remedy)
    return Check(package, True, version)


def _check_plugin() -> Check:
    try:
        path = plugin_library()
    except AttngraftError as error:
        return _failed("plugin library", False, str(error))
    return Check("plugin library", True, f"contract version {CONTRACT_VERSION}, {path}")


def _check_backends() -> list[Check]:
    """Each TensorRT; one is enough, so that the absence of the other is a note."""
    checks: list[Check] = []
    for name in BACKENDS:
        title = {"tensorrt": "TensorRT", "rtx": "TensorRT-RTX"}[name]
        try:
            checks.append(Check(title, True, load_backend(name).version))
        except AttngraftError as error:
            checks.append(_failed(title, None, str(error)))
    if not any(check.ok for check in checks):
        checks.append(Check("engines", False, "no TensorRT to build with", "pip install 'attngraft[rtx]'"))
    return checks


def _check_gpu(index: int) -> Check:
    driver, device = driver_version(), describe_device(index)
    if device is None:
        detail = f"driver for CUDA {driver}, but no GPU {index}" if driver else "no NVIDIA driver"
        return Check("GPU", None, detail, "engines can be built here ahead of time (--backend rtx), and run on a GPU")
    memory = f"{device.memory_bytes / BYTES_PER_GIB:.0f} GiB"
    return Check(
        "GPU",
        True,
        f"{device.name}, compute capability {device.compute_capability}, {memory}, driver for CUDA {driver}",
    )


def _check_engine(engine: str | Path, device: int) -> Check:
    name = f"engine {Path(engine).name}"
    try:
        found = preflight_engine(engine, device=device)
    except AttngraftError as error:
        return _failed(name, False, str(error))
    if found.problems:
        return _failed(name, False, found.problems[0])
    facts = [f"{found.header.backend} {found.header.version_text}", *(_card_facts(found.card) if found.card else ())]
    return Check(name, True, ", ".join(facts))


def _card_facts(card: EngineCard) -> list[str]:
    """What the card says beyond what the preflight has compared, a phrase each."""
    facts = [f"{card.plugin_layers} attngraft layers", f"from {card.source}"]
    if card.sites:
        counts = Counter(site.lowering for site in card.sites)
        facts.append("sites: " + " and ".join(f"{count} {lowering}" for lowering, count in counts.items()))
    if len(card.profiles) > 1:
        facts.append(f"{len(card.profiles)} profiles")
    facts += [flag.replace("_", "-") for flag in card.flags]
    worst = card.worst_difference
    if worst is not None:
        facts.append(
            f"worst difference {worst.difference:.3g}, tolerance {worst.tolerance:.3g} ({worst.of} against "
            f"{worst.against})"
        )
    return facts
