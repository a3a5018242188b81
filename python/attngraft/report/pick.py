"""What picking the fastest engine found, for programs and terminals: the JSON, and a table made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attngraft.pick import PickResult
from attngraft.pick.speed import ROUNDS, RUNS
from attngraft.pick.trial import Trial, worst_difference
from attngraft.report.table import format_table

__all__ = ["pick_json", "pick_lines"]

MOST_CHARACTERS = 300
"""Of a reason under the table; the JSON has all of it."""


def pick_json(result: PickResult) -> dict[str, Any]:
    """`{"engine", "tensorrt", "picked", "ties", "gains_nothing", "over_plain", "lead", "against", "rounds", "runs",
    "seconds", "notes", "classes": [{"letter", "label", "sites"}], "candidates": [{"name", "lowered", "plugin_layers",
    "size_bytes", "build_seconds", "gpu_us", "spread_us", "rounds_us", "worst", "nan_in_reference", "same_as",
    "taken_back", "failure"}]}`."""
    verdict = result.verdict
    return {
        "engine": str(result.engine_path),
        "tensorrt": result.label,
        "picked": verdict.winner.name,
        "ties": list(verdict.ties),
        "gains_nothing": verdict.gains_nothing,
        "over_plain": verdict.over_plain,
        "lead": verdict.lead,
        "against": result.against,
        "rounds": ROUNDS,
        "runs": RUNS,
        "seconds": round(result.seconds, 1),
        "notes": list(result.notes),
        "classes": [{"letter": one.letter, "label": one.label, "sites": list(one.names)} for one in result.classes],
        "candidates": [_candidate(trial, result.against) for trial in result.trials],
    }


def _candidate(trial: Trial, against: str) -> dict[str, Any]:
    built, speed = trial.built, trial.speed
    worst = None if trial.report is None else worst_difference(trial.report, "engine", against)
    return {
        "name": trial.name,
        "lowered": trial.lowered,
        "plugin_layers": built.plugin_layers if built else None,
        "size_bytes": built.size_bytes if built else None,
        "build_seconds": round(trial.seconds, 1) if built else None,
        "gpu_us": speed.us if speed else None,
        "spread_us": speed.spread_us if speed else None,
        "rounds_us": list(speed.rounds_us) if speed else None,
        "worst": {"output": worst.output, "difference": worst.difference, "tolerance": worst.tolerance}
        if worst
        else None,
        "nan_in_reference": trial.nan,
        "same_as": trial.same_as,
        "taken_back": dict(trial.taken_back),
        "failure": trial.failure,
    }


def pick_lines(content: Mapping[str, Any]) -> list[str]:
    """A table of all candidates, the reasons of those that failed, and what was picked; of what `pick_json` gave."""
    candidates = content["candidates"]
    plain = next((one["gpu_us"] for one in candidates if one["name"] == "keep"), None)
    reasons = list(dict.fromkeys(one["failure"] for one in candidates if one["failure"]))
    header = ("candidate", "sites", "plugins", "GPU us", "spread us", "speed-up", "worst difference", "result")
    lines = format_table(header, [_row(one, content, plain, reasons) for one in candidates]).splitlines()
    lines += [f"[{number}] {_shortened(reason)}" for number, reason in enumerate(reasons, start=1)]
    lines += [
        f"taken back in {one['name']}: {site}: {reason}"
        for one in candidates
        for site, reason in one["taken_back"].items()
    ]
    lines += [f"{one['letter']}: {len(one['sites'])} sites, {one['label']}" for one in content["classes"]]
    nan = max((one["nan_in_reference"] for one in candidates), default=0)
    lines += [f"{nan} elements are NaN in the reference and were not compared"] if nan else []
    return [*lines, *content["notes"], "", _summary(content)]


def _row(one: Mapping[str, Any], content: Mapping[str, Any], plain: float | None, reasons: list[str]) -> list[str]:
    us, worst = one["gpu_us"], one["worst"]
    return [
        one["name"],
        ", ".join(f"{count} {lowering}" for lowering, count in one["lowered"].items()) or "-",
        _text(one["plugin_layers"], "d"),
        _text(us, ".1f"),
        _text(one["spread_us"], ".1f"),
        _text(plain / us if plain and us else None, ".3f"),
        f"{worst['difference']:.2g} of {worst['tolerance']:.2g}" if worst else "-",
        _result(one, content, reasons),
    ]


def _result(one: Mapping[str, Any], content: Mapping[str, Any], reasons: list[str]) -> str:
    if one["failure"]:
        return f"failed [{reasons.index(one['failure']) + 1}]"
    if one["same_as"]:
        return f"the same as {one['same_as']}"
    if one["name"] == content["picked"]:
        return "picked"
    return "tie" if one["name"] in content["ties"] else "slower"


def _summary(content: Mapping[str, Any]) -> str:
    picked, over = content["picked"], content["over_plain"]
    if over is None:
        gain = "the model as it is does not make a right engine"
    elif content["gains_nothing"]:
        gain = "nothing is gained over the model as it is"
    else:
        gain = f"{over:.3f} times as fast as the model as it is"
    parts = [f"picked {picked}", gain]
    if content["ties"]:
        parts.append(f"a tie with {', '.join(content['ties'])}, which have as many plugins or more")
    if content["lead"] is not None:
        parts.append(f"{content['lead']:.3f} times as fast as the next")
    rounds = f"medians of {content['rounds']} rounds of {content['runs']} replays in turns, compared with"
    return f"{content['tensorrt']}: {'; '.join(parts)} ({rounds} {content['against']})"


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _shortened(reason: str) -> str:
    return reason if len(reason) <= MOST_CHARACTERS else f"{reason[: MOST_CHARACTERS - 3]}..."
