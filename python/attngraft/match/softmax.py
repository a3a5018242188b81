"""One softmax node: attention or not, and if so the record of its site."""

from __future__ import annotations

import math
from dataclasses import replace

from onnx import NodeProto, TensorProto

from attngraft.contract import MAX_RANK, MIN_RANK, SCORE_DTYPES, EmptyRows, Role
from attngraft.match.attention import MaskReading, attention_form, with_masks_above
from attngraft.match.ascent import ascend
from attngraft.match.chain import Chain, climb
from attngraft.match.key_mask import find_key_mask
from attngraft.match.layout import head_layout
from attngraft.match.mask import holds_mask
from attngraft.match.normaliser import Normaliser, before_shift
from attngraft.match.operators import axis_is_last, is_product, is_standard
from attngraft.match.paths import find_pooling_product, find_product, find_values_product, is_factorised
from attngraft.match.probabilities import Probabilities, probabilities_behind
from attngraft.match.projection import find_projection
from attngraft.match.records import AttentionForm, Bypass, OtherSoftmax, Scale, Site
from attngraft.match.scale import combine_scales, operand_scales
from attngraft.match.sizes import known_rank
from attngraft.match.understood import Understood, acting_masks, understand_masks
from attngraft.match.whole import WholeReading, read_whole
from attngraft.onnx_graph import HALF_TYPES, GraphView, dtype_name, node_label

__all__ = ["match_softmax"]


def match_softmax(view: GraphView, normaliser: Normaliser, path: str) -> Site | OtherSoftmax:
    """Reads the surroundings of a softmax. `path` is its graph's."""
    name = node_label(normaliser.node)
    values = find_values_product(view, normaliser.probabilities)
    product = find_product(view, normaliser.scores)
    if product is None and values is not None:
        product = find_pooling_product(view, normaliser.scores)
    if product is None:
        if values is not None and is_factorised(view, values):
            return _factorised(view, normaliser, path)
        return OtherSoftmax(name, path, "its input is made from no product of two activations, so it is no attention")
    if values is None:
        return OtherSoftmax(name, path, "its result weighs no values: no product with another activation follows")
    return _site(view, normaliser, path, product)


def _site(view: GraphView, normaliser: Normaliser, path: str, product: NodeProto) -> Site:
    candidates = probabilities_behind(view, normaliser.probabilities)
    behind, chain = _extent(view, normaliser, candidates)
    reading = read_whole(view, normaliser, product, candidates[-1])
    dtype = view.dtype(chain.scores) or behind.dtype
    scale, bypasses = _whole_scale(view, chain, dtype)
    shape = view.shape(normaliser.scores) or view.shape(normaliser.probabilities)
    rank = _rank(view, shape, reading)
    holds_fills = chain.masked_twice or holds_mask(view, chain.scores)
    scores = shape or (None,) * (rank or 0)
    understood = understand_masks(view, chain.masks, scores, dtype, holds_fills=holds_fills)
    reading = replace(reading, masks=acting_masks(view, reading.masks, scores))
    reason = normaliser.obstacle or _axis_reason(normaliser, shape) or _type_reason(view, chain, dtype)
    empty_rows = _empty_rows(chain, normaliser, understood)
    layout = head_layout(view, product)
    config = understood.config(scale.value, chain.softcap, empty_rows) if reason is None else None
    softmax = reason if config is None else MaskReading.of(config, understood.masks)
    attention = _attention(view, product, candidates, chain, reading, softmax, rank, stable=normaliser.stable)
    attention_reason = attention if isinstance(attention, str) else None
    return Site(
        name=node_label(normaliser.node),
        graph=path,
        node=normaliser.node.output[0],
        scores=chain.scores,
        probabilities=behind.tensor,
        config=config,
        masks=understood.masks,
        scale=scale,
        bypasses=bypasses,
        guard=candidates[-1].guard,
        dtype=dtype_name(dtype) if dtype else None,
        rank=rank,
        heads=layout.heads,
        head_size=layout.head_size,
        layout=layout.layout,
        consumers=tuple(node_label(reader) for reader in view.readers(behind.tensor)),
        is_output=behind.tensor in view.outputs,
        lowerings={"keep": None, "softmax": reason, "native": reading.reason, "attention": attention_reason},
        source_masks=reading.masks,
        whole=reading.whole,
        detour=_detour(view, normaliser, shape),
        widened=reading.widened or chain.widened,
        operator=normaliser.operator,
        attention=attention if attention_reason is None else None,
        key_mask=find_key_mask(view, reading.whole, reading.masks, understood.masks, config),
        projection=find_projection(view, reading.whole, reading.masks) if candidates[-1].guard else None,
    )


def _attention(
    view: GraphView,
    product: NodeProto,
    candidates: list[Probabilities],
    chain: Chain,
    reading: WholeReading,
    softmax: MaskReading | str,
    rank: int | None,
    *,
    stable: bool,
) -> AttentionForm | str:
    """The whole site as one node, or the reason why it cannot be one. `softmax` is how far the softmax lowering
    reads the masks, or why it reads none; `stable`: whether the softmax subtracts its maximum."""
    if reading.whole is None:
        return reading.reason or ""
    if any(each.tensor in view.outputs for each in candidates):
        return "the probabilities are an output, which a fused attention does not give"
    readers = [node for node in view.readers(candidates[-1].tensor) if not is_standard(node, "Shape")]
    if len(readers) > 1:
        return f"the probabilities are read by {len(readers)} nodes"
    if any(mask.factor != 1.0 for mask in reading.masks):
        return "a mask is added before the scale"
    operand_rank = known_rank(view, reading.whole.query) or rank
    if isinstance(softmax, str):  # transposed scores are no obstacle here
        masks: MaskReading | str = softmax if reading.masks else MaskReading()
    elif operand_rank != rank:  # heads are merged with the batch behind the product
        masks = with_masks_above(view, MaskReading(), reading.masks, stable=stable)
    else:
        above = ascend(view, chain.scores, product)
        masks = above.obstacle or with_masks_above(view, softmax, above.masks, stable=stable)
    return masks if isinstance(masks, str) else attention_form(view, reading.whole, masks, operand_rank)


def _factorised(view: GraphView, normaliser: Normaliser, path: str) -> Site:
    """A site of linear attention: shown with its reason, and kept."""
    reason = "factorised attention: the softmax normalises keys or queries, and no scores exist"
    dtype = view.dtype(normaliser.scores)
    shape = view.shape(normaliser.scores)
    return Site(
        name=node_label(normaliser.node),
        graph=path,
        node=normaliser.node.output[0],
        scores=normaliser.scores,
        probabilities=normaliser.probabilities,
        config=None,
        masks=(),
        scale=Scale(),
        bypasses=(),
        guard=False,
        dtype=dtype_name(dtype) if dtype else None,
        rank=None if shape is None else len(shape),
        heads=None,
        head_size=None,
        layout=None,
        consumers=tuple(node_label(reader) for reader in view.readers(normaliser.probabilities)),
        is_output=normaliser.probabilities in view.outputs,
        lowerings={"keep": None, "softmax": reason, "native": reason, "attention": reason},
        operator=normaliser.operator,
    )


def _rank(view: GraphView, shape: tuple | None, reading: WholeReading) -> int | None:
    """The scores' rank; where inference lost it, that of an operand."""
    whole = reading.whole
    names = () if whole is None else (whole.query, whole.key, whole.values, whole.context)
    return next((rank for rank in (shape and len(shape), *(known_rank(view, name) for name in names)) if rank), None)


def _extent(view: GraphView, normaliser: Normaliser, candidates: list[Probabilities]) -> tuple[Probabilities, Chain]:
    """How far down and up the site reaches. A cast to fp32 above is absorbed only with the cast back below."""
    softmax_type = candidates[0].dtype
    narrow_types = {c.dtype for c in candidates} & HALF_TYPES
    for narrow in sorted(narrow_types) if softmax_type == TensorProto.FLOAT else ():
        chain = climb(view, normaliser.scores, narrow)
        if chain.widened:
            return [c for c in candidates if c.dtype == narrow][-1], chain
    return [c for c in candidates if c.dtype == softmax_type][-1], climb(view, normaliser.scores, None)


def _whole_scale(view: GraphView, chain: Chain, dtype: int) -> tuple[Scale, tuple[Bypass, ...]]:
    """The scale on the scores together with that on Q and K, if nothing is left between the product and the scores."""
    maker = view.maker(chain.scores)
    shared = chain.shared or chain.scores in view.outputs or len(view.readers(chain.scores)) > 1
    if shared or not is_product(view, maker):
        return chain.scale, ()
    on_operands, bypasses = operand_scales(view, maker, dtype)
    return combine_scales(chain.scale, on_operands), bypasses


def _empty_rows(chain: Chain, normaliser: Normaliser, understood: Understood) -> str:
    """-inf leaves nothing to divide by (NaN, or zeros behind a guard); one finite value at every key is uniform, unless
    its exponential underflows because no maximum was subtracted."""
    if not normaliser.stable:
        return EmptyRows.ZEROS
    if understood.empty_rows is not None and not chain.floored:
        return understood.empty_rows
    keep = chain.part(Role.KEEP)
    is_finite = chain.floored or (keep is not None and keep.fill != -math.inf)
    return EmptyRows.UNIFORM if is_finite else EmptyRows.ZEROS


def _detour(view: GraphView, normaliser: Normaliser, shape: tuple | None) -> str | None:
    if normaliser.operator != "Softmax":
        return None
    if not axis_is_last(normaliser.axis, shape):
        return f"softmax over axis {normaliser.axis}"
    is_shifted = before_shift(view, view.maker(normaliser.scores), normaliser.axis) is not None
    return "softmax of scores less their maximum" if is_shifted else None


def _axis_reason(normaliser: Normaliser, shape: tuple | None) -> str | None:
    if axis_is_last(normaliser.axis, shape):
        return None
    if shape is None:
        axis = normaliser.axis
        return f"softmax over axis {axis} of a tensor of unknown rank; run shape inference or export with axis=-1"
    return f"softmax over axis {normaliser.axis}, which is not the last of {len(shape)}"


def _type_reason(view: GraphView, chain: Chain, dtype: int) -> str | None:
    if not dtype:
        return "the scores' type is not known; run onnx.shape_inference on the model"
    if dtype_name(dtype) not in SCORE_DTYPES:
        return f"scores are {dtype_name(dtype)}; MaskedSoftmax takes {', '.join(SCORE_DTYPES)}"
    shape = view.shape(chain.scores)
    if shape is not None and not MIN_RANK <= len(shape) <= MAX_RANK:
        return f"scores have rank {len(shape)}; MaskedSoftmax takes rank {MIN_RANK} to {MAX_RANK}"
    for mask in chain.masks:
        for tensor in mask.tensors:
            if not _broadcasts(view.shape(tensor), shape):
                return f"mask {tensor!r} of shape {view.shape(tensor)} does not broadcast to the scores {shape}"
    return None


def _broadcasts(mask: tuple | None, scores: tuple | None) -> bool:
    """False where the shapes are known to disagree, or where a symbol might make the mask larger than the scores."""
    if mask is None or scores is None:
        return True
    if len(mask) > len(scores):
        return False
    pairs = zip(reversed(mask), reversed(scores), strict=False)
    return not any((isinstance(m, int) or s == 1) and isinstance(s, int) and m not in (1, s, None) for m, s in pairs)
