"""From the condition under which a key may be attended to the words of the contract: causal, window, padding."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from attngraft.contract import CausalMode
from attngraft.match.meaning.formulas import (
    AtLeastZero,
    Formula,
    IsZero,
    Junction,
    NonZero,
    Number,
    Polynomial,
    all_of,
    any_of,
    leaves,
    negate,
)
from attngraft.match.meaning.polynomials import ZERO, Element, Index
from attngraft.match.meaning.reader import Reader
from attngraft.match.meaning.records import MaskMeaning, PaddingMask

__all__ = ["meaning_of_condition", "single_fill"]


@dataclass(frozen=True)
class Band:
    """Bounds on key - query: `lower` <= j - i <= `upper`, each a polynomial in sizes."""

    lower: Polynomial | None = None
    upper: Polynomial | None = None


def single_fill(number: Number) -> tuple[Formula, float] | None:
    """The condition under which an additive mask is 0, and the one number that it is elsewhere (0 if there is none)."""
    values = [leaf.constant for leaf in leaves(number)]
    fills = {float(value) for value in values if value is not None and value != 0}
    if any(value is None or math.isnan(value) for value in values) or len(fills) > 1:
        return None
    return _is_zero_where(number), next(iter(fills), 0.0)


def _is_zero_where(number: Number) -> Formula:
    if isinstance(number, Polynomial):
        return number == ZERO
    true, false = _is_zero_where(number.if_true), _is_zero_where(number.if_false)
    return all_of([any_of([negate(number.condition), true]), any_of([number.condition, false])])


def meaning_of_condition(
    reader: Reader, condition: Formula, rank: int, sizes: tuple[Polynomial, ...]
) -> MaskMeaning | None:
    """The meaning of a condition over scores of a rank; None when a part of it has neither words nor a tensor.

    `sizes` are the mask's own dimensions; the last two are Sq and Sk unless they are 1.
    """
    parts = condition.parts if isinstance(condition, Junction) and condition.every else frozenset({condition})
    bounds = {part for part in parts if isinstance(part, (AtLeastZero, IsZero)) and _narrow(Band(), part) is not None}
    banded = _banded(bounds, sizes)
    paddings = _paddings(reader, parts - {True} - (bounds if banded is not None else set()), rank)
    if paddings is None:
        banded, paddings = None, _paddings(reader, {condition}, rank)
    return None if paddings is None else replace(banded or MaskMeaning(), paddings=paddings)


def _paddings(reader: Reader, parts: Iterable[Formula], rank: int) -> tuple[PaddingMask, ...] | None:
    """What tensors say of each part; None when there is none for one of them."""
    tests = [part if isinstance(part, (bool, NonZero)) else part.source for part in parts]
    paddings = [_padding(reader, test, rank) if isinstance(test, NonZero) else None for test in tests]
    found = [padding for padding in paddings if padding is not None]
    return _distinct(found) if len(found) == len(tests) else None


def _banded(bounds: Iterable[AtLeastZero | IsZero], sizes: tuple[Polynomial, ...]) -> MaskMeaning | None:
    """Bounds as causal mode and window; None when there are no words for them."""
    band: Band | None = Band()
    for bound in bounds:
        band = None if band is None else _narrow(band, bound)
    return None if band is None else _with_band(MaskMeaning(), band, sizes)


def _distinct(paddings: list[PaddingMask]) -> tuple[PaddingMask, ...]:
    """Each once, in an order that does not change from run to run. What assumes 0 and 1 covers what does not."""
    ordered = sorted(
        paddings, key=lambda padding: (padding.tensor, padding.unsqueeze, padding.invert, padding.zero_one)
    )
    return tuple(
        padding
        for position, padding in enumerate(ordered)
        if position == 0 or replace(padding, zero_one=False) != replace(ordered[position - 1], zero_one=False)
    )


def _narrow(band: Band, part: AtLeastZero | IsZero) -> Band | None:
    """The band with one more bound; None when the condition is none on j - i, or a second one on the same side."""
    if isinstance(part, IsZero):
        if not part.positive:
            return None
        both = _narrow(band, AtLeastZero(part.polynomial))
        return None if both is None else _narrow(both, AtLeastZero(-part.polynomial))
    rest, query, key = ZERO, 0, 0
    for monomial, coefficient in part.polynomial.terms:
        term = Polynomial(frozenset({(monomial, coefficient)}))
        indices = [atom for atom, _ in monomial if isinstance(atom, Index)]
        if not indices:
            rest = rest + term
        elif indices[0].axis == -2 and term == Polynomial.of(indices[0]) * Polynomial.of(coefficient):
            query = int(coefficient)
        elif indices[0].axis == -1 and term == Polynomial.of(indices[0]) * Polynomial.of(coefficient):
            key = int(coefficient)
        else:
            return None
    if any(isinstance(atom, Element) for atom in rest.atoms()) or {query, key} != {1, -1}:
        return None
    if key == -1:
        return None if band.upper is not None else replace(band, upper=rest)
    return None if band.lower is not None else replace(band, lower=-rest)


def _with_band(meaning: MaskMeaning, band: Band, sizes: tuple[Polynomial, ...]) -> MaskMeaning | None:
    """The band as causal mode and window: its bounds are whole numbers from one of the two diagonals."""
    if band.lower is None and band.upper is None:
        return meaning
    bottom_right = sizes[-1] - sizes[-2]
    for mode, offset in ((CausalMode.TOP_LEFT, ZERO), (CausalMode.BOTTOM_RIGHT, bottom_right)):
        left = 0 if band.lower is None else (offset - band.lower).constant
        right = 0 if band.upper is None else (band.upper - offset).constant
        if left is None or right is None or left < 0 or right < 0:
            continue
        is_causal = band.upper is not None and right == 0
        if not is_causal and offset != bottom_right:
            continue  # without `causal` a window counts from the bottom right
        return replace(
            meaning,
            causal=mode if is_causal else CausalMode.NONE,
            window_left=-1 if band.lower is None else int(left),
            window_right=-1 if band.upper is None or is_causal else int(right),
        )
    return None


def _padding(reader: Reader, test: NonZero, rank: int) -> PaddingMask | None:
    """A tensor that broadcasts to the scores, from an element of it that is read at the scores' own indices."""
    element = test.element
    if element.kind not in "biu" or not reader.is_plain(element):
        return None
    unsqueeze_from_right: list[int] = []
    axis = -1  # the scores' axis, from the right, at which the tensor's next axis from the right would stand
    for position in reversed(element.index):
        atoms = position.atoms()
        atom = next(iter(atoms)) if atoms else None
        if isinstance(atom, Index):
            if atom.axis > axis or atom.axis >= 0:
                return None
            unsqueeze_from_right += range(axis, atom.axis, -1)
            axis = atom.axis
        axis -= 1
    total = -axis - 1
    if total > rank:
        return None
    unsqueeze = tuple(sorted(total + from_right for from_right in unsqueeze_from_right))
    zero_one = element.kind == "b" or (test.zero_one and not reader.assumes_zero_one(element.tensor))
    return PaddingMask(element.tensor, unsqueeze, not test.positive, zero_one)
