"""Makes exports into the cache folder, in forked processes, and remembers what the exporters refused."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.zoo.entry import Size
from benchmarks.zoo.exporting import export_entry
from benchmarks.zoo.forked import run_forked
from benchmarks.zoo.registry import Job

__all__ = ["FAILURES", "make_exports", "preload"]

FAILURES = "failures.json"
"""In the folder of a size: for each export that was refused the exporter's reason."""

EXPORT_SECONDS = 900.0
"""Whisper at real size in fp16 takes minutes on a CPU."""

PRELOADED = (
    "onnx",
    "onnxscript",
    "onnxruntime",
    "torch.export",
    "torch._dynamo",
    "torch.onnx._internal.exporter._core",
)
"""Imported before the fork: a second or more each."""


def preload() -> None:
    """Imports what every export needs and leaves one thread each for the children."""
    import torch

    torch.set_num_threads(1)  # a fork with a running thread pool hangs
    for module in PRELOADED:
        importlib.import_module(module)


def make_exports(
    jobs: Sequence[Job], size: Size, folder: Path, *, processes: int = 2, say: Callable[[str], None] = print
) -> int:
    """Makes the exports of `jobs` that `folder`/SIZE does not hold yet. Returns how many failed."""
    target = folder / size.name
    target.mkdir(parents=True, exist_ok=True)
    missing = [job for job in jobs if not (target / f"{job.name}.onnx").exists()]
    say(f"zoo: {len(missing)} of {len(jobs)} exports to make")
    failures: dict[str, str] = _read(target / FAILURES)

    def export(job: Job) -> None:
        export_entry(job.entry, size, job.attention, job.variant, target)

    failed = 0
    outcomes = run_forked(missing, export, processes=processes, time_limit=EXPORT_SECONDS)
    for number, outcome in enumerate(outcomes, 1):
        name = outcome.job.name
        failures.pop(name, None)
        if outcome.error is not None:
            failed += 1
            failures[name] = outcome.error
        result = "made" if outcome.error is None else f"refused: {outcome.error}"
        say(f"[{number}/{len(missing)}] {name} {outcome.seconds:.1f} s {result}")
        (target / FAILURES).write_text(json.dumps(failures, indent=1, sort_keys=True) + "\n")
    return failed


def _read(path: Path) -> dict[str, str]:
    return json.loads(path.read_text()) if path.exists() else {}
