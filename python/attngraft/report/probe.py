"""`probe` for terminals and programs: a table with one line a case, and the same as JSON."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

from attngraft.engine.probe import ProbeAnswer, ProbeReport
from attngraft.report.table import format_table

__all__ = ["probe_json", "probe_lines"]

MOST_CHARACTERS = 300
"""Of a reason of TensorRT's under the table, which may be a paragraph; the JSON has all of it."""

ANSWERS = {True: "fused", False: "not fused", None: "not built"}


def probe_lines(report: ProbeReport) -> list[str]:
    """A table of all cases, the notes of those that do not build, and the counts."""
    reasons = list(dict.fromkeys(answer.reason for answer in report.answers if answer.reason))
    rows = [_row(answer, reasons) for answer in report.answers]
    header = ("form", "type", "head size", "mask", "with", "rank", "answer")
    counts = Counter(ANSWERS[answer.fused] for answer in report.answers)
    lines = format_table(header, rows).splitlines()
    lines += [f"[{number}] {_shortened(reason)}" for number, reason in enumerate(reasons, start=1)]
    counted = ", ".join(f"{counts[words]} {words}" for words in ANSWERS.values() if counts[words])
    return [*lines, "", f"{report.made_by}: {counted}, of {len(report.answers)} one-site models"]


def probe_json(report: ProbeReport) -> dict[str, Any]:
    """`{"made_by", "answers": [{"form", "dtype", "head_size", "mask", "feature", "rank", "built", "fused", "reason",
    "seconds"}]}`."""
    answers = [
        {
            **dataclasses.asdict(answer.case),
            "built": answer.fused is not None,
            "fused": bool(answer.fused),
            "reason": answer.reason or None,
            "seconds": round(answer.seconds, 3),
        }
        for answer in report.answers
    ]
    return {"made_by": report.made_by, "answers": answers}


def _row(answer: ProbeAnswer, reasons: list[str]) -> tuple[str, ...]:
    case = answer.case
    note = f" [{reasons.index(answer.reason) + 1}]" if answer.reason else ""
    words = ANSWERS[answer.fused] + note
    return (case.form, case.dtype, str(case.head_size), case.mask, case.feature or "-", str(case.rank), words)


def _shortened(reason: str) -> str:
    return reason if len(reason) <= MOST_CHARACTERS else f"{reason[: MOST_CHARACTERS - 3]}..."
