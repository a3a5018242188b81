"""The layers of an engine, asked of the engine itself. In: a serialized engine or its file. Out: its layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attngraft.engine.backends import Backend, backend_title, load_backend, register_plugins
from attngraft.engine.device import describe_device
from attngraft.engine.layers import EngineLayer, fused_attention, layers_of_inspector
from attngraft.engine.logger import MessageLog, process_logger
from attngraft.engine.plan import EnginePlan
from attngraft.engine.sidecar import read_card, read_plan_header
from attngraft.errors import EngineError
from attngraft.plugin_library import plugin_library

__all__ = ["fused_kernels_of_file", "layers_of_engine", "layers_of_plan"]


def fused_kernels_of_file(path: Path) -> tuple[str, tuple[EngineLayer, ...]]:
    """Which TensorRT built an engine file, and its fused attention kernels.

    They stand in the card that attngraft writes beside an engine; an engine without that is loaded, which needs the
    GPU. Raises EngineError when there is no engine, or when it cannot be loaded here or has no layer information.
    """
    header = read_plan_header(path)
    card = read_card(path)
    if card is not None and card.fused_attention is not None and card.size_bytes == path.stat().st_size:
        return f"{backend_title(card.backend)} {card.tensorrt_version}", card.fused_attention
    if describe_device() is None:
        raise EngineError(
            f"{path}: no card beside it lists its kernels, and there is no GPU here to load it; run this where the "
            "engine runs, or build it with attngraft build"
        )
    backend = load_backend(header.backend)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise EngineError(f"{path}: cannot be read ({error.strerror})") from None
    with MessageLog() as messages:
        if card is not None and card.needs_library:
            register_plugins(backend.module.get_plugin_registry(), plugin_library())
        layers = layers_of_engine(backend, data, messages)
    return f"{backend.title} {header.version_text}", fused_attention(layers)


def layers_of_plan(backend: Backend, plan: EnginePlan, messages: MessageLog) -> tuple[EngineLayer, ...]:
    """The layers that the builder listed, else those of the loaded engine. `messages` must be open.

    Raises EngineError when TensorRT listed none and cannot load the engine here.
    """
    return plan.layers if plan.layers is not None else layers_of_engine(backend, plan.data, messages)


def layers_of_engine(backend: Backend, data: Any, messages: MessageLog) -> tuple[EngineLayer, ...]:
    """Loads a serialized engine and asks its inspector. `messages` must be open.

    Raises EngineError when TensorRT cannot load it here.
    """
    trt = backend.module
    runtime = trt.Runtime(process_logger(trt))
    runtime.engine_host_code_allowed = True  # engines with the plugin library inside carry host code
    engine = runtime.deserialize_cuda_engine(data)
    if engine is None:
        raise EngineError(f"the engine cannot be loaded by {backend.label}: {messages.first_error}")
    return layers_of_inspector(engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON))
