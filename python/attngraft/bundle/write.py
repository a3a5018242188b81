"""From an engine to a bundle. In: an engine file, a format and a folder. Out: the folder, or one error line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from attngraft.bundle.directory import ENGINE, directory_files
from attngraft.bundle.folder import check_target, write_folder
from attngraft.bundle.manifest import Manifest
from attngraft.bundle.source import BundleSource, read_source
from attngraft.bundle.triton import TritonModel, triton_files, triton_model
from attngraft.errors import EngineError

__all__ = ["FORMATS", "BundleResult", "write_bundle"]

FORMATS = ("directory", "triton")


@dataclass(frozen=True)
class BundleResult:
    """What was written."""

    folder: Path
    manifest: Manifest
    source: BundleSource
    triton: TritonModel | None
    """The repository's model; None for a directory."""


def write_bundle(
    engine_path: str | Path,
    folder: str | Path,
    format: str,
    *,
    name: str | None = None,
    instances: int | None = None,
    max_batch: int | None = None,
    force: bool = False,
    progress: Callable[[str], None] | None = None,
) -> BundleResult:
    """Writes what an engine needs to run elsewhere into `folder`, which appears whole or not at all.

    format: `directory`, or `triton`, which alone takes `name` (the model's), `instances` (execution contexts on each
    GPU, default 1) and `max_batch` (default the profiles' largest batch; 0: no batching). force: a bundle at `folder`
    is replaced. progress: called with one-line reports.

    Raises EngineError for an engine that cannot be bundled so, BuildError for a folder that cannot be written,
    MissingDependency for a plugin library that is not installed.
    """
    folder = Path(folder)
    if format not in FORMATS:
        raise EngineError(f"bundle format {format!r}: not one of {', '.join(FORMATS)}")
    given = {"--name": name, "--instances": instances, "--max-batch": max_batch}
    unused = [option for option, value in given.items() if value is not None]
    if format == "directory" and unused:
        raise EngineError(f"{unused[0]}: is for --format triton; leave it out")
    check_target(folder, force=force)
    source = read_source(engine_path)
    model = None
    if format == "triton":
        model = triton_model(source, name=name, instances=1 if instances is None else instances, max_batch=max_batch)
    files = directory_files(source) if model is None else triton_files(source, model)
    manifest = Manifest(
        format=format,
        engine=ENGINE if model is None else model.plan_path,
        backend=source.header.backend,
        tensorrt_version=source.header.version_text,
        library=source.library_name,
        files={},
    )
    written = write_folder(folder, files, manifest, force=force, progress=progress)
    return BundleResult(folder, written, source, model)
