"""A site's masks as operands of FusedAttention, whose scores are [B, H, Sq, Sk] whatever the model's rank was."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from attngraft.contract import CausalMode, EmptyRows, MaskedSoftmax, Role
from attngraft.match.mask import ABSORBING_FILL
from attngraft.match.operators import is_product
from attngraft.match.paths import DATA_INPUTS, depends_on_inputs
from attngraft.match.records import MaskPart
from attngraft.match.sizes import known_rank
from attngraft.onnx_graph import GraphView

__all__ = ["MaskReading", "with_heads", "with_masks_above"]

MERGED_RANK = 3
"""Of scores whose heads are merged with the batch."""

MAX_BIAS_NODES = 64
"""Nodes that make a bias of products; DeBERTa's two have 40."""


@dataclass(frozen=True)
class MaskReading:
    """Masks in the operands' order, those of one role together, and the part of the configuration that goes with
    them."""

    masks: tuple[MaskPart, ...] = ()
    causal: str = CausalMode.NONE
    window_left: int = -1
    window_right: int = -1
    empty_rows: str = EmptyRows.ZEROS

    @staticmethod
    def of(config: MaskedSoftmax, masks: tuple[MaskPart, ...]) -> MaskReading:
        """`masks` with what `config`, a softmax's, says besides them."""
        return MaskReading(masks, config.causal, config.window_left, config.window_right, config.empty_rows)


def with_masks_above(
    view: GraphView, reading: MaskReading, above: tuple[MaskPart, ...], *, stable: bool
) -> MaskReading | str:
    """The reading with what masks the scores before the softmax lowering's reach, nearest to the product first; else
    the reason why the contract has no words for it. `stable`: whether the softmax subtracts its maximum.

    What is added stays added. A fill that swallows any score when it is added can be added too.
    """
    if above and not reading.masks and _closes(view, above):
        *added, last = above
        empty_rows = EmptyRows.UNIFORM if stable else EmptyRows.ZEROS
        return replace(reading, masks=(*(mask.as_bias() for mask in added), last), empty_rows=empty_rows)
    biases = []
    present = [name for mask in reading.masks if mask.role == Role.BIAS for name in mask.tensors]
    for mask in above:
        if mask.form != "where" and any(depends_on_inputs(view, name) for name in (*mask.tensors, *present) if present):
            return "several masks are added, whose sum has another rounding than one after the other"
        if mask.form == "where" and mask.fill > ABSORBING_FILL:
            return f"scores are filled with {mask.fill:.3g}, and masked or biased besides"
        biases.append(replace(mask, role=Role.BIAS) if mask.form == "where" else mask.as_bias())
    return replace(reading, masks=(*biases, *reading.masks))


def _closes(view: GraphView, masks: tuple[MaskPart, ...]) -> bool:
    """Whether a finite fill comes last, and what is added before it are numbers like the scores themselves: then the
    fill is "not allowed"."""
    *added, last = masks
    is_fill = last.form == "where" and last.fill > -math.inf
    names = [name for mask in added for name in mask.tensors]
    return is_fill and all(mask.form == "add" for mask in added) and all(_is_made_of_products(view, n) for n in names)


def _is_made_of_products(view: GraphView, name: str) -> bool:
    """Whether a bias is moved and summed products of activations, or made of weights: no mask is in it."""
    pending, seen = [name], set()
    while pending:
        current = pending.pop()
        if current in seen or not depends_on_inputs(view, current):
            continue
        seen.add(current)
        node = view.maker(current)
        if is_product(view, node):
            continue
        if node is None or node.op_type in ("Where", "ScatterND") or len(seen) > MAX_BIAS_NODES:
            return False
        data = (0,) if node.op_type == "GatherElements" else DATA_INPUTS.get(node.op_type)
        if data is None:
            return False
        pending += [node.input[place] for place in data if place < len(node.input)]
    return True


def with_heads(view: GraphView, mask: MaskPart, heads: int) -> MaskPart | None:
    """A mask of scores [B * heads, Sq, Sk] as one of [B, heads, Sq, Sk]; None if its rank is not known."""
    if mask.split_heads:
        return mask
    ranks = {known_rank(view, name) for name in mask.tensors}
    if len(ranks) != 1 or None in ranks:
        return None
    (rank,) = ranks
    shape = view.shape(mask.tensors[0])
    after = rank + len(mask.unsqueeze)
    if after < MERGED_RANK or (after == MERGED_RANK and shape is not None and shape[0] == 1 and len(mask.tensors) == 1):
        return mask
    if mask.unsqueeze and (heads != 1 or 0 in mask.unsqueeze):
        return None
    if heads == 1:
        return replace(mask, unsqueeze=(1, *(axis + 1 for axis in mask.unsqueeze)))
    return replace(mask, split_heads=heads)
