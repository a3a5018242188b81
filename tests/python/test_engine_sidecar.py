"""The card beside an engine and the header inside it."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from attngraft.engine import ShapeRange
from attngraft.engine.files import write_atomically
from attngraft.engine.sidecar import (
    EngineCard,
    SiteCard,
    TensorCard,
    WorstDifference,
    card_path,
    read_card,
    read_plan_header,
)
from attngraft.errors import BuildError, EngineError

CARD = EngineCard(
    backend="tensorrt",
    tensorrt_version="10.6.0",
    size_bytes=32,
    gpu="NVIDIA H200",
    compute_capability="9.0",
    plugin_library="libattngraft.so",
    plugin_embedded=False,
    contract_version=1,
    plugin_layers=2,
    layers=14,
    source="model.onnx",
    source_sha256="00" * 32,
    inputs=(TensorCard("x", "float16", (-1, 16)),),
    outputs=(TensorCard("y", "float16", (-1, 16)),),
    profiles=({"x": ShapeRange.parse("1x16:2x16:4x16")}, {"x": ShapeRange.parse("1x16:8x16:64x16")}),
    flags=("refit",),
    sites=(SiteCard("attention.0", "native"), SiteCard("attention.1", "keep")),
    worst_difference=WorstDifference("engine", "ONNX Runtime", "y", 1.5e-3, 1e-2, nan=4),
)


def test_card_to_text_and_back(tmp_path: Path) -> None:
    engine = tmp_path / "model.engine"
    card_path(engine).write_text(CARD.to_json())
    assert card_path(engine).name == "model.engine.json"
    assert read_card(engine) == CARD


def test_no_card(tmp_path: Path) -> None:
    assert read_card(tmp_path / "model.engine") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not JSON",
        "[]",
        "{}",
        '{"attngraft_engine": 2}',
        CARD.to_json().replace('"attngraft_engine": 2', '"attngraft_engine": 99'),
        CARD.to_json().replace("1x16:2x16:4x16", "4x16:2x16:1x16"),
        CARD.to_json().replace('"layers"', '"strata"'),
    ],
)
def test_a_damaged_card_is_one_line(tmp_path: Path, text: str) -> None:
    engine = tmp_path / "model.engine"
    card_path(engine).write_text(text)
    with pytest.raises(EngineError, match="is not a card of this attngraft version") as raised:
        read_card(engine)
    assert "\n" not in str(raised.value)


def test_plan_header(tmp_path: Path) -> None:
    engine = tmp_path / "model.engine"
    engine.write_bytes(struct.pack("<4s12xQ4B", b"ftrt", 1234, 10, 6, 0, 26))
    header = read_plan_header(engine)
    assert (header.backend, header.version_text, header.size_bytes) == ("tensorrt", "10.6.0.26", 1234)


@pytest.mark.parametrize("data", [b"", b"ftrt", b"\x08\x07" + bytes(100), b"FTRT" + bytes(100)])
def test_a_file_that_is_no_engine(tmp_path: Path, data: bytes) -> None:
    engine = tmp_path / "model.engine"
    engine.write_bytes(data)
    with pytest.raises(EngineError, match="is not a TensorRT engine"):
        read_plan_header(engine)


def test_no_engine_there(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no such file"):
        read_plan_header(tmp_path / "model.engine")
    with pytest.raises(EngineError, match="cannot be read"):
        read_plan_header(tmp_path)


def test_files_are_written_together_or_not_at_all(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "nowhere" / "second"
    first.write_bytes(b"old")
    with pytest.raises(BuildError, match="cannot be written"):
        write_atomically({first: b"new", second: b"new"})
    assert first.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [first]
    write_atomically({first: b"new"})
    assert first.read_bytes() == b"new"


def test_cards_differ_when_a_field_does() -> None:
    assert replace(CARD, plugin_layers=3).to_json() != CARD.to_json()
