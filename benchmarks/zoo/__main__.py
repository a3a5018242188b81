"""Command line: `python -m benchmarks.zoo --filter '^bert-' --size small`."""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from benchmarks.zoo.arguments import pattern
from benchmarks.zoo.entry import SIZES

__all__ = ["DEFAULT_FOLDER", "main"]

DEFAULT_FOLDER = Path(".zoo")
SEED = 4


def main(argv: list[str] | None = None) -> int:
    """Makes the exports that are not there yet. Returns 0; what an exporter refuses is a line, not an error."""
    options = _parser().parse_args(argv)
    from benchmarks.zoo.making import make_exports, preload
    from benchmarks.zoo.registry import jobs

    chosen = list(jobs(SIZES[options.size], options.filter))
    if options.sample is not None and options.sample < len(chosen):
        chosen = random.Random(SEED).sample(chosen, options.sample)
    if options.list:
        print("\n".join(job.name for job in chosen))
        return 0
    preload()
    failed = make_exports(chosen, SIZES[options.size], options.folder, processes=options.processes, say=_say)
    _say(f"zoo: {len(chosen) - failed} of {len(chosen)} exports are in {options.folder / options.size}")
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.zoo", description="Exports the zoo of attention models."
    )
    parser.add_argument("--filter", type=pattern, default="", metavar="REGEX", help="only exports whose names it finds")
    parser.add_argument("--size", choices=sorted(SIZES), default="small", help="sizes of the models (default: small)")
    parser.add_argument("--sample", type=int, metavar="N", help="only N of them, always the same")
    parser.add_argument("--list", action="store_true", help="print the names and make nothing")
    parser.add_argument(
        "--folder", type=Path, default=DEFAULT_FOLDER, metavar="DIR", help=f"cache folder (default: {DEFAULT_FOLDER})"
    )
    parser.add_argument("--processes", type=int, default=2, help="exports at a time (default: 2)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
