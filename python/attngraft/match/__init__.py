"""Recognising attention softmaxes: a model in, frozen records out, each with the reason for what it can become."""

from attngraft.match.local_functions import InlinedFunction, inline_attention
from attngraft.match.model import match_model
from attngraft.match.records import Bypass, MaskPart, ModelSites, OtherSoftmax, Projection, Scale, Site, WholeSite

__all__ = [
    "Bypass",
    "InlinedFunction",
    "MaskPart",
    "ModelSites",
    "OtherSoftmax",
    "Projection",
    "Scale",
    "Site",
    "WholeSite",
    "inline_attention",
    "match_model",
]
