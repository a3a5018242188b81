"""What is bundled. In: an engine file. Out: the engine, its card and the plugin library that must go with it.

Nothing of TensorRT is imported: a bundle can be packed on any machine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from attngraft.contract import CONTRACT_VERSION
from attngraft.engine.sidecar import EngineCard, PlanHeader, card_path, read_card, read_plan_header
from attngraft.errors import EngineError
from attngraft.plugin_library import plugin_library

__all__ = ["BundleSource", "read_source"]


@dataclass(frozen=True)
class BundleSource:
    """One engine with all that it needs."""

    engine: Path
    header: PlanHeader
    card: EngineCard
    library: Path | None
    """The plugin library to ship; None where the engine needs none or carries it."""

    @property
    def library_name(self) -> str | None:
        """File name of the library in the bundle: the one that the card names."""
        return None if self.library is None else self.card.plugin_library


def read_source(engine_path: str | Path) -> BundleSource:
    """Reads an engine's header and card, and finds its library.

    Raises EngineError for a file that is no engine, is truncated, has no card or another engine's, and for a plugin
    library that does not fit; MissingDependency for one that is not installed.
    """
    path = Path(engine_path)
    header, card = read_plan_header(path), read_card(path)
    if card is None:
        raise EngineError(
            f"{path}: has no card ({card_path(path).name}), so its inputs, profiles and plugin library cannot be "
            "known; build it with attngraft build, or copy the card beside it"
        )
    size = os.stat(path).st_size
    if size < header.size_bytes:
        raise EngineError(f"{path}: is truncated: {size} of {header.size_bytes} bytes; copy or build it again")
    if (size, header.backend) != (card.size_bytes, card.backend):
        raise EngineError(
            f"{path}: has {size} bytes of {header.backend}, but its card says {card.size_bytes} of {card.backend}: one "
            "is not the other's; copy both or build again"
        )
    return BundleSource(path, header, card, _library(path, card))


def _library(path: Path, card: EngineCard) -> Path | None:
    if not card.needs_library:
        return None
    library = plugin_library()
    if card.contract_version != CONTRACT_VERSION:
        raise EngineError(
            f"{path}: needs a plugin library of contract version {card.contract_version}, but {CONTRACT_VERSION} is "
            "installed; install the attngraft that built it or build the engine again"
        )
    return library
