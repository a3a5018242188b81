"""results/NAME.json: what was measured, on what, with which versions, by which command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["PLAIN", "RESULTS", "CountRow", "Row", "read_results", "write_counts", "write_results"]

RESULTS = Path(__file__).resolve().parent / "results"

PLAIN = "tensorrt-plain"
"""What the model as it was given is called among the peers."""

ENVIRONMENT_KEYS = ("device", "driver", "cuda", "tensorrt", "torch")
"""Rows of an earlier run stay in a file only where all of these are the same. Each row says of which commit it is."""


@dataclass(frozen=True)
class Row:
    """One work: medians of one interleaved run, in microseconds."""

    work: str
    dtype: str
    ours_us: float | None
    """None where TensorRT refuses it."""
    peers_us: Mapping[str, float]
    bound_us: float
    """The physical limit: bytes over measured streaming bandwidth, or operations over measured matrix rate."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What else was measured of this work, such as differences from a reference."""


@dataclass(frozen=True)
class CountRow:
    """How often things occurred in one group of works."""

    work: str
    counts: Mapping[str, int]


def write_counts(name: str, sections: Mapping[str, Iterable[CountRow]], packages: Iterable[str]) -> Path:
    """Writes results/NAME.json anew: sections of counts, and the versions of the packages that were counted with.

    No GPU is needed, so none is named.
    """
    content = {
        "packages": {package: _package_version(package) for package in packages},
        **_occasion(),
        "sections": {section: [asdict(row) for row in rows] for section, rows in sections.items()},
    }
    return _write(RESULTS / f"{name}.json", content)


def write_results(name: str, rows: Iterable[Row]) -> Path:
    """Writes results/NAME.json. Other works measured before in the same environment stay in it, with their commit;
    those of another environment are left out, which is said."""
    path = RESULTS / f"{name}.json"
    environment = _environment()
    fresh = [_dated(asdict(row), environment) for row in rows]
    measured = {(row["work"], row["dtype"]) for row in fresh}
    earlier = json.loads(path.read_text()) if path.exists() else {"rows": []}
    kept = [_dated(row, earlier) for row in earlier["rows"] if (row["work"], row["dtype"]) not in measured]
    others = [key for key in ENVIRONMENT_KEYS if earlier.get(key) != environment[key]]
    if kept and others:
        changes = ", ".join(f"{key} {earlier.get(key)} is now {environment[key]}" for key in others)
        print(f"{path}: {len(kept)} works measured before are left out: {changes}", file=sys.stderr)
        kept = []
    return _write(path, {**environment, "rows": kept + fresh})


def _dated(row: dict[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    """The row with the commit and date of the run that measured it, unless it has its own already."""
    return {"commit": run["commit"], "date": run["date"], **row}


def _write(path: Path, content: Mapping[str, Any]) -> Path:
    path.parent.mkdir(exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(partial, path)
    return path


def read_results(name: str) -> dict[str, Any] | None:
    """The content of results/NAME.json, or None where nothing was measured yet."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def _environment() -> dict[str, str | None]:
    import torch

    return {
        "device": torch.cuda.get_device_name(),
        "driver": _first_line("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "cuda": torch.version.cuda,
        "tensorrt": _tensorrt_version(),
        "torch": torch.__version__,
        **_occasion(),
    }


def _occasion() -> dict[str, str | None]:
    return {
        "commit": os.environ.get("ATTNGRAFT_COMMIT") or _first_line("git", "rev-parse", "HEAD"),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": _command(),
    }


def _command() -> str:
    spec = sys.modules["__main__"].__spec__
    module = spec.name if spec is not None else sys.argv[0]
    here = f"{Path.cwd()}/"  # where on a machine the tree lies says nothing
    return " ".join(["python -m", module, *(argument.replace(here, "") for argument in sys.argv[1:])])


def _package_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _tensorrt_version() -> str | None:
    """Of the TensorRT that this run used: figures of kernels alone are the same whether one is installed or not."""
    tensorrt = sys.modules.get("tensorrt")
    return None if tensorrt is None else tensorrt.__version__


def _first_line(*command: str) -> str | None:
    """The first line that a command prints, None where it is missing or fails (a tree without git, for example)."""
    try:
        printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=RESULTS.parent).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return printed.splitlines()[0] if printed else None
