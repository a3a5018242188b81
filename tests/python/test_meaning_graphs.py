"""Masks written as ONNX text, in the forms that exporters and people use: read for what they are, equal when run."""

from __future__ import annotations


import numpy as np
import onnx
import pytest
from meaning_masks import (
    ALLOWED,
    CAUSAL_TOP_LEFT,
    FILLED,
    INFINITE_CAUSAL,
    INFINITY,
    KEPT,
    LOWEST,
    PADDING,
    POSITION_AXES,
    POSITIONS,
    SHAPE,
    Mask,
    positions,
)
from meaning_proof import assert_mask_equals, view_of
from onnx import ModelProto

from attngraft.contract import CausalMode
from attngraft.match.meaning import MaskMeaning, PaddingMask, read_mask

MASKS = {
    "padding by Where": Mask(
        "b = Cast<to = 9>(padding)\n keep = Unsqueeze(b, axes_1_2)" + FILLED,
        MaskMeaning(paddings=(PADDING,), fill=LOWEST),
    ),
    "padding as (1 - x) * fill": Mask(
        """
        wide = Unsqueeze(padding, axes_1_2)
        f = Cast<to = 1>(wide)
        unit = Constant<value_float = 1.0>()
        inverted = Sub(unit, f)
        fill = Constant<value_float = -10000.0>()
        mask = Mul(inverted, fill)
        """,
        MaskMeaning(paddings=(PaddingMask("padding", (1, 2), zero_one=False),), fill=-1e4),
    ),
    "padding inverted, expanded, filled": Mask(
        SHAPE
        + """
        wide = Unsqueeze(padding, axes_1_2)
        b1 = Shape<start = 0, end = 1>(padding)
        one1 = Constant<value_ints = [1]>()
        full = Concat<axis = 0>(b1, one1, shape)
        f = Cast<to = 1>(wide)
        e = Expand(f, full)
        unit = Constant<value_float = 1.0>()
        inverted = Sub(unit, e)
        where = Cast<to = 9>(inverted)
        lowest = Constant<value_float = -3.4028234663852886e38>()
        mask = Where(where, lowest, inverted)
        """,
        MaskMeaning(paddings=(PaddingMask("padding", (1, 2), zero_one=False),), fill=LOWEST),
    ),
    "boolean padding, true where masked": Mask(
        "wide = Unsqueeze(padding, axes_1_2)\n keep = Not(wide)" + FILLED,
        MaskMeaning(paddings=(PaddingMask("padding", (1, 2), invert=True),), fill=LOWEST),
        padding="bool",
    ),
    "padding of zero compared": Mask(
        "none = Equal(padding, zero)\n some = Not(none)\n keep = Unsqueeze(some, axes_1_2)" + FILLED,
        MaskMeaning(paddings=(PADDING,), fill=LOWEST),
    ),
    "padding from another number": Mask(
        "some = Greater(padding, zero)\n keep = Unsqueeze(some, axes_1_2)" + FILLED,
        MaskMeaning(paddings=(PaddingMask("some", (1, 2)),), fill=LOWEST),
    ),
    "padding in floats is not read through": Mask(
        """
        wide = Unsqueeze(padding, axes_1_2)
        unit = Constant<value_float = 1.0>()
        inverted = Sub(unit, wide)
        fill = Constant<value_float = -10000.0>()
        mask = Mul(inverted, fill)
        """,
        None,
        padding="float",
    ),
    "causal by comparison": positions("keep = LessOrEqual(j, i)", CAUSAL_TOP_LEFT),
    "causal by Less or Equal": positions("l = Less(j, i)\n e = Equal(j, i)\n keep = Or(l, e)", CAUSAL_TOP_LEFT),
    "causal by inverted Greater": positions("g = Greater(j, i)\n keep = Not(g)", CAUSAL_TOP_LEFT),
    "causal from cache positions": positions(
        "past = Sub(sk, sq)\n now = Add(i, past)\n keep = GreaterOrEqual(now, j)",
        MaskMeaning(CausalMode.BOTTOM_RIGHT, fill=LOWEST),
    ),
    "strictly causal stays a tensor": positions("keep = Less(j, i)", KEPT),
    "another offset stays a tensor": positions("now = Add(i, two)\n keep = LessOrEqual(j, now)", KEPT),
    "window behind a causal mask": positions(
        """
        c = LessOrEqual(j, i)
        first = Sub(i, width)
        w = Greater(j, first)
        keep = And(c, w)
        """,
        MaskMeaning(CausalMode.TOP_LEFT, window_left=2, fill=LOWEST),
        width=np.int64(3),
    ),
    "window on both sides, from the bottom right": positions(
        """
        past = Sub(sk, sq)
        now = Add(i, past)
        d = Sub(now, j)
        far = Abs(d)
        keep = LessOrEqual(far, two)
        """,
        MaskMeaning(window_left=2, window_right=2, fill=LOWEST),
    ),
    "a window from the top left stays a tensor": positions(
        "d = Sub(i, j)\n far = Abs(d)\n keep = Less(far, two)", KEPT
    ),
    "diagonal": positions(
        "past = Sub(sk, sq)\n now = Add(i, past)\n keep = Equal(now, j)",
        MaskMeaning(CausalMode.BOTTOM_RIGHT, window_left=0, fill=LOWEST),
    ),
    "always true": positions("last = Sub(sk, one)\n keep = LessOrEqual(j, last)", MaskMeaning(fill=0.0)),
    "causal by upper Trilu of -inf": Mask(
        SHAPE
        + """
        full = Expand(minus, shape)
        mask = Trilu<upper = 1>(full, one)
        """,
        INFINITE_CAUSAL,
        constants={"minus": np.float32(-INFINITY)},
    ),
    "causal by lower Trilu of booleans": Mask(
        SHAPE
        + """
        full = Expand(yes, shape)
        keep = Trilu<upper = 0>(full)
        mask = Where(keep, nothing, minus)
        """,
        INFINITE_CAUSAL,
        constants={"yes": np.bool_(True), "minus": np.float32(-INFINITY)},
    ),
    "causal by ConstantOfShape": Mask(
        SHAPE
        + """
        full = ConstantOfShape<value = float[1] {1.0}>(shape)
        low = Trilu<upper = 0>(full)
        keep = Cast<to = 9>(low)
        """
        + FILLED,
        CAUSAL_TOP_LEFT,
    ),
    "causal buffer, cut to the lengths": Mask(
        SHAPE
        + """
        axes = Constant<value_ints = [2, 3]>()
        start = Constant<value_ints = [0, 0]>()
        cut = Slice(buffer, start, shape, axes)
        no = Equal(cut, nothing)
        lowest = Constant<value_float = -3.4028234663852886e38>()
        mask = Where(no, lowest, nothing)
        """,
        CAUSAL_TOP_LEFT,
        constants={"buffer": np.tril(np.ones((1, 1, 64, 64), np.float32))},
    ),
    "window buffer": Mask(
        SHAPE + "axes = Constant<value_ints = [0, 1]>()\n keep = Slice(buffer, start, shape, axes)" + FILLED,
        MaskMeaning(CausalMode.TOP_LEFT, window_left=3, fill=LOWEST),
        constants={"buffer": np.tril(np.triu(np.ones((40, 40), bool), -3)), "start": np.array([0, 0])},
    ),
    "a buffer of anything else stays a tensor": Mask(
        SHAPE + "axes = Constant<value_ints = [0, 1]>()\n keep = Slice(buffer, start, shape, axes)" + FILLED,
        KEPT,
        constants={"buffer": np.arange(1600).reshape(40, 40) % 7 < 3, "start": np.array([0, 0])},
    ),
    "causal and padding": Mask(
        POSITIONS
        + ALLOWED
        + """
        c = LessOrEqual(j, i)
        keep = And(c, wide)
        """
        + FILLED,
        MaskMeaning(CausalMode.TOP_LEFT, paddings=(PADDING,), fill=LOWEST),
        constants=POSITION_AXES,
    ),
    "causal or padding, both inverted": Mask(
        POSITIONS
        + """
        future = Greater(j, i)
        wide = Unsqueeze(padding, axes_1_2)
        masked = Or(future, wide)
        lowest = Constant<value_float = -3.4028234663852886e38>()
        mask = Where(masked, lowest, nothing)
        """,
        MaskMeaning(CausalMode.TOP_LEFT, paddings=(PaddingMask("padding", (1, 2), invert=True),), fill=LOWEST),
        padding="bool",
        constants=POSITION_AXES,
    ),
    "two -inf masks added": Mask(
        POSITIONS
        + ALLOWED
        + """
        c = LessOrEqual(j, i)
        first = Where(c, nothing, minus)
        second = Where(wide, nothing, minus)
        mask = Add(first, second)
        """,
        MaskMeaning(CausalMode.TOP_LEFT, paddings=(PADDING,)),
        constants={**POSITION_AXES, "minus": np.float32(-INFINITY)},
    ),
    "prefix: causal or padding stays a tensor": Mask(
        POSITIONS
        + ALLOWED
        + """
        c = LessOrEqual(j, i)
        keep = Or(c, wide)
        """
        + FILLED,
        KEPT,
        constants=POSITION_AXES,
    ),
    "padding of queries and keys": Mask(
        """
        axes_1_3 = Constant<value_ints = [1, 3]>()
        row = Unsqueeze(padding, axes_1_2)
        column = Unsqueeze(padding, axes_1_3)
        both = Mul(row, column)
        keep = Cast<to = 9>(both)
        """
        + FILLED,
        MaskMeaning(
            paddings=(PaddingMask("padding", (1, 2), zero_one=False), PaddingMask("padding", (1, 3), zero_one=False)),
            fill=LOWEST,
        ),
        square=True,
    ),
    "padding gathered by position": Mask(
        """
        b = Cast<to = 9>(padding)
        rows = Shape<start = 0, end = 1>(padding)
        row_count = Squeeze(rows)
        r_flat = Range(zero, row_count, one)
        r = Unsqueeze(r_flat, axes_1_2_3)
        c = Range(zero, sk, one)
        c4 = Unsqueeze(c, axes_0_1_2)
        m = Max(r, c4)
        shape = Shape(m)
        r_full = Expand(r, shape)
        c_full = Expand(c4, shape)
        last = Constant<value_ints = [-1]>()
        r5 = Unsqueeze(r_full, last)
        c5 = Unsqueeze(c_full, last)
        rc = Concat<axis = -1>(r5, c5)
        keep = GatherND(b, rc)
        """
        + FILLED,
        MaskMeaning(paddings=(PADDING,), fill=LOWEST),
        constants={"axes_1_2_3": np.array([1, 2, 3]), "axes_0_1_2": np.array([0, 1, 2])},
    ),
    "padding gathered from a flat copy": Mask(
        """
        b = Cast<to = 9>(padding)
        flat = Flatten<axis = 2>(b)
        sizes = Shape(padding)
        rows = Gather(sizes, zero)
        columns = Gather(sizes, one)
        r_flat = Range(zero, rows, one)
        r = Unsqueeze(r_flat, axes_1_2_3)
        start = Mul(r, columns)
        c = Range(zero, columns, one)
        where = Add(c, start)
        found = Gather(flat, where)
        shape = Shape(where)
        keep = Reshape(found, shape)
        """
        + FILLED,
        MaskMeaning(paddings=(PADDING,), fill=LOWEST),
        constants={"axes_1_2_3": np.array([1, 2, 3])},
    ),
    "a bias with a mask": Mask(
        ALLOWED
        + """
        lowest = Constant<value_float = -3.4028234663852886e38>()
        m = Where(wide, nothing, lowest)
        kt = Transpose<perm = [0, 1, 3, 2]>(k)
        scores = MatMul(q, kt)
        bias = Cos(scores)
        mask = Add(bias, m)
        """,
        MaskMeaning(paddings=(PADDING,), fill=LOWEST, rest="bias"),
    ),
    "a bias replaced by a fill": Mask(
        ALLOWED
        + """
        masked = Not(wide)
        lowest = Constant<value_float = -3.4028234663852886e38>()
        kt = Transpose<perm = [0, 1, 3, 2]>(k)
        scores = MatMul(q, kt)
        bias = Cos(scores)
        mask = Where(masked, lowest, bias)
        """,
        MaskMeaning(paddings=(PADDING,), fill=LOWEST, rest="bias", rest_under_fill=False),
    ),
    "a bias alone": Mask("kt = Transpose<perm = [0, 1, 3, 2]>(k)\n s = MatMul(q, kt)\n mask = Cos(s)", None),
    "an untrained bias": Mask("mask = Identity(table)", None, constants={"table": np.zeros((1, 2, 1, 1), np.float32)}),
    "two fills": Mask(
        POSITIONS
        + ALLOWED
        + """
        c = LessOrEqual(j, i)
        low = Constant<value_float = -10000.0>()
        first = Where(c, nothing, low)
        second = Where(wide, nothing, low)
        mask = Add(first, second)
        """,
        None,
        constants=POSITION_AXES,
    ),
    "the same length from sums": Mask(
        """
        new = Sub(sk, sq)
        all = Add(new, sq)
        i_flat = Range(zero, sq, one)
        i = Unsqueeze(i_flat, axis_1)
        j = Range(zero, all, one)
        now = Add(i, new)
        keep = LessOrEqual(j, now)
        """
        + FILLED,
        MaskMeaning(CausalMode.BOTTOM_RIGHT, fill=LOWEST),
        constants=POSITION_AXES,
    ),
    "positions from sums of ones": Mask(
        SHAPE
        + """
        unit = ConstantOfShape<value = int64[1] {1}>(sk1)
        counted = CumSum(unit, zero)
        j = Sub(counted, one)
        i = Range(zero, sq, one)
        column = Unsqueeze(i, axis_1)
        keep = LessOrEqual(j, column)
        """
        + FILLED,
        CAUSAL_TOP_LEFT,
        constants=POSITION_AXES,
    ),
    "sums of padding stay a tensor": Mask(
        """
        counted = CumSum(padding, one)
        some = Less(counted, two)
        keep = Unsqueeze(some, axes_1_2)
        """
        + FILLED,
        MaskMeaning(paddings=(PaddingMask("some", (1, 2)),), fill=LOWEST),
    ),
    "neighbours in a concatenation": Mask(
        POSITIONS
        + """
        first = Constant<value_ints = [-1]>()
        before = Concat<axis = 0>(first, j)
        start = Constant<value_ints = [0]>()
        sk1 = Unsqueeze(sk, axis_0)
        cut = Slice(before, start, sk1, start)
        step = Sub(j, cut)
        together = Equal(step, one)
        c = LessOrEqual(j, i)
        keep = And(c, together)
        """
        + FILLED,
        CAUSAL_TOP_LEFT,
        constants=POSITION_AXES,
    ),
}


def read(mask: Mask) -> tuple[ModelProto, MaskMeaning | None]:
    model = mask.model()
    onnx.checker.check_model(model)
    return model, read_mask(view_of(model), "mask", "raw")


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_is_read_for_what_it_is(mask: Mask) -> None:
    _, meaning = read(mask)
    assert meaning == mask.meaning


@pytest.mark.parametrize(
    "mask", [mask for mask in MASKS.values() if mask.meaning], ids=[name for name in MASKS if MASKS[name].meaning]
)
def test_equals_the_mask_that_runs(mask: Mask) -> None:
    model, meaning = read(mask)
    assert meaning is not None
    for feeds, scores in mask.feeds():
        assert_mask_equals(model, "mask", meaning, feeds, scores)
