"""From file to file: what is written, what is refused, and that a failure leaves what was there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from chain_models import FORMS, attention
from test_onnx_graph_load import externalised, weighted
from test_verify_half import mixed_types

from attngraft import rewrite
from attngraft.contract import DOMAIN
from attngraft.errors import ModelError, RewriteError, VerificationError
from attngraft.lower import repair_model
from attngraft.onnx_graph import load_model
from attngraft.rewrite import plan_rewrite, rewrite_model, write_rewrite
from attngraft.verify import verify_models

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
    assert sum("one row masked" in case for case in result.report.cases) == 3
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


def test_a_lowering_that_no_site_can_take_is_refused(written: Write, tmp_path: Path) -> None:
    doubles = attention("s = MatMul(q, kt) p = Softmax<axis = -1>(s)", dtype="double")
    with pytest.raises(RewriteError, match="float64.*no attention site"):
        rewrite_model(written(doubles), tmp_path / "out.onnx", lower="attention")
    assert not (tmp_path / "out.onnx").exists()


def spoil(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Makes the lowering of these sites (their probabilities' names) wrong: it adds 0.25 to each probability."""
    lower_model = rewrite.lower_model

    def wrong(*arguments: object) -> onnx.ModelProto:
        model = lower_model(*arguments)
        for index, node in reversed(list(enumerate(model.graph.node))):
            if node.domain == DOMAIN and node.output[0] in names:
                name, node.output[0] = node.output[0], f"{node.output[0]}_right"
                model.graph.node.insert(index + 1, onnx.helper.make_node("Add", [node.output[0], "wrong"], [name]))
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0.25), "wrong"))
        return model

    monkeypatch.setattr(rewrite, "lower_model", wrong)


def several_sites(count: int) -> onnx.ModelProto:
    """Attention whose result is the query of the next; the probabilities are p0, p1, ..."""
    chain = " ".join(
        f"s{i} = MatMul({f'u{i - 1}' if i else 'q'}, kt) t{i} = Mul(s{i}, c) p{i} = Softmax<axis = -1>(t{i}) "
        f"u{i} = MatMul(p{i}, {'k' if i < count - 1 else 'v'})"
        for i in range(count)
    )
    return attention(chain, values=f"out = Identity(u{count - 1})", constants={"c": 0.5})


def test_a_wrong_site_is_taken_back_and_the_rest_kept(
    written: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = written(several_sites(5))
    spoil(monkeypatch, "p1", "p4")
    messages: list[str] = []
    result = rewrite_model(source, tmp_path / "out.onnx", lower="softmax", progress=messages.append)
    assert set(result.taken_back) == {"p1", "p4"}
    assert all(" differs by " in reason for reason in result.taken_back.values())
    assert result.lowered == 3
    assert result.choices == {"p0": "softmax", "p1": "keep", "p2": "softmax", "p3": "softmax", "p4": "keep"}
    assert result.reasons["p1"] == f"taken back: {result.taken_back['p1']}"
    assert result.report.passed
    assert [node.output[0] for node in load_model(result.target).graph.node if node.domain == DOMAIN] == [
        "p0",
        "p2",
        "p3",
    ]
    assert verify_models(source, result.target).passed
    assert any(message.startswith("rewrite: p1 is taken back") for message in messages)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.onnx", "out.onnx"]


def test_when_all_is_taken_back_the_file_is_the_original(
    written: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = written(several_sites(2))
    spoil(monkeypatch, "p0", "p1")
    result = rewrite_model(source, tmp_path / "out.onnx", lower="softmax")
    assert set(result.taken_back) == {"p0", "p1"}
    assert result.lowered == 0
    assert result.report is None
    assert load_model(result.target) == load_model(source)


def test_a_rewrite_that_does_not_load_is_taken_back(
    written: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lower_model = rewrite.lower_model

    def unknown_operator(*arguments: object) -> onnx.ModelProto:
        model = lower_model(*arguments)
        for node in model.graph.node:
            if node.output[0] == "p1" and node.domain == DOMAIN:
                model.functions.pop()
        return model

    monkeypatch.setattr(rewrite, "lower_model", unknown_operator)
    result = rewrite_model(written(several_sites(1)), tmp_path / "one.onnx", lower="softmax")
    assert not result.taken_back
    result = rewrite_model(written(several_sites(2)), tmp_path / "two.onnx", lower="softmax")
    assert "does not load in ONNX Runtime" in result.taken_back["p1"]


def test_without_verification_nothing_is_taken_back(
    written: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out.onnx"
    target.write_bytes(b"what was there")
    spoil(monkeypatch, "p0")
    result = rewrite_model(written(several_sites(1)), target, lower="softmax", verify=False)
    assert result.lowered == 1
    assert target.read_bytes() != b"what was there"


def test_an_interruption_leaves_nothing(written: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = written(FORMS["mul"].model())

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rewrite, "compare_with", interrupt)
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


def test_what_stands_beside_the_sites_is_repaired_told_and_proved(written: Write, tmp_path: Path) -> None:
    source = written(mixed_types())
    plan = plan_rewrite(source, "auto")
    assert plan.changes
    result = write_rewrite(plan, tmp_path / "out.onnx")
    assert len(result.repairs) == 1
    assert "cast to the input's type" in result.repairs[0]
    assert result.report.passed
    onnxruntime.InferenceSession(result.target, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("lower", ["keep", "softmax"])
def test_lowerings_for_any_runtime_repair_nothing(written: Write, tmp_path: Path, lower: str) -> None:
    result = rewrite_model(written(mixed_types()), tmp_path / "out.onnx", lower=lower)
    assert result.repairs == ()
    assert [node.op_type for node in load_model(result.target).graph.node].count("Cast") == 1


def test_a_wrong_repair_is_an_error(written: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(model: onnx.ModelProto, target: object) -> tuple[onnx.ModelProto, tuple[str, ...]]:
        repaired, repairs = repair_model(model, target)
        repaired.graph.node[-1].op_type = "LayerNormalization"
        repaired.graph.node[-1].attribute.append(onnx.helper.make_attribute("epsilon", 1.0))
        return repaired, repairs

    monkeypatch.setattr(rewrite, "repair_model", wrong)
    with pytest.raises(VerificationError, match="with no site lowered, so a repair is wrong"):
        rewrite_model(written(mixed_types()), tmp_path / "out.onnx")
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


def test_a_plan_that_changes_nothing_says_so(written: Write) -> None:
    assert not plan_rewrite(written(FORMS["mul"].model()), "keep").changes
    assert plan_rewrite(written(FORMS["mul"].model()), "softmax").changes
