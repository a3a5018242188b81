"""Loading: what is wrong with a file is said in one line; external data stays unread."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from chain_models import FORMS, attention
from onnx import ModelProto, TensorProto

from attngraft.errors import ModelError
from attngraft.match import match_model
from attngraft.onnx_graph import load_model

Write = Callable[..., Path]


def refusal(path: Path) -> str:
    """The message with which the file is refused; it names the file and is one line."""
    with pytest.raises(ModelError) as caught:
        load_model(path)
    message = str(caught.value)
    assert "\n" not in message
    assert path.stem in message
    return message


def externalised(folder: Path, model: ModelProto, *, above: int = 0) -> Path:
    """Saves the model with the tensors above a size in weights.bin beside it."""
    path = folder / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=above)
    return path


def weighted() -> ModelProto:
    """Attention with a 4 KiB additive initializer and a scalar scale."""
    chain = "s = MatMul(q, kt) t = Mul(s, c) m = Add(t, b) p = Softmax<axis = -1>(m)"
    return attention(chain, constants={"c": 0.5, "b": np.zeros((1, 1, 32, 32), np.float32)})


def test_missing_file(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "absent.onnx")


def test_a_folder(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(tmp_path)


@pytest.mark.parametrize("content", [b"", b"this is text\n", b"\x00\x01\x02" * 100, b"PK\x03\x04" + b"\x00" * 64])
def test_not_onnx(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    assert "is not an ONNX file or is truncated" in refusal(path)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.99])
def test_truncated(written: Write, share: float) -> None:
    path = written(weighted())
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    assert "truncated" in refusal(path)


def test_missing_external_data(tmp_path: Path) -> None:
    path = externalised(tmp_path, weighted())
    (tmp_path / "weights.bin").unlink()
    assert "external data file 'weights.bin'" in refusal(path)


def test_short_external_data(tmp_path: Path) -> None:
    path = externalised(tmp_path, weighted())
    weights = tmp_path / "weights.bin"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ModelError, match=r"weights\.bin: has \d+ bytes, but tensor 'b' ends at byte"):
        load_model(path)


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/passwd", ""])
def test_external_data_outside_the_folder(tmp_path: Path, location: str) -> None:
    path = externalised(tmp_path, weighted())
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    path.write_bytes(model.SerializeToString())
    assert "not a file below the model's folder" in refusal(path)


def test_large_tensors_stay_outside_and_small_ones_are_read(tmp_path: Path) -> None:
    model = load_model(externalised(tmp_path, weighted()))
    where = {tensor.name: tensor.data_location for tensor in model.graph.initializer}
    assert where == {"b": TensorProto.EXTERNAL, "c": TensorProto.DEFAULT}
    (site,) = match_model(model).sites
    assert site.config.scale == 0.5


def test_cycle(written: Write) -> None:
    model = FORMS["mul"].model()
    model.graph.node[1].input[0] = "t"
    assert "cycle" in refusal(written(model))


def test_unsorted_nodes(written: Write) -> None:
    model = FORMS["mul"].model()
    last = model.graph.node.pop()
    model.graph.node.insert(0, last)
    assert "topological order" in refusal(written(model))


def test_tensor_that_nothing_makes(written: Write) -> None:
    model = FORMS["mul"].model()
    model.graph.node[1].input[0] = "nothing"
    assert "which nothing makes" in refusal(written(model))


def test_output_that_nothing_makes(written: Write) -> None:
    model = FORMS["mul"].model()
    model.graph.output[0].name = "nothing"
    assert "made by no node" in refusal(written(model))


def test_old_opset(written: Write) -> None:
    model = FORMS["bare"].model()
    model.opset_import[0].version = 10
    assert "opset 10 is older than 11" in refusal(written(model))


def test_unknown_element_type_of_a_weight(written: Write) -> None:
    model = FORMS["mul"].model()
    model.graph.initializer[0].data_type = 999
    assert "element type 999" in refusal(written(model))


def test_unknown_element_type_of_an_input(written: Write) -> None:
    model = FORMS["mul"].model()
    model.graph.input[0].type.tensor_type.elem_type = 999
    assert "element type 999" in refusal(written(model))


def test_subgraphs_are_checked_too(written: Write) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (bool flag, float[N] x) => (float[N] out)
        { out = If(flag) <then_branch = yes () => (float[N] y) { y = Neg(x) },
                          else_branch = no () => (float[N] z) { z = Neg(x) }> }
    """)
    load_model(written(model))
    model.graph.node[0].attribute[0].g.node[0].input[0] = "nothing"
    assert "'nothing'" in refusal(written(model))
