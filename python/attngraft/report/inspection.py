"""What `inspect` and `rewrite` show: one line a site, a summary, and the JSON of the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from attngraft.contract import CausalMode
from attngraft.match.records import MaskPart, ModelSites, OtherSoftmax, Site

__all__ = ["inspection_json", "other_line", "site_line", "summary_lines"]

NO_WINDOW = [-1, -1]


def site_line(site: Site, chosen: str) -> str:
    """One line: name, type, heads, scale, mask, and what becomes of it."""
    facts = [site.dtype or "type unknown"]
    facts += [f"{site.heads} heads"] if site.heads else []
    facts += [f"head size {site.head_size}"] if site.head_size else []
    facts += [site.layout] if site.layout else []
    facts.append(_scale_text(site))
    facts.append(_mask_text(site.masks))
    facts += ["NaN guard"] if site.guard else []
    facts += ["probabilities are an output"] if site.is_output else []
    obstacle = site.lowerings["softmax"]
    facts.append(f"-> {chosen}" + (f" ({obstacle})" if obstacle else ""))
    return f"{site.name}: {', '.join(facts[:-1])} {facts[-1]}"


def other_line(other: OtherSoftmax) -> str:
    """One line: a softmax that is no attention, and why it was taken for none."""
    where = f" in {other.graph}" if other.graph else ""
    return f"{other.name}{where}: left alone, {other.reason}"


def summary_lines(sites: ModelSites, choices: Mapping[str, str], reasons: Mapping[str, str]) -> list[str]:
    """How many sites become what, and each reason for keeping once, with the number of sites that it holds for."""
    counts = Counter(choices.values())
    parts = [f"{count} {lowering}" for lowering, count in sorted(counts.items(), reverse=True)]
    head = f"{len(sites.sites)} attention sites" + (f" ({', '.join(parts)})" if parts else "")
    lines = [f"{head}, {len(sites.others)} other softmaxes"]
    lines += [f"{count} x {reason}" for reason, count in Counter(reasons.values()).items()]
    return lines


def inspection_json(model: str, sites: ModelSites, choices: Mapping[str, str]) -> dict[str, Any]:
    """The documented schema of `inspect --json`."""
    return {
        "model": model,
        "sites": [_site_json(site, choices[site.name]) for site in sites.sites],
        "others": [{"name": other.name, "reason": other.reason} for other in sites.others],
    }


def _site_json(site: Site, chosen: str) -> dict[str, Any]:
    config = site.config
    return {
        "name": site.name,
        "graph": site.graph,
        "scale": config.scale if config else site.scale.value,
        "operands": list(config.operands) if config else [],
        "causal": config.causal if config else CausalMode.NONE,
        "window": [config.window_left, config.window_right] if config else NO_WINDOW,
        "softcap": config.softcap if config else 0.0,
        "empty_rows": config.empty_rows if config else None,
        "dtype": site.dtype,
        "heads": site.heads,
        "head_size": site.head_size,
        "layout": site.layout,
        "probabilities_are_output": site.is_output,
        "lowerings": dict(site.lowerings),
        "chosen": chosen,
    }


def _scale_text(site: Site) -> str:
    if not site.scale.places:
        return "no scale"
    places = " and ".join(site.scale.places)
    return (
        f"scale {site.scale.value:.6g} on {places}"
        if site.scale.note is None
        else f"scale on {places} ({site.scale.note})"
    )


def _mask_text(masks: tuple[MaskPart, ...]) -> str:
    if not masks:
        return "no mask"
    return " and ".join(_part_text(mask) for mask in masks)


def _part_text(mask: MaskPart) -> str:
    if mask.form == "add":
        return "additive mask" if len(mask.tensors) == 1 else f"{len(mask.tensors)} additive masks"
    return f"mask filling with {mask.fill:.6g}"
