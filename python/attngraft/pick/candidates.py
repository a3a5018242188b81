"""What a model may become before it is built. In: a model, or timed candidates of it. Out: rewrite plans by name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from onnx import ModelProto

from attngraft.contract import CausalMode
from attngraft.errors import RewriteError
from attngraft.lower import Target, choose_lowerings, lower_model
from attngraft.match import ModelSites, Site
from attngraft.pick.recipe import Recipe
from attngraft.rewrite import RewritePlan, plan_model

__all__ = [
    "KEEP",
    "UNIFORM",
    "SiteClass",
    "other_lowerings",
    "graph_digest",
    "mix_plan",
    "plan_uniform",
    "site_classes",
]

KEEP = "keep"
"""The candidate that is the model as it was given."""

UNIFORM = (KEEP, "native", "attention", "softmax", "auto")
"""Candidates that treat all sites by one word of --lower, in the order in which they are built."""


@dataclass(frozen=True)
class SiteClass:
    """Sites of which the same is known: `label` says what, `names` are theirs. `letter` stands for the class in names
    of candidates."""

    letter: str
    label: str
    names: tuple[str, ...]


def plan_uniform(recipe: Recipe, lower: str) -> RewritePlan:
    """The model with one word of --lower. Raises RewriteError where no site can take it."""
    return plan_model(recipe.model, recipe.source, lower, recipe.target)


def site_classes(sites: ModelSites) -> tuple[SiteClass, ...]:
    """Sites grouped by type, head size, masks, layout and the lowerings that they can take, in the model's order."""
    groups: dict[tuple[object, ...], list[Site]] = {}
    for site in sites.sites:
        possible = tuple(name for name, reason in site.lowerings.items() if reason is None)
        groups.setdefault((_label(site), possible), []).append(site)
    return tuple(
        SiteClass(_letter(number), _label(group[0]), tuple(site.name for site in group))
        for number, group in enumerate(groups.values())
    )


def _letter(number: int) -> str:
    """A to Z, then A1 to Z1, and so on."""
    return chr(ord("A") + number % 26) + (str(number // 26) if number >= 26 else "")


def _label(site: Site) -> str:
    """Such as `float16 d64 keep+causal bshd`."""
    dtype = (site.whole.dtype if site.whole else None) or site.dtype or "unknown type"
    size = f"d{site.head_size}" if site.head_size else "d?"
    return " ".join((dtype, size, "+".join(_mask_kinds(site)) or "no mask", site.layout or "no layout"))


def _mask_kinds(site: Site) -> list[str]:
    config = (site.attention.config if site.attention else None) or site.config
    if config is None:
        return sorted({mask.role for mask in site.source_masks})
    kinds = list(config.operands)
    kinds += ["causal"] if config.causal != CausalMode.NONE else []
    kinds += ["window"] if config.window_left >= 0 or config.window_right >= 0 else []
    return kinds + (["softcap"] if config.softcap else [])


def other_lowerings(plan: RewritePlan, group: SiteClass, target: Target) -> Iterator[str]:
    """The lowerings that all sites of a class can take and that `plan` does not give them."""
    for lower in (KEEP, "native", "attention", "softmax"):
        try:
            choices, _ = choose_lowerings(plan.sites, lower, target)
        except RewriteError:  # none of the model's sites can take it
            continue
        possible = all(choices[name] == lower for name in group.names)
        if possible and any(plan.choices.get(name) != lower for name in group.names):
            yield lower


def mix_plan(base: RewritePlan, lowerings: Mapping[SiteClass, str]) -> RewritePlan:
    """`base` with other lowerings for the sites of some classes."""
    changed = {name: lower for group, lower in lowerings.items() for name in group.names}
    return replace(base, choices={**base.choices, **changed}, reasons={})


def graph_digest(recipe: Recipe, plan: RewritePlan) -> str:
    """The same for two plans that lead to the same model."""
    return hashlib.sha256(_rewritten(recipe, plan).SerializeToString(deterministic=True)).hexdigest()


def _rewritten(recipe: Recipe, plan: RewritePlan) -> ModelProto:
    if not plan.changes:
        return recipe.model
    if not plan.lowered:
        return plan.model if plan.unlowered is None else plan.unlowered
    return lower_model(plan.model, plan.sites, plan.choices, plan.target)
