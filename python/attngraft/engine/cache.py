"""Engines that were built before. In: what decides on an engine. Out: the engine and its card, copied into place.

An entry is a folder, `KEY`, with the engine, its card, what else was found (a table of candidates), and the digests of
these files. It is written under another name and renamed, so that it is there whole or not at all, whoever writes it
at the same time; an entry whose files are not what their digests say counts as absent and is replaced.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attngraft.engine.digest import file_digest
from attngraft.engine.files import write_atomically
from attngraft.engine.sidecar import EngineCard, card_path
from attngraft.errors import BuildError

__all__ = ["CachedEngine", "EngineCache", "cache_key"]

ENGINE, CARD, FOUND, DIGESTS = "engine", "engine.json", "found.json", "digests.json"


def cache_key(facts: Mapping[str, Any]) -> str:
    """The name of the entry for an engine on which `facts`, values of JSON, decide."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class CachedEngine:
    """What an entry gave: the card, and what was found when it was built (None: nothing beyond the engine)."""

    card: EngineCard
    found: Any


class EngineCache:
    """A folder of engines. Raises BuildError where it cannot be made. `progress`: called with one-line reports."""

    def __init__(self, folder: Path, progress: Callable[[str], None] | None = None) -> None:
        self._folder = folder
        self._say = progress or (lambda _: None)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BuildError(f"cache {folder}: cannot be made ({error.strerror}); choose another folder") from None

    def fetch(self, key: str, engine_path: Path) -> CachedEngine | None:
        """Copies the engine and its card to their places; None where there is no such entry, or a damaged one.

        Raises WriteError when the places cannot be written.
        """
        entry = self._folder / key
        if not entry.is_dir():
            return None
        found = _read_entry(entry)
        if found is None:
            self._say(f"cache: the entry {entry} is damaged, and is made anew")
            return None
        engine, card, extra = found
        write_atomically({engine_path: engine, card_path(engine_path): card})
        self._say(f"cache: {engine_path} is a copy from {entry}")
        return CachedEngine(EngineCard.from_json(card.decode()), extra)

    def store(self, key: str, engine_path: Path, found: Any = None) -> None:
        """Keeps a built engine with its card. What goes wrong is reported and no error: the engine itself is there."""
        staged = self._folder / f".{key}.{uuid.uuid4().hex}"
        try:
            staged.mkdir()
            _write_entry(staged, engine_path, found)
            _replace(staged, self._folder / key)
            self._say(f"cache: kept as {self._folder / key}")
        except OSError as error:
            self._say(f"cache {self._folder}: the engine is not kept there ({error.strerror or error})")
        finally:
            shutil.rmtree(staged, ignore_errors=True)


def _write_entry(folder: Path, engine_path: Path, found: Any) -> None:
    shutil.copyfile(engine_path, folder / ENGINE)
    shutil.copyfile(card_path(engine_path), folder / CARD)
    (folder / FOUND).write_text(json.dumps(found))
    digests = {name: file_digest(folder / name) for name in (ENGINE, CARD, FOUND)}
    (folder / DIGESTS).write_text(json.dumps(digests))


def _replace(staged: Path, entry: Path) -> None:
    """Renames a complete entry into place. Another process's may be there already, which is as good, or a damaged
    one."""
    try:
        os.rename(staged, entry)
    except OSError:
        if _read_entry(entry) is not None:
            return
        damaged = entry.with_name(f".damaged.{uuid.uuid4().hex}")
        try:
            os.rename(entry, damaged)
            os.rename(staged, entry)
        finally:
            shutil.rmtree(damaged, ignore_errors=True)


def _read_entry(entry: Path) -> tuple[bytes, bytes, Any] | None:
    """Engine, card, and what was found; None unless all is as it was written."""
    try:
        digests = json.loads((entry / DIGESTS).read_text())
        files = {name: (entry / name).read_bytes() for name in (ENGINE, CARD, FOUND)}
        if any(hashlib.sha256(data).hexdigest() != digests[name] for name, data in files.items()):
            return None
        EngineCard.from_json(files[CARD].decode())
        return files[ENGINE], files[CARD], json.loads(files[FOUND])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, BuildError):
        return None
