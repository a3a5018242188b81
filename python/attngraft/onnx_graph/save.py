"""A model out to a file: whole or not at all, its external data with it."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from google.protobuf.message import EncodeError
from onnx import ModelProto, TensorProto

from attngraft.errors import ModelError, WriteError
from attngraft.onnx_graph.external import external_files, rename_external_file, stored_bytes
from attngraft.onnx_graph.wire import write_in_parts

__all__ = ["StagedModel", "save_model", "stage_model"]

MAX_MODEL_BYTES = 2**31 - 1
"""Protobuf's limit for one message."""

MAX_BYTES_AT_ONCE = 2**26
"""Models above this size are written tensor by tensor, so that their weights are not in memory once more."""

MAX_SENDFILE_BYTES = 2**30
"""Linux moves at most 2^31 - 4096 bytes in one call."""


def save_model(model: ModelProto, target: str | Path, source_dir: Path) -> None:
    """Writes `model` to `target`, replacing it only when everything is written.

    External data files of `source_dir` are referred to where they are when `target` is in the same folder; otherwise
    they are copied beside the target. Raises ModelError.
    """
    with stage_model(model, target, source_dir) as staged:
        staged.commit()


def stage_model(model: ModelProto, target: str | Path, source_dir: Path) -> StagedModel:
    """Writes `model` under a temporary name beside `target`; `commit()` renames it. A context that ends uncommitted
    removes everything that was written."""
    target = Path(target)
    if not target.parent.is_dir():
        raise ModelError(f"{target}: the folder {str(target.parent)!r} does not exist; create it first")
    created: list[Path] = []
    try:
        model = _bring_external_files(model, target, Path(source_dir), created)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".onnx")
        created.append(Path(name))
        with os.fdopen(handle, "wb") as file:
            _write(model, target, file)
        _take_permissions(Path(name), target)
    except OSError as error:
        _remove(created)
        raise WriteError(f"{target}: cannot be written ({error.strerror or error})") from None
    except BaseException:
        _remove(created)
        raise
    return StagedModel(Path(name), target, created)


class StagedModel:
    """A complete model file under a temporary name, `path`, beside its target."""

    def __init__(self, path: Path, target: Path, created: list[Path]) -> None:
        self.path = path
        self._target = target
        self._created = created

    def commit(self) -> None:
        """Puts the model in its target's place, in one step."""
        os.replace(self.path, self._target)
        self._created.clear()

    def __enter__(self) -> StagedModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _remove(self._created)


def _bring_external_files(model: ModelProto, target: Path, source_dir: Path, created: list[Path]) -> ModelProto:
    """The model, its external files now beside `target`; a changed copy if a file needed another name."""
    if source_dir.resolve() == target.parent.resolve():
        return model
    renamed = model
    for location in external_files(model):
        source, destination = source_dir / location, target.parent / location
        if destination.exists() and not _same_file(source, destination):
            # Someone else's file: it is left alone, ours gets a name of its own.
            destination = _free_name(target.parent, f"{target.stem}.{Path(location).name}")
            if renamed is model:
                renamed = ModelProto()
                renamed.CopyFrom(model)
            rename_external_file(renamed, location, destination.name)
        if not destination.exists():
            destination.parent.mkdir(parents=True, exist_ok=True)
            created.append(destination)
            _copy(source, destination)
    return renamed


def _same_file(first: Path, second: Path) -> bool:
    return second.is_file() and os.path.samefile(first, second)


def _free_name(folder: Path, name: str) -> Path:
    candidate, number = folder / name, 1
    while candidate.exists():
        number += 1
        candidate = folder / f"{name}.{number}"
    return candidate


def _copy(source: Path, destination: Path) -> None:
    """Copies without reading the holes of sparse files.

    Links would be cheaper, but onnx refuses external data that is a symbolic link or has a second hard link, and would
    then refuse the source as well.
    """
    with open(source, "rb") as reader, open(destination, "wb") as writer:
        size = os.fstat(reader.fileno()).st_size
        position = 0
        while position < size:
            start = _next_data(reader.fileno(), position)
            if start is None:
                break
            position = os.lseek(reader.fileno(), start, os.SEEK_HOLE)
            _copy_range(reader.fileno(), writer.fileno(), start, position - start)
        writer.truncate(size)


def _next_data(descriptor: int, position: int) -> int | None:
    """Where the next written byte is; None if only a hole follows."""
    try:
        return os.lseek(descriptor, position, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        raise


def _copy_range(reader: int, writer: int, start: int, count: int) -> None:
    os.lseek(writer, start, os.SEEK_SET)
    os.lseek(reader, start, os.SEEK_SET)
    while count > 0:
        done = os.sendfile(writer, reader, None, min(count, MAX_SENDFILE_BYTES))
        if done == 0:
            raise OSError(errno.EIO, "the external data became shorter while it was copied")
        count -= done


def _write(model: ModelProto, target: Path, file: BinaryIO) -> None:
    inside = (tensor for tensor in model.graph.initializer if tensor.data_location != TensorProto.EXTERNAL)
    size = sum(map(stored_bytes, inside))
    try:
        if size <= MAX_BYTES_AT_ONCE:
            size = file.write(model.SerializeToString())
        else:
            size = write_in_parts(model, file) if size <= MAX_MODEL_BYTES else size
    except (EncodeError, ValueError) as error:
        raise ModelError(f"{target}: the model cannot be serialized ({error})") from None
    if size > MAX_MODEL_BYTES:
        raise ModelError(
            f"{target}: {size} bytes exceed what one ONNX file may hold; keep the weights as external data"
        )


def _take_permissions(path: Path, target: Path) -> None:
    """mkstemp makes files private; the result gets the replaced file's mode, or what the umask gives new files."""
    if target.exists():
        mode = target.stat().st_mode & 0o777
    else:
        umask = os.umask(0)
        os.umask(umask)
        mode = 0o666 & ~umask
    os.chmod(path, mode)


def _remove(paths: list[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
    paths.clear()
