"""Sizes that belong together agree, others differ, and a model is tried with what it accepts."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from chain_models import FORMS, attention
from onnx import ModelProto, TensorProto

from attngraft.match import match_model
from attngraft.verify import verify_models
from attngraft.verify.inputs import InputKinds, draw_inputs, input_kinds
from attngraft.verify.shapes import InputSpec, Shapes, size_plans

INT, FLOAT = TensorProto.INT64, TensorProto.FLOAT


def kinds_of(model: ModelProto) -> InputKinds:
    return input_kinds(model, match_model(model).sites)


def specs(**inputs: tuple[int, list[int | str]]) -> tuple[InputSpec, ...]:
    return tuple(InputSpec(name, dtype, tuple(dims)) for name, (dtype, dims) in inputs.items())


def first_shapes(inputs: tuple[InputSpec, ...], masks: set[str]) -> list[Shapes]:
    return [group[0] for group in size_plans(inputs, None, masks)]


def test_lengths_are_odd_even_and_one() -> None:
    lengths = [
        shapes["ids"][1] for shapes in first_shapes(specs(ids=(INT, ["b", "s"]), mask=(INT, ["b", "s"])), {"mask"})
    ]
    assert lengths == [7, 16, 1]


def test_symbols_that_exporters_name_differently_still_agree() -> None:
    inputs = specs(
        input_ids=(INT, ["s10", "s21"]),
        token_type_ids=(INT, ["s10", "s33"]),
        position_ids=(INT, ["s77", "s34"]),
        attention_mask=(INT, ["s86", "s12"]),
    )
    for shapes in first_shapes(inputs, {"attention_mask"}):
        assert len(set(shapes.values())) == 1


def test_encoder_and_decoder_differ_and_their_masks_go_along() -> None:
    inputs = specs(
        input_ids=(INT, ["b", "s"]),
        attention_mask=(INT, ["b", "s_mask"]),
        decoder_input_ids=(INT, ["b", "t"]),
        decoder_attention_mask=(INT, ["b", "t_mask"]),
    )
    for shapes in first_shapes(inputs, {"attention_mask", "decoder_attention_mask"}):
        assert shapes["attention_mask"] == shapes["input_ids"]
        assert shapes["decoder_attention_mask"] == shapes["decoder_input_ids"]
        assert shapes["decoder_input_ids"][1] != shapes["input_ids"][1]


def test_queries_and_keys_differ() -> None:
    kinds = kinds_of(FORMS["additive mask"].model())
    for group in size_plans(kinds.specs, None, kinds.masks):
        assert group[0]["q"][2] != group[0]["k"][2]
        assert group[0]["added"][3] == group[0]["k"][2] == group[0]["v"][2]


@pytest.mark.parametrize(
    "names", [("k", "v"), ("past_key_values.0.key", "past_key_values.0.value"), ("cache_k", "cache_v")]
)
def test_a_mask_is_as_long_as_cache_and_ids(names: tuple[str, str]) -> None:
    inputs = specs(
        input_ids=(INT, ["b", "s"]),
        attention_mask=(INT, ["b", "total"]),
        **{name: (FLOAT, ["b", 2, "past", 8]) for name in names},
    )
    for shapes in first_shapes(inputs, {"attention_mask"}):
        assert shapes["attention_mask"][1] == shapes["input_ids"][1] + shapes[names[0]][2]
        assert shapes[names[0]][2] > 0
        assert shapes[names[0]] == shapes[names[1]]


def test_full_masks_have_queries_and_keys() -> None:
    inputs = specs(input_ids=(INT, ["b", "s"]), attention_mask=(FLOAT, ["b", 1, "q", "k"]))
    for shapes in first_shapes(inputs, {"attention_mask"}):
        length = shapes["input_ids"][1]
        assert shapes["attention_mask"][1:] == (1, length, length)


def test_images_are_not_square_first_and_larger_ones_follow() -> None:
    groups = size_plans(specs(pixels=(FLOAT, ["b", 3, "h", "w"])), None)
    assert groups[0][0]["pixels"] == (3, 3, 32, 64)
    assert (3, 3, 32, 32) in [shapes["pixels"] for shapes in groups[0]]
    assert {shapes["pixels"][2] for group in groups for shapes in group} == {32, 64, 224, 256, 384}


def test_computed_dimensions() -> None:
    inputs = specs(now=(INT, ["b", "s"]), mask=(INT, ["b", "past + s"]), twice=(FLOAT, ["b", "2*s - 1", "s//2"]))
    for shapes in first_shapes(inputs, {"mask"}):
        length = shapes["now"][1]
        assert shapes["mask"][1] > length
        assert shapes["twice"] == (shapes["now"][0], 2 * length - 1, length // 2)


@pytest.mark.parametrize("symbol", ["Max(1, s0)", "2*(s", "axis 1", "a.b", "s0 @ s1"])
def test_what_is_no_arithmetic_is_a_symbol(symbol: str) -> None:
    (shapes, *_), *_ = size_plans(specs(x=(FLOAT, ["b", symbol]), y=(FLOAT, ["b", 2, symbol])), None)
    assert shapes["x"][1] == shapes["y"][2] == 7


def test_no_shapes_are_tried_twice() -> None:
    groups = size_plans(specs(x=(FLOAT, [2, 7, 4])), None)
    assert groups == [[{"x": (2, 7, 4)}]]


def square_mask_model() -> ModelProto:
    """A mask [queries, keys] with symbols of its own, as nn.MultiheadAttention has it."""
    model = attention("s = MatMul(q, kt) m = Where(keep, s, f) p = Softmax<axis = -1>(m)", constants={"f": -1e9})
    model.graph.input.append(onnx.helper.make_tensor_value_info("keep", TensorProto.BOOL, ["s0", "s1"]))
    return model


def test_a_mask_of_queries_and_keys_is_found_out_by_trying() -> None:
    model = square_mask_model()
    report = verify_models(model, model)
    assert report.passed
    assert any("3x2x7x4" in case for case in report.cases)


def test_a_model_that_takes_one_image_at_a_time() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[B,S,4] x) => (float[S,4] out) { out = Squeeze(x, axis) }
    """)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "axis"))
    report = verify_models(model, model)
    assert report.passed
    assert {case.split()[-1][0] for case in report.cases} == {"1"}
    assert not report.notes


def test_cases_of_a_cached_model_are_drawn_alike() -> None:
    model = attention("s = MatMul(q, kt) p = Softmax<axis = -1>(s)")
    kinds = kinds_of(model)
    shapes = size_plans(kinds.specs, None, kinds.masks)[0][0]
    for case in draw_inputs(kinds, shapes, seed=3):
        assert {name: array.shape for name, array in case.feeds.items()} == shapes
