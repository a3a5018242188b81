"""From the softmax's input up to the product of Q and K, through everything in between, in the model's order.

Where the softmax lowering (chain.py) stops at the first node that its contract has no word for, this goes on to the
product, or says in one phrase what lies between.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from onnx import NodeProto, TensorProto

from attngraft.match.mask import MAX_FILL, MaskedScores, added_mask, blended_mask, where_mask
from attngraft.match.normaliser import before_shift
from attngraft.match.operators import cast_types, is_cast, is_pass_through, is_standard
from attngraft.match.records import MaskPart
from attngraft.match.scale import scale_factor
from attngraft.match.split_heads import merges_heads, split_mask, splits_heads
from attngraft.onnx_graph import HALF_TYPES, GraphView, dtype_name

__all__ = ["Ascent", "ascend"]


@dataclass(frozen=True)
class Ascent:
    """The way up so far: the softmax's input is `factor` (or, above a softcap, the softcap of `factor`) times `tensor`,
    masked by `masks`, nearest to the product first.

    widened   whether a cast to fp32 was passed.
    heads     the number of heads, where a Reshape between rank 3 and 4 was passed; `merged` says whether `tensor` is
              [B * heads, Sq, Sk].
    obstacle  why the way ended before the product.
    """

    tensor: str
    factor: float = 1.0
    softcap: float = 0.0
    masks: tuple[MaskPart, ...] = ()
    widened: bool = False
    heads: int | None = None
    merged: bool = False
    obstacle: str | None = None


def ascend(view: GraphView, softmax_input: str, product: NodeProto) -> Ascent:
    """Goes up to `product`, or to the first node that has no place between it and a softmax."""
    climb = Ascent(softmax_input)
    while climb.obstacle is None:
        node = view.maker(climb.tensor)
        if node is product:
            return climb
        climb = _step(view, climb, node)
    return climb


def _step(view: GraphView, climb: Ascent, node: NodeProto | None) -> Ascent:
    if node is None:
        return replace(climb, obstacle="the scores come from outside the graph that holds the softmax")
    if is_pass_through(view, node):
        return replace(climb, tensor=node.input[0])
    if is_cast(node):
        return _through_cast(view, climb, node)
    if is_standard(node, "Reshape"):
        return _through_reshape(view, climb, node)
    unshifted = before_shift(view, node, -1)
    if unshifted is not None:
        return replace(climb, tensor=unshifted)
    masked = blended_mask(view, node) or where_mask(view, node)
    if masked is not None:
        return _through_where(view, climb, masked)
    masked = added_mask(view, node, MAX_FILL)
    if masked is not None:
        return _through_add(view, climb, masked)
    if is_standard(node, "Tanh"):
        return _through_softcap(climb, node)
    factor = scale_factor(view, node)
    if factor is not None and factor.value is not None:
        return replace(climb, tensor=factor.tensor, factor=climb.factor * factor.value)
    if factor is not None:
        return replace(climb, obstacle="the scale of the scores is computed from an unknown dimension")
    if is_standard(node, "Mul", "Div") and view.is_constant(node.input[1]):
        return replace(climb, obstacle="the scale is a tensor, as where each head has its own")
    return replace(climb, obstacle=f"{node.op_type} lies between the product and the softmax")


def _through_cast(view: GraphView, climb: Ascent, node: NodeProto) -> Ascent:
    before, after = cast_types(view, node)
    if before in HALF_TYPES and after == TensorProto.FLOAT and not climb.widened:
        return replace(climb, tensor=node.input[0], widened=True)
    return replace(climb, obstacle=f"a cast from {dtype_name(before)} to {dtype_name(after)} changes the scores")


def _through_reshape(view: GraphView, climb: Ascent, node: NodeProto) -> Ascent:
    """Between [B, H, Sq, Sk] and [B * H, Sq, Sk] only; masks met before are read in rank 4 too."""
    heads = splits_heads(view, node)
    if heads is not None and not climb.merged and climb.heads in (None, heads):
        return replace(climb, tensor=node.input[0], heads=heads, merged=True)
    heads = merges_heads(view, node)
    if heads is None or not (climb.heads is None or climb.merged):
        return replace(climb, obstacle="a Reshape of the scores lies between the product and the softmax")
    masks = climb.masks if climb.merged else tuple(split_mask(view, mask, heads) for mask in climb.masks)
    if None in masks:
        return replace(climb, obstacle="a mask of heads merged with the batch")
    return replace(climb, tensor=node.input[0], heads=heads, merged=False, masks=masks)


def _through_add(view: GraphView, climb: Ascent, masked: MaskedScores) -> Ascent:
    """What is added before the scale is scaled."""
    if climb.softcap:
        return replace(climb, obstacle="a mask is added before the softcap")
    if climb.factor != 1.0:
        masked = replace(masked, mask=replace(masked.mask.as_bias(), factor=climb.factor))
    return _with_mask(view, climb, masked)


def _through_where(view: GraphView, climb: Ascent, masked: MaskedScores) -> Ascent:
    """A fill before the scale is scaled; -inf stays what it is, through a softcap nothing does."""
    if climb.softcap:
        return replace(climb, obstacle="a mask lies before the softcap")
    return _with_mask(view, climb, replace(masked, mask=_scaled_fill(masked.mask, climb.factor)))


def _with_mask(view: GraphView, climb: Ascent, masked: MaskedScores) -> Ascent:
    mask = split_mask(view, masked.mask, climb.heads) if climb.merged else masked.mask
    if mask is None:
        return replace(climb, obstacle="a mask of heads merged with the batch")
    return replace(climb, tensor=masked.scores, masks=(mask, *climb.masks))


def _scaled_fill(mask: MaskPart, factor: float) -> MaskPart:
    """A fill that the scale behind it takes out of fp32's range is -inf."""
    fill = mask.fill * factor
    return replace(mask, fill=fill if fill >= float(np.finfo(np.float32).min) else -math.inf)


def _through_softcap(climb: Ascent, node: NodeProto) -> Ascent:
    """cap * tanh(t / cap): `factor` so far is the cap, and what comes above is 1 / cap times the scale."""
    if climb.softcap:
        return replace(climb, obstacle="Tanh occurs twice between the product and the softmax")
    return replace(climb, tensor=node.input[0], factor=climb.factor, softcap=climb.factor)
