"""The rewriter over the whole zoo, beside other tools: results/rewriter-zoo.json. Needs no GPU.

`--exports .zoo/fusable --results rewriter-zoo-fusable` asks of models with heads of 64, which TensorRT can fuse, what
depends on that: what is found, what builds, and what is fused.

For every export: attention softmaxes recognised of those there are, others touched, outputs after each lowering against
the original's, and with TensorRT-RTX what builds and what is fused, before and after. `python -m benchmarks.zoo` makes
the exports. Each answer is a line in a file beside them, so that an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.make_tables import counts_table
from benchmarks.results_file import write_counts
from benchmarks.rewriter_counts import ENVIRONMENT_PACKAGES, reduce_answers
from benchmarks.rewriter_steps import STEPS
from benchmarks.zoo.arguments import pattern
from benchmarks.zoo.exporting import read_facts
from benchmarks.zoo.forked import run_forked

__all__ = ["main"]

ANSWERS = "answers.jsonl"
SEED = 4
STEP_SECONDS = 300.0

RESULTS = {
    "rewriter-zoo": tuple(STEPS),
    "rewriter-zoo-fusable": ("match", *(step for step in STEPS if step.startswith("build "))),
}
"""The results that there are, and the steps of each."""

PRELOADED = ("onnxruntime", "onnxscript.rewriter.ort_fusions", "onnxsim", "tensorrt_rtx")
"""Imported before the fork."""


@dataclass(frozen=True)
class Question:
    """One step on one export."""

    path: Path
    step: str


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    folder: Path = options.exports
    paths = _paths(folder, options.filter, options.sample)
    if not paths:
        print(f"{folder}: no export to measure; make them with python -m benchmarks.zoo", file=sys.stderr)
        return 1
    steps = [step for step in RESULTS[options.results] if options.steps.search(step)]
    answers = _read(folder / ANSWERS)
    if options.again:
        stems = {path.stem for path in paths}
        answers = {key: line for key, line in answers.items() if key[0] not in stems or key[1] not in steps}
    if not options.reduce_only:
        answer(folder, [Question(path, step) for path in paths for step in steps], answers, options.processes)
    facts = {path.stem: found for path in paths if (found := read_facts(path)) is not None}
    print(f"{len(facts)} of {len(paths)} exports have a true number of softmaxes", file=sys.stderr)
    counts = reduce_answers(facts, answers)
    if (
        options.filter.pattern or options.steps.pattern or options.sample is not None
    ):  # a part is no measurement of the zoo
        print("\n\n".join(f"{section}\n\n{counts_table(rows)}" for section, rows in counts.items()))
        return 0
    print(write_counts(options.results, counts, ENVIRONMENT_PACKAGES))
    return 0


def answer(
    folder: Path, questions: list[Question], answers: dict[tuple[str, str], dict[str, Any]], processes: int
) -> None:
    """Asks what `answers` does not hold yet; adds to it and to the file."""
    for module in PRELOADED:
        importlib.import_module(module)
    missing = [question for question in questions if (question.path.stem, question.step) not in answers]
    print(f"{len(missing)} of {len(questions)} steps to run", file=sys.stderr, flush=True)
    outcomes = run_forked(missing, lambda asked: STEPS[asked.step](asked.path), processes=processes,
                          time_limit=STEP_SECONDS)  # fmt: skip
    with open(folder / ANSWERS, "a", encoding="utf-8") as file:
        for number, outcome in enumerate(outcomes, 1):
            key = (outcome.job.path.stem, outcome.job.step)
            line = {"name": key[0], "step": key[1], "value": outcome.value, "error": outcome.error,
                    "seconds": round(outcome.seconds, 2)}  # fmt: skip
            answers[key] = line
            file.write(json.dumps(line) + "\n")
            file.flush()
            said = outcome.error or json.dumps(outcome.value)[:100]
            print(
                f"[{number}/{len(missing)}] {' '.join(key)} {outcome.seconds:.1f} s {said}", file=sys.stderr, flush=True
            )


def _paths(folder: Path, wanted: re.Pattern[str], sample: int | None) -> list[Path]:
    paths = [path for path in sorted(folder.glob("*.onnx")) if wanted.search(path.stem)]
    if sample is not None and sample < len(paths):
        paths = sorted(random.Random(SEED).sample(paths, sample))
    return paths


def _read(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The last answer to every question."""
    if not path.exists():
        return {}
    lines: Iterator[dict[str, Any]] = (json.loads(line) for line in path.read_text().splitlines())
    return {(line["name"], line["step"]): line for line in lines}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--exports", type=Path, default=Path(".zoo/small"), metavar="DIR",
                        help="folder of exports (default: .zoo/small)")  # fmt: skip
    parser.add_argument("--filter", type=pattern, default="", metavar="REGEX", help="only exports whose names it finds")
    parser.add_argument("--steps", type=pattern, default="", metavar="REGEX", help=f"only these of: {', '.join(STEPS)}")
    parser.add_argument("--sample", type=int, metavar="N", help="only N exports, always the same")
    parser.add_argument("--processes", type=int, default=2, help="steps at a time (default: 2)")
    parser.add_argument("--results", default="rewriter-zoo", choices=tuple(RESULTS),
                        help="which results to write (default: rewriter-zoo)")  # fmt: skip
    parser.add_argument("--again", action="store_true", help="ask again what was answered: for another version of code")
    parser.add_argument("--reduce-only", action="store_true", help="make the results from the answers there are")
    return parser


if __name__ == "__main__":
    sys.exit(main())
