"""A site's record in words: type, heads, scale, masks, and what else lies around its softmax."""

from __future__ import annotations

import math

from attngraft.contract import CausalMode, Role
from attngraft.match.records import LOWERINGS, MaskPart, Site

__all__ = ["describe_site", "heads_text", "mask_text", "possible_lowerings", "refused_lowerings", "scale_text"]

CAUSAL_TEXT = {CausalMode.TOP_LEFT: "causal", CausalMode.BOTTOM_RIGHT: "causal from the last key"}


def describe_site(site: Site) -> list[str]:
    """What was recognised, a few words an item: the operator if it is no Softmax node, type, heads, layout, scale,
    masks, and what is special."""
    dtype = site.whole.dtype if site.whole and site.whole.dtype else site.dtype
    facts = [_operator_text(site), dtype or "type unknown", heads_text(site), site.layout or ""]
    facts += [scale_text(site), mask_text(site), *_special(site)]
    return [fact for fact in facts if fact]


def heads_text(site: Site) -> str:
    """`12 heads of 64`, `8 heads on 2 of 64` for grouped queries, or as much of it as is known."""
    heads = site.heads or (site.whole.heads if site.whole else None)
    kv_heads = site.whole.kv_heads if site.whole else None
    count = f"{heads} heads" if heads else ""
    if heads and kv_heads and kv_heads != heads:
        count = f"{heads} heads on {kv_heads}"
    if not site.head_size:
        return count
    return f"{count} of {site.head_size}" if count else f"head size {site.head_size}"


def scale_text(site: Site) -> str:
    """`scale 0.125 on query and key`; and what stays in the graph, where not even the whole site's scale is known."""
    scale = site.scale
    if site.whole is not None and site.whole.scale != 1:
        where = f" on {' and '.join(scale.places)}" if scale.places else ""
        return f"scale {site.whole.scale:.6g}{where}"
    if not scale.places:
        return "no scale" if scale.note is None else f"scale: {scale.note}"
    places = " and ".join(scale.places)
    if scale.note is not None:
        return f"scale on {places} ({scale.note})"
    return f"scale {scale.value:.6g} on {places}"


def mask_text(site: Site) -> str:
    """What masks the scores: causality and windows that were read out, then the tensors that are left."""
    parts = _structure(site) + [_part_text(mask) for mask in site.masks or site.source_masks]
    return " and ".join(dict.fromkeys(parts)) or "no mask"


def possible_lowerings(site: Site) -> list[str]:
    """The lowerings that the site can take, in the order of LOWERINGS."""
    return [name for name in LOWERINGS if site.lowerings[name] is None]


def refused_lowerings(site: Site) -> dict[str, str]:
    """The reason for each lowering that the site cannot take."""
    return {name: reason for name in LOWERINGS if (reason := site.lowerings[name]) is not None}


def _operator_text(site: Site) -> str:
    """What normalises the scores; nothing for the usual Softmax node."""
    return {"Softmax": site.detour or "", "by hand": "softmax by hand"}.get(site.operator, site.operator)


def _structure(site: Site) -> list[str]:
    config = site.config
    causal = config.causal if config else site.whole.causal if site.whole else CausalMode.NONE
    parts = [CAUSAL_TEXT[causal]] if causal in CAUSAL_TEXT else []
    if config and max(config.window_left, config.window_right) >= 0:
        sides = ((config.window_left, "before"), (config.window_right, "after"))
        parts.append("window of " + ", ".join(f"{keys} {side}" for keys, side in sides if keys >= 0))
    return parts


def _part_text(mask: MaskPart) -> str:
    if mask.role in (Role.KV_LENGTHS, Role.KV_STARTS):
        return "key lengths" if mask.role == Role.KV_LENGTHS else "key starts"
    if mask.form == "add":
        return "additive mask" if len(mask.tensors) == 1 else f"{len(mask.tensors)} additive masks"
    is_padding = mask.unsqueeze and mask.role == Role.KEEP
    text = "padding" if is_padding else f"mask filling with {_fill_text(mask.fill)}"
    return f"{text} (taken as 0 and 1)" if mask.taken_as_zero_one else text


def _fill_text(fill: float) -> str:
    return "-inf" if fill == -math.inf else f"{fill:.3g}"


def _special(site: Site) -> list[str]:
    softcap = site.config.softcap if site.config else site.whole.softcap if site.whole else 0.0
    return [
        text
        for text, holds in (
            (f"softcap {softcap:.6g}", softcap > 0),
            ("softmax in float32", site.widened),
            ("NaN guard", site.guard),
            ("probabilities are an output", site.is_output),
            (f"probabilities read by {len(site.consumers)} nodes", len(site.consumers) > 1),
        )
        if holds
    ]
