"""The TensorRT packages that can build and run engines. In: a name or `auto`. Out: the package found, as a Backend."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from attngraft.contract import DOMAIN, MASKED_SOFTMAX, PLUGIN_VERSION
from attngraft.engine.device import describe_device
from attngraft.engine.logger import MessageLog, one_line
from attngraft.errors import BuildError, EngineError, MissingDependency

__all__ = ["BACKENDS", "Backend", "backend_title", "find_backend", "load_backend", "register_plugins"]

OLDEST_TENSORRT = (10, 6)
"""The first TensorRT that the plugin has been run in."""


@dataclass(frozen=True)
class _Package:
    module: str
    title: str
    extra: str


_PACKAGES = {
    "tensorrt": _Package("tensorrt", "TensorRT", "tensorrt"),
    "rtx": _Package("tensorrt_rtx", "TensorRT-RTX", "rtx"),
}

BACKENDS = tuple(_PACKAGES)


@dataclass(frozen=True)
class Backend:
    """One TensorRT package, imported."""

    name: str
    """`tensorrt` or `rtx`."""
    title: str
    module: ModuleType

    @property
    def version(self) -> str:
        return self.module.__version__

    @property
    def label(self) -> str:
        """Title and version: "TensorRT 10.6.0"."""
        return f"{self.title} {self.version}"

    @property
    def version_pair(self) -> tuple[int, ...]:
        """Major and minor number."""
        return _version_pair(self.module)

    @property
    def is_rtx(self) -> bool:
        return self.name == "rtx"


def backend_title(name: str) -> str:
    """How the package of that name (one of BACKENDS) is called, without importing it."""
    return _PACKAGES[name].title


def load_backend(name: str) -> Backend:
    """Imports the TensorRT package of that name. Raises MissingDependency, or BuildError for an unknown name."""
    if name not in _PACKAGES:
        raise BuildError(f"backend {name!r}: not one of auto, {', '.join(BACKENDS)}")
    package = _PACKAGES[name]
    try:
        module = importlib.import_module(package.module)
    except (ImportError, OSError) as error:
        raise MissingDependency(
            f"{package.title} (Python package {package.module}) cannot be imported: {one_line(str(error))}; "
            f"install it with: pip install 'attngraft[{package.extra}]'"
        ) from None
    if name == "tensorrt" and _version_pair(module) < OLDEST_TENSORRT:
        raise MissingDependency(
            f"TensorRT {module.__version__} is older than {'.'.join(map(str, OLDEST_TENSORRT))}, the oldest supported; "
            "update it with: pip install -U tensorrt"
        )
    return Backend(name, package.title, module)


def _version_pair(module: ModuleType) -> tuple[int, ...]:
    return tuple(int(part) for part in module.__version__.split(".")[:2])


def find_backend(name: str = "auto") -> Backend:
    """The TensorRT package to build with.

    `auto` takes TensorRT where it and a GPU are there, else TensorRT-RTX, which builds ahead of time without a GPU.
    Raises MissingDependency when there is none.
    """
    if name != "auto":
        return load_backend(name)
    reasons = []
    has_gpu = describe_device() is not None
    for candidate in BACKENDS if has_gpu else ("rtx",):
        try:
            return load_backend(candidate)
        except MissingDependency as error:
            reasons.append(str(error))
    if has_gpu:
        raise MissingDependency("; ".join(reasons))
    raise MissingDependency(f"no GPU for TensorRT, and {reasons[0]}")


def register_plugins(registry: Any, library: Path) -> None:
    """Makes the library's plugins known to a plugin registry, for TensorRT's global one once and for all.

    A registry refuses a library whose creators it knows, from an earlier call or Polygraphy's dlopen: so it is asked
    first, by listing, since a search that finds nothing is an error in TensorRT's log.
    Raises EngineError when the library cannot be loaded.
    """
    if any((creator.name, creator.plugin_namespace) == (MASKED_SOFTMAX, DOMAIN) for creator in registry.all_creators):
        return
    with MessageLog() as messages:
        registry.load_library(str(library))
        if registry.get_creator(MASKED_SOFTMAX, PLUGIN_VERSION, DOMAIN) is not None:
            return
    reason = messages.first_error or "it offers no creator that this TensorRT accepts"
    raise EngineError(f"{library}: TensorRT cannot load the plugin library: {reason}; install attngraft again")
