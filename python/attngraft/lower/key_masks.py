"""Masks of keys as what they are: [B, Sk] tensors, where the model spreads them to [B, 1, Sq, Sk].

TorchScript's exports gather a padding mask by computed indices, compare ranges and expand the result, for which
TensorRT runs a kernel over all queries and keys, and so does the search for rows without a key.
"""

from __future__ import annotations

from dataclasses import replace

from attngraft.contract import CausalMode, Role
from attngraft.lower.emit import Emitter
from attngraft.lower.mask_forms import as_condition, shaped
from attngraft.lower.tensor_types import TensorTypes
from attngraft.match.records import MaskPart, Site

__all__ = ["KeyMasks"]


class KeyMasks:
    """Each mask is made ready once for each graph, in front of the first site that needs it: sites come in node
    order."""

    def __init__(self, types: TensorTypes) -> None:
        self._types = types
        self._made: dict[tuple[str, MaskPart], str] = {}

    def in_site(self, emit: Emitter, site: Site) -> Site:
        """The site with its mask of keys as a condition [B, 1, 1, Sk]; as it is where it has none, or where causality
        is in the same tensor: TensorRT 10.6 would join the two in its kernel for the embeddings, and be slow there."""
        mask = site.key_mask
        if mask is None or site.config.causal != CausalMode.NONE:
            return site
        key = (site.graph, mask)
        if key not in self._made:
            self._made[key] = shaped(emit, as_condition(emit, mask.tensors[0], self._types), mask)
        keep = MaskPart("where", Role.KEEP, (self._made[key],), mask.invert, mask.fill)
        return replace(site, source_masks=(keep,))
