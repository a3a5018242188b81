"""From an engine file to TensorRT's objects. In: what the preflight found. Out: a loaded engine and its package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attngraft.engine.backends import load_backend, register_plugins
from attngraft.engine.logger import MessageLog, process_logger
from attngraft.errors import EngineError
from attngraft.plugin_library import plugin_library
from attngraft.runtime.preflight import Preflight

__all__ = ["LoadedEngine", "load_engine", "why"]


@dataclass
class LoadedEngine:
    """An engine on the current device."""

    trt: Any
    """The TensorRT package."""
    label: str
    """Its name and version."""
    engine: Any
    runtime: Any

    def release(self) -> None:
        """Lets go of the engine, whose contexts must be gone, and then of its runtime, as TensorRT wants it."""
        self.engine = None
        self.runtime = None


def load_engine(found: Preflight, reason: Callable[[], str]) -> LoadedEngine:
    """Loads an engine that the preflight found fit, with the plugin library that it needs. `reason` gives TensorRT's
    last words. Raises EngineError when TensorRT refuses it."""
    card = found.card
    backend = load_backend(found.header.backend)
    # One for each session: a runtime refuses a second engine that carries the same plugin library.
    runtime = backend.module.Runtime(process_logger(backend.module))
    if card is None or card.carries_code:
        # Like any engine, what it carries is code that its user trusts.
        runtime.engine_host_code_allowed = True
    if card is not None and card.needs_library:
        register_plugins(backend.module.get_plugin_registry(), plugin_library())
    engine = runtime.deserialize_cuda_engine(found.path.read_bytes())
    if engine is None:
        raise EngineError(f"{found.path}: {backend.title} cannot load it: {reason()}")
    return LoadedEngine(backend.module, backend.label, engine, runtime)


def why(messages: MessageLog, allocation_error: Callable[[], str | None] | None = None) -> str:
    """Why TensorRT failed: memory that an output did not get, the plugin's error, or TensorRT's first."""
    missing = None if allocation_error is None else allocation_error()
    return missing or messages.plugin_error or messages.first_error or "no reason given"
