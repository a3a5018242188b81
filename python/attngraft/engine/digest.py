"""Digests of files. In: a model or any file. Out: SHA-256 in hexadecimal."""

from __future__ import annotations

import hashlib
from pathlib import Path

from onnx import ModelProto

from attngraft.errors import ModelError
from attngraft.onnx_graph import external_files

__all__ = ["file_digest", "model_digest"]

CHUNK_BYTES = 1 << 20


def file_digest(path: Path) -> str:
    """Of one file's content."""
    return _digest([path]).hexdigest()


def model_digest(path: Path, model: ModelProto) -> str:
    """Of a model that was read from `path`, the files of its external data included. A model in one file has the digest
    of that file. Raises ModelError when a file cannot be read."""
    locations = sorted(external_files(model))
    try:
        # Which part of a data file belongs to which tensor stands in the model's own file.
        return _digest([path, *(path.parent / location for location in locations)]).hexdigest()
    except OSError as error:
        raise ModelError(f"{error.filename}: cannot be read ({error.strerror})") from None


def _digest(paths: list[Path]) -> hashlib._Hash:
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
    return digest
