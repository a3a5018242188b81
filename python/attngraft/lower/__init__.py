"""Rewriting: a model and the records of its sites in, a new model out."""

from attngraft.lower.choose import choose_lowerings
from attngraft.lower.functions import strip_functions
from attngraft.lower.model import lower_model
from attngraft.match.records import LOWERINGS

__all__ = ["LOWERINGS", "choose_lowerings", "lower_model", "strip_functions"]
