"""Elements of nodes that compute element by element: arithmetic, comparisons, logic."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
from onnx import NodeProto

from attngraft.match.meaning.bounds import is_nonnegative, least, quotient, remainder
from attngraft.match.meaning.casts import by_cases, cast, rounded
from attngraft.match.meaning.formulas import (
    Formula,
    NonZero,
    NotReadable,
    Number,
    Select,
    Value,
    all_of,
    any_of,
    as_formula,
    as_number,
    at_least_zero,
    choose,
    is_zero,
    leaves,
    lift,
    negate,
)
from attngraft.match.meaning.polynomials import ONE, ZERO, Magnitude, Polynomial
from attngraft.match.operators import attribute

if TYPE_CHECKING:
    from attngraft.match.meaning.reader import Dims, Reader

__all__ = ["RULES"]

MIN_FILL = 2.0**15
"""A number at least this large beside an element of an integer mask is a fill: float16's lowest value is -65504."""


def _numbers(reader: Reader, node: NodeProto, index: Dims) -> list[Number]:
    return [as_number(reader.broadcast(name, index)) for name in node.input if name]


def _arithmetic(function: Callable[[Polynomial, Polynomial], Polynomial]) -> Callable[[Reader, NodeProto, Dims], Value]:
    def rule(reader: Reader, node: NodeProto, index: Dims) -> Value:
        dtype = reader.dtype(node.output[0])
        return lift(lambda *values: rounded(reduce(function, values), dtype), *_numbers(reader, node, index))

    return rule


def _multiply(left: Polynomial, right: Polynomial) -> Polynomial:
    if left.constant is not None and right.constant is not None:
        return Polynomial.of(_python(np.multiply, left.constant, right.constant))
    return left * right


def _python(function: np.ufunc, *values: int | float) -> int | float:
    """NumPy's arithmetic, in which 0 * inf is NaN, with a Python number out; integers stay exact."""
    if all(isinstance(value, int) for value in values):
        return int(function(*(np.asarray(value, object) for value in values)))
    with np.errstate(all="ignore"):
        return float(function(*(np.float64(value) for value in values)))


def _divide(reader: Reader, node: NodeProto, index: Dims) -> Value:
    is_float = reader.kind(node.output[0]) == "f"
    dtype = reader.dtype(node.output[0])

    def function(left: Polynomial, right: Polynomial) -> Polynomial:
        if not is_float:
            return _whole(quotient, left, right)
        if left.constant is None or right.constant is None:
            raise NotReadable
        return rounded(Polynomial.of(_python(np.divide, float(left.constant), float(right.constant))), dtype)

    return lift(function, *_numbers(reader, node, index))


def _modulo(reader: Reader, node: NodeProto, index: Dims) -> Value:
    return lift(lambda left, right: _whole(remainder, left, right), *_numbers(reader, node, index))


def _whole(function: Callable[[Polynomial, Polynomial], Polynomial], left: Polynomial, right: Polynomial) -> Polynomial:
    """Integer division of what is not negative: operators differ in how they round the rest."""
    if right == ZERO or not (left.is_integral() and is_nonnegative(left) and is_nonnegative(right)):
        raise NotReadable
    return function(left, right)


def _greatest(left: Polynomial, right: Polynomial) -> Polynomial:
    return -least(-left, -right) if left.constant is None or right.constant is None else _by_value(max, left, right)


def _smallest(left: Polynomial, right: Polynomial) -> Polynomial:
    return least(left, right) if left.constant is None or right.constant is None else _by_value(min, left, right)


def _by_value(function: Callable[..., int | float], left: Polynomial, right: Polynomial) -> Polynomial:
    assert left.constant is not None and right.constant is not None
    return Polynomial.of(function(left.constant, right.constant))


def _negative(reader: Reader, node: NodeProto, index: Dims) -> Value:
    return lift(lambda value: -value, *_numbers(reader, node, index))


def _absolute(reader: Reader, node: NodeProto, index: Dims) -> Value:
    def function(value: Polynomial) -> Polynomial:
        if value.constant is not None:
            return Polynomial.of(abs(value.constant))
        if is_nonnegative(value) or is_nonnegative(-value):
            return value if is_nonnegative(value) else -value
        return Polynomial.of(Magnitude(value))

    return lift(function, *_numbers(reader, node, index))


def _identity(reader: Reader, node: NodeProto, index: Dims) -> Value:
    return reader.element(node.input[0], index)


def _comparison(test: Callable[[Polynomial], Formula]) -> Callable[[Reader, NodeProto, Dims], Value]:
    """A test of first operand - second operand. Tests of unknown elements stay what they are, a tensor of booleans,
    except those against 0."""

    def rule(reader: Reader, node: NodeProto, index: Dims) -> Value:
        def of_difference(left: Polynomial, right: Polynomial) -> Formula:
            if left.constant is not None and right.constant is not None:  # infinities among them
                return test(Polynomial.of(_sign(left.constant, right.constant)))
            difference = left - right
            if difference.elements():
                return _of_elements(reader, test, difference)
            if not difference.is_integral():
                raise NotReadable
            return test(difference)

        return lift(of_difference, *_numbers(reader, node, index))

    return rule


def _of_elements(reader: Reader, test: Callable[[Polynomial], Formula], difference: Polynomial) -> Formula:
    """A test of an element against 0, or of a fill with an element added, whose outcome the fill decides."""
    formula = test(difference)
    if isinstance(formula, NonZero):
        return formula
    fill = next((coefficient for monomial, coefficient in difference.terms if not monomial), 0)
    if abs(fill) < MIN_FILL:
        raise NotReadable
    outcomes = {test(Polynomial.of(_sign(number.constant or 0, 0))) for number in leaves(by_cases(difference))}
    if len(outcomes) != 1:
        raise NotReadable
    for element in difference.elements():
        reader.assume_zero_one(element.tensor)
    return outcomes.pop()


def _sign(left: int | float, right: int | float) -> int:
    if math.isnan(left) or math.isnan(right):
        raise NotReadable
    return (left > right) - (left < right)


def _logic(function: Callable[[list[Formula]], Formula]) -> Callable[[Reader, NodeProto, Dims], Value]:
    def rule(reader: Reader, node: NodeProto, index: Dims) -> Value:
        return function([as_formula(reader.broadcast(name, index)) for name in node.input])

    return rule


def _bitwise(function: Callable[[list[Formula]], Formula]) -> Callable[[Reader, NodeProto, Dims], Value]:
    def rule(reader: Reader, node: NodeProto, index: Dims) -> Value:
        if reader.kind(node.output[0]) != "b":
            raise NotReadable
        return _logic(function)(reader, node, index)

    return rule


def _exclusive_or(formulas: list[Formula]) -> Formula:
    left, right = formulas
    return any_of([all_of([left, negate(right)]), all_of([negate(left), right])])


def _where(reader: Reader, node: NodeProto, index: Dims) -> Value:
    condition, if_true, if_false = (reader.broadcast(name, index) for name in node.input)
    return choose(as_formula(condition), if_true, if_false)


def _equal(reader: Reader, node: NodeProto, index: Dims) -> Value:
    values = [reader.broadcast(name, index) for name in node.input]
    if not any(isinstance(value, (Polynomial, Select)) for value in values):
        return negate(_exclusive_or([as_formula(value) for value in values]))
    return _comparison(is_zero)(reader, node, index)


def _is_infinite(reader: Reader, node: NodeProto, index: Dims) -> Value:
    positive, negative = attribute(node, "detect_positive", 1), attribute(node, "detect_negative", 1)

    def function(value: Polynomial) -> Formula:
        if value.constant is None:
            raise NotReadable
        return bool((positive and value.constant == np.inf) or (negative and value.constant == -np.inf))

    return lift(function, *_numbers(reader, node, index))


Rule = Callable[["Reader", NodeProto, "Dims"], Value]

RULES: dict[str, Rule] = {
    "Abs": _absolute,
    "Add": _arithmetic(operator.add),
    "And": _logic(all_of),
    "BitwiseAnd": _bitwise(all_of),
    "BitwiseNot": _bitwise(lambda formulas: negate(formulas[0])),
    "BitwiseOr": _bitwise(any_of),
    "Cast": cast,
    "CastLike": cast,
    "Div": _divide,
    "Equal": _equal,
    "Greater": _comparison(lambda difference: at_least_zero(difference - ONE)),
    "GreaterOrEqual": _comparison(at_least_zero),
    "Identity": _identity,
    "IsInf": _is_infinite,
    "Less": _comparison(lambda difference: at_least_zero(-difference - ONE)),
    "LessOrEqual": _comparison(lambda difference: at_least_zero(-difference)),
    "Max": _arithmetic(_greatest),
    "Min": _arithmetic(_smallest),
    "Mod": _modulo,
    "Mul": _arithmetic(_multiply),
    "Neg": _negative,
    "Not": _logic(lambda formulas: negate(formulas[0])),
    "Or": _logic(any_of),
    "Sub": _arithmetic(operator.sub),
    "Sum": _arithmetic(operator.add),
    "Where": _where,
    "Xor": _logic(_exclusive_or),
}
