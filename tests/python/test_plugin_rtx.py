"""Networks with MaskedSoftmax through TensorRT-RTX's parser and builder. No GPU needed."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import TensorProto
from plugin_models import ROLE_INPUTS, build, write_model

from attngraft.contract import MaskedSoftmax

SCORES = ["batch", 12, "queries", "keys"]


@pytest.mark.parametrize("element_type", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16])
@pytest.mark.parametrize("operands", [(), ("bias",), ("bias", "keep"), ("kv_starts", "keep", "kv_lengths", "bias")])
def test_builds_every_mix_of_operands(tmp_path: Path, element_type: int, operands: tuple[str, ...]) -> None:
    inputs = {"scores": (element_type, SCORES), **{role: ROLE_INPUTS[role] for role in operands}}
    config = MaskedSoftmax(operands=operands, scale=0.125, causal="bottom_right", window_left=16)
    built = build(write_model(tmp_path / "model.onnx", config, inputs))
    assert built["plugins"] == ["site"] and built["bytes"] > 0, built["errors"]


@pytest.mark.parametrize("keep_type", [TensorProto.BOOL, TensorProto.INT8, TensorProto.INT32, TensorProto.INT64])
def test_builds_every_type_of_keep(tmp_path: Path, keep_type: int) -> None:
    inputs = {"scores": (TensorProto.FLOAT16, SCORES), "keep": (keep_type, ["keys"])}
    built = build(write_model(tmp_path / "model.onnx", MaskedSoftmax(operands=("keep",)), inputs))
    assert built["plugins"] == ["site"] and built["bytes"] > 0, built["errors"]


@pytest.mark.parametrize("rank", [2, 3, 4, 5, 6])
def test_builds_every_rank(tmp_path: Path, rank: int) -> None:
    inputs = {"scores": (TensorProto.FLOAT16, [2, 3, 4, 5][: rank - 2] + ["queries", 77])}
    built = build(write_model(tmp_path / "model.onnx", MaskedSoftmax(), inputs))
    assert built["plugins"] == ["site"] and built["bytes"] > 0, built["errors"]
    assert built["output"] == [2, 3, 4, 5][: rank - 2] + [-1, 77]


def test_a_mask_that_does_not_broadcast_is_named(tmp_path: Path) -> None:
    inputs = {"scores": (TensorProto.FLOAT16, ["batch", 12, 77, 77]), "bias": (TensorProto.FLOAT16, [76])}
    built = build(write_model(tmp_path / "model.onnx", MaskedSoftmax(operands=("bias",)), inputs))
    expected = (
        "[attngraft] MaskedSoftmax 'site': bias: has 76 where the scores have 77 in dimension 3; it does not broadcast"
    )
    assert built["bytes"] == 0 and expected in built["errors"]


def test_an_illegal_attribute_is_named(tmp_path: Path) -> None:
    inputs = {"scores": (TensorProto.FLOAT16, SCORES)}
    built = build(write_model(tmp_path / "model.onnx", MaskedSoftmax(), inputs, causal="sideways"))
    expected = (
        "[attngraft] MaskedSoftmax 'site' cannot be created: "
        "field 'causal': 'sideways' is not one of none, top_left, bottom_right"
    )
    assert built["bytes"] == 0 and expected in built["errors"]


def test_an_unsupported_type_builds_nothing(tmp_path: Path) -> None:
    inputs = {"scores": (TensorProto.INT32, SCORES)}
    built = build(write_model(tmp_path / "model.onnx", MaskedSoftmax(), inputs))
    assert built["bytes"] == 0 and built["errors"]
