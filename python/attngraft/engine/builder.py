"""Building an engine. In: an ONNX file, shapes and a backend. Out: the engine file and its card, or one error line."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from attngraft.contract import CONTRACT_VERSION
from attngraft.engine.backends import Backend, find_backend, register_plugins
from attngraft.engine.device import describe_device
from attngraft.engine.files import write_atomically
from attngraft.engine.logger import MessageLog, process_logger
from attngraft.engine.network import count_plugin_layers, parse_network, plugin_node_count, tensor_cards
from attngraft.engine.progress import BuildProgress
from attngraft.engine.rtx import prepare_parser
from attngraft.engine.shapes import ShapeRange, resolve_profile
from attngraft.engine.sidecar import EngineCard, card_path
from attngraft.errors import BuildError, MissingDependency
from attngraft.onnx_graph import load_model
from attngraft.plugin_library import plugin_library

__all__ = ["BuildResult", "build_engine"]

HASH_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class BuildResult:
    """What was built."""

    engine_path: Path
    backend: str
    tensorrt_version: str
    plugin_layers: int
    layers: int
    """Layers of the network that TensorRT was given, before fusion."""
    size_bytes: int
    seconds: float
    profile: Mapping[str, ShapeRange]


@dataclass(frozen=True)
class _Request:
    """One build, its arguments checked."""

    backend: Backend
    model: onnx.ModelProto
    model_path: Path
    profile: dict[str, ShapeRange]
    library: Path | None
    embed_plugins: bool
    timing_cache: Path | None
    tf32: bool
    optimization_level: int | None


def build_engine(
    model_path: str | Path,
    engine_path: str | Path,
    *,
    backend: str = "auto",
    shapes: Mapping[str, ShapeRange] | None = None,
    embed_plugins: bool = True,
    progress: Callable[[str], None] | None = None,
    log_path: str | Path | None = None,
    timing_cache: str | Path | None = None,
    tf32: bool = True,
    optimization_level: int | None = None,
) -> BuildResult:
    """Builds a strongly typed engine with one optimization profile, and writes it and its card (`ENGINE.json`).

    backend: `tensorrt`, `rtx`, or `auto` (TensorRT with a GPU, else TensorRT-RTX ahead of time).
    shapes: the range of every input with dynamic dimensions.
    embed_plugins: the plugin library goes into the engine, else the engine needs the installed one.
    progress: called with one-line reports. log_path: where all of TensorRT's messages go.
    timing_cache: read if it is there, and written; TensorRT only.
    tf32: whether fp32 matrix products may use TF32, as TensorRT does by default.
    optimization_level: TensorRT's builder optimization level, 0 to 5; None leaves its default.

    Raises BuildError (the target stays as it was), ModelError for the model, MissingDependency for TensorRT or the
    plugin library, EngineError for a plugin library that does not fit.
    """
    started = time.monotonic()
    model_path, engine_path = Path(model_path), Path(engine_path)
    report = BuildProgress(progress)
    model = load_model(model_path)
    _check_target(model_path, engine_path)
    profile = resolve_profile(model, shapes or {})
    chosen = find_backend(backend)
    if timing_cache is not None and chosen.is_rtx:
        raise BuildError("timing cache: TensorRT-RTX has none; build with --backend tensorrt or leave it out")
    request = _Request(
        backend=chosen,
        model=model,
        model_path=model_path,
        profile=profile,
        library=plugin_library() if plugin_node_count(model) else None,
        embed_plugins=embed_plugins,
        timing_cache=Path(timing_cache) if timing_cache is not None else None,
        tf32=tf32,
        optimization_level=optimization_level,
    )
    with MessageLog(log_path) as messages:
        plan, facts = _build_plan(request, messages, report)
        card = _make_card(request, facts, plan.nbytes)
        report.phase(f"writing {engine_path}, {plan.nbytes / 1e6:.1f} MB")
        write_atomically({engine_path: memoryview(plan), card_path(engine_path): card.to_json().encode()})
    return BuildResult(
        engine_path,
        chosen.name,
        chosen.version,
        card.plugin_layers,
        card.layers,
        card.size_bytes,
        time.monotonic() - started,
        profile,
    )


def _check_target(model_path: Path, engine_path: Path) -> None:
    if not engine_path.parent.is_dir():
        raise BuildError(f"{engine_path}: the folder {str(engine_path.parent)!r} does not exist; create it first")
    if engine_path.is_dir():
        raise BuildError(f"{engine_path}: is a folder; give the engine a file name")
    if engine_path.exists() and engine_path.samefile(model_path):
        raise BuildError(f"{engine_path}: is the model itself; give the engine another name")


@dataclass(frozen=True)
class _NetworkFacts:
    layers: int
    plugin_layers: int
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


def _build_plan(request: _Request, messages: MessageLog, report: BuildProgress) -> tuple[Any, _NetworkFacts]:
    """The serialized engine (TensorRT's host memory) and what its network holds."""
    backend, trt = request.backend, request.backend.module
    builder = _make_builder(backend, messages)
    if request.library is not None:
        if backend.is_rtx:
            prepare_parser(request.library)
        register_plugins(trt.get_plugin_registry(), request.library)
    messages.clear()  # what a registry or a machine without a GPU says on the way here is not the build's failure
    report.phase(f"parsing {request.model_path} with {backend.title} {backend.version}")
    network = parse_network(backend, builder, messages, request.model, request.model_path)
    facts = _network_facts(request, network)
    config = _make_config(request, builder)
    monitor = report.attach(trt, config)
    report.phase(f"building {facts.layers} layers, {facts.plugin_layers} of them attngraft plugins")
    plan = builder.build_serialized_network(network, config)
    del monitor
    report.raise_failure()
    if plan is None:
        reason = messages.plugin_error or messages.first_error or "no reason given; see the build log (--log FILE)"
        raise BuildError(f"{request.model_path}: {backend.title} {backend.version} cannot build it: {reason}")
    _write_timing_cache(request, config)
    return plan, facts


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
        raise BuildError(f"{backend.title} {backend.version} cannot start its builder: {reason}") from None


def _network_facts(request: _Request, network: Any) -> _NetworkFacts:
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
    return _NetworkFacts(network.num_layers, plugin_layers, inputs, outputs)


def _make_config(request: _Request, builder: Any) -> Any:
    trt = request.backend.module
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # so that the inspector can name every layer
    if not request.tf32:
        config.clear_flag(trt.BuilderFlag.TF32)
    if request.optimization_level is not None:
        config.builder_optimization_level = request.optimization_level
    if request.library is not None and request.embed_plugins:
        config.plugins_to_serialize = [str(request.library)]
    profile = builder.create_optimization_profile()
    for name, shapes in request.profile.items():
        profile.set_shape(name, shapes.min, shapes.opt, shapes.max)
    if config.add_optimization_profile(profile) < 0:
        raise BuildError(f"{request.model_path}: {request.backend.title} refuses the shapes; see the build log")
    _read_timing_cache(request, config)
    return config


def _read_timing_cache(request: _Request, config: Any) -> None:
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


def _write_timing_cache(request: _Request, config: Any) -> None:
    if request.timing_cache is not None:
        write_atomically({request.timing_cache: memoryview(config.get_timing_cache().serialize())})


def _make_card(request: _Request, facts: _NetworkFacts, size_bytes: int) -> EngineCard:
    device = describe_device()
    library = request.library
    return EngineCard(
        backend=request.backend.name,
        tensorrt_version=request.backend.version,
        size_bytes=size_bytes,
        gpu=device.name if device else None,
        compute_capability=device.compute_capability if device else None,
        plugin_library=library.name if library else None,
        plugin_embedded=library is not None and request.embed_plugins,
        contract_version=CONTRACT_VERSION if library else None,
        plugin_layers=facts.plugin_layers,
        layers=facts.layers,
        source=request.model_path.name,
        source_sha256=_sha256(request.model_path),
        inputs=facts.inputs,
        outputs=facts.outputs,
        profile=request.profile,
    )


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(HASH_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
