"""Which lowering a site gets: what the user asked for, or what measurements say."""

from __future__ import annotations

from attngraft.errors import RewriteError
from attngraft.match.records import LOWERINGS, ModelSites, Site

__all__ = ["AUTO", "choose_lowerings"]

AUTO = "auto"

KEPT_BY_MEASUREMENT = (
    "kept: inside TensorRT a softmax plugin alone cuts the graph in two and makes the model slower (measured, "
    "docs/measurements.md); ask for it with --lower softmax"
)
"""Measured in TensorRT 10.6: the plugin's gain on the softmax does not pay for the native fusion that it prevents."""


def choose_lowerings(sites: ModelSites, lower: str) -> tuple[dict[str, str], dict[str, str]]:
    """Lowering by site name, and for each site that stays as it is the reason.

    `lower` is "auto" or one of LOWERINGS. Raises RewriteError for one that this version does not have, and for
    "softmax" when there are sites and none of them can take it.
    """
    if lower not in (AUTO, *LOWERINGS):
        raise RewriteError(f"lowering {lower!r} is unknown; choose one of {', '.join((AUTO, *LOWERINGS))}")
    if lower in ("native", "attention"):
        raise RewriteError(f"lowering {lower!r} is not in this version; choose auto, keep or softmax")
    choices: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for site in sites.sites:
        choices[site.name], reason = _choose(site, lower)
        if reason is not None:
            reasons[site.name] = reason
    if lower == "softmax" and sites.sites and "softmax" not in choices.values():
        first = sites.sites[0]
        raise RewriteError(
            f"{first.name}: {first.lowerings['softmax']}; no attention site of this model can take --lower softmax, "
            "keep them with --lower auto"
        )
    return choices, reasons


def _choose(site: Site, lower: str) -> tuple[str, str | None]:
    obstacle = site.lowerings["softmax"]
    if lower == "keep":
        return "keep", "kept: as asked for"
    if obstacle is not None:
        return "keep", f"kept: {obstacle}"
    if lower == AUTO and not site.is_output:
        return "keep", KEPT_BY_MEASUREMENT
    return "softmax", None
