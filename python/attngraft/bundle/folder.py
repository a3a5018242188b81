"""A folder that appears whole or not at all. In: what its files are. Out: the folder, with its manifest."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from attngraft.bundle.manifest import MANIFEST, BundleFile, Manifest, is_bundle
from attngraft.engine.digest import file_digest
from attngraft.errors import BuildError

__all__ = ["Content", "check_target", "write_folder"]

EXECUTABLE = 0o755


@dataclass(frozen=True)
class Content:
    """One file to be: a text, or a copy of a file."""

    source: str | Path
    executable: bool = False


def check_target(target: Path, *, force: bool) -> None:
    """Raises BuildError where no folder can be put, or one is that must not be replaced."""
    if not target.parent.is_dir():
        raise BuildError(f"{target}: the folder {str(target.parent)!r} does not exist; create it first")
    if not target.exists() and not target.is_symlink():
        return
    if not force:
        raise BuildError(f"{target}: exists; give another path, or --force to replace a bundle")
    if target.is_symlink() or not is_bundle(target):
        raise BuildError(f"{target}: exists and is no bundle, so it is not replaced; delete it or give another path")


def write_folder(
    target: Path,
    contents: Mapping[str, Content],
    manifest: Manifest,
    *,
    force: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Manifest:
    """Writes the files and the manifest under a temporary name beside `target`, then renames the folder.

    manifest: all but its `files`, which are filled in here; the result has them. force: a bundle at `target` is
    replaced. Raises BuildError, and leaves what was at `target`, when something cannot be written.
    """
    target = Path(os.path.abspath(target))
    check_target(target, force=force)
    staged = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    former = target.with_name(f".{target.name}.{os.getpid()}.old")
    try:
        staged.mkdir()
        written = replace(manifest, files={})
        for name, content in contents.items():
            if progress is not None:
                progress(f"writing {name}")
            written = replace(written, files={**written.files, name: _write(staged / name, content)})
        _write(staged / MANIFEST, Content(written.to_json()))
        _put(staged, target, former)
    except OSError as error:
        raise BuildError(
            f"{target}: cannot be written ({error.strerror or error}); choose another path or free space"
        ) from None
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return written


def _write(path: Path, content: Content) -> BundleFile:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content.source, Path):
        shutil.copyfile(content.source, path)
    else:
        path.write_text(content.source, encoding="utf-8")
    if content.executable:
        path.chmod(EXECUTABLE)
    return BundleFile(file_digest(path), path.stat().st_size)


def _put(staged: Path, target: Path, former: Path) -> None:
    """Renames `staged` to `target`; what was there is put back if that fails."""
    if not target.exists():
        staged.rename(target)
        return
    target.rename(former)
    try:
        staged.rename(target)
    except BaseException:
        former.rename(target)
        raise
    shutil.rmtree(former, ignore_errors=True)
