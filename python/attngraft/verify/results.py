"""What a comparison gave: one row an output, printable as a table."""

from __future__ import annotations

from dataclasses import dataclass

from attngraft.errors import VerificationError
from attngraft.report.table import format_table

__all__ = ["OutputResult", "VerificationReport"]


@dataclass(frozen=True)
class OutputResult:
    """One output over all inputs tried.

    compared    elements compared; those that are NaN in the original are counted in `nan_in_original` instead.
    new_nan     elements that are NaN only in the rewritten model: each is a failure.
    worst       largest absolute difference; infinite where only one side is infinite or NaN.
    tolerance   what `worst` may be at most for the inputs where it came nearest to failing.
    case        the inputs that gave the worst difference, in words.
    """

    name: str
    dtype: str
    compared: int
    nan_in_original: int
    new_nan: int
    worst: float
    tolerance: float
    case: str
    passed: bool


@dataclass(frozen=True)
class VerificationReport:
    """The rows of all outputs; `cases` are the inputs tried, `notes` what could not be tried and why."""

    outputs: tuple[OutputResult, ...]
    cases: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def worst(self) -> float:
        """The largest absolute difference of all outputs."""
        return max((row.worst for row in self.outputs), default=0.0)

    @property
    def passed(self) -> bool:
        return bool(self.outputs) and all(row.passed for row in self.outputs)

    @property
    def failure(self) -> str | None:
        """What is wrong with the output farthest from its tolerance, in one phrase; None if everything passed."""
        failed = [row for row in self.outputs if not row.passed]
        if not failed:
            return None
        row = max(
            failed, key=lambda item: (item.new_nan, item.worst / item.tolerance if item.tolerance else item.worst)
        )
        if row.new_nan:
            return f"output {row.name!r} has {row.new_nan} NaN where the original is finite (inputs: {row.case})"
        if not row.compared:
            return f"output {row.name!r} is NaN everywhere in the original, so nothing could be compared"
        return f"output {row.name!r} differs by {row.worst:.3g}, tolerance {row.tolerance:.3g} (inputs: {row.case})"

    @property
    def is_comparable(self) -> bool:
        """Whether the original has numbers in every output: without them there is nothing to find fault with."""
        return all(row.compared for row in self.outputs)

    def raise_if_failed(self) -> None:
        """Raises VerificationError, one line, that names the output farthest from its tolerance."""
        failure = self.failure
        if failure is None:
            return
        remedy = "keep the site that causes it (--lower keep) and report the model"
        raise VerificationError(f"{failure}; {remedy if self.is_comparable else 'give other shapes with --shape'}")

    def __str__(self) -> str:
        header = (
            "output",
            "type",
            "compared",
            "NaN in original",
            "worst difference",
            "tolerance",
            "worst inputs",
            "result",
        )
        rows = [
            (
                row.name,
                row.dtype,
                str(row.compared),
                str(row.nan_in_original),
                f"{row.worst:.3g}",
                f"{row.tolerance:.3g}",
                row.case,
                "equal" if row.passed else "DIFFERS",
            )
            for row in self.outputs
        ]
        lines = [format_table(header, rows), f"inputs tried: {', '.join(self.cases)}"]
        return "\n".join((*lines, *self.notes))
