"""What reading masks promises beyond single forms: conditions, types, subgraphs, limits, graphs that are not sound."""

from __future__ import annotations

import time

import numpy as np
import onnx
import pytest
from meaning_proof import assert_condition_equals, assert_mask_equals, padding_masks, view_of
from onnx import ModelProto, TensorProto

from attngraft.contract import CausalMode
from attngraft.match.meaning import MaskMeaning, PaddingMask, read_condition, read_mask
from attngraft.match.meaning.tables import MAX_TABLE_BYTES
from attngraft.onnx_graph import GraphView
from attngraft.onnx_graph.view import infer_types

PADDING = PaddingMask("padding", (1, 2))
CAUSAL = CausalMode.TOP_LEFT
SCORES = (None, 2, None, None)

CAUSAL_AND_PADDING = """
    zero = Constant<value_int = 0>()
    one = Constant<value_int = 1>()
    sizes = Shape(padding)
    length = Gather(sizes, one)
    j = Range(zero, length, one)
    i = Unsqueeze(j, axis_1)
    causal = LessOrEqual(j, i)
    b = Cast<to = 9>(padding)
    wide = Unsqueeze(b, axes_1_2)
    keep = And(causal, wide)
    masked = Not(keep)
"""


def model_of(text: str, output: str, inputs: str = "int64[B,S] padding", **constants: object) -> ModelProto:
    model = onnx.parser.parse_model(f"""
    <ir_version: 8, opset_import: ["" : 17]>
    masks ({inputs}) => ({output}) {{ {text} }}
    """)
    for name, value in {"axis_1": [1], "axes_1_2": [1, 2], **constants}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    return model


@pytest.mark.parametrize(("condition", "invert"), [("keep", False), ("masked", True)])
def test_condition(condition: str, invert: bool) -> None:
    model = model_of(CAUSAL_AND_PADDING, "bool[B,1,S,S] masked")
    meaning = read_condition(view_of(model), condition, SCORES, invert)
    assert meaning == MaskMeaning(CAUSAL, paddings=(PADDING,))
    for batch, length in ((1, 1), (3, 7)):
        for padding in padding_masks(batch, length):
            assert_condition_equals(
                model, condition, meaning, {"padding": padding}, (batch, 2, length, length), invert=invert
            )


def test_condition_without_words_stays_itself() -> None:
    model = model_of(CAUSAL_AND_PADDING, "bool[B,1,S,S] masked")
    inverted = MaskMeaning(paddings=(PaddingMask("keep", invert=True),))  # no conjunction says where it is masked
    assert read_condition(view_of(model), "masked", SCORES) == inverted
    assert read_condition(view_of(model), "wide", SCORES) == MaskMeaning(paddings=(PADDING,))
    inner = model_of("keep = Identity(given)", "bool[B,1,S,S] keep", "bool[B,1,S,S] given")
    assert read_condition(view_of(inner), "given", SCORES) is None
    assert read_condition(view_of(inner), "keep", SCORES) == MaskMeaning(paddings=(PaddingMask("given"),))


@pytest.mark.parametrize(
    ("dtype", "number", "fill"), [("float16", 10, -np.inf), ("bfloat16", 16, -99840.0), ("double", 11, -1e5)]
)
def test_fill_as_the_type_holds_it(dtype: str, number: int, fill: float) -> None:
    """-1e5 is -inf in float16, and rounded in bfloat16."""
    text = f"""
        zero32 = Constant<value_float = 0.0>()
        fill32 = Constant<value_float = -100000.0>()
        zero = Cast<to = {number}>(zero32)
        fill = Cast<to = {number}>(fill32)
        b = Cast<to = {number}>(padding)
        wide = Unsqueeze(b, axes_1_2)
        gone = Equal(wide, zero)
        mask = Where(gone, fill, zero)
    """
    view = view_of(model_of(text, f"{dtype}[B,1,1,S] mask"))
    assert read_mask(view, "mask", SCORES) == MaskMeaning(paddings=(PADDING,), fill=fill)


def test_positions_in_float16_are_not_exact() -> None:
    text = """
        zero = Constant<value_int = 0>()
        one = Constant<value_int = 1>()
        sizes = Shape(padding)
        length = Gather(sizes, one)
        whole = Range(zero, length, one)
        j = Cast<to = 10>(whole)
        i = Unsqueeze(j, axis_1)
        keep = GreaterOrEqual(i, j)
    """
    view = view_of(model_of(text, "bool[S,S] keep"))
    assert read_condition(view, "keep", SCORES) is None
    exact = view_of(model_of(text.replace("to = 10", "to = 1"), "bool[S,S] keep"))
    assert read_condition(exact, "keep", SCORES) == MaskMeaning(CAUSAL)


def test_narrowed_padding_is_read_no_further_than_the_cast() -> None:
    """256 is 0 in int8."""
    text = "small = Cast<to = 3>(padding)\n b = Cast<to = 9>(small)\n keep = Unsqueeze(b, axes_1_2)"
    view = view_of(model_of(text, "bool[B,1,1,S] keep"))
    assert read_condition(view, "keep", SCORES) == MaskMeaning(paddings=(PaddingMask("small", (1, 2)),))


def test_padding_in_floats_is_read_where_it_is_tested() -> None:
    text = "b = Cast<to = 9>(padding)\n keep = Unsqueeze(b, axes_1_2)"
    view = view_of(model_of(text, "bool[B,1,1,S] keep", "float[B,S] padding"))
    assert read_condition(view, "keep", SCORES) == MaskMeaning(paddings=(PaddingMask("b", (1, 2)),))


@pytest.mark.parametrize("start", [0, 1])
def test_longer_padding_is_not_taken_for_the_keys(start: int) -> None:
    """T of S columns: what was cut out is the padding, not the whole."""
    text = f"""
        start = Constant<value_ints = [{start}]>()
        length = Shape<start = 1, end = 2>(k)
        end = Add(start, length)
        cut = Slice(padding, start, end, axis_1)
        b = Cast<to = 9>(cut)
        keep = Unsqueeze(b, axes_1_2)
    """
    view = view_of(model_of(text, "bool[B,1,1,T] keep", "int64[B,S] padding, float[B,T] k"))
    meaning = read_condition(view, "keep", SCORES)
    assert meaning is not None
    assert [padding.tensor for padding in meaning.paddings] == ["cut"]


@pytest.mark.parametrize(
    ("text", "reason"), [("mask = Cos(x)", "unknown operator"), ("mask = Identity(x)", "an input")]
)
def test_any_other_tensor_means_nothing(text: str, reason: str) -> None:
    view = view_of(model_of(text, "float[B,2,S,S] mask", "float[B,2,S,S] x"))
    assert read_mask(view, "mask", SCORES) is None, reason


def test_unknown_ranks_and_names() -> None:
    model = model_of("mask = Cos(x)", "float[B,2,S,S] mask", "float[B,2,S,S] x")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    view = view_of(model)
    assert read_mask(view, "mask", SCORES) is None
    assert read_mask(view, "mask", "mask") is None
    assert read_mask(view, "no such tensor", SCORES) is None


def test_rank_above_the_scores() -> None:
    model = model_of(CAUSAL_AND_PADDING, "bool[B,1,S,S] masked")
    assert read_condition(view_of(model), "keep", (None, None, None)) is None


def test_mask_of_an_outer_graph() -> None:
    """The branch of an If sees the names around it, and so does the reader."""
    model = model_of(
        CAUSAL_AND_PADDING
        + """
        y = If (flag) <
            then_branch = yes () => (bool[B,1,S,S] t) { t = Identity(keep) },
            else_branch = no () => (bool[B,1,S,S] e) { e = Not(keep) }
        >
        """,
        "bool[B,1,S,S] y",
        "int64[B,S] padding, bool flag",
    )
    inferred = infer_types(model)
    outer = GraphView(model.graph, inferred.graph)
    branch = model.graph.node[-1].attribute[0].g
    inner = GraphView(branch, inferred.graph.node[-1].attribute[0].g, outer)
    assert read_condition(inner, "t", SCORES) == MaskMeaning(CAUSAL, paddings=(PADDING,))


def buffer_model(length: int) -> ModelProto:
    text = f"""
        start = Constant<value_ints = [0, 0]>()
        sizes = Shape(padding)
        one1 = Constant<value_ints = [1]>()
        length = Gather(sizes, one1)
        ends = Concat<axis = 0>(length, length)
        axes = Constant<value_ints = [0, 1]>()
        keep = Slice(buffer, start, ends, axes)
        limit = Constant<value_int = {length}>()
    """
    return model_of(text, "bool[S,S] keep", buffer=np.tril(np.ones((length, length), bool)))


def test_large_buffers_are_read_up_to_a_limit() -> None:
    model = buffer_model(1024)
    assert read_condition(view_of(model), "keep", SCORES) == MaskMeaning(CAUSAL)
    assert buffer_model(4097).graph.initializer[-1].ByteSize() > MAX_TABLE_BYTES
    assert read_condition(view_of(buffer_model(4097)), "keep", SCORES) is None


def test_buffer_outside_the_model_is_not_read() -> None:
    model = buffer_model(64)
    buffer = next(tensor for tensor in model.graph.initializer if tensor.name == "buffer")
    buffer.ClearField("raw_data")
    buffer.data_location = TensorProto.EXTERNAL
    buffer.external_data.add(key="location", value="elsewhere.bin")
    assert read_condition(view_of(model), "keep", SCORES) is None


def test_buffer_that_callers_may_replace_is_not_read() -> None:
    """An initializer that is an input too is only a default."""
    model = buffer_model(64)
    model.graph.input.append(onnx.helper.make_tensor_value_info("buffer", TensorProto.BOOL, (64, 64)))
    assert read_condition(view_of(model), "keep", SCORES) is None


def test_sums_that_are_not_numbers_mean_nothing() -> None:
    """0 * -inf is NaN where the key may be attended."""
    text = """
        f = Cast<to = 1>(padding)
        wide = Unsqueeze(f, axes_1_2)
        unit = Constant<value_float = 1.0>()
        inverted = Sub(unit, wide)
        mask = Mul(inverted, minus)
    """
    model = model_of(text, "float[B,1,1,S] mask", minus=np.float32(-np.inf))
    assert read_mask(view_of(model), "mask", SCORES) is None


def test_circle_ends() -> None:
    model = model_of("a = Add(b, padding)\n b = Add(a, padding)", "int64[B,S] a")
    assert read_mask(view_of(model), "a", SCORES) is None


def test_deep_graphs_are_left_alone_without_an_error() -> None:
    lines = ["x0 = Identity(b)"] + [f"x{k} = Not(x{k - 1})" for k in range(1, 5001)]
    text = "b = Cast<to = 9>(padding)\n" + "\n".join(lines)
    view = view_of(model_of(text, "bool[B,S] x5000"))
    start = time.monotonic()
    meaning = read_condition(view, "x5000", SCORES)
    assert time.monotonic() - start < 5
    assert meaning is None or meaning.paddings[0].tensor.startswith("x")


def test_layers_share_what_was_read() -> None:
    """A thousand sites with a mask of their own each, over one condition: milliseconds a site, not all of it again."""
    layers = "\n".join(f"mask{k} = Where(keep, nothing, lowest)" for k in range(1000))
    text = CAUSAL_AND_PADDING + "\nnothing = Constant<value_float = 0.0>()\n lowest = Constant<value_float = -9e9>()\n"
    view = view_of(model_of(text + layers, "float[B,1,S,S] mask0"))
    expected = MaskMeaning(CAUSAL, paddings=(PADDING,), fill=float(np.float32(-9e9)))
    start = time.monotonic()
    assert all(read_mask(view, f"mask{k}", SCORES) == expected for k in range(1000))
    assert time.monotonic() - start < 4


def test_order_of_paddings_is_stable() -> None:
    text = """
        b = Cast<to = 9>(padding)
        wide = Unsqueeze(b, axes_1_2)
        keep0 = And(wide, other)
        keep = And(keep0, third)
    """
    inputs = "int64[B,S] padding, bool[B,1,S,S] third, bool[1,1,S,S] other"
    view = view_of(model_of(text, "bool[B,1,S,S] keep", inputs))
    meaning = read_condition(view, "keep", SCORES)
    assert meaning is not None
    assert [padding.tensor for padding in meaning.paddings] == ["other", "padding", "third"]


def test_mask_computed_twice_from_one_padding() -> None:
    """Tested against 0 here and computed with there: the stricter of the two is what holds."""
    text = """
        b = Cast<to = 9>(padding)
        wide = Unsqueeze(b, axes_1_2)
        f = Cast<to = 1>(padding)
        wide_f = Unsqueeze(f, axes_1_2)
        unit = Constant<value_float = 1.0>()
        inverted = Sub(unit, wide_f)
        low = Constant<value_float = -10000.0>()
        scaled = Mul(inverted, low)
        mask = Where(wide, scaled, low)
    """
    model = model_of(text, "float[B,1,1,S] mask")
    meaning = read_mask(view_of(model), "mask", SCORES)
    assert meaning == MaskMeaning(paddings=(PaddingMask("padding", (1, 2), zero_one=False),), fill=-1e4)
    for padding in padding_masks(2, 5):
        assert_mask_equals(model, "mask", meaning, {"padding": padding}, (2, 2, 5, 5))
