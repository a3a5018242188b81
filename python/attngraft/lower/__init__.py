"""Rewriting: a model and the records of its sites in, a new model out."""

from attngraft.lower.choose import choose_lowerings
from attngraft.lower.functions import strip_functions
from attngraft.lower.model import lower_model
from attngraft.lower.repair import Repair, repair_model
from attngraft.lower.target import Target, default_target, parse_target
from attngraft.match.records import LOWERINGS

__all__ = [
    "LOWERINGS",
    "Repair",
    "Target",
    "choose_lowerings",
    "default_target",
    "lower_model",
    "parse_target",
    "repair_model",
    "strip_functions",
]
