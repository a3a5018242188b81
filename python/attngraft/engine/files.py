"""Files that appear whole or not at all. In: a target and its bytes. Out: the file, renamed into place."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path

from attngraft.errors import WriteError

__all__ = ["move_together", "write_atomically"]

_numbers = itertools.count()  # so that threads of one process do not write into each other's temporary files


def write_atomically(contents: Mapping[Path, bytes | memoryview]) -> None:
    """Writes every file under a temporary name beside its target, then renames all of them.

    Raises WriteError, and leaves the targets as they were, when one of them cannot be written.
    """
    staged: dict[Path, Path] = {}
    target = None
    try:
        for target, data in contents.items():
            temporary = target.with_name(f".{target.name}.{os.getpid()}.{next(_numbers)}.tmp")
            staged[temporary] = target
            with open(temporary, "wb") as file:
                file.write(data)
        move_together(staged)
    except OSError as error:
        raise _unwritable(target, error) from None
    finally:
        for temporary in staged:
            temporary.unlink(missing_ok=True)


def move_together(staged: Mapping[Path, Path]) -> None:
    """Renames complete files to their targets, in the same file system. Raises WriteError."""
    target = None
    try:
        for temporary, target in staged.items():
            os.replace(temporary, target)
    except OSError as error:
        raise _unwritable(target, error) from None


def _unwritable(target: Path | None, error: OSError) -> WriteError:
    return WriteError(f"{target}: cannot be written ({error.strerror or error}); choose another path or free space")
