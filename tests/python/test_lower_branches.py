"""Which conditions of an If sizes or constants decide: it then becomes its branch; every other one stays."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from branch_models import BRANCHES, ONE, SAME_SIZES_DIFFER, TRUE_CONDITION, X, operators, parse, run, taken
from native_models import RTX

from attngraft.lower import repair_model

FOUR = "four = Constant<value_ints = [4]>()"
NUMBERS = """
    y = If(c) < then_branch = taken () => (int64[1] t) { t = Constant<value_ints = [1]>() },
                else_branch = other () => (int64[1] e) { e = Constant<value_ints = [0]>() } >
"""

DECIDED = {
    "a constant": (TRUE_CONDITION, True),
    "a vector of one": ("c = Constant<value = bool[1] {0}>()", False),
    "constants compared": (f"{ONE} {FOUR} c = Less(four, one)", False),
    "a rank": (f"{ONE} s = Shape(x) n = Size(s) c = Greater(n, one)", True),
    "a fixed size": (f"{FOUR} n = Shape<start = 1>(x) c = Equal(n, four)", True),
    "one size, two tensors": (SAME_SIZES_DIFFER, False),
    "one size less than another": (
        f"{ONE} z = Concat<axis = 0>(x, x) l = Shape<end = 1>(z) n = Shape<end = 1>(x) "
        "twice = Add(l, one) c = Less(n, twice)",
        True,
    ),
    "sizes that differ by one": (
        f"{ONE} n = Shape<end = 1>(x) n1 = Add(n, one) c = Equal(n, n1)",
        False,
    ),
    "a product of sizes": (
        f"{FOUR} flat = Constant<value_ints = [-1]>() r = Reshape(x, flat) l = Shape(r) n = Shape<end = 1>(x) "
        "all = Mul(n, four) c = Equal(l, all)",
        True,
    ),
    "a size in double": ("n = Shape<end = 1>(x) d = Cast<to = 11>(n) c = GreaterOrEqual(d, d)", True),
}


@pytest.mark.parametrize(("condition", "truth"), DECIDED.values(), ids=DECIDED)
def test_a_decided_condition(condition: str, truth: bool) -> None:
    repaired = taken(parse(f"{condition} {BRANCHES}"))
    assert operators(repaired) == (["Mul"] if truth else ["Neg"])
    assert repaired.graph.node[0].output[0] == "y"
    assert [tensor.name for tensor in repaired.graph.initializer] == (["two"] if truth else [])


def test_a_stored_condition() -> None:
    for truth in (True, False):
        model = parse(BRANCHES)
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(truth), "c"))
        repaired = taken(model)
        assert operators(repaired) == (["Mul"] if truth else ["Neg"])
        assert "c" not in {tensor.name for tensor in repaired.graph.initializer}


ROW = np.zeros((1, 4), np.float32)
UNDECIDED = {
    "two sizes": ("n = Shape<end = 1>(x) m = Shape(v) c = Equal(n, m)", {"v": np.zeros(3, np.float32)}, {}),
    "a size and a number": (f"{FOUR} n = Shape<end = 1>(x) c = Less(n, four)", {"x": np.zeros((5, 4), "f")}, {}),
    "an element": ("zero = Constant<value_floats = [0.0]>() c = Equal(v, zero)", {"v": np.ones(1, np.float32)}, {}),
    "a number and itself": ("c = Equal(v, v)", {"v": np.full(1, np.nan, np.float32)}, {}),
    "a number minus itself": (
        "zero = Constant<value_floats = [0.0]>() d = Sub(v, v) c = Equal(d, zero)",
        {"v": np.full(1, np.inf, np.float32)},
        {},
    ),
    "sizes that broadcast": (
        "col = Transpose(x) z = Add(col, v) l = Shape<start = 1>(z) n = Shape<end = 1>(x) c = Equal(l, n)",
        {"x": ROW, "v": np.zeros(3, np.float32)},
        {},
    ),
    "parts of a size that may be odd": (
        "a, b = Split<num_outputs = 2>(x) k = Shape<end = 1>(a) l = Shape<end = 1>(b) c = Equal(k, l)",
        {},
        {"x": np.zeros((2, 4), np.float32)},
    ),
    "sizes in float": (
        f"{ONE} n = Shape(v) m = Add(n, one) f = Cast<to = 1>(n) g = Cast<to = 1>(m) c = Less(f, g)",
        {"v": np.zeros(2**24, np.float32)},  # 2**24 + 1 is no float
        {},
    ),
    "sizes in int32": (
        "many = Constant<value_ints = [2147483646]>() n = Shape(v) m = Add(n, many) f = Cast<to = 6>(n) "
        "g = Cast<to = 6>(m) c = Less(f, g)",
        {"v": np.zeros(2, np.float32)},
        {},
    ),
}


@pytest.mark.parametrize(("condition", "feeds", "other"), UNDECIDED.values(), ids=UNDECIDED)
def test_an_undecided_condition(condition: str, feeds: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    """Both branches are taken, by one input or another."""
    model = parse(f"{condition} {NUMBERS}", ", float[V] v", "int64[1] y")
    repaired, repairs = repair_model(model, RTX)
    assert repaired is model
    assert repairs == ()
    default = {"x": X, "v": np.zeros(1, np.float32)}
    outcomes = {int(run(model, default | given)[0][0]) for given in (feeds, other)}
    assert outcomes == {0, 1}


def test_an_initializer_that_is_an_input_decides_nothing() -> None:
    model = parse(NUMBERS, ", bool c", "int64[1] y")
    del model.graph.initializer[:]
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "c"))
    assert repair_model(model, RTX)[0] is model
    assert run(model, {"x": X})[0] != run(model, {"x": X, "c": np.array(False)})[0]


def test_numbers_that_wrap_round_decide_nothing() -> None:
    model = parse(
        f"""
        a = Constant<value = uint8[1] {{200}}>() b = Constant<value = uint8[1] {{100}}>()
        sum = Add(a, b) c = Less(sum, b) {NUMBERS}
    """,
        output="int64[1] y",
    )
    assert repair_model(model, RTX)[0] is model
    assert run(model, {"x": X})[0] == 1


def test_only_for_tensorrt() -> None:
    model = parse(f"{TRUE_CONDITION} {BRANCHES}")
    assert repair_model(model, None)[0] is model
    _, (repair,) = repair_model(model, RTX)
    assert str(repair) == (
        "y: replaced by its then branch, since sizes or constants make its condition true for every input, and "
        "TensorRT builds both branches"
    )
