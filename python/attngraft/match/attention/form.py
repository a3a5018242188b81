"""A site as one FusedAttention node: operands, context and masks put together, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from attngraft.contract import MAX_HEAD_SIZE, SCORE_DTYPES, FusedAttention, Layout
from attngraft.match.attention.heads import Operand, Placed, merged_heads, packed_projections, placements
from attngraft.match.attention.masks import MaskReading, with_heads
from attngraft.match.attention.merged import merged_projection
from attngraft.match.attention.result import Result, results
from attngraft.match.attention.strided import contiguous
from attngraft.match.meaning import Polynomial
from attngraft.match.records import AttentionForm, MergedProjection, WholeSite
from attngraft.match.sizes import known_dimension
from attngraft.onnx_graph import GraphView

__all__ = ["attention_form"]

SCORES_RANK, MERGED_RANK = 4, 3

NAMES = ("query", "key", "values")


@dataclass(frozen=True)
class _Arrangement:
    """How the node reads its tensors: `layout` is a packed word, or those of q, k and v; heads are 0 where not known.
    `dims` are [B, H, Sq, Dv] of the context, None where not known."""

    tensors: tuple[str, ...]
    layout: tuple[str, ...]
    heads: int
    kv_heads: int
    dims: tuple[Polynomial, ...] | None
    transpose_key: bool = False

    def takes(self, result: Result) -> bool:
        """Whether the node can make that tensor, from a packed one at most with its heads split off behind."""
        if len(self.tensors) == 1:
            return result.word != Layout.BHSD
        return result.word != Layout.BSD or bool(self.heads and self.kv_heads)


def attention_form(view: GraphView, whole: WholeSite, masks: MaskReading, rank: int | None) -> AttentionForm | str:
    """The form of a site with these masks, whose scores have this rank, or in one phrase why it has none."""
    obstacle = _obstacle(view, whole, rank)
    if obstacle is not None:
        return obstacle
    if whole.layout == Layout.BSD or rank == SCORES_RANK:
        found = _with_operands(view, whole, masks, _operands(whole))
    else:
        heads = merged_heads(view, whole.query)
        found = None if heads is None else _with_merged_heads(view, whole, masks, heads)
        if found is None:  # a batch of B * H with one head each
            found = _with_merged_heads(view, whole, masks, 1)
    return "the rank of a mask is not known" if found is None else found


def _obstacle(view: GraphView, whole: WholeSite, rank: int | None) -> str | None:
    if whole.dtype not in SCORE_DTYPES:
        return f"its tensors are {whole.dtype or 'untyped'}; FusedAttention takes {', '.join(SCORE_DTYPES)}"
    if whole.layout == Layout.BSD and not (whole.heads and whole.kv_heads):
        return "its numbers of heads are not known"
    if whole.layout != Layout.BSD and rank not in (SCORES_RANK, MERGED_RANK):
        return f"its scores have rank {rank}; FusedAttention takes [B, H, Sq, Sk]"
    heads = (whole.heads or 1, whole.kv_heads or 1) if whole.layout == Layout.BSD else (1, 1)
    for name, parts in zip((whole.query, whole.values), heads, strict=True):
        width = known_dimension(view, name, -1)
        if width is not None and not 1 <= width // parts <= MAX_HEAD_SIZE:
            return f"its heads have size {width // parts}; FusedAttention takes 1 to {MAX_HEAD_SIZE}"
    return None


def _operands(whole: WholeSite) -> tuple[Operand, Operand, Operand]:
    is_bsd = whole.layout == Layout.BSD
    heads, kv_heads = (whole.heads, whole.kv_heads) if is_bsd else (None, None)
    return (
        Operand(whole.query, is_query=True, heads=heads, is_bsd=is_bsd),
        Operand(whole.key, transposed=whole.key_transposed, heads=kv_heads, is_bsd=is_bsd),
        Operand(whole.values, heads=kv_heads, is_bsd=is_bsd),
    )


def _with_merged_heads(view: GraphView, whole: WholeSite, masks: MaskReading, heads: int) -> AttentionForm | str | None:
    """The form of a site of rank 3, [B * heads, S, size]; None where its heads cannot be told apart so."""
    shaped = [shaped for mask in masks.masks if (shaped := with_heads(view, mask, heads)) is not None]
    if len(shaped) < len(masks.masks):
        return None
    operands = tuple(replace(each, heads=heads, is_bsd=heads == 1) for each in _operands(whole))
    return _with_operands(view, whole, replace(masks, masks=tuple(shaped)), operands)


def _with_operands(
    view: GraphView, whole: WholeSite, masks: MaskReading, operands: Sequence[Operand]
) -> AttentionForm | str | None:
    """None where an operand or the context has no place of its own, which only merged heads can have."""
    packed = [
        _Arrangement((each.tensor,), (each.word,), each.heads, each.kv_heads, each.dims)
        for each in packed_projections(view, operands)
    ]
    found = [placements(view, each) for each in operands]
    separate = _separate(whole, found) if all(found) else None
    arrangements = packed if separate is None or isinstance(separate, str) else [*packed, separate]
    for arranged in arrangements:
        for result in _results(view, whole, arranged.dims, operands[0]):
            if arranged.takes(result):
                return _form(view, whole, masks, arranged, result)
    return separate if isinstance(separate, str) else None


def _separate(whole: WholeSite, found: Sequence[Sequence[Placed]]) -> _Arrangement | str:
    """q, k and v each in its own tensor, of those that were found for it."""
    query, key, values = (each[0] for each in found)
    if key.heads != values.heads:  # one of them is repeated in a way that is not understood, so both stay repeated
        key, values = (_first(some, lambda each: each.repeats == 1) for some in found[1:])
    if not ((query.heads or whole.heads) and (key.heads or values.heads or whole.kv_heads)):
        shows_heads = (_first(some, lambda each: each.word != Layout.BSD and each.repeats == 1) for some in found)
        query, key, values = shows_heads
    heads, kv_heads = query.heads or whole.heads or 0, key.heads or values.heads or whole.kv_heads or 0
    if kv_heads and heads % kv_heads:
        return f"{heads} query heads are no multiple of {kv_heads} key heads"
    obstacle = _disagreement(query, key, values)
    if obstacle is not None:
        return obstacle
    return _Arrangement(
        tensors=(query.tensor, key.tensor, values.tensor),
        layout=(query.word, key.word, values.word),
        heads=heads,
        kv_heads=kv_heads,
        dims=None if query.dims is None or values.dims is None else (*query.dims[:3], values.dims[3]),
        transpose_key=key.transposed,
    )


def _first(found: Sequence[Placed], holds: Callable[[Placed], bool]) -> Placed:
    return next((each for each in found if holds(each)), found[-1])


def _disagreement(query: Placed, key: Placed, values: Placed) -> str | None:
    """What the product's broadcasting allows and the operator does not."""
    if key.heads and values.heads and key.heads != values.heads:
        return f"key and values have different numbers of heads ({key.heads}, {values.heads})"
    batches = {each.dims[0] for each in (query, key, values) if each.dims is not None}
    if len(batches) > 1 and any(batch.constant is not None for batch in batches):
        return "query, key and values have different batch sizes"
    return None


def _results(view: GraphView, whole: WholeSite, dims: Sequence[Polynomial] | None, query: Operand) -> list[Result]:
    """The tensors that the node can make, the farthest first."""
    as_given = Layout.BSD if query.is_bsd else Layout.BHSD
    if dims is None:
        return [Result(whole.context, as_given)] if query.heads is None or query.is_bsd else []
    context = contiguous(dims)
    if query.is_bsd:
        context = context.transposed((0, 2, 1, 3)).joined(2)
    elif query.heads is not None:
        context = context.joined(0)
    return results(view, context, whole.context, dims)


def _form(
    view: GraphView, whole: WholeSite, masks: MaskReading, arranged: _Arrangement, result: Result
) -> AttentionForm:
    merged = _merged(view, whole, arranged, result)
    words = (*arranged.layout, result.word)
    if len(arranged.tensors) == 1 or merged is not None:
        words = (arranged.layout[0] if merged is None else Layout.QKV,)
    config = FusedAttention(
        operands=tuple(dict.fromkeys(mask.role for mask in masks.masks)),
        scale=whole.scale,
        causal=masks.causal,
        window_left=masks.window_left,
        window_right=masks.window_right,
        softcap=whole.softcap,
        empty_rows=masks.empty_rows,
        layout=words[0] if len(set(words)) == 1 else ",".join(words),
        heads=arranged.heads,
        kv_heads=arranged.kv_heads,
    )
    return AttentionForm(
        tensors=arranged.tensors,
        context=result.tensor,
        config=config,
        masks=masks.masks,
        transpose_key=arranged.transpose_key,
        split_context=arranged.heads if config.is_packed and result.word == Layout.BSHD else 0,
        outside=_outside(view, arranged, result),
        merged=merged,
    )


def _merged(view: GraphView, whole: WholeSite, arranged: _Arrangement, result: Result) -> MergedProjection | None:
    """The projection that can give q, k and v in one tensor, for heads of one size and a context beside them."""
    words, heads = (*arranged.layout, result.word), (arranged.heads, arranged.kv_heads, arranged.kv_heads)
    widths = [known_dimension(view, name, -1) for name in arranged.tensors]
    if words != (Layout.BSD,) * 4 or not all(heads) or whole.wide or arranged.transpose_key or None in widths:
        return None
    one_size = len({width / count for width, count in zip(widths, heads, strict=True)}) == 1
    return merged_projection(view, arranged.tensors, widths) if one_size else None


def _outside(view: GraphView, arranged: _Arrangement, result: Result) -> tuple[str, ...]:
    """What moves data around the node still, or is done in its place before and behind it."""
    phrases = []
    for name, tensor, word in zip(NAMES, arranged.tensors, arranged.layout, strict=False):
        maker = view.maker(tensor)
        if word == Layout.BHSD and maker is not None:
            phrases.append(f"{name} by heads, as {maker.op_type} makes it")
    if arranged.transpose_key:
        phrases.append("a transpose of the key")
    if result.word == Layout.BHSD and result.tensor not in view.outputs:
        phrases.append("the context's way from [B, H, S, D]")
    return tuple(phrases)
