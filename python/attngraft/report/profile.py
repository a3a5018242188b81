"""`profile` for terminals and programs: where an engine's GPU time goes, attention sites against everything else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from attngraft.engine.shapes import format_shape
from attngraft.report.grouping import group_by, name_pattern
from attngraft.report.table import format_table
from attngraft.runtime.layer_times import LayerTime, LayerTimes
from attngraft.runtime.site_times import SiteTime

__all__ = ["profile_json", "profile_lines"]

SCHEMA = 1
"""Raised when a field of the JSON changes its meaning."""

TOP_LAYERS = 10
MOST_CHARACTERS = 70
"""Of the ONNX nodes in a line of the terminal; the JSON has all of them."""


def profile_lines(times: LayerTimes, sites: Sequence[SiteTime]) -> list[str]:
    """Attention against everything else, the sites (alike ones in one line), and the layers that take longest."""
    shapes = ", ".join(f"{name} {format_shape(shape)}" for name, shape in times.shapes.items())
    lines = [f"{times.engine}: {times.made_by}, {shapes}", "", *_summary(times, sites)]
    if sites:
        lines += ["", *_site_table(times, sites)]
    lines += ["", *_layer_table(times)]
    lines += ["", f"microseconds, medians of {times.runs} runs with TensorRT's profiler attached, which slows them"]
    return [*lines, times.missing] if times.missing else lines


def _summary(times: LayerTimes, sites: Sequence[SiteTime]) -> list[str]:
    attention = sum(site.us for site in sites)
    in_sites = sum(len(site.layers) for site in sites)
    rest = (times.us - attention, len(times.layers) - in_sites)
    rows = [
        _row("attention", attention, times, str(in_sites), _kinds(sites)),
        _row("everything else", rest[0], times, str(rest[1]), ""),
        _row("all layers", times.us, times, str(len(times.layers)), ""),
    ]
    return format_table(("what", "us", "share", "layers", "sites"), rows).splitlines()


def _kinds(sites: Sequence[SiteTime]) -> str:
    return ", ".join(f"{count} {how}" for how, count in Counter(site.how for site in sites).items()) or "none found"


def _site_table(times: LayerTimes, sites: Sequence[SiteTime]) -> list[str]:
    groups = group_by(((_without_numbers(site.name), site.how), site) for site in sites)
    rows = []
    for group in groups:
        us = sum(site.us for site in group)
        each = f"{us / len(group):.1f}" if len(group) > 1 else ""
        rows.append(_row(name_pattern([site.name for site in group]), us, times, each, group[0].how))
    return format_table(("site", "us", "share", "us each", "done by"), rows).splitlines()


def _layer_table(times: LayerTimes) -> list[str]:
    longest = sorted(times.layers, key=lambda layer: layer.us, reverse=True)[:TOP_LAYERS]
    rows = [
        _row(layer.layer.name, layer.us, times, layer.layer.kind or "?", _shortened(", ".join(layer.layer.nodes)))
        for layer in longest
    ]
    title = "layer" if len(times.layers) <= TOP_LAYERS else f"layer ({TOP_LAYERS} longest of {len(times.layers)})"
    return format_table((title, "us", "share", "kind", "ONNX nodes inside"), rows).splitlines()


def _row(name: str, us: float, times: LayerTimes, *more: str) -> tuple[str, ...]:
    return (name, f"{us:.1f}", f"{_share(us, times):.1%}", *more)


def _share(us: float, times: LayerTimes) -> float:
    return us / times.us if times.us else 0.0


def _without_numbers(text: str) -> str:
    return "".join(character for character in text if not character.isdigit())


def _shortened(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 3]}..."


def profile_json(times: LayerTimes, sites: Sequence[SiteTime]) -> dict[str, Any]:
    """`{"attngraft_profile": 1, "engine", "made_by", "shapes": {input: [..]}, "runs", "us", "attention_us",
    "attention_share", "sites": [{"name", "how", "us", "share", "layers": [name]}], "layers": [{"name", "kind",
    "tactic", "nodes", "us", "share"}], "missing"}`; layers in the order in which they run, shares of 1."""
    attention = sum(site.us for site in sites)
    return {
        "attngraft_profile": SCHEMA,
        "engine": str(times.engine),
        "made_by": times.made_by,
        "shapes": {name: list(shape) for name, shape in times.shapes.items()},
        "runs": times.runs,
        "us": times.us,
        "attention_us": attention,
        "attention_share": _share(attention, times),
        "sites": [
            {
                "name": site.name,
                "how": site.how,
                "us": site.us,
                "share": _share(site.us, times),
                "layers": [layer.layer.name for layer in site.layers],
            }
            for site in sites
        ],
        "layers": [_layer_json(layer, times) for layer in times.layers],
        "missing": times.missing or None,
    }


def _layer_json(layer: LayerTime, times: LayerTimes) -> dict[str, Any]:
    told = layer.layer
    return {
        "name": told.name,
        "kind": told.kind,
        "tactic": told.tactic,
        "nodes": list(told.nodes),
        "us": layer.us,
        "share": _share(layer.us, times),
    }
