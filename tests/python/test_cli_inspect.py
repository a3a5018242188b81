"""The commands that look: inspect, with and without TensorRT, and probe."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from chain_models import FORMS
from cli_support import Write, error_line, run_cli
from report_models import encoder_model

from attngraft.engine import probe as probe_module
from attngraft.engine.probe_models import ProbeCase, one_site_model


def test_inspect(written: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(FORMS["sqrt(scale) on query and key, guard"].model())
    assert run_cli("inspect", path, "--target", "10.6") == 0
    header, rule, site, *notes, blank, summary, target = capsys.readouterr().out.splitlines()
    assert header.split() == ["node", "recognised", "becomes", "can", "be", "cannot", "be"]
    facts = "w     float32, 2 heads of 4, scale 0.25 on query and key, additive mask, NaN guard"
    assert site.startswith(facts)
    assert "[1]" in site and all(note.startswith(f"[{number}] ") for number, note in enumerate(notes, start=1))
    assert summary.startswith("1 attention site (1 ") and blank == ""
    assert target == "lowerings chosen for TensorRT 10.6"


def test_inspect_json(data_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = data_folder / "bert_attentions_dynamo.onnx"
    assert run_cli("inspect", path, "--json", "--target", "rtx-1.7") == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"model", "target", "sites", "others", "repairs"}
    assert found["target"] == "TensorRT-RTX 1.7"
    assert found["model"] == str(path)
    (site,) = found["sites"]
    documented = {"name", "graph", "scale", "operands", "causal", "window", "softcap", "heads", "head_size", "layout"}
    assert documented | {"lowerings", "chosen"} <= set(site)
    assert site["operands"] == ["keep"]
    assert site["window"] == [-1, -1]
    assert site["lowerings"]["softmax"] is None
    assert "probabilities are an output" in site["lowerings"]["attention"]
    assert site["chosen"] == "softmax"


def test_inspect_names_what_is_no_attention(written: Write, capsys: pytest.CaptureFixture[str]) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[B,8] x) => (float[B,8] out) { out = Softmax<axis = -1>(x) }'
    )
    assert run_cli("inspect", written(model)) == 0
    out = capsys.readouterr().out
    assert "out: left alone" in out
    assert "0 attention sites, 1 other softmax" in out


@pytest.fixture
def small_encoder(written: Write) -> Path:
    """Two layers that TensorRT-RTX fuses."""
    return written(encoder_model())


def test_inspect_asks_tensorrt_what_it_fuses(small_encoder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli("inspect", small_encoder, "--fused", "--backend", "rtx") == 0
    captured = capsys.readouterr()
    header, _, row, *_ = captured.out.splitlines()
    assert header.endswith("fused") and row.startswith("2 x") and row.endswith("yes")
    assert captured.out.splitlines()[-1].endswith("fuses 2 of 2 sites")
    assert "building " in captured.err
    assert run_cli("inspect", small_encoder, "--fused", "--json", "--backend", "rtx", "-q") == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert captured.err == ""
    assert [site["fused"]["fused"] for site in found["sites"]] == [True, True]
    assert found["fusion"]["fused_sites"] == found["fusion"]["kernels"] == 2


def test_inspect_says_that_a_model_does_not_build(written: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(one_site_model(ProbeCase("attention", dtype="float32")))
    assert run_cli("inspect", path, "--fused", "--backend", "rtx", "-q") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "not known: the model does not build" in lines[2]
    assert "does not build the model: " in lines[-1] and "not supported by a dedicated kernel" in lines[-1]


def test_inspect_reads_an_engine(small_encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = tmp_path / "model.engine"
    shapes = ["--shape=x=1x1x256:2x64x256:8x128x256", "--shape=mask=1x1x1x1:2x1x1x64:8x1x1x128"]
    assert run_cli("build", small_encoder, "-o", engine, "--backend", "rtx", "--lower", "keep", "-q", *shapes) == 0
    capsys.readouterr()
    assert run_cli("inspect", "--engine", engine) == 0
    assert "/layer.{0,1}/Softmax" in capsys.readouterr().out
    assert run_cli("inspect", "--engine", engine, "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["kernels"]) == 2
    assert run_cli("inspect", small_encoder, "--engine", engine, "-v") == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("fuses 2 of 2 sites")


def test_inspect_writes_a_page(small_encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert run_cli("inspect", small_encoder, "--html", page) == 0
    assert capsys.readouterr().out == f"wrote {page}\n"
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert "absent" in error_line(capsys, "inspect", small_encoder, "--html", tmp_path / "absent" / "page.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "page.html"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "no model"),
        (("--engine", "absent.engine"), "absent.engine: no such file"),
        (("model.onnx", "--target", "twelve"), "target 'twelve' is not understood"),
        (("model.onnx", "--fused", "--shape", "x=1x2x3"), "has rank 3"),
        (("model.onnx", "--fused", "--shape", "nothing=1"), "no such input"),
    ],
)
def test_inspect_refuses(
    written: Write,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    message: str,
) -> None:
    softmax = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[B,8] x) => (float[B,8] y) { y = Softmax<axis = -1>(x) }'
    )
    monkeypatch.chdir(written(onnx.parser.parse_model(softmax)).parent)
    assert message in error_line(capsys, "inspect", *options)


def test_probe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(probe_module, "usual_cases", lambda: iter([ProbeCase("matmul")]))
    assert run_cli("probe", "--backend", "rtx") == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1].endswith("1 fused, of 1 one-site models")
    assert captured.err == "probe: 1 of 1, matmul float16 64 additive\n"
    assert run_cli("probe", "--backend", "rtx", "--json", "-q") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["answers"][0]["fused"] and captured.err == ""
