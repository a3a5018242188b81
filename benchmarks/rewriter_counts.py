"""The answers about single exports added up: counts by family, by lowering, and by type and exporter."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.results_file import CountRow
from benchmarks.rewriter_peers import PEERS
from benchmarks.rewriter_steps import FORMS

__all__ = ["ENVIRONMENT_PACKAGES", "reduce_answers"]

ENVIRONMENT_PACKAGES = ("torch", "transformers", "onnx", "onnxruntime", "onnxscript", "onnxsim", "tensorrt_rtx_cu13")

Facts = Mapping[str, Mapping[str, Any]]
Answers = Mapping[tuple[str, str], Mapping[str, Any]]
ALL = "all"


def reduce_answers(facts: Facts, answers: Answers) -> dict[str, list[CountRow]]:
    """Sections of rows. An export counts in a section when all steps that the section reads were run on it."""
    sections = {
        "recognition": _recognition(facts, answers),
        "lowerings": _lowerings(facts, answers),
        "tensorrt-rtx": _builds(facts, answers),
    }
    return {section: rows for section, rows in sections.items() if rows}


def _recognition(facts: Facts, answers: Answers) -> list[CountRow]:
    steps = ("match", *(f"peer {peer}" for peer in PEERS))

    def count(name: str, fact: Mapping[str, Any]) -> Counter[str]:
        found = (answers[name, "match"]["value"] or {}).get("sites", 0)
        counts = Counter(
            {
                "exports": 1,
                "attention": fact["sites"],
                "attngraft": min(found, fact["sites"]),
                "others": fact["others"],
                "others touched": max(0, found - fact["sites"]),
            }
        )
        for peer in PEERS:
            fused = (answers[name, f"peer {peer}"]["value"] or {}).get("fused", 0)
            counts[peer] = min(fused, fact["sites"])
        return counts

    return _grouped(facts, answers, steps, lambda name, fact: fact["family"], count)


def _lowerings(facts: Facts, answers: Answers) -> list[CountRow]:
    rows = []
    for form in FORMS:
        step = f"rewrite {form}"
        verdicts: Counter[str] = Counter()
        for name, fact in facts.items():
            line = answers.get((name, step))
            if line is None:
                continue
            value = line["value"] or {"lowered": 0, "verdict": "failed"}
            verdicts["exports"] += 1
            verdicts["attention"] += fact["sites"]
            verdicts["sites lowered"] += value["lowered"]
            verdicts[f"models: {value['verdict']}"] += 1
        if not verdicts:
            continue
        columns = ("exports", "attention", "sites lowered", "models: equal", "models: nothing to do", "models: differs",
                   "models: not comparable", "models: failed")  # fmt: skip
        rows.append(CountRow(form, {column: verdicts[column] for column in columns}))
    return rows


def _builds(facts: Facts, answers: Answers) -> list[CountRow]:
    lowerings = ("keep", "native", "auto")
    steps = tuple(f"build {lower}" for lower in lowerings)

    def count(name: str, fact: Mapping[str, Any]) -> Counter[str]:
        counts = Counter({"exports": 1, "attention": fact["sites"]})
        for lower in lowerings:
            value = answers[name, f"build {lower}"]["value"]
            counts[f"build: {lower}"] = int(value is not None)
            counts[f"fused: {lower}"] = value["fused"] if value else 0
        return counts

    def group(name: str, fact: Mapping[str, Any]) -> str:
        exporter, opset, dtype = name.split("-")[-3:]
        return f"{exporter} {opset} {dtype}"

    return _grouped(facts, answers, steps, group, count)


def _grouped(
    facts: Facts,
    answers: Answers,
    steps: tuple[str, ...],
    group: Callable[[str, Mapping[str, Any]], str],
    count: Callable[[str, Mapping[str, Any]], Counter[str]],
) -> list[CountRow]:
    """One row a group, and one of all."""
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    columns: dict[str, None] = {}
    for name, fact in facts.items():
        if not all((name, step) in answers for step in steps):
            continue
        counts = count(name, fact)
        columns.update(dict.fromkeys(counts))
        for key in (group(name, fact), ALL):
            totals[key].update(counts)
    names = sorted(totals.keys() - {ALL}) + [ALL] * (ALL in totals)
    return [CountRow(name, {column: totals[name][column] for column in columns}) for name in names]
