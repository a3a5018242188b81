"""Proofs that a polynomial is never negative, from what is known of its atoms: a size is at least 0, an index is at
least 0 and below its size."""

from __future__ import annotations

from functools import lru_cache

from attngraft.match.meaning.polynomials import (
    ONE,
    ZERO,
    Atom,
    Index,
    Least,
    Magnitude,
    Polynomial,
    Quotient,
    Size,
    divide,
    substitute,
)

__all__ = ["is_nonnegative", "least", "quotient", "remainder"]

MAX_TERMS = 64
"""Longer polynomials are left undecided: sizes and positions of real models have fewer than ten terms."""


@lru_cache(maxsize=4096)  # the layers of a model ask the same
def is_nonnegative(polynomial: Polynomial) -> bool:
    """Whether the value is proved to be at least 0 for all sizes and indices; False also when it is not known."""
    if len(polynomial.terms) > MAX_TERMS:
        return False
    lowest = _without_indices(polynomial)
    if lowest is None:
        return False
    if all(coefficient >= 0 for _, coefficient in lowest.terms):
        return all(_is_nonnegative_atom(atom) for atom in lowest.atoms())
    for monomial, coefficient in lowest.terms:
        for atom, power in monomial:
            if isinstance(atom, Least) and coefficient < 0 and power == 1 and len(monomial) == 1:
                # -min(a, b) is at least -a, and at least -b.
                return any(is_nonnegative(substitute(lowest, atom, bound)) for bound in (atom.first, atom.second))
    return False


def _without_indices(polynomial: Polynomial) -> Polynomial | None:
    """A lower bound without indices: each becomes 0 or its last value, whichever makes its term smaller."""
    result = ZERO
    for monomial, coefficient in polynomial.terms:
        term = Polynomial(frozenset({(monomial, coefficient)}))
        for atom, _ in monomial:
            if isinstance(atom, Index):
                term = substitute(term, atom, atom.size - ONE) if coefficient < 0 else ZERO
            elif not _is_nonnegative_atom(atom):
                return None
        result = result + term
    if any(isinstance(atom, Index) for atom in result.atoms()):  # sizes of inner indices hold no index in practice
        return None
    return result


def _is_nonnegative_atom(atom: Atom) -> bool:
    if isinstance(atom, (Size, Index, Magnitude)):
        return True
    if isinstance(atom, Quotient):
        return is_nonnegative(atom.numerator) and is_nonnegative(atom.denominator)
    return isinstance(atom, Least) and is_nonnegative(atom.first) and is_nonnegative(atom.second)


def least(first: Polynomial, second: Polynomial) -> Polynomial:
    """The smaller of the two."""
    if is_nonnegative(second - first):
        return first
    if is_nonnegative(first - second):
        return second
    return Polynomial.of(Least(first, second))


def quotient(numerator: Polynomial, denominator: Polynomial) -> Polynomial:
    """numerator // denominator, neither of them negative."""
    whole, rest = _split(numerator, denominator)
    if not rest.terms or (is_nonnegative(rest) and is_nonnegative(denominator - rest - ONE)):
        return whole
    if numerator.constant is not None and denominator.constant:
        return Polynomial.of(int(numerator.constant // denominator.constant))
    exact = divide(numerator, denominator)
    return Polynomial.of(Quotient(numerator, denominator)) if exact is None else exact


def remainder(numerator: Polynomial, denominator: Polynomial) -> Polynomial:
    """numerator % denominator, neither of them negative."""
    return numerator - quotient(numerator, denominator) * denominator


def _split(numerator: Polynomial, denominator: Polynomial) -> tuple[Polynomial, Polynomial]:
    """The terms that the denominator divides, divided, and the other terms."""
    whole, rest = ZERO, ZERO
    for item in numerator.terms:
        term = Polynomial(frozenset({item}))
        part = divide(term, denominator)
        whole, rest = (whole, rest + term) if part is None else (whole + part, rest)
    return whole, rest
