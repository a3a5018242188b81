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

from attngraft.engine.flags import VERSION_COMPATIBLE
from attngraft.engine.layers import EngineLayer
from attngraft.engine.shapes import ShapeRange
from attngraft.errors import BuildError, EngineError

__all__ = [
    "EngineCard",
    "PlanHeader",
    "SiteCard",
    "TensorCard",
    "WorstDifference",
    "card_path",
    "read_card",
    "read_plan_header",
]

CARD_FORMAT = 2
"""Raised when a field changes its meaning; a card of another format is refused."""


@dataclass(frozen=True)
class TensorCard:
    """One input or output. -1 in `shape` is a dimension that is known at run time only."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class SiteCard:
    """One attention site of the source, and the lowering that it has in the engine."""

    name: str
    lowering: str


@dataclass(frozen=True)
class WorstDifference:
    """The largest absolute difference that was found before the engine was kept.

    of         what was compared: `engine`, or `rewritten model` (in ONNX Runtime, before it was built).
    against    what it was compared with: `ONNX Runtime` or `plain engine`.
    output     the output that came nearest to its tolerance; `difference` and `tolerance` are that one's.
    nan        elements that are NaN in the reference, and were not compared.
    """

    of: str
    against: str
    output: str
    difference: float
    tolerance: float
    nan: int = 0


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
    """File name of the model, as it was before it was rewritten."""
    source_sha256: str
    """Of that file, and of those with its external data after it."""
    inputs: tuple[TensorCard, ...]
    outputs: tuple[TensorCard, ...]
    profiles: tuple[Mapping[str, ShapeRange], ...]
    """One at least, each with a range for every input."""
    flags: tuple[str, ...] = ()
    """Of engine/flags.py, that it was built with."""
    sites: tuple[SiteCard, ...] | None = None
    """Of the source; None where nobody looked for them."""
    worst_difference: WorstDifference | None = None
    """None where nothing was compared."""
    fused_attention: tuple[EngineLayer, ...] | None = None
    """The kernels that do a whole attention site each, and the ONNX nodes in them; None where TensorRT did not tell."""

    @property
    def needs_library(self) -> bool:
        """Whether it runs with the installed plugin library alone: it has plugin layers and does not carry theirs."""
        return self.plugin_library is not None and not self.plugin_embedded

    @property
    def carries_code(self) -> bool:
        """Whether host code is inside the engine, the plugin library or TensorRT's lean runtime, which its runtime must
        be told to trust."""
        return self.plugin_embedded or VERSION_COMPATIBLE in self.flags

    def to_json(self) -> str:
        """The card's text, one field a line, ranges as `min:opt:max`."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for several in ("inputs", "outputs", "sites", "fused_attention"):
            if fields[several] is not None:
                fields[several] = [dataclasses.asdict(one) for one in fields[several]]
        if self.worst_difference is not None:
            fields["worst_difference"] = dataclasses.asdict(self.worst_difference)
        fields["profiles"] = [{name: str(shapes) for name, shapes in profile.items()} for profile in self.profiles]
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
        fields["profiles"] = tuple(
            {name: ShapeRange.parse(text) for name, text in profile.items()} for profile in fields["profiles"]
        )
        if not fields["profiles"]:
            raise ValueError("no profile")
        fields["flags"] = tuple(fields.get("flags", ()))
        if fields.get("sites") is not None:
            fields["sites"] = tuple(SiteCard(**site) for site in fields["sites"])
        if fields.get("worst_difference") is not None:
            fields["worst_difference"] = WorstDifference(**fields["worst_difference"])
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
