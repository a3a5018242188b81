"""What an engine needs in order to run, readable without TensorRT: the card beside it and the header of its plan.

`model.engine` has its card at `model.engine.json`. An engine that another tool built has no card; its first bytes
still tell which TensorRT made it.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attngraft.engine.layers import EngineLayer
from attngraft.engine.shapes import ShapeRange
from attngraft.errors import BuildError, EngineError

__all__ = ["EngineCard", "PlanHeader", "TensorCard", "card_path", "read_card", "read_plan_header"]

CARD_FORMAT = 1
"""Raised when a field changes its meaning; a card of another format is refused."""


@dataclass(frozen=True)
class TensorCard:
    """One input or output. -1 in `shape` is a dimension that is known at run time only."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class EngineCard:
    """What one engine is and what it needs."""

    backend: str
    """`tensorrt` or `rtx`."""
    tensorrt_version: str
    size_bytes: int
    gpu: str | None
    """Name of the GPU that it was built on; None if it was built ahead of time, without one."""
    compute_capability: str | None
    plugin_library: str | None
    """File name of the plugin library that it needs, or None."""
    plugin_embedded: bool
    """The library is inside the engine; else the installed one is loaded."""
    contract_version: int | None
    """Of the plugin library; None without plugin layers."""
    plugin_layers: int
    layers: int
    source: str
    source_sha256: str
    inputs: tuple[TensorCard, ...]
    outputs: tuple[TensorCard, ...]
    profile: Mapping[str, ShapeRange]
    fused_attention: tuple[EngineLayer, ...] | None = None
    """The kernels that do a whole attention site each, and the ONNX nodes in them; None where TensorRT did not tell."""

    def to_json(self) -> str:
        """The card's text, one field a line, ranges as `min:opt:max`."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for direction in ("inputs", "outputs"):
            fields[direction] = [dataclasses.asdict(tensor) for tensor in fields[direction]]
        fields["profile"] = {name: str(shapes) for name, shapes in self.profile.items()}
        if self.fused_attention is not None:
            fields["fused_attention"] = [dataclasses.asdict(layer) for layer in self.fused_attention]
        return json.dumps({"attngraft_engine": CARD_FORMAT, **fields}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> EngineCard:
        """The card of a text that `to_json` wrote. Raises ValueError, KeyError or TypeError for any other text."""
        fields: dict[str, Any] = json.loads(text)
        if fields.pop("attngraft_engine") != CARD_FORMAT:
            raise ValueError("another card format")
        for direction in ("inputs", "outputs"):
            fields[direction] = tuple(
                TensorCard(tensor["name"], tensor["dtype"], tuple(tensor["shape"])) for tensor in fields[direction]
            )
        fields["profile"] = {name: ShapeRange.parse(text) for name, text in fields["profile"].items()}
        if fields.get("fused_attention") is not None:
            fields["fused_attention"] = tuple(
                EngineLayer(**{**layer, "nodes": tuple(layer["nodes"])}) for layer in fields["fused_attention"]
            )
        return cls(**fields)


def card_path(engine_path: str | Path) -> Path:
    """Where the card of an engine is."""
    engine_path = Path(engine_path)
    return engine_path.with_name(engine_path.name + ".json")


def read_card(engine_path: str | Path) -> EngineCard | None:
    """The card beside the engine, or None if there is none. Raises EngineError if it is damaged."""
    path = card_path(engine_path)
    try:
        return EngineCard.from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise EngineError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError, BuildError):
        raise EngineError(f"{path}: is not a card of this attngraft version; build the engine again") from None


_HEADER = struct.Struct("<4s12xQ4B")
"""Magic, 12 bytes not read here, size of the whole plan, version: major, minor, patch, build.
The version's place is that which NVIDIA's trtexec reads (--getPlanVersionOnly)."""

_MAGIC = {b"ftrt": "tensorrt", b"vtrt": "rtx"}


@dataclass(frozen=True)
class PlanHeader:
    """The first bytes of an engine."""

    backend: str
    version: tuple[int, int, int, int]
    size_bytes: int

    @property
    def version_text(self) -> str:
        return ".".join(str(part) for part in self.version)


def read_plan_header(engine_path: str | Path) -> PlanHeader:
    """The header of an engine file. Raises EngineError when there is no such file or it is no engine."""
    path = Path(engine_path)
    try:
        with open(path, "rb") as file:
            start = file.read(_HEADER.size)
    except FileNotFoundError:
        raise EngineError(f"{path}: no such file; build it with attngraft build") from None
    except OSError as error:
        raise EngineError(f"{path}: cannot be read ({error.strerror}); give the path of an engine") from None
    if len(start) < _HEADER.size or start[:4] not in _MAGIC:
        raise EngineError(f"{path}: is not a TensorRT engine; build one with attngraft build")
    magic, size, *version = _HEADER.unpack(start)
    return PlanHeader(_MAGIC[magic], tuple(version), size)
