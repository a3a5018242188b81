"""From file to file: what is written, what is refused, and that a failure leaves what was there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from chain_models import FORMS, attention
from test_onnx_graph_load import externalised, weighted

from attngraft import rewrite
from attngraft.errors import ModelError, RewriteError, VerificationError
from attngraft.onnx_graph import load_model
from attngraft.rewrite import rewrite_model

Write = Callable[..., Path]

EXPORTS = (
    "bert_sdpa_torchscript",
    "bert_eager_fp16_dynamo",
    "bert_attentions_dynamo",
    "gpt2_sdpa_dynamo",
    "llama_eager_fp16_torchscript",
    "sdpa_boolean_dynamo",
)


@pytest.mark.parametrize("name", EXPORTS)
def test_real_exports_are_rewritten_and_proved(data_folder: Path, tmp_path: Path, name: str) -> None:
    source = data_folder / f"{name}.onnx"
    result = rewrite_model(source, tmp_path / "out.onnx", lower="softmax")
    assert result.lowered == len(result.sites.sites) == 1
    assert result.report.passed
    assert sum("one row masked" in case for case in result.report.cases) == 2
    onnx.checker.check_model(tmp_path / "out.onnx")
    rewritten = load_model(tmp_path / "out.onnx")
    operators = [node.op_type for node in rewritten.graph.node]
    assert operators.count("MaskedSoftmax") == 1
    assert not {"Softmax", "IsNaN"} & set(operators)
    before = load_model(source)
    assert rewritten.graph.input == before.graph.input
    assert rewritten.graph.output == before.graph.output


def test_metadata_of_untouched_nodes_survives(data_folder: Path, tmp_path: Path) -> None:
    source = data_folder / "sdpa_boolean_dynamo.onnx"
    rewrite_model(source, tmp_path / "out.onnx", lower="softmax")
    before = {node.output[0]: node for node in load_model(source).graph.node}
    kept = [node for node in load_model(tmp_path / "out.onnx").graph.node if node.op_type == "MatMul"]
    assert kept
    assert all(node.metadata_props == before[node.output[0]].metadata_props for node in kept)


def test_auto_keeps_what_gains_nothing(data_folder: Path, tmp_path: Path) -> None:
    source = data_folder / "gpt2_sdpa_dynamo.onnx"
    result = rewrite_model(source, tmp_path / "out.onnx")
    assert result.lowered == 0
    assert result.report is None
    assert "makes the model slower" in next(iter(result.reasons.values()))
    assert load_model(tmp_path / "out.onnx") == load_model(source)


def test_auto_lowers_probabilities_that_are_an_output(data_folder: Path, tmp_path: Path) -> None:
    result = rewrite_model(data_folder / "bert_attentions_dynamo.onnx", tmp_path / "out.onnx")
    assert result.lowered == 1
    assert [row.name for row in result.report.outputs] == [v.name for v in load_model(result.target).graph.output]


def test_in_place(written: Write) -> None:
    path = written(FORMS["mul"].model())
    rewrite_model(path, path, lower="softmax")
    assert "MaskedSoftmax" in [node.op_type for node in load_model(path).graph.node]


def test_external_data_comes_along(tmp_path: Path) -> None:
    path = externalised(tmp_path, weighted())
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    result = rewrite_model(path, folder / "out.onnx", lower="softmax", shapes={"q": (1, 2, 32, 4), "k": (1, 2, 32, 4)})
    assert result.report.passed
    assert sorted(file.name for file in folder.iterdir()) == ["out.onnx", "weights.bin"]


def test_again_is_a_no_op(written: Write, tmp_path: Path) -> None:
    first = rewrite_model(written(FORMS["mul"].model()), tmp_path / "once.onnx", lower="softmax")
    second = rewrite_model(first.target, tmp_path / "twice.onnx", lower="softmax")
    assert second.lowered == 0
    assert [other.reason for other in second.sites.others] == ["it is attngraft::MaskedSoftmax already"]
    assert load_model(tmp_path / "twice.onnx") == load_model(tmp_path / "once.onnx")


def test_progress_is_told(written: Write, tmp_path: Path) -> None:
    messages: list[str] = []
    rewrite_model(written(FORMS["mul"].model()), tmp_path / "out.onnx", lower="softmax", progress=messages.append)
    assert any(message.startswith("verify:") for message in messages)
    assert all("\n" not in message for message in messages)


@pytest.mark.parametrize("lower", ["native", "attention"])
def test_later_lowerings_are_refused(written: Write, tmp_path: Path, lower: str) -> None:
    with pytest.raises(RewriteError, match="not in this version"):
        rewrite_model(written(FORMS["mul"].model()), tmp_path / "out.onnx", lower=lower)
    assert not (tmp_path / "out.onnx").exists()


def spoil(monkeypatch: pytest.MonkeyPatch, scale: float) -> None:
    """Makes every lowering write another scale than the site's."""
    lower_model = rewrite.lower_model

    def wrong(*arguments: object) -> onnx.ModelProto:
        model = lower_model(*arguments)
        for node in model.functions[0].node:
            for attribute in node.attribute:
                if attribute.name == "value" and onnx.numpy_helper.to_array(attribute.t) == np.float32(0.5):
                    attribute.t.CopyFrom(onnx.numpy_helper.from_array(np.float32(scale)))
        return model

    monkeypatch.setattr(rewrite, "lower_model", wrong)


def test_a_wrong_rewrite_leaves_the_target_alone(
    written: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = written(FORMS["mul"].model())
    target = tmp_path / "out.onnx"
    target.write_bytes(b"what was there")
    spoil(monkeypatch, 0.25)
    with pytest.raises(VerificationError, match="differs by"):
        rewrite_model(source, target, lower="softmax")
    assert target.read_bytes() == b"what was there"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.onnx", "out.onnx"]
    rewrite_model(source, target, lower="softmax", verify=False)
    assert target.read_bytes() != b"what was there"


def test_an_interruption_leaves_nothing(written: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = written(FORMS["mul"].model())

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rewrite, "verify_models", interrupt)
    with pytest.raises(KeyboardInterrupt):
        rewrite_model(source, tmp_path / "out.onnx", lower="softmax")
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


def test_bad_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        rewrite_model(tmp_path / "absent.onnx", tmp_path / "out.onnx")
    assert not list(tmp_path.iterdir())


def test_a_model_that_onnx_finds_fault_with_already_is_still_rewritten(written: Write, tmp_path: Path) -> None:
    model = attention("s = MatMul(q, kt) t = Mul(s, c) p = Softmax<axis = -1>(t)", constants={"c": 0.5})
    model.graph.name = ""
    path = written(model)
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(path)
    assert rewrite_model(path, tmp_path / "out.onnx", lower="softmax").lowered == 1
