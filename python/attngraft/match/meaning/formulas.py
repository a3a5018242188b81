"""Conditions and the numbers that depend on them: the values that elements of a mask's graph can have.

Constructors simplify: what is proved true or false disappears, so that a mask's dead branches never reach the reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from attngraft.match.meaning.bounds import is_nonnegative
from attngraft.match.meaning.polynomials import (
    ONE,
    ZERO,
    Atom,
    Element,
    Index,
    Magnitude,
    Polynomial,
    substitute,
)

__all__ = [
    "AtLeastZero",
    "Formula",
    "IsZero",
    "Junction",
    "NonZero",
    "NotReadable",
    "Number",
    "Select",
    "Value",
    "all_of",
    "any_of",
    "as_formula",
    "as_number",
    "at_least_zero",
    "choose",
    "is_zero",
    "leaves",
    "lift",
    "negate",
    "select",
    "with_source",
]

MAX_LEAVES = 32
"""A number that depends on more cases than this is not looked into; masks have two or three."""


class NotReadable(Exception):
    """The node computes something that has no form here; its output is then taken as an unknown tensor."""


@dataclass(frozen=True)
class NonZero:
    """An element is not 0 (or is true), or the reverse when not `positive`. `zero_one` as in PaddingMask."""

    element: Element
    positive: bool = True
    zero_one: bool = True


# The `source` of a condition is an element of a boolean tensor of the model that has the same truth (or the opposite
# one, when it is not positive): what stands for the condition where there are no words for it.


@dataclass(frozen=True)
class AtLeastZero:
    """polynomial >= 0, over the integers."""

    polynomial: Polynomial
    source: NonZero | None = field(default=None, compare=False)


@dataclass(frozen=True)
class IsZero:
    """polynomial == 0, or != 0 when not `positive`."""

    polynomial: Polynomial
    positive: bool = True
    source: NonZero | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Junction:
    """All the parts, if `every`, else any of them."""

    every: bool
    parts: frozenset[Formula]
    source: NonZero | None = field(default=None, compare=False)


Formula = bool | AtLeastZero | IsZero | NonZero | Junction


@dataclass(frozen=True)
class Select:
    """`if_true` where the condition holds, else `if_false`."""

    condition: Formula
    if_true: Number
    if_false: Number


Number = Polynomial | Select
Value = Formula | Polynomial | Select


def at_least_zero(polynomial: Polynomial) -> Formula:
    """polynomial >= 0."""
    if is_nonnegative(polynomial):
        return True
    if is_nonnegative(-polynomial - ONE):
        return False
    for monomial, coefficient in polynomial.terms:
        magnitude = next((atom for atom, _ in monomial if isinstance(atom, Magnitude)), None)
        if magnitude is not None and len(monomial) == 1:
            # c - |x| >= 0 is -c <= x <= c; |x| - c >= 0 is x <= -c or x >= c.
            sides = [at_least_zero(substitute(polynomial, magnitude, x)) for x in (magnitude.of, -magnitude.of)]
            return all_of(sides) if coefficient < 0 else any_of(sides)
    return AtLeastZero(polynomial)


def is_zero(polynomial: Polynomial) -> Formula:
    """polynomial == 0."""
    if polynomial.constant is not None:
        return bool(polynomial.constant == 0)
    if is_nonnegative(polynomial - ONE) or is_nonnegative(-polynomial - ONE):
        return False
    if len(polynomial.terms) == 1:
        ((monomial, coefficient),) = polynomial.terms
        factors = [atom for atom, _ in monomial if isinstance(atom, Element)]
        if len(factors) == len(monomial):
            is_itself = abs(coefficient) == 1 and [power for _, power in monomial] == [1]  # products may overflow to 0
            return any_of(NonZero(factor, positive=False, zero_one=is_itself) for factor in factors)
    return IsZero(polynomial)


def negate(formula: Formula) -> Formula:
    """Not."""
    if isinstance(formula, bool):
        return not formula
    if isinstance(formula, NonZero):
        return replace(formula, positive=not formula.positive)
    source = None if formula.source is None else replace(formula.source, positive=not formula.source.positive)
    if isinstance(formula, AtLeastZero):
        return with_source(at_least_zero(-formula.polynomial - ONE), source)
    if isinstance(formula, IsZero):
        return replace(formula, positive=not formula.positive, source=source)
    return Junction(not formula.every, frozenset(negate(part) for part in formula.parts), source)


def with_source(formula: Formula, source: NonZero | None) -> Formula:
    """The same condition with another source, if it is of a kind that has one."""
    return replace(formula, source=source) if isinstance(formula, (AtLeastZero, IsZero, Junction)) else formula


def all_of(formulas: Iterable[Formula]) -> Formula:
    """And."""
    return _join(formulas, every=True)


def any_of(formulas: Iterable[Formula]) -> Formula:
    """Or."""
    return _join(formulas, every=False)


def _join(formulas: Iterable[Formula], every: bool) -> Formula:
    undecided = [formula for formula in formulas if formula is not every]
    if any(isinstance(formula, bool) for formula in undecided):
        return not every
    if len(undecided) == 1:
        return undecided[0]  # with its source
    parts: set[Formula] = set()
    for formula in undecided:
        parts |= formula.parts if isinstance(formula, Junction) and formula.every == every else {formula}
    if any(negate(part) in parts for part in parts):
        return not every
    shorter = [_without(part, parts) for part in parts]
    if any(new is not old for new, old in zip(shorter, parts, strict=True)):
        return _join(shorter, every)
    if not every:
        _merge_equal(parts)
    if not parts:
        return every
    return next(iter(parts)) if len(parts) == 1 else Junction(every, frozenset(parts))


def _without(part: Formula, others: set[Formula]) -> Formula:
    """A and (not A or B) is A and B; the same with and and or exchanged."""
    if not isinstance(part, Junction) or not any(negate(inner) in others for inner in part.parts):
        return part
    return _join((inner for inner in part.parts if negate(inner) not in others), part.every)


def _merge_equal(parts: set[Formula]) -> None:
    """x > 0 or x == 0 is x >= 0: how exporters write LessOrEqual for old opsets."""
    for part in list(parts):
        if not (isinstance(part, IsZero) and part.positive):
            continue
        for polynomial in (part.polynomial, -part.polynomial):
            if AtLeastZero(polynomial - ONE) in parts:
                parts -= {part, AtLeastZero(polynomial - ONE)}
                parts.add(at_least_zero(polynomial))
                break


def select(condition: Formula, if_true: Number, if_false: Number) -> Number:
    """A number that depends on a condition."""
    if isinstance(condition, bool):
        return if_true if condition else if_false
    if_true, if_false = _given(if_true, condition), _given(if_false, negate(condition))
    pinned = _pinned_to_zero(condition)
    if pinned is not None and isinstance(if_true, Polynomial):
        if_true = substitute(if_true, pinned, ZERO)
        if isinstance(if_false, Polynomial) and if_true == substitute(if_false, pinned, ZERO):
            return if_false
    return if_true if if_true == if_false else Select(condition, if_true, if_false)


def _given(number: Number, condition: Formula) -> Number:
    """The number where the condition holds."""
    while isinstance(number, Select) and number.condition in (condition, negate(condition)):
        number = number.if_true if number.condition == condition else number.if_false
    return number


def _pinned_to_zero(condition: Formula) -> Atom | None:
    """The index that is 0 where the condition holds: -index >= 0."""
    if not isinstance(condition, AtLeastZero):
        return None
    atoms = condition.polynomial.atoms()
    atom = next(iter(atoms)) if len(atoms) == 1 else None
    return atom if isinstance(atom, Index) and condition.polynomial == -Polynomial.of(atom) else None


def lift(function: Callable[..., Value], *numbers: Number) -> Value:
    """The function of numbers, case by case."""
    if sum(sum(1 for _ in leaves(number)) for number in numbers) > MAX_LEAVES:
        raise NotReadable
    for number in numbers:
        if isinstance(number, Select):
            condition = number.condition
            sides = [
                lift(function, *(_given(other, case) for other in numbers)) for case in (condition, negate(condition))
            ]
            return choose(condition, *sides)
    return function(*numbers)


def choose(condition: Formula, if_true: Value, if_false: Value) -> Value:
    """Where, of numbers or of conditions."""
    if isinstance(if_true, (Polynomial, Select)) and isinstance(if_false, (Polynomial, Select)):
        return select(condition, if_true, if_false)
    true, false = as_formula(if_true), as_formula(if_false)
    return all_of([any_of([negate(condition), true]), any_of([condition, false])])


def as_formula(value: Value) -> Formula:
    """A condition as it is; a number is true where it is not 0."""
    if isinstance(value, (Polynomial, Select)):
        truth = lift(lambda number: negate(is_zero(number)), value)
        assert not isinstance(truth, (Polynomial, Select))
        return truth
    return value


def as_number(value: Value) -> Number:
    """A number as it is; a condition is 1 where it is true."""
    return value if isinstance(value, (Polynomial, Select)) else select(value, ONE, ZERO)


def leaves(number: Number) -> Iterator[Polynomial]:
    """The polynomials between which the conditions choose."""
    if isinstance(number, Polynomial):
        yield number
    else:
        yield from leaves(number.if_true)
        yield from leaves(number.if_false)
