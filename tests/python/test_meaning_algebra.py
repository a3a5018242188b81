"""Polynomials, bounds, conditions and tables: what they say holds for numbers put in their place."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attngraft.match.meaning.bounds import is_nonnegative, least, quotient, remainder
from attngraft.match.meaning.formulas import (
    AtLeastZero,
    Formula,
    IsZero,
    Junction,
    NonZero,
    NotReadable,
    Number,
    all_of,
    any_of,
    as_formula,
    as_number,
    at_least_zero,
    is_zero,
    negate,
    select,
)
from attngraft.match.meaning.polynomials import (
    ONE,
    ZERO,
    Atom,
    Element,
    Index,
    Least,
    Magnitude,
    Polynomial,
    Quotient,
    Size,
    divide,
)
from attngraft.match.meaning.tables import look_up

ROWS, KEYS = Size("rows"), Size("keys")
ROW, KEY = Index(-2, Polynomial.of(ROWS)), Index(-1, Polynomial.of(KEYS))
FLAG = Element("flag", (Polynomial.of(KEY),), "b")
i, j, s, t = (Polynomial.of(atom) for atom in (ROW, KEY, ROWS, KEYS))
ASSIGNMENTS = [
    {ROWS: rows, KEYS: keys, ROW: row, KEY: key, FLAG: flag}
    for rows, keys in itertools.product((1, 3), repeat=2)
    for row in range(rows)
    for key in range(keys)
    for flag in (0, 1)
]
"""Every legal value of the indices for some sizes."""


def number(polynomial: Polynomial, values: dict[Atom, int]) -> int:
    total = 0
    for monomial, coefficient in polynomial.terms:
        term = coefficient
        for atom, power in monomial:
            term *= atom_value(atom, values) ** power
        total += term
    return total


def atom_value(atom: Atom, values: dict[Atom, int]) -> int:
    if isinstance(atom, Quotient):
        return number(atom.numerator, values) // number(atom.denominator, values)
    if isinstance(atom, Least):
        return min(number(atom.first, values), number(atom.second, values))
    if isinstance(atom, Magnitude):
        return abs(number(atom.of, values))
    return values[atom]


def truth(formula: Formula, values: dict[Atom, int]) -> bool:
    if isinstance(formula, bool):
        return formula
    if isinstance(formula, AtLeastZero):
        return number(formula.polynomial, values) >= 0
    if isinstance(formula, IsZero):
        return (number(formula.polynomial, values) == 0) == formula.positive
    if isinstance(formula, NonZero):
        return bool(values[formula.element]) == formula.positive
    assert isinstance(formula, Junction)
    return (all if formula.every else any)(truth(part, values) for part in formula.parts)


def chosen(value: Number, values: dict[Atom, int]) -> int:
    while not isinstance(value, Polynomial):
        value = value.if_true if truth(value.condition, values) else value.if_false
    return number(value, values)


coefficients = st.integers(-3, 3)
polynomials = st.builds(
    lambda a, b, c, d, e, f: (
        Polynomial.of(a)
        + Polynomial.of(b) * i
        + Polynomial.of(c) * j
        + Polynomial.of(d) * s
        + Polynomial.of(e) * t
        + Polynomial.of(f) * i * t
    ),
    *[coefficients] * 6,
)
tests = st.one_of(
    polynomials.map(at_least_zero),
    polynomials.map(is_zero),
    polynomials.map(lambda p: at_least_zero(Polynomial.of(3) - Polynomial.of(Magnitude(p)))),
    st.just(NonZero(FLAG)),
    st.booleans(),
)
conditions = st.recursive(
    tests,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(all_of), st.lists(inner, max_size=3).map(any_of), inner.map(negate)
    ),
    max_leaves=6,
)


@given(polynomials)
def test_what_is_proved_not_negative_is_not(polynomial: Polynomial) -> None:
    if is_nonnegative(polynomial):
        assert all(number(polynomial, values) >= 0 for values in ASSIGNMENTS)


@pytest.mark.parametrize(
    "polynomial",
    [ZERO, i, t - ONE - j, s * t - i * t - j - ONE + ZERO, t - Polynomial.of(Least(t, Polynomial.of(64)))],
    ids=["0", "index", "last index", "flat index", "least"],
)
def test_is_proved_not_negative(polynomial: Polynomial) -> None:
    assert is_nonnegative(polynomial)


def test_elements_may_be_negative() -> None:
    assert not is_nonnegative(Polynomial.of(Element("x", (), "i")))


@given(polynomials, polynomials)
def test_arithmetic(left: Polynomial, right: Polynomial) -> None:
    values = ASSIGNMENTS[-1]
    assert number(left + right, values) == number(left, values) + number(right, values)
    assert number(left - right, values) == number(left, values) - number(right, values)
    assert number(left * right, values) == number(left, values) * number(right, values)
    assert (left - right).constant == 0 or left != right
    assert number(least(left, right), values) == min(number(left, values), number(right, values))


@given(polynomials, polynomials)
def test_exact_division(left: Polynomial, right: Polynomial) -> None:
    found = divide(left * right, right)
    assert found is None or found * right == left * right


def test_quotients_of_flat_positions() -> None:
    flat = i * t + j
    assert (quotient(flat, t), remainder(flat, t)) == (i, j)
    assert quotient(s * t, s) == t
    unknown = quotient(s * t, i + ONE)
    assert [type(atom) for atom in unknown.atoms()] == [Quotient]


@given(conditions)
def test_simplified_conditions_and_their_opposites(condition: Formula) -> None:
    for values in ASSIGNMENTS:
        assert truth(negate(condition), values) != truth(condition, values)


@given(st.lists(conditions, max_size=3))
def test_junctions(parts: list[Formula]) -> None:
    for values in ASSIGNMENTS:
        assert truth(all_of(parts), values) == all(truth(part, values) for part in parts)
        assert truth(any_of(parts), values) == any(truth(part, values) for part in parts)


@settings(max_examples=50)
@given(conditions, polynomials, polynomials)
def test_numbers_by_cases(condition: Formula, if_true: Polynomial, if_false: Polynomial) -> None:
    value = select(condition, if_true, if_false)
    for values in ASSIGNMENTS:
        expected = number(if_true if truth(condition, values) else if_false, values)
        assert chosen(value, values) == expected
        assert truth(as_formula(value), values) == (expected != 0)
        assert chosen(as_number(condition), values) == truth(condition, values)


@pytest.mark.parametrize(
    "table",
    [
        np.tril(np.ones((6, 6))),
        np.triu(np.full((5, 8), -np.inf), 2),
        np.tril(np.triu(np.ones((7, 7), bool), -2)),
        np.arange(6)[None, :].repeat(6, 0),
        np.arange(3, 15, 2)[:, None].repeat(6, 1),
        np.full((6, 6), 4),
        np.eye(6, dtype=np.int64),
    ],
    ids=["tril", "triu", "window", "columns", "rows", "constant", "diagonal"],
)
def test_tables_that_follow_a_rule(table: np.ndarray) -> None:
    value = look_up(table, (i, j))
    for row, column in np.ndindex(*table.shape):
        values = {ROWS: table.shape[0], KEYS: table.shape[1], ROW: row, KEY: column, FLAG: 0}
        found = value
        while not isinstance(found, Polynomial):
            found = found.if_true if truth(found.condition, values) else found.if_false
        constant = found.constant
        assert (number(found, values) if constant is None else constant) == table[row, column]


@pytest.mark.parametrize(
    "table",
    [
        np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1]]),
        np.array([[1, 2, 3, 5], [1, 2, 3, 5]]),
        np.arange(16).reshape(4, 4),
        np.zeros((0, 3)),
        np.zeros((4, 4), np.float32),
        np.abs(np.arange(4)[:, None] - np.arange(4)),
    ],
    ids=["one off", "no steps", "not along diagonals", "empty", "untrained bias", "too many bands"],
)
def test_tables_that_follow_none(table: np.ndarray) -> None:
    with pytest.raises(NotReadable):
        look_up(table, (i, j))
