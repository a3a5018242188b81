"""What a report is made from: one record that holds all that was found out about a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from attngraft.engine.fusion import FusionReport
from attngraft.lower import Target
from attngraft.match.records import ModelSites

__all__ = ["Inspection"]


@dataclass(frozen=True)
class Inspection:
    """One model, inspected.

    model    the file, as it was given.
    target   the TensorRT whose rules chose the lowerings; None: rules that hold for any.
    choices  lowering by site name; `reasons` why sites are kept or chosen as they are, by site name.
    layers   where each site stands in the model's source, by site name; "" where nothing tells.
    fusion   what TensorRT fuses, if it was asked.
    repairs  what a rewrite would mend beside the sites, a line each.
    """

    model: str
    sites: ModelSites
    choices: Mapping[str, str]
    reasons: Mapping[str, str]
    target: Target | None = None
    layers: Mapping[str, str] = field(default_factory=dict)
    fusion: FusionReport | None = None
    repairs: tuple[str, ...] = ()
