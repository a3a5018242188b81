"""The list of a bundle's files with their SHA-256, and the check of a bundle against it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from attngraft.engine.digest import file_digest
from attngraft.errors import EngineError

__all__ = ["MANIFEST", "BundleFile", "Manifest", "check_bundle", "is_bundle", "read_manifest"]

MANIFEST = "manifest.json"
MANIFEST_FORMAT = 1
"""Raised when a field changes its meaning; a manifest of another format is refused."""


@dataclass(frozen=True)
class BundleFile:
    """One file of a bundle, as it was written."""

    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class Manifest:
    """What is in a bundle. Paths are relative to its folder, with `/`."""

    format: str
    """`directory` or `triton`."""
    engine: str
    """The engine's path."""
    backend: str
    tensorrt_version: str
    library: str | None
    """The plugin library's path; None where the engine needs none or carries it."""
    files: Mapping[str, BundleFile]

    def to_json(self) -> str:
        files = {path: {"sha256": file.sha256, "size_bytes": file.size_bytes} for path, file in self.files.items()}
        fields = {"attngraft_bundle": MANIFEST_FORMAT, **vars(self), "files": files}
        return json.dumps(fields, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """The manifest of a text that `to_json` wrote. Raises ValueError, KeyError or TypeError for any other."""
        fields: dict[str, Any] = json.loads(text)
        if fields.pop("attngraft_bundle") != MANIFEST_FORMAT:
            raise ValueError("another manifest format")
        files = {
            path: BundleFile(str(file["sha256"]), int(file["size_bytes"])) for path, file in fields.pop("files").items()
        }
        for path in files:
            parts = PurePosixPath(path).parts
            if not parts or PurePosixPath(path).is_absolute() or ".." in parts:
                raise ValueError("a path that leads out of the bundle")
        return cls(**fields, files=files)


def read_manifest(folder: Path) -> Manifest:
    """Raises EngineError where there is no manifest, or none of this attngraft version."""
    path = folder / MANIFEST
    try:
        return Manifest.from_json(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise EngineError(f"{folder}: is no bundle, it has no {MANIFEST}; make one with attngraft bundle") from None
    except OSError as error:
        raise EngineError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise EngineError(
            f"{path}: is not a manifest of this attngraft version; make the bundle again with attngraft bundle"
        ) from None


def is_bundle(folder: Path) -> bool:
    """Whether `attngraft bundle` wrote that folder."""
    try:
        read_manifest(folder)
    except EngineError:
        return False
    return True


def check_bundle(folder: str | Path, *, progress: Callable[[str], None] | None = None) -> Manifest:
    """Compares every file of a bundle with its SHA-256; files that the manifest does not name are not looked at.

    progress: called with one-line reports. Raises EngineError for the first file that is missing or differs, and where
    there is no manifest.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    for name, expected in manifest.files.items():
        path = folder / name
        if progress is not None:
            progress(f"checking {name}")
        try:
            size, found = path.stat().st_size, file_digest(path)
        except FileNotFoundError:
            raise EngineError(f"{path}: is missing from the bundle; copy the bundle again") from None
        except OSError as error:
            raise EngineError(f"{path}: cannot be read ({error.strerror})") from None
        if size != expected.size_bytes:
            raise EngineError(
                f"{path}: has {size} bytes, but was written with {expected.size_bytes}; copy the bundle again"
            )
        if found != expected.sha256:
            raise EngineError(f"{path}: is not the file that the bundle was written with; copy the bundle again")
    return manifest
