"""Where q, k and v come from: the farthest tensors that they are views of in one of the contract's layouts.

In: the operands of the two products. Out: for each the tensors that FusedAttention can read in its place, best first,
and the packed projections that hold all three.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from attngraft.contract import Layout
from attngraft.match.attention.movement import Source, sources
from attngraft.match.attention.strided import Strided, contiguous
from attngraft.match.meaning import Polynomial
from attngraft.match.meaning.polynomials import ZERO, divide
from attngraft.onnx_graph import GraphView

__all__ = ["Operand", "Packed", "Placed", "merged_heads", "packed_projections", "placements"]

SWAP_HEADS_AND_SEQUENCE = (0, 2, 1, 3)
HEADS_AXIS, SIZE_AXIS = 1, 3
"""Of views as [B, heads, S, size]."""


@dataclass(frozen=True)
class Operand:
    """q, k or v as the site multiplies it.

    is_query    whether it is q, whose heads are counted as they are: no key serves repeated ones.
    transposed  whether its last two dimensions are exchanged.
    heads       number of heads of a tensor of rank 3: merged with the batch, [B * heads, S, size], or, if `is_bsd`,
                with the size, [B, S, heads * size]. None for rank 4.
    """

    tensor: str
    is_query: bool = False
    transposed: bool = False
    heads: int | None = None
    is_bsd: bool = False


@dataclass(frozen=True)
class Placed:
    """A tensor in the layout of `word` that holds the operand.

    heads    how many the tensor has itself; None where that is not known.
    repeats  how often in succession the site has each of them.
    dims     [B, heads, S, size]; None where the graph does not show them.
    transposed
             whether its last two dimensions are exchanged.
    """

    tensor: str
    word: str
    heads: int | None
    repeats: int = 1
    dims: tuple[Polynomial, ...] | None = None
    transposed: bool = False


@dataclass(frozen=True)
class Packed:
    """A tensor in the packed layout of `word` that holds q, k and v. `dims` are those of q, [B, heads, S, D]."""

    tensor: str
    word: str
    heads: int
    kv_heads: int
    dims: tuple[Polynomial, ...]


def placements(view: GraphView, operand: Operand) -> list[Placed]:
    """What can be read in place of the operand, the farthest from the product first; at last the operand itself."""
    found = _as_given(operand)
    for source, by_heads in _views(view, operand):
        own, repeats = (by_heads, 1) if operand.is_query else _without_repeats(by_heads)
        word = _word(source.dims, own)
        if word is None:  # a tensor in which the repeated heads are stored
            own, repeats = by_heads, 1
            word = _word(source.dims, own)
        if word is not None:
            found.append(Placed(source.tensor, word, _number(own.dims[HEADS_AXIS]), repeats, own.dims))
    return found[::-1]


def _as_given(operand: Operand) -> list[Placed]:
    """Of merged heads there is none: the node has no word for them."""
    if operand.heads is None:
        return [Placed(operand.tensor, Layout.BHSD, None, transposed=operand.transposed)]
    return [Placed(operand.tensor, Layout.BSD, operand.heads, transposed=operand.transposed)] if operand.is_bsd else []


def packed_projections(view: GraphView, operands: Sequence[Operand]) -> Iterator[Packed]:
    """The tensors [B, S, width] that are q, k and v together, the farthest first."""
    views = [{source.tensor: (source, by_heads) for source, by_heads in _views(view, each)} for each in operands]
    for tensor, (source, query) in reversed(views[0].items()):
        if len(source.dims) == 3 and all(tensor in each for each in views[1:]):
            parts = [query, *(_without_repeats(each[tensor][1])[0] for each in views[1:])]
            packed = _packed(source, parts)
            if packed is not None:
                yield packed


def merged_heads(view: GraphView, tensor: str) -> int | None:
    """The number of heads of an operand [B * heads, S, size], as what it is a view of shows it."""
    for source in sources(view, tensor)[1:]:
        merged = source.strided.axes[0]
        by_source = _number(source.dims[HEADS_AXIS]) if len(source.dims) == 4 else None
        heads = _number(merged[-1].size) if len(merged) > 1 else by_source
        if heads is not None:
            return heads
    return None


def _views(view: GraphView, operand: Operand) -> list[tuple[Source, Strided]]:
    """The operand's sources, nearest first, each with the operand as a view [B, heads, S, size] of it."""
    found = ((source, _by_heads(source.strided, operand)) for source in sources(view, operand.tensor))
    return [(source, by_heads) for source, by_heads in found if by_heads is not None]


def _by_heads(strided: Strided, operand: Operand) -> Strided | None:
    rank = len(strided.axes)
    if operand.transposed:
        strided = strided.transposed((*range(rank - 2), rank - 1, rank - 2))
    if operand.heads is None:
        return strided if rank == 4 else None
    heads = Polynomial.of(operand.heads)
    first, rows, last = strided.dims
    if not operand.is_bsd:
        batch = divide(first, heads)
        return None if batch is None else strided.reshaped((batch, heads, rows, last))
    size = divide(last, heads)
    parted = None if size is None else strided.reshaped((first, rows, heads, size))
    return None if parted is None else parted.transposed(SWAP_HEADS_AND_SEQUENCE)


def _without_repeats(by_heads: Strided) -> tuple[Strided, int]:
    """The view without the repetition of each head in succession, and how often each is repeated."""
    axis = by_heads.axes[HEADS_AXIS]
    if not axis or axis[-1].stride != ZERO:
        return by_heads, 1
    times = _number(axis[-1].size)
    if times is None:
        return by_heads, 1
    axes = (*by_heads.axes[:HEADS_AXIS], axis[:-1], *by_heads.axes[HEADS_AXIS + 1 :])
    return Strided(axes, by_heads.offset), times


def _word(source: Sequence[Polynomial], by_heads: Strided) -> str | None:
    """The layout in which a tensor with these dimensions is that view."""
    plain = contiguous(source)
    if len(source) == 4:
        if plain.transposed(SWAP_HEADS_AND_SEQUENCE) == by_heads:
            return Layout.BSHD
        return Layout.BHSD if plain == by_heads else None
    if len(source) != 3 or None in (_number(by_heads.dims[axis]) for axis in (HEADS_AXIS, SIZE_AXIS)):
        return None
    parted = plain.reshaped((*source[:2], by_heads.dims[HEADS_AXIS], by_heads.dims[SIZE_AXIS]))
    return Layout.BSD if parted is not None and parted.transposed(SWAP_HEADS_AND_SEQUENCE) == by_heads else None


def _packed(source: Source, parts: Sequence[Strided]) -> Packed | None:
    heads, kv_heads, size = (
        _number(dim) for dim in (parts[0].dims[HEADS_AXIS], parts[1].dims[HEADS_AXIS], parts[0].dims[SIZE_AXIS])
    )
    if heads is None or kv_heads is None or size is None or heads % kv_heads:
        return None
    for word, expected in ((Layout.QKV, _all_in_turn), (Layout.QKV_BY_HEAD, _by_key_heads)):
        if expected(source.dims, heads, kv_heads, size) == list(parts):
            return Packed(source.tensor, word, heads, kv_heads, parts[0].dims)
    return None


def _all_in_turn(dims: Sequence[Polynomial], heads: int, kv_heads: int, size: int) -> list[Strided | None]:
    """q, k and v [B, heads, S, D] of a tensor in the layout `qkv`."""
    parted = contiguous(dims).reshaped((*dims[:2], *map(Polynomial.of, (heads + 2 * kv_heads, size))))
    if parted is None:
        return []
    by_heads = parted.transposed(SWAP_HEADS_AND_SEQUENCE)
    cuts = ((0, heads), (heads, kv_heads), (heads + kv_heads, kv_heads))
    return [by_heads.sliced(HEADS_AXIS, *map(Polynomial.of, cut)) for cut in cuts]


def _by_key_heads(dims: Sequence[Polynomial], heads: int, kv_heads: int, size: int) -> list[Strided | None]:
    """q, k and v [B, heads, S, D] of a tensor in the layout `qkv_by_head`."""
    group = heads // kv_heads
    parted = contiguous(dims).reshaped((*dims[:2], *map(Polynomial.of, (kv_heads, group + 2, size))))
    if parted is None:
        return []
    by_groups = parted.transposed((0, 2, 3, 1, 4))  # [B, Hk, G + 2, S, D]
    cuts = ((0, group), (group, 1), (group + 1, 1))
    parts = [by_groups.sliced(2, *map(Polynomial.of, cut)) for cut in cuts]
    return [None if part is None else part.joined(HEADS_AXIS) for part in parts]


def _number(dim: Polynomial) -> int | None:
    return None if dim.constant is None else int(dim.constant)
