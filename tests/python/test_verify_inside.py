"""Results of attention sites are compared inside the model, where nothing has shrunk a difference yet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from chain_models import attention
from onnx import ModelProto, TensorProto
from test_onnx_graph_load import externalised, weighted

from attngraft.errors import VerificationError
from attngraft.lower import lower_model
from attngraft.match import match_model
from attngraft.verify import verify_models
from attngraft.verify.inside import inside_tensors, made_in, with_outputs

Write = Callable[..., Path]

FADING = "o = MatMul(p, v) small = Mul(o, little) one = Add(small, c) out = Add(one, one)"
"""An output in which the attention hardly shows, as in models with small random weights."""


def fading(scale: float, *, dtype: str = "float") -> ModelProto:
    return attention(
        "s = MatMul(q, kt) t = Mul(s, c) p = Softmax<axis = -1>(t)",
        values=FADING,
        constants={"c": scale, "little": 1e-5},
        dtype=dtype,
    )


def site_results(model: ModelProto) -> tuple[str, ...]:
    return inside_tensors(model, match_model(model).sites)


def test_what_hardly_shows_in_the_output_is_found_inside() -> None:
    model = fading(0.5)
    wrong = fading(0.5)
    wrong.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0.51), "other"))
    next(node for node in wrong.graph.node if node.output[0] == "t").input[1] = "other"
    report = verify_models(model, wrong)
    assert not report.passed
    assert [row.name for row in report.outputs if not row.passed] == ["o (inside)"]
    with pytest.raises(VerificationError, match=r"'o \(inside\)' differs by"):
        report.raise_if_failed()


def test_equal_sites_are_counted_in_a_note() -> None:
    model = fading(0.5)
    report = verify_models(model, lower_model(model, match_model(model), {"p": "softmax"}))
    assert report.passed
    assert [row.name for row in report.outputs] == ["out"]
    assert "1 results of attention sites are equal" in report.notes[-1]


def test_results_that_are_zero_prove_little() -> None:
    model = attention(
        "s = MatMul(q, kt) p = Softmax<axis = -1>(s)",
        values="none = Mul(v, nothing) o = MatMul(p, none) out = Add(o, q)",
        constants={"nothing": 0.0},
    )
    report = verify_models(model, model)
    assert report.passed
    assert "are 0 everywhere, which proves little" in report.notes[-1]


def test_half_types_are_compared_inside_too() -> None:
    assert not verify_models(fading(0.5, dtype="float16"), fading(0.6, dtype="float16")).passed


def test_a_result_that_is_gone_is_passed_over() -> None:
    """The same function with other names inside."""
    model = fading(0.5)
    other = fading(0.5)
    for node in other.graph.node:
        node.input[:] = ["elsewhere" if name == "o" else name for name in node.input]
        node.output[:] = ["elsewhere" if name == "o" else name for name in node.output]
    assert made_in(other, ["o", "p"]) == ("p",)
    assert verify_models(model, other).passed


def test_outputs_are_not_looked_at_twice() -> None:
    plain = attention("s = MatMul(q, kt) p = Softmax<axis = -1>(s)")
    assert site_results(plain) == ()
    assert site_results(fading(0.5)) == ("o",)


def test_models_with_large_weights_inside_are_not_copied() -> None:
    model = fading(0.5)
    tensor = model.graph.initializer.add(name="large", data_type=TensorProto.FLOAT, dims=[2**27])
    assert site_results(model) == ()
    tensor.data_location = TensorProto.EXTERNAL
    assert site_results(model) == ("o",)


def test_the_model_itself_gets_no_outputs() -> None:
    model = fading(0.5)
    before = model.SerializeToString()
    assert [value.name for value in with_outputs(model, ["o"]).graph.output] == ["out", "o"]
    assert model.SerializeToString() == before


def test_external_data_is_found_when_looking_inside(tmp_path: Path) -> None:
    model = weighted()
    output = model.graph.output[0].name
    model.graph.node.append(onnx.helper.make_node("Identity", [output], ["last"]))
    model.graph.output[0].name = "last"
    path = externalised(tmp_path, model)
    shapes = {"q": (1, 2, 32, 4), "k": (1, 2, 32, 4)}
    report = verify_models(path, path, shapes=shapes)
    assert report.passed
    assert any("compared inside the model too" in note for note in report.notes)
