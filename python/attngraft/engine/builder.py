"""Building an engine. In: an ONNX file, shapes and a backend. Out: the engine file and its card, or one error line."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from attngraft.contract import CONTRACT_VERSION
from attngraft.engine.backends import find_backend
from attngraft.engine.device import describe_device
from attngraft.engine.digest import model_digest
from attngraft.engine.files import write_atomically
from attngraft.engine.flags import check_flags
from attngraft.engine.layers import fused_attention
from attngraft.engine.logger import MessageLog
from attngraft.engine.network import plugin_node_count
from attngraft.engine.plan import BuildRequest, EnginePlan, build_plan
from attngraft.engine.progress import BuildProgress
from attngraft.engine.shapes import ShapeRange, resolve_profile
from attngraft.engine.sidecar import EngineCard, SiteCard, WorstDifference, card_path
from attngraft.errors import BuildError
from attngraft.onnx_graph import load_model
from attngraft.plugin_library import plugin_library

__all__ = ["BuildResult", "Origin", "build_engine", "check_target"]

Shapes = Mapping[str, ShapeRange]


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
    profiles: tuple[Mapping[str, ShapeRange], ...]


@dataclass(frozen=True)
class Origin:
    """Where the model that is built comes from, for the card: the model before it was rewritten, what became of its
    sites, and how far the rewritten one is from it."""

    source: Path
    source_sha256: str
    sites: tuple[SiteCard, ...] | None = None
    worst_difference: WorstDifference | None = None


def build_engine(
    model_path: str | Path,
    engine_path: str | Path,
    *,
    backend: str = "auto",
    shapes: Shapes | Sequence[Shapes] | None = None,
    embed_plugins: bool = True,
    progress: Callable[[str], None] | None = None,
    log_path: str | Path | None = None,
    timing_cache: str | Path | None = None,
    tf32: bool = True,
    optimization_level: int | None = None,
    flags: Iterable[str] = (),
    origin: Origin | None = None,
) -> BuildResult:
    """Builds a strongly typed engine, and writes it and its card (`ENGINE.json`).

    backend: `tensorrt`, `rtx`, or `auto` (TensorRT with a GPU, else TensorRT-RTX ahead of time).
    shapes: the range of every input with dynamic dimensions; several of these are several optimization profiles.
    embed_plugins: the plugin library goes into the engine, else the engine needs the installed one.
    progress: called with one-line reports. log_path: where all of TensorRT's messages go.
    timing_cache: read if it is there, and written, after a failed build too; TensorRT only.
    tf32: whether fp32 matrix products may use TF32, as TensorRT does by default.
    optimization_level: TensorRT's builder optimization level, 0 to 5; None leaves its default.
    flags: names of engine/flags.py. origin: what the model was made from; None: it is its own source.

    Raises BuildError (WriteError for the files; the target stays as it was), ModelError for the model,
    MissingDependency for TensorRT or the plugin library, EngineError for a plugin library that does not fit.
    """
    started = time.monotonic()
    model_path, engine_path = Path(model_path), Path(engine_path)
    report = BuildProgress(progress)
    model = load_model(model_path)
    check_target(model_path, engine_path)
    given = [shapes or {}] if shapes is None or isinstance(shapes, Mapping) else list(shapes) or [{}]
    profiles = tuple(resolve_profile(model, ranges) for ranges in given)
    chosen = find_backend(backend)
    if timing_cache is not None and chosen.is_rtx:
        raise BuildError("timing cache: TensorRT-RTX has none; build with --backend tensorrt or leave it out")
    request = BuildRequest(
        backend=chosen,
        model=model,
        model_path=model_path,
        profiles=profiles,
        library=plugin_library() if plugin_node_count(model) else None,
        embed_plugins=embed_plugins,
        timing_cache=Path(timing_cache) if timing_cache is not None else None,
        tf32=tf32,
        optimization_level=optimization_level,
        flags=check_flags(chosen, flags),
    )
    with MessageLog(log_path) as messages:
        plan = build_plan(request, messages, report)
        card = _make_card(request, plan, origin or Origin(model_path, model_digest(model_path, model)))
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
        profiles,
    )


def check_target(model_path: Path, engine_path: Path) -> None:
    """Raises BuildError when an engine cannot be put there."""
    if not engine_path.parent.is_dir():
        raise BuildError(f"{engine_path}: the folder {str(engine_path.parent)!r} does not exist; create it first")
    if engine_path.is_dir():
        raise BuildError(f"{engine_path}: is a folder; give the engine a file name")
    if engine_path.exists() and engine_path.samefile(model_path):
        raise BuildError(f"{engine_path}: is the model itself; give the engine another name")


def _make_card(request: BuildRequest, plan: EnginePlan, origin: Origin) -> EngineCard:
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
        source=origin.source.name,
        source_sha256=origin.source_sha256,
        inputs=plan.network.inputs,
        outputs=plan.network.outputs,
        profiles=request.profiles,
        flags=request.flags,
        sites=origin.sites,
        worst_difference=origin.worst_difference,
        fused_attention=None if plan.layers is None else fused_attention(plan.layers),
    )
