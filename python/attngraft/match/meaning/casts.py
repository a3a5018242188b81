"""Casts: what a value is in another element type, and whether it is still the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import NodeProto, TensorProto

from attngraft.match.meaning.formulas import (
    NonZero,
    NotReadable,
    Number,
    Select,
    Value,
    as_formula,
    as_number,
    leaves,
    lift,
    select,
)
from attngraft.match.meaning.polynomials import Element, Polynomial
from attngraft.match.operators import attribute
from attngraft.onnx_graph import numpy_dtype

if TYPE_CHECKING:
    from attngraft.match.meaning.reader import Dims, Reader

__all__ = ["by_cases", "cast", "rounded"]

FLOATS: frozenset[int] = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE})

EXACT_FOR_POSITIONS: frozenset[int] = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE})
"""Floats that hold every whole number up to 2**24, more than any sequence is long; float16 ends at 2048."""

EXACT_FOR_SIZES: frozenset[int] = frozenset({TensorProto.DOUBLE, TensorProto.INT64})
"""Types that hold the number of elements of any tensor that fits into memory, which is below 2**53, and differences."""

# Bits of the integer types.
BITS: dict[int, int] = {
    TensorProto.INT8: 8,
    TensorProto.UINT8: 8,
    TensorProto.INT16: 16,
    TensorProto.UINT16: 16,
    TensorProto.INT32: 32,
    TensorProto.UINT32: 32,
    TensorProto.INT64: 64,
    TensorProto.UINT64: 64,
}


def rounded(value: Polynomial, dtype: int) -> Polynomial:
    """A number as the element type holds it. Indices and tests of 0 and 1 are exact in every type. Raises NotReadable
    for a number beyond an integer type, which wraps round."""
    number = value.constant
    if number is not None and not _fits(number, dtype):
        raise NotReadable
    if number is None or dtype not in FLOATS:
        return value
    with np.errstate(over="ignore", invalid="ignore"):
        return Polynomial.of(float(np.asarray(number, numpy_dtype(dtype)).astype(np.float64)))


def _fits(number: int | float, dtype: int) -> bool:
    if dtype not in BITS:
        return True
    limits = np.iinfo(numpy_dtype(dtype))
    return bool(limits.min <= number <= limits.max)


def cast(reader: Reader, node: NodeProto, index: Dims) -> Value:
    """The rule of Cast and CastLike."""
    source, to = reader.element(node.input[0], index), reader.dtype(node.output[0])
    to = int(attribute(node, "to", to)) if node.op_type == "Cast" else to
    if to == TensorProto.BOOL and not isinstance(source, (Polynomial, Select)):
        return source
    number = as_number(source)
    if to == TensorProto.BOOL or to in FLOATS:
        number = by_cases(number) if _is_computed(number) else number
    if to == TensorProto.BOOL:
        return as_formula(number)
    if not all(_is_exact(value, reader.dtype(node.input[0]), to) for value in leaves(number)):
        raise NotReadable
    if to not in EXACT_FOR_SIZES and any(value.constant is None for value in leaves(number)):
        reader.assume()
    return lift(lambda value: rounded(value, to), number)


def _is_exact(value: Polynomial, source: int, to: int) -> bool:
    """Whether a cast to another type of number keeps the value. Numbers are known; of an unknown element it is enough
    that it stays 0 or not 0; positions are below 2**24."""
    if to in FLOATS:
        is_position = value.constant is None and not value.elements()
        return not is_position or to in EXACT_FOR_POSITIONS
    if to not in BITS or not value.is_integral():
        return False
    if value.elements():
        return source in BITS and BITS[to] >= BITS[source]
    return value.constant is not None or BITS[to] >= BITS[TensorProto.INT32]


def _is_computed(number: Number) -> bool:
    """Whether a cast may change it: an element of a tensor by itself is only passed on."""
    return isinstance(number, Polynomial) and number.constant is None and len(number.terms) > 1


def by_cases(number: Number) -> Number:
    """A number that is computed from one element of an integer tensor, for the element being 0 and being 1."""
    if not isinstance(number, Polynomial):
        return select(number.condition, by_cases(number.if_true), by_cases(number.if_false))
    elements = number.elements()
    if not elements:
        return number
    element = next(iter(elements))
    if len(elements) > 1 or element.kind not in "iu":
        raise NotReadable
    return select(NonZero(element, zero_one=False), _at(number, element, 1), _at(number, element, 0))


def _at(polynomial: Polynomial, element: Element, value: int) -> Polynomial:
    """The number that a polynomial in one element is, in floating point: inf * 0 is NaN there."""
    total = 0.0
    for monomial, coefficient in polynomial.terms:
        if monomial and {atom for atom, _ in monomial} != {element}:
            raise NotReadable
        total += float(coefficient) * (value if monomial else 1)
    return Polynomial.of(total)
