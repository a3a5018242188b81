"""Plain text tables for terminals. Imports nothing of attngraft, so that every part may use it."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["format_table"]


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns, two spaces apart, a rule under the header, no trailing blanks."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    rule = ["-" * width for width in widths]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (header, rule, *rows)
    )
    return "\n".join(line.rstrip() for line in lines)
