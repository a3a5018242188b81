"""Which lowering a site gets: what the user asked for, or what measurements say."""

from __future__ import annotations

from attngraft.errors import RewriteError
from attngraft.lower.native import native_obstacle
from attngraft.lower.rules import FUSED, NATIVE, judge, plugin_gain
from attngraft.lower.target import Target
from attngraft.match.records import LOWERINGS, AttentionForm, ModelSites, Site
from attngraft.onnx_graph import HALF_NAMES

__all__ = ["AUTO", "choose_lowerings"]

AUTO = "auto"

NO_GAIN_BY_SOFTMAX = (
    "inside TensorRT a softmax plugin alone cuts the graph in two and makes the model slower (measured, "
    "docs/measurements.md); ask for it with --lower softmax"
)
"""Measured in TensorRT 10.6: the plugin's gain on the softmax does not pay for what it prevents around it."""

Choice = tuple[str, "str | None"]


def choose_lowerings(
    sites: ModelSites, lower: str, target: Target | None = None
) -> tuple[dict[str, str], dict[str, str]]:
    """Lowering by site name, and by site name the reason: for each site that stays as it is, and for what `auto` chose.

    `lower` is "auto" or one of LOWERINGS; `target` the TensorRT aimed at, None for any. Raises RewriteError for a
    lowering that does not exist, and for one asked for that none of the sites can take.
    """
    if lower not in (AUTO, *LOWERINGS):
        raise RewriteError(f"lowering {lower!r} is unknown; choose one of {', '.join((AUTO, *LOWERINGS))}")
    choices: dict[str, str] = {}
    reasons: dict[str, str] = {}
    leak = next((site.name for site in sites.sites if _ends_a_leak(site, target)), None)
    for site in sites.sites:
        choices[site.name], reason = _choose(site, lower, target, leak)
        if reason is not None:
            reasons[site.name] = reason
    if lower in ("softmax", "native", "attention") and sites.sites and lower not in choices.values():
        first = sites.sites[0]
        raise RewriteError(
            f"{first.name}: {_obstacle(first, lower)}; no attention site of this model can take --lower {lower}, "
            "keep them with --lower auto"
        )
    return choices, reasons


def _ends_a_leak(site: Site, target: Target | None) -> bool:
    """Whether a half-type site gives an fp32 context, by which what follows it is fp32, and is to become native."""
    whole = site.whole
    leaks = whole is not None and whole.dtype in HALF_NAMES and whole.context_dtype == "float32"
    return leaks and judge(site, target).kind == NATIVE and native_obstacle(site) is None


def _choose(site: Site, lower: str, target: Target | None, leak: str | None) -> Choice:
    if lower == "keep":
        return "keep", "kept: as asked for"
    if lower == AUTO:
        return _by_rules(site, target, leak)
    obstacle = _obstacle(site, lower)
    if obstacle is not None:
        return "keep", f"kept: {obstacle}"
    return lower, _form_text(site.attention) if lower == "attention" else None


def _form_text(form: AttentionForm | None) -> str | None:
    """What a fused node reads, and what stays around it."""
    if form is None:
        return None
    left = f"; outside stay: {', '.join(form.outside)}" if form.outside else ""
    return f"attention in place, layout {form.config.layout}{left}"


def _obstacle(site: Site, lower: str) -> str | None:
    return native_obstacle(site) if lower == "native" else site.lowerings[lower]


def _by_rules(site: Site, target: Target | None, leak: str | None) -> Choice:
    """Attention where the plugin is known to be faster; kept where TensorRT fuses it as it is; native where that fuses
    or builds it; softmax where the probabilities are an output of the model, which no fusion can give. `leak`: the site
    that makes others fp32 by accident."""
    verdict, obstacle = judge(site, target), native_obstacle(site)
    if verdict.rule.name == "float32" and leak is not None and obstacle is None:
        return "native", f"fp32 only because {leak} gives fp32, which native ends"
    gain = plugin_gain(site, target)
    if gain is not None and site.lowerings["attention"] is None:
        return "attention", f"{gain}; {_form_text(site.attention)}"
    if verdict.kind == FUSED:
        return "keep", f"kept: {verdict.reason}"
    if verdict.kind == NATIVE and obstacle is None:
        return "native", verdict.reason
    if site.is_output and site.lowerings["softmax"] is None:
        return "softmax", "the probabilities are an output, which a fused attention does not give"
    if verdict.kind == NATIVE:
        return "keep", f"kept: {verdict.reason}, and native is not possible: {obstacle}"
    if site.lowerings["softmax"] is not None:
        return "keep", f"kept: {verdict.reason}"
    return "keep", f"kept: {verdict.reason}; {NO_GAIN_BY_SOFTMAX}"
