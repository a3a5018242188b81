"""A plain folder that runs where TensorRT is. In: an engine, its card and library. Out: the folder's files."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

from attngraft.bundle import run
from attngraft.bundle.folder import Content
from attngraft.bundle.graph_shapes import corner_shapes
from attngraft.bundle.source import BundleSource
from attngraft.engine.backends import backend_title
from attngraft.engine.sidecar import EngineCard, card_path

__all__ = ["ENGINE", "directory_files", "graphs_json"]

ENGINE = "model.engine"


def directory_files(source: BundleSource) -> dict[str, Content]:
    """Every file by its path."""
    files = {
        ENGINE: Content(source.engine),
        card_path(ENGINE).name: Content(card_path(source.engine)),
        "graphs.json": Content(graphs_json(source.card)),
        "run.py": Content(Path(run.__file__), executable=True),
        "README.txt": Content(_readme(source)),
    }
    if source.library is not None:
        files[str(source.library_name)] = Content(source.library)
    return files


def graphs_json(card: EngineCard) -> str:
    """The shapes to capture CUDA graphs for, as JSON: profile, corner, and the shape of every input."""
    graphs = [
        {"profile": graph.profile, "corner": graph.corner, "shapes": dict(graph.shapes)}
        for graph in corner_shapes(card)
    ]
    return json.dumps({"graphs": graphs}, indent=2) + "\n"


def _readme(source: BundleSource) -> str:
    card, title = source.card, backend_title(source.header.backend)
    where = f", on {card.gpu} (compute capability {card.compute_capability})" if card.gpu else ""
    if source.library is not None:
        plugin = f"{source.library_name} is the plugin library: load it before the engine is deserialized."
    elif card.plugin_embedded:
        plugin = (
            "The plugin library is inside the engine: allow the runtime to run an engine's host code "
            "(engine_host_code_allowed) before it is deserialized."
        )
    else:
        plugin = "The engine needs no plugin library."
    lines = [
        *textwrap.wrap(
            f"An engine of {title} {source.header.version_text}{where}, made of {card.source}. {plugin}", 100
        ),
        "",
        "model.engine       the engine",
        "model.engine.json  its card: inputs, outputs, profiles, what it needs",
        "graphs.json        the shapes to capture CUDA graphs for",
        "run.py             checks the files and times the engine; needs TensorRT and cuda-python, not attngraft",
        "manifest.json      SHA-256 of every file",
        "",
        "    python run.py",
        "",
        "Where attngraft is installed: attngraft doctor model.engine, attngraft run model.engine, and",
        "attngraft.runtime.Session('model.engine'); attngraft bundle --check FOLDER compares all files.",
    ]
    return "\n".join(lines) + "\n"
