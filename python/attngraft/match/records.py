"""What matching found, as frozen records. Lowering works from these alone and looks for no pattern itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attngraft.contract import CausalMode, FusedAttention, MaskedSoftmax, Role

__all__ = [
    "LOWERINGS",
    "AttentionForm",
    "Bypass",
    "MaskPart",
    "MergedProjection",
    "ModelSites",
    "OtherSoftmax",
    "Projection",
    "Scale",
    "Site",
    "WholeSite",
]

LOWERINGS = ("keep", "softmax", "native", "attention")
"""What a site can become, in the order in which reports show it."""


@dataclass(frozen=True)
class MaskPart:
    """One thing that masks or biases the scores.

    form     how the model has it: "add" (a tensor is added to the scores), "add-where" (one that is 0 or a fill)
             or "where" (a Where between the scores and a fill).
    role     the operand that it becomes.
    tensors  what the operand is made of: the added tensors (summed, if several), or the condition, which is bool, or
             an integer that is 0 where masked.
    invert   whether the condition is true where masked.
    fill     what masked places get; 0 for "add".
    added    the tensor that an "add-where" adds.
    unsqueeze
             axes of size 1 to insert into the tensor so that it broadcasts to the scores: a padding mask [B, Sk] that
             is read for what it is has (1, 2).
    split_heads
             number of heads H by which the tensor's first dimension is to be split, [B * H, ...] to [B, H, ...], so
             that it broadcasts to the scores; 0: as it is.
    stored   whether what is added is a stored tensor that is only moved about (reshaped, transposed).
    factor   what added tensors are multiplied by, for the model adds them before it scales.
    taken_as_zero_one
             whether the model computes with an integer condition, (1 - mask) * fill, so that this record equals it
             where the condition holds 0 and 1 alone, as tokenizers make it.
    """

    form: str
    role: str
    tensors: tuple[str, ...]
    invert: bool = False
    fill: float = 0.0
    added: str | None = None
    unsqueeze: tuple[int, ...] = ()
    split_heads: int = 0
    stored: bool = False
    factor: float = 1.0
    taken_as_zero_one: bool = False

    def as_bias(self) -> MaskPart:
        """The same mask as an additive operand, whatever its form of adding."""
        return self if self.added is None else MaskPart("add", Role.BIAS, (self.added,))


@dataclass(frozen=True)
class Scale:
    """The scale of a site: `value` goes into the node; `places` says where the model has it ("scores", "query", "key",
    "computed"), and `note` what stays in the graph and why."""

    value: float = 1.0
    places: tuple[str, ...] = ()
    note: str | None = None


@dataclass(frozen=True)
class Bypass:
    """Input `index` of the node that makes `consumer` is to read `tensor` instead: how a folded Mul drops out."""

    consumer: str
    index: int
    tensor: str


@dataclass(frozen=True)
class WholeSite:
    """A site from Q, K and V to the context, for the lowerings that take all of it:

        context = P(softcap(scale * query . key^T) + masks) . values

    query    [..., Sq, D], before any factor that `scale` includes.
    key      [..., Sk, D], or [..., D, Sk] if `key_transposed`, likewise before its factor.
    values   [..., Sk, Dv].
    context  [..., Sq, Dv], the tensor that a lowered form makes in place of the present one.
    scale    the whole scale, the factors on Q and K included.
    layout   "bhsd": heads are a dimension before the sequence (or there are none); "bsd": a fused node's rank-3
             operands [B, S, heads * D].
    heads, kv_heads
             numbers of heads where the node states them or the shapes show them; None where neither does. kv_heads
             below heads: key and values have fewer heads than the query (grouped queries), each to be used
             heads / kv_heads times in succession.
    softcap  cap of cap * tanh(t / cap) between scale and masks; 0: none.
    causal   causality that the node itself states (a fused node's is_causal), in addition to the site's source_masks.
    dtype    element type of query, key and values, in the contract's words; None when not known. A site in a half
             type whose softmax, or second product too, is computed in fp32 behind casts (Site.widened) has the half
             type here.
    context_dtype
             element type of `context`; differs from `dtype` where the casts to fp32 are not undone before it.
    wide     those of query, key and values that are fp32 although `dtype` is a half type: to be cast to it first.
    """

    query: str
    key: str
    values: str
    context: str
    scale: float
    key_transposed: bool = True
    layout: str = "bhsd"
    heads: int | None = None
    kv_heads: int | None = None
    softcap: float = 0.0
    causal: str = CausalMode.NONE
    dtype: str | None = None
    context_dtype: str | None = None
    wide: tuple[str, ...] = ()


@dataclass(frozen=True)
class MergedProjection:
    """Products of one tensor with stored weights, which one product with these side by side gives packed.

    source   [B, S, K].
    weights  [K, N] each, for query, key and values.
    biases   rows [N] that are added, in the same order, None where nothing is (to Whisper's keys); () for none at all.
    widths   N of each.
    """

    source: str
    weights: tuple[str, ...]
    biases: tuple[str | None, ...]
    widths: tuple[int, ...]


@dataclass(frozen=True)
class AttentionForm:
    """A site as one FusedAttention node, with what moves data around it absorbed as far as the graph proves it.

    tensors  what the node reads as config.tensor_names, in config.layout: the site's operands, or tensors of which
             these are views.
    context  the tensor that the node makes: the site's context, or one that is only a view of it.
    config   the contract's configuration.
    masks    what becomes the operands, in the order of config.operands; they broadcast to scores [B, H, Sq, Sk].
             Several biases are summed; a bias of the form "where" is 0 or its fill.
    transpose_key
             whether the last two dimensions of the tensor for `k` are to be exchanged first.
    split_context
             number of heads by which the node's output [B, S, H * D] is to be split, for `context` is [B, S, H, D]; 0:
             not at all.
    outside  what stays around the node, a phrase each.
    merged   where config.layout is packed and `tensors` are three, what makes them: the node reads one tensor in their
             place, which one product makes; else None.
    """

    tensors: tuple[str, ...]
    context: str
    config: FusedAttention
    masks: tuple[MaskPart, ...] = ()
    transpose_key: bool = False
    split_context: int = 0
    outside: tuple[str, ...] = ()
    merged: MergedProjection | None = None


@dataclass(frozen=True)
class Projection:
    """The product with stored weights to which rows of a context go, one to one: context [..., Sq, Dv] to [B, Sq, K],
    times weights [K, N], plus one row.

    tensors  from the context to the result [B, Sq, N], in order; but for the last, nothing else reads their values.
    bias     the row that a Gemm adds, [N], [1, N] or a number; None: nothing.
    bias_factor
             what the Gemm multiplies it by.
    mask_has_heads
             whether the site's masks broadcast together to [B, 1, Sq, Sk], and not to a shape without an axis of heads.
    """

    tensors: tuple[str, ...]
    bias: str | None = None
    bias_factor: float = 1.0
    mask_has_heads: bool = False


@dataclass(frozen=True)
class Site:
    """One attention softmax.

    name            stable and unique in the model: the softmax node's name, or its output's.
    graph           path of the graph that holds it; "" is the main graph, others are "node/attribute".
    node            first output of the softmax (or fused attention) node, which identifies it in its graph.
    scores          tensor that enters the lowered node; everything between it and `probabilities` is absorbed.
    probabilities   tensor that the lowered node makes in place of the present one.
    config          the contract's configuration that equals the site; None when no softmax lowering is possible.
    masks           what becomes the node's operands, in the order of config.operands.
    source_masks    the same masks as the model has them, before causality, windows and padding were read out of them,
                    nearest to the product first: with these tensors and fills the original arithmetic is repeated.
    whole           the site from Q, K and V to the context; None when something lies between that no lowering has words
                    for, or nothing multiplies the values; lowerings["native"] says what.
    attention       the site as one FusedAttention node; None when lowerings["attention"] says why there is none.
    operator        what normalises the scores: "Softmax", "LogSoftmax" (with an Exp behind it), "by hand" (exponentials
                    and their sum), or the fused node's operator, with its domain where that is not ONNX's own
                    ("Attention", "com.microsoft::MultiHeadAttention").
    detour          how a Softmax node is written otherwise than over the last axis of the scores, in a phrase: over
                    another axis, or of scores less their maximum; None where it is not.
    widened         whether casts to fp32 around the softmax are absorbed, by the softmax lowering or by `whole`.
    bypasses        scale nodes that go because their factor is in config.scale.
    guard           whether a row without an allowed key gives zeros: an IsNaN -> Where(0), nan_to_num, or a fused node.
    key_mask        the one mask of `source_masks` as the tensor [B, Sk] that it is proved to be spread from, together
                    with causality from the upper left where config.causal says so; else None.
    projection      of a site with a guard, the output projection, if every row of the context is a row of it and the
                    masks are the same for all heads; else None.
    dtype, rank     the scores' type, in the contract's words, and rank; None when not known.
    heads, head_size, layout
                    as far as shapes and nodes show them; layout is "bshd" when Q is transposed from [B, S, H, D],
                    "packed" when it is cut from one projection, and of a fused node that of `whole`.
    consumers       labels of the nodes that read the probabilities.
    is_output       whether the probabilities are an output of the graph.
    lowerings       for each lowering None if it is possible, else the reason why not.
    """

    name: str
    graph: str
    node: str
    scores: str
    probabilities: str
    config: MaskedSoftmax | None
    masks: tuple[MaskPart, ...]
    scale: Scale
    bypasses: tuple[Bypass, ...]
    guard: bool
    dtype: str | None
    rank: int | None
    heads: int | None
    head_size: int | None
    layout: str | None
    consumers: tuple[str, ...]
    is_output: bool
    lowerings: Mapping[str, str | None]
    source_masks: tuple[MaskPart, ...] = ()
    whole: WholeSite | None = None
    detour: str | None = None
    widened: bool = False
    operator: str = "Softmax"
    attention: AttentionForm | None = None
    key_mask: MaskPart | None = None
    projection: Projection | None = None


@dataclass(frozen=True)
class OtherSoftmax:
    """A softmax that is left alone because it is no attention, or none that can be looked into; `reason` says which."""

    name: str
    graph: str
    reason: str


@dataclass(frozen=True)
class ModelSites:
    """Everything found in one model, in the order of its nodes, outer graphs before inner ones."""

    sites: tuple[Site, ...]
    others: tuple[OtherSoftmax, ...]
