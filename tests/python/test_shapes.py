"""Shape ranges: how they are written, and what a model makes of them."""

from __future__ import annotations

import pytest
from onnx import ModelProto, TensorProto, helper

from attngraft.engine import ShapeRange, parse_shape_option
from attngraft.engine.shapes import resolve_profile
from attngraft.errors import BuildError


def model_with(**inputs: list[int | str | None]) -> ModelProto:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    graph = helper.make_graph([], "graph", values, values[:1])
    return helper.make_model(graph)


def test_one_shape_is_all_three_corners() -> None:
    assert ShapeRange.parse("1x3x224x224") == ShapeRange((1, 3, 224, 224), (1, 3, 224, 224), (1, 3, 224, 224))


def test_three_corners() -> None:
    assert ShapeRange.parse("1x128:8x384:32x512") == ShapeRange((1, 128), (8, 384), (32, 512))


@pytest.mark.parametrize("text", ["7", "1x3x224x224", "1x128:8x384:32x512", "scalar", "0x4:1x4:2x4"])
def test_text_and_back(text: str) -> None:
    assert str(ShapeRange.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not a shape"),
        ("1x", "is not a shape"),
        ("1,3", "is not a shape"),
        ("-1x3", "is not a shape"),
        ("axb", "is not a shape"),
        ("1x3:2x3", "2 shapes"),
        ("1:2:3:4", "4 shapes"),
        ("1x3:2x3:4", "differ in rank"),
        ("4x3:2x3:8x3", "min <= opt <= max"),
        ("1x3:9x3:8x3", "min <= opt <= max"),
    ],
)
def test_bad_text_is_one_line(text: str, reason: str) -> None:
    with pytest.raises(BuildError, match=reason) as raised:
        ShapeRange.parse(text)
    assert "\n" not in str(raised.value)


def test_option() -> None:
    assert parse_shape_option("x=1x3") == ("x", ShapeRange.fixed((1, 3)))


def test_option_name_may_hold_separators() -> None:
    assert parse_shape_option("serving:x=0=1x3") == ("serving:x=0", ShapeRange.fixed((1, 3)))


@pytest.mark.parametrize("text", ["1x3", "=1x3", "x"])
def test_option_without_a_name(text: str) -> None:
    with pytest.raises(BuildError, match="no input name"):
        parse_shape_option(text)


def test_fixed_inputs_need_no_shape() -> None:
    profile = resolve_profile(model_with(x=[2, 3]), {})
    assert profile == {"x": ShapeRange.fixed((2, 3))}


def test_initializers_are_no_inputs() -> None:
    model = model_with(x=[2, 3], weight=["n", 3])
    model.graph.initializer.append(helper.make_tensor("weight", TensorProto.FLOAT, [1, 3], [0.0] * 3))
    assert list(resolve_profile(model, {})) == ["x"]


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        ({}, r"input 'x' is batchx3, with dynamic dimensions"),
        ({"x": "4"}, "rank 1, but the model's input is batchx3"),
        ({"x": "1x4"}, "dimension 1 is fixed at 3"),
        ({"x": "1x1:2x3:4x3"}, "dimension 1 is fixed at 3"),
        ({"x": "1x3", "image": "1x3"}, "'image': the model has no such input; its inputs are x"),
    ],
)
def test_shapes_that_contradict_the_model(shapes: dict[str, str], reason: str) -> None:
    given = {name: ShapeRange.parse(text) for name, text in shapes.items()}
    with pytest.raises(BuildError, match=reason) as raised:
        resolve_profile(model_with(x=["batch", 3]), given)
    assert "\n" not in str(raised.value)


def test_one_symbol_has_one_range() -> None:
    model = model_with(ids=["batch", "seq"], mask=["batch", "seq"])
    given = {"ids": ShapeRange.parse("1x8:2x8:4x8"), "mask": ShapeRange.parse("1x8:2x8:3x8")}
    with pytest.raises(BuildError, match="'batch' is 1:2:4 in one and 1:2:3 in the other"):
        resolve_profile(model, given)


def test_unnamed_dimensions_are_independent() -> None:
    model = model_with(a=[None, 2], b=[None, 2])
    given = {"a": ShapeRange.parse("1x2:2x2:4x2"), "b": ShapeRange.parse("5x2")}
    assert resolve_profile(model, given) == given


def test_an_input_of_unknown_rank_is_refused() -> None:
    model = model_with(x=[1])
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(BuildError, match="known rank"):
        resolve_profile(model, {})


def test_contains() -> None:
    profile = ShapeRange.parse("1x8:2x16:4x32")
    assert profile.contains((4, 8))
    assert not profile.contains((5, 8))
    assert not profile.contains((1, 7))
    assert not profile.contains((1, 8, 1))
