"""`inspect --json`: what programs read. Fields are added to it, and none changes its meaning."""

from __future__ import annotations

import dataclasses
from typing import Any

from attngraft.contract import CausalMode
from attngraft.engine.fusion import SiteFusion
from attngraft.match.records import AttentionForm, MaskPart, Site
from attngraft.report.records import Inspection

__all__ = ["inspection_json"]

NO_WINDOW = [-1, -1]


def inspection_json(inspection: Inspection) -> dict[str, Any]:
    """The documented schema of `inspect --json`, ready for json.dumps."""
    sites = inspection.sites
    fused = {found.site: found for found in inspection.fusion.sites} if inspection.fusion else {}
    document: dict[str, Any] = {
        "model": inspection.model,
        "target": None if inspection.target is None else str(inspection.target),
        "sites": [_site_json(inspection, site, fused.get(site.name)) for site in sites.sites],
        "others": [{"name": other.name, "graph": other.graph, "reason": other.reason} for other in sites.others],
    }
    document["repairs"] = list(inspection.repairs)
    if inspection.fusion is not None:
        fusion = inspection.fusion
        document["fusion"] = {
            "made_by": fusion.made_by,
            "fused_sites": fusion.fused,
            "kernels": fusion.kernels,
            "kernels_elsewhere": fusion.elsewhere,
            "failure": fusion.failure or None,
        }
    return document


def _site_json(inspection: Inspection, site: Site, fused: SiteFusion | None) -> dict[str, Any]:
    config, whole = site.config, site.whole
    entry = {
        "name": site.name,
        "graph": site.graph,
        "operator": site.operator,
        "layer": inspection.layers.get(site.name, ""),
        "scale": config.scale if config else whole.scale if whole else site.scale.value,
        "scale_places": list(site.scale.places),
        "scale_note": site.scale.note,
        "operands": list(config.operands) if config else [],
        "masks": [_mask_json(mask) for mask in site.source_masks or site.masks],
        "causal": config.causal if config else whole.causal if whole else CausalMode.NONE,
        "window": [config.window_left, config.window_right] if config else NO_WINDOW,
        "softcap": config.softcap if config else whole.softcap if whole else 0.0,
        "empty_rows": config.empty_rows if config else None,
        "dtype": site.dtype,
        "rank": site.rank,
        "heads": site.heads,
        "kv_heads": whole.kv_heads if whole else None,
        "head_size": site.head_size,
        "layout": site.layout,
        "guard": site.guard,
        "softmax_in_float32": site.widened,
        "probabilities_are_output": site.is_output,
        "attention": None if site.attention is None else _attention_json(site.attention),
        "lowerings": dict(site.lowerings),
        "chosen": inspection.choices[site.name],
        "reason": inspection.reasons.get(site.name),
    }
    if fused is not None:
        entry["fused"] = {"fused": fused.fused, "kernel": fused.kernel or None, "note": fused.note or None}
    return entry


def _attention_json(form: AttentionForm) -> dict[str, Any]:
    config = form.config
    return {
        "layout": config.layout,
        "heads": config.heads or None,
        "kv_heads": config.kv_heads or None,
        "outside": list(form.outside),
    }


def _mask_json(mask: MaskPart) -> dict[str, Any]:
    """A fill of -inf is written as text: JSON has no infinities."""
    entry = dataclasses.asdict(mask) | {"tensors": list(mask.tensors), "unsqueeze": list(mask.unsqueeze)}
    return entry | {"fill": mask.fill if abs(mask.fill) != float("inf") else str(mask.fill)}
