"""The fused attention kernels of an engine, for terminals and programs: what there is to say without its model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attngraft.engine.layers import EngineLayer
from attngraft.report.grouping import group_by, name_pattern
from attngraft.report.table import format_table

__all__ = ["kernel_lines", "kernels_json"]


def kernel_lines(made_by: str, kernels: Sequence[EngineLayer]) -> list[str]:
    """A table of the kernels, those with alike nodes together, and their number."""
    groups = group_by((tuple(map(_without_numbers, kernel.nodes)) or kernel.name, kernel) for kernel in kernels)
    rows = [
        (
            f"{len(group)} x",
            name_pattern([kernel.name for kernel in group]),
            ", ".join(_nodes_text(group)) or "not told",
        )
        for group in groups
    ]
    lines = format_table(("kernels", "name", "ONNX nodes inside"), rows).splitlines() if rows else []
    return [*lines, f"{made_by}: {len(kernels)} fused attention kernel{'s' * (len(kernels) != 1)} in the engine"]


def kernels_json(engine: str, made_by: str, kernels: Sequence[EngineLayer]) -> dict[str, Any]:
    """The same for programs."""
    return {
        "engine": engine,
        "made_by": made_by,
        "kernels": [{"name": kernel.name, "nodes": list(kernel.nodes)} for kernel in kernels],
    }


def _without_numbers(text: str) -> str:
    return "".join(character for character in text if not character.isdigit())


def _nodes_text(group: Sequence[EngineLayer]) -> list[str]:
    return [name_pattern(list(names)) for names in zip(*(kernel.nodes for kernel in group), strict=True)]
