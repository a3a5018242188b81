"""Engines to bundle: files with the header of a TensorRT engine, and cards written by hand."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from attngraft.contract import CONTRACT_VERSION
from attngraft.engine.shapes import ShapeRange
from attngraft.engine.sidecar import EngineCard, TensorCard, card_path

SIZE = 4000
"""Bytes of an engine file."""


def tensor(name: str, dtype: str, *shape: int) -> TensorCard:
    return TensorCard(name, dtype, shape)


CARD = EngineCard(
    backend="tensorrt",
    tensorrt_version="10.6.0",
    size_bytes=SIZE,
    gpu="NVIDIA H200",
    compute_capability="9.0",
    plugin_library="libattngraft.so",
    plugin_embedded=True,
    contract_version=CONTRACT_VERSION,
    plugin_layers=2,
    layers=14,
    source="bert.onnx",
    source_sha256="00" * 32,
    inputs=(tensor("ids", "int64", -1, -1), tensor("lengths", "int32", -1)),
    outputs=(tensor("y", "float16", -1, -1, 64), tensor("pooled", "bfloat16", -1, 64)),
    profiles=({"ids": ShapeRange.parse("1x8:6x128:7x512"), "lengths": ShapeRange.parse("1:6:7")},),
)
"""A model with a batch dimension: batches of 1 to 7, 6 as a rule, of up to 512 tokens."""

FIXED = replace(
    CARD,
    inputs=(tensor("x", "float32", 2, 3, 16),),
    outputs=(tensor("y", "bool", 2, 16),),
    profiles=({"x": ShapeRange.parse("2x3x16")},),
)
"""One without, and of one shape."""


def one_input(shape: tuple[int, ...], range_: str, output: tuple[int, ...]) -> EngineCard:
    """A card with one input `x` and one output `y`."""
    return replace(
        CARD,
        inputs=(tensor("x", "float32", *shape),),
        outputs=(tensor("y", "float32", *output),),
        profiles=({"x": ShapeRange.parse(range_)},),
    )


def write_engine(folder: Path, card: EngineCard | None = CARD, name: str = "model.engine") -> Path:
    """An engine file that no TensorRT would load, with its card beside it."""
    path = folder / name
    magic = b"vtrt" if card is not None and card.backend == "rtx" else b"ftrt"
    path.write_bytes(struct.pack("<4s12xQ4B", magic, SIZE, 10, 6, 0, 26).ljust(SIZE, b"\x5a"))
    if card is not None:
        card_path(path).write_text(card.to_json())
    return path


def files_below(folder: Path) -> Mapping[str, Path]:
    """Every file in a folder and below, by its path with `/`."""
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
