"""Building an engine. In: an ONNX file, shapes and a backend. Out: the engine file and its card, or one error line."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from attngraft.contract import CONTRACT_VERSION
from attngraft.engine.backends import find_backend
from attngraft.engine.device import describe_device
from attngraft.engine.files import write_atomically
from attngraft.engine.layers import fused_attention
from attngraft.engine.logger import MessageLog
from attngraft.engine.network import plugin_node_count
from attngraft.engine.plan import BuildRequest, EnginePlan, build_plan
from attngraft.engine.progress import BuildProgress
from attngraft.engine.shapes import ShapeRange, resolve_profile
from attngraft.engine.sidecar import EngineCard, card_path
from attngraft.errors import BuildError
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
    request = BuildRequest(
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
        plan = build_plan(request, messages, report)
        card = _make_card(request, plan)
        report.phase(f"writing {engine_path}, {card.size_bytes / 1e6:.1f} MB")
        write_atomically({engine_path: memoryview(plan.data), card_path(engine_path): card.to_json().encode()})
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


def _make_card(request: BuildRequest, plan: EnginePlan) -> EngineCard:
    device = describe_device()
    library = request.library
    return EngineCard(
        backend=request.backend.name,
        tensorrt_version=request.backend.version,
        size_bytes=plan.data.nbytes,
        gpu=device.name if device else None,
        compute_capability=device.compute_capability if device else None,
        plugin_library=library.name if library else None,
        plugin_embedded=library is not None and request.embed_plugins,
        contract_version=CONTRACT_VERSION if library else None,
        plugin_layers=plan.network.plugin_layers,
        layers=plan.network.layers,
        source=request.model_path.name,
        source_sha256=_sha256(request.model_path),
        inputs=plan.network.inputs,
        outputs=plan.network.outputs,
        profile=request.profile,
        fused_attention=None if plan.layers is None else fused_attention(plan.layers),
    )


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(HASH_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
