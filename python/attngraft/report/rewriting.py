"""What `rewrite` and `build` say about a rewrite: counts and reasons, what was taken back, what was mended."""

from __future__ import annotations

from collections.abc import Iterator

from attngraft.report.inspection import repair_lines, summary_lines
from attngraft.rewrite import RewriteResult

__all__ = ["change_lines", "rewrite_lines"]


def rewrite_lines(result: RewriteResult) -> Iterator[str]:
    """All about a rewrite, its proof included."""
    others = {name: reason for name, reason in result.reasons.items() if name not in result.taken_back}
    yield from summary_lines(result.sites, result.choices, others)
    yield from change_lines(result)
    if result.report is not None:
        yield str(result.report)
    if not result.lowered and not result.repairs:
        yield "nothing to gain: the model is written as it was"


def change_lines(result: RewriteResult) -> Iterator[str]:
    """The sites that were taken back, each by its name, and the repairs."""
    for name, reason in result.taken_back.items():
        yield f"taken back: {name}: {reason}"
    yield from repair_lines("repaired", result.repairs)
