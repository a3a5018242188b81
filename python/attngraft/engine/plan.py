"""The TensorRT part of a build. In: a checked request. Out: the serialized engine, and what is in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from attngraft.engine.backends import Backend, register_plugins
from attngraft.engine.device import describe_device
from attngraft.engine.files import write_atomically
from attngraft.engine.flags import set_flags
from attngraft.engine.layers import EngineLayer, layers_of_message
from attngraft.engine.logger import MessageLog, process_logger
from attngraft.engine.network import count_plugin_layers, parse_network, plugin_node_count, tensor_cards
from attngraft.engine.progress import BuildProgress
from attngraft.engine.rtx import prepare_parser
from attngraft.engine.shapes import ShapeRange
from attngraft.engine.sidecar import TensorCard
from attngraft.errors import BuildError, MissingDependency

__all__ = ["BuildRequest", "EnginePlan", "NetworkFacts", "build_plan", "reason_of"]


@dataclass(frozen=True)
class BuildRequest:
    """One build, its arguments checked."""

    backend: Backend
    model: onnx.ModelProto
    model_path: Path
    profiles: tuple[dict[str, ShapeRange], ...]
    """One at least; each has a range for every input."""
    library: Path | None
    embed_plugins: bool = True
    timing_cache: Path | None = None
    tf32: bool = True
    optimization_level: int | None = None
    flags: tuple[str, ...] = ()
    """Of engine/flags.py, checked."""


@dataclass(frozen=True)
class NetworkFacts:
    """Layers before fusion, how many of them are attngraft plugins, and what goes in and out."""

    layers: int
    plugin_layers: int
    inputs: tuple[TensorCard, ...]
    outputs: tuple[TensorCard, ...]


@dataclass(frozen=True)
class EnginePlan:
    """What a build made: `data` is the serialized engine in TensorRT's memory (a buffer with `nbytes`), `network` what
    TensorRT was given, and `layers` what it made of that; None where its log does not tell."""

    data: Any
    network: NetworkFacts
    layers: tuple[EngineLayer, ...] | None


def build_plan(request: BuildRequest, messages: MessageLog, report: BuildProgress) -> EnginePlan:
    """Builds the engine. `messages` must be open.

    Raises BuildError with TensorRT's or the plugin's reason, MissingDependency where TensorRT needs a GPU and there is
    none.
    """
    with report.interrupts_kept():
        plan = _build_plan(request, messages, report)
    report.raise_failure()
    return plan


def _build_plan(request: BuildRequest, messages: MessageLog, report: BuildProgress) -> EnginePlan:
    backend, trt = request.backend, request.backend.module
    builder = _make_builder(backend, messages)
    if request.library is not None:
        if backend.is_rtx:
            prepare_parser(request.library)
        register_plugins(trt.get_plugin_registry(), request.library)
    messages.clear()  # what a registry or a machine without a GPU says on the way here is not the build's failure
    report.phase(f"parsing {request.model_path} with {backend.label}")
    network = parse_network(backend, builder, messages, request.model, request.model_path)
    report.raise_failure()
    facts = _network_facts(request, network)
    config = _make_config(request, builder)
    monitor = report.attach(trt, config)
    report.phase(f"building {facts.layers} layers, {facts.plugin_layers} of them attngraft plugins")
    try:
        plan = builder.build_serialized_network(network, config)
        del monitor
        report.raise_failure()
    finally:
        _write_timing_cache(request, config)  # what was timed before a failure is of use to the next build too
    if plan is None:
        reason = messages.plugin_error or messages.first_error or "no reason given; see the build log (--log FILE)"
        raise BuildError(f"{request.model_path}: {backend.label} cannot build it: {reason}")
    told = messages.layers_message
    return EnginePlan(plan, facts, None if told is None else layers_of_message(told))


def reason_of(error: BuildError) -> str:
    """TensorRT's reason alone, for reports that name the model and the TensorRT elsewhere."""
    message = str(error)
    return message.partition(" cannot build it: ")[2] or message.partition(" cannot parse it: ")[2] or message


def _make_builder(backend: Backend, messages: MessageLog) -> Any:
    try:
        return backend.module.Builder(process_logger(backend.module))
    except TypeError:  # what the bindings raise when the library returns no builder
        reason = messages.first_error or "no reason given"
        if describe_device() is None:
            raise MissingDependency(
                f"{backend.title} needs an NVIDIA GPU to build, and there is none here; build on the machine that will "
                "run the engine, or ahead of time with --backend rtx"
            ) from None
        raise BuildError(f"{backend.label} cannot start its builder: {reason}") from None


def _network_facts(request: BuildRequest, network: Any) -> NetworkFacts:
    plugin_layers = count_plugin_layers(request.backend, network)
    nodes = plugin_node_count(request.model)
    if plugin_layers < nodes:
        raise BuildError(
            f"{request.model_path}: {nodes} attngraft nodes became {plugin_layers} plugin layers; "
            "a plugin or function of the same name is in the way"
        )
    feeds = [network.get_input(index) for index in range(network.num_inputs)]
    for tensor in feeds:
        if tensor.is_shape_tensor:
            raise BuildError(
                f"input {tensor.name!r}: its values decide shapes, which is not supported; make it a constant"
            )
    inputs = tensor_cards(feeds)
    outputs = tensor_cards([network.get_output(index) for index in range(network.num_outputs)])
    return NetworkFacts(network.num_layers, plugin_layers, inputs, outputs)


def _make_config(request: BuildRequest, builder: Any) -> Any:
    trt = request.backend.module
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # so that the inspector can name every layer
    if not request.tf32:
        config.clear_flag(trt.BuilderFlag.TF32)
    if request.optimization_level is not None:
        config.builder_optimization_level = request.optimization_level
    if request.library is not None and request.embed_plugins:
        config.plugins_to_serialize = [str(request.library)]
    set_flags(request.backend, config, request.flags)
    for number, ranges in enumerate(request.profiles):
        profile = builder.create_optimization_profile()
        for name, shapes in ranges.items():
            profile.set_shape(name, shapes.min, shapes.opt, shapes.max)
        if config.add_optimization_profile(profile) < 0:
            raise BuildError(
                f"{request.model_path}: {request.backend.title} refuses the shapes of profile {number}; "
                "see the build log"
            )
    _read_timing_cache(request, config)
    return config


def _read_timing_cache(request: BuildRequest, config: Any) -> None:
    if request.timing_cache is None:
        return
    try:
        data = request.timing_cache.read_bytes()
    except FileNotFoundError:
        data = b""
    except OSError as error:
        raise BuildError(f"timing cache {request.timing_cache}: cannot be read ({error.strerror})") from None
    cache = config.create_timing_cache(data)
    if cache is None or not config.set_timing_cache(cache, False):
        raise BuildError(
            f"timing cache {request.timing_cache}: was made by another TensorRT or on another GPU; delete it"
        )


def _write_timing_cache(request: BuildRequest, config: Any) -> None:
    cache = None if request.timing_cache is None else config.get_timing_cache()
    if cache is not None:
        write_atomically({request.timing_cache: memoryview(cache.serialize())})
