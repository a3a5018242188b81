"""Options of the scripts that measure works chosen by name: exports of the zoo, usual models, or given files."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from attngraft.errors import AttngraftError
from benchmarks.zoo.arguments import pattern

__all__ = ["UNKNOWN_OPERATIONS", "add_work_options", "each_chosen_work"]

Work = TypeVar("Work")

UNKNOWN_OPERATIONS = 0.0
"""Of a model that --model names: its limit is not known, and is left out of the table."""


def add_work_options(
    parser: argparse.ArgumentParser, *, check: str, shape: tuple[str, str], timing_cache: tuple[str, str]
) -> None:
    """check: what --check does without a GPU. shape: metavar and help of --shape. timing_cache: default and help of
    --timing-cache."""
    parser.add_argument("--only", type=pattern, default=pattern(""), metavar="REGEX",
                        help="only works whose names (see --list) it finds")  # fmt: skip
    parser.add_argument("--list", action="store_true", help="print the names of the works and measure nothing")
    parser.add_argument("--check", action="store_true", help=f"without a GPU: {check}")
    parser.add_argument("--exports", type=Path, default=Path(".zoo/real"), metavar="DIR",
                        help="folder of exports, stripped ones too (default: .zoo/real)")  # fmt: skip
    parser.add_argument("--model", type=Path, action="append", metavar="FILE",
                        help="an ONNX file in place of the works (repeatable)")  # fmt: skip
    parser.add_argument("--shape", action="append", default=[], metavar=shape[0], help=shape[1])
    parser.add_argument("--time-limit", type=float, default=float("inf"), metavar="SECONDS",
                        help="start no further work after so long")  # fmt: skip
    parser.add_argument("--timing-cache", type=Path, default=Path(timing_cache[0]), metavar="FILE",
                        help=f"{timing_cache[1]}; kept for the next run")  # fmt: skip


def each_chosen_work(
    options: argparse.Namespace, works: Mapping[str, Work], measure: Callable[[str, Work, Path], None]
) -> int:
    """Measures the works that `options` choose, each in a folder of its own, or lists them. One that fails is told and
    does not stop the others. Returns the script's exit status."""
    chosen = {key: work for key, work in works.items() if options.only.search(key)}
    if options.list or not chosen:
        print("\n".join(chosen) or f"no work is named like {options.only.pattern!r}")
        return 0 if chosen else 1
    deadline = time.monotonic() + options.time_limit
    failed = 0
    for key, work in chosen.items():
        if time.monotonic() > deadline:
            print(f"time is up before {key}; --only picks what is left", file=sys.stderr)
            break
        with tempfile.TemporaryDirectory() as folder:
            try:
                measure(key, work, Path(folder))
            except AttngraftError as error:
                print(f"{key}: {error}", file=sys.stderr, flush=True)
                failed += 1
    return 1 if failed else 0
