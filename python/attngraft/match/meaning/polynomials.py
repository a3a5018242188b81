"""Polynomials over indices and dimensions: what sizes, positions and index arithmetic in a mask's graph are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

__all__ = [
    "ONE",
    "ZERO",
    "Atom",
    "Element",
    "Index",
    "Least",
    "Magnitude",
    "Polynomial",
    "Quotient",
    "Size",
    "divide",
    "substitute",
]


@dataclass(frozen=True)
class Index:
    """An index that runs over 0 <= index < size. Axes of the mask count from the right, the last one -1."""

    axis: int
    size: Polynomial


@dataclass(frozen=True)
class Size:
    """A dimension that only a run tells, at least 0. Equal symbols are equal sizes."""

    symbol: str


@dataclass(frozen=True)
class Element:
    """An element of a tensor that is not looked into. `kind` is NumPy's: "b", "i", "u", "f", or "?" when not known."""

    tensor: str
    index: tuple[Polynomial, ...]
    kind: str


@dataclass(frozen=True)
class Quotient:
    """numerator // denominator of integers that are not negative."""

    numerator: Polynomial
    denominator: Polynomial


@dataclass(frozen=True)
class Least:
    """The smaller of two numbers."""

    first: Polynomial
    second: Polynomial


@dataclass(frozen=True)
class Magnitude:
    """The absolute value."""

    of: Polynomial


Atom = Index | Size | Element | Quotient | Least | Magnitude
Monomial = frozenset[tuple[Atom, int]]
UNIT: Monomial = frozenset()


@dataclass(frozen=True)
class Polynomial:
    """A sum of products of atoms; `terms` maps each product, a set of (atom, power), to its coefficient."""

    terms: frozenset[tuple[Monomial, int | float]]

    @staticmethod
    def of(value: Atom | int | float) -> Polynomial:
        if isinstance(value, (int, float)):
            return _polynomial({UNIT: value})
        return _polynomial({frozenset({(value, 1)}): 1})

    @cached_property
    def _hash(self) -> int:
        return hash(self.terms)

    def __hash__(self) -> int:
        return self._hash

    @property
    def constant(self) -> int | float | None:
        """The value if it is a number, else None."""
        if not self.terms:
            return 0
        if len(self.terms) == 1:
            ((monomial, coefficient),) = self.terms
            return coefficient if monomial == UNIT else None
        return None

    def __add__(self, other: Polynomial) -> Polynomial:
        terms = dict(self.terms)
        for monomial, coefficient in other.terms:
            terms[monomial] = terms.get(monomial, 0) + coefficient
        return _polynomial(terms)

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + -other

    def __neg__(self) -> Polynomial:
        return _polynomial({monomial: -coefficient for monomial, coefficient in self.terms})

    def __mul__(self, other: Polynomial) -> Polynomial:
        terms: dict[Monomial, int | float] = {}
        for left, first in self.terms:
            for right, second in other.terms:
                product = _times(left, right)
                terms[product] = terms.get(product, 0) + first * second
        return _polynomial(terms)

    def atoms(self) -> set[Atom]:
        """The atoms that stand in a term, those inside other atoms not included."""
        return {atom for monomial, _ in self.terms for atom, _ in monomial}

    def inner_atoms(self) -> Iterator[Atom]:
        """The atoms on which the value depends, those inside other atoms included; a tensor's element is one atom."""
        for atom in self.atoms():
            yield atom
            for polynomial in _parts(atom):
                yield from polynomial.inner_atoms()

    def elements(self) -> set[Element]:
        """The elements of tensors on which the value depends."""
        return {atom for atom in self.inner_atoms() if isinstance(atom, Element)}

    def is_integral(self) -> bool:
        """Whether every coefficient is a whole number."""
        return all(float(coefficient).is_integer() for _, coefficient in self.terms)


def _polynomial(terms: Mapping[Monomial, int | float]) -> Polynomial:
    return Polynomial(frozenset((monomial, coefficient) for monomial, coefficient in terms.items() if coefficient != 0))


ZERO = Polynomial.of(0)
ONE = Polynomial.of(1)


def _times(left: Monomial, right: Monomial) -> Monomial:
    if not left or not right:
        return left or right
    powers = dict(left)
    for atom, power in right:
        powers[atom] = powers.get(atom, 0) + power
    return frozenset(powers.items())


def _parts(atom: Atom) -> tuple[Polynomial, ...]:
    if isinstance(atom, Quotient):
        return (atom.numerator, atom.denominator)
    if isinstance(atom, Least):
        return (atom.first, atom.second)
    return (atom.of,) if isinstance(atom, Magnitude) else ()


def divide(dividend: Polynomial, divisor: Polynomial) -> Polynomial | None:
    """The polynomial q with dividend = q * divisor, tried with a q of one term per term of a one-term divisor, and with
    a q of one term otherwise; None when there is none of that kind."""
    if not divisor.terms:
        return None
    if len(divisor.terms) == 1:
        ((under, factor),) = divisor.terms
        parts = [_divide_term(monomial, coefficient, under, factor) for monomial, coefficient in dividend.terms]
        if any(part is None for part in parts):
            return None
        return sum((part for part in parts if part is not None), ZERO)
    (under, factor) = next(iter(divisor.terms))
    for monomial, coefficient in dividend.terms:
        quotient = _divide_term(monomial, coefficient, under, factor)
        if quotient is not None and quotient * divisor == dividend:
            return quotient
    return None


def _divide_term(
    monomial: Monomial, coefficient: int | float, under: Monomial, factor: int | float
) -> Polynomial | None:
    powers = dict(monomial)
    for atom, power in under:
        if powers.get(atom, 0) < power:
            return None
        powers[atom] -= power
    if coefficient % factor:
        return None
    rest = frozenset((atom, power) for atom, power in powers.items() if power)
    return _polynomial({rest: coefficient // factor})


def substitute(polynomial: Polynomial, atom: Atom, value: Polynomial) -> Polynomial:
    """The polynomial with `value` in place of an atom that stands in its terms."""
    result = ZERO
    for monomial, coefficient in polynomial.terms:
        powers = dict(monomial)
        power = powers.pop(atom, 0)
        term = _polynomial({frozenset(powers.items()): coefficient})
        for _ in range(power):
            term = term * value
        result = result + term
    return result
