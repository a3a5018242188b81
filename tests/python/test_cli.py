"""The command line: what it prints, its exit statuses, and that errors are one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from chain_models import FORMS
from report_models import encoder_model

from attngraft import doctor, rewrite, runtime
from attngraft import engine as engine_package
from attngraft.cli import main
from attngraft.engine import probe as probe_module
from attngraft.engine.probe_models import ProbeCase, one_site_model
from attngraft.engine.sidecar import EngineCard, TensorCard, card_path
from attngraft.engine.shapes import ShapeRange

Write = Callable[..., Path]


def run_cli(*arguments: str | Path) -> int:
    return main([str(argument) for argument in arguments])


def error_line(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """Runs a command that must fail, and returns its error: one line, status 1, nothing on standard output."""
    assert run_cli(*arguments) == 1
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert lines[-1].startswith("attngraft: error: ")
    assert sum(line.startswith("attngraft: error: ") for line in lines) == 1
    assert "Traceback" not in captured.err
    return lines[-1]


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
    assert site["lowerings"]["attention"] == "not available in this version"
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


def test_rewrite_and_verify(written: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = written(FORMS["where -1e9"].model()), tmp_path / "out.onnx"
    assert run_cli("rewrite", source, "-o", target, "--lower", "softmax") == 0
    captured = capsys.readouterr()
    assert "1 attention site (1 softmax)" in captured.out
    assert "equal" in captured.out
    assert "verify: running" in captured.err
    assert run_cli("verify", source, target, "--seed", "3", "--shape", "k=2x2x5x4", "--shape", "q=2x2x3x4", "-q") == 0
    captured = capsys.readouterr()
    assert "2x2x5x4" in captured.out
    assert captured.err == ""


def test_rewrite_says_when_nothing_is_gained(
    written: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli("rewrite", written(FORMS["mul"].model()), "-o", tmp_path / "out.onnx") == 0
    assert "nothing to gain" in capsys.readouterr().out


def test_verify_fails_on_a_difference(written: Write, capsys: pytest.CaptureFixture[str]) -> None:
    first = written(FORMS["mul"].model(), "first.onnx")
    second = written(FORMS["bare"].model(), "second.onnx")
    assert run_cli("verify", first, second) == 1
    captured = capsys.readouterr()
    assert "DIFFERS" in captured.out
    assert captured.err.splitlines()[-1].startswith("attngraft: error: output 'out' differs by")


def test_later_lowerings(written: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = written(FORMS["mul"].model())
    message = error_line(capsys, "rewrite", source, "-o", tmp_path / "out.onnx", "--lower", "attention")
    assert "lowering 'attention' is not in this version" in message


@pytest.mark.parametrize("command", ["inspect", "rewrite", "verify", "build", "run"])
def test_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    absent = tmp_path / "absent.onnx"
    more = {"rewrite": ("-o", tmp_path / "out"), "build": ("-o", tmp_path / "out"), "verify": (absent,)}.get(
        command, ()
    )
    assert "no such file" in error_line(capsys, command, absent, *more)
    assert not list(tmp_path.iterdir())


def test_bad_model_leaves_the_target_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "source.onnx", tmp_path / "out.onnx"
    source.write_text("no model")
    target.write_text("what was there")
    assert "is not an ONNX file" in error_line(capsys, "rewrite", source, "-o", target)
    assert target.read_text() == "what was there"


def test_target_folder_that_does_not_exist(written: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = written(FORMS["mul"].model())
    assert "does not exist" in error_line(capsys, "rewrite", source, "-o", tmp_path / "absent" / "out.onnx")
    assert "absent" in error_line(capsys, "build", source, "-o", tmp_path / "absent" / "out.engine")


@pytest.mark.parametrize("shape", ["q", "=1x2", "q=1x", "q=axb"])
def test_shape_that_is_not_understood(written: Write, capsys: pytest.CaptureFixture[str], shape: str) -> None:
    source = written(FORMS["mul"].model())
    assert "NAME=1x3x224x224" in error_line(capsys, "verify", source, source, "--shape", shape)


def test_usage_errors_have_their_own_status(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["rewrite", "model.onnx"])
    assert stopped.value.code == 2
    assert "-o" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.startswith("attngraft ")


def test_interruption(
    written: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rewrite, "run_original", interrupt)
    source = written(FORMS["mul"].model())
    assert run_cli("rewrite", source, "-o", tmp_path / "out.onnx", "--lower", "softmax") == 130
    assert capsys.readouterr().err.splitlines()[-1] == "attngraft: interrupted"
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


SLOW_REWRITE = """
import sys, time
from attngraft import cli, rewrite
def slow(*_, **__):
    print("verifying", flush=True)
    time.sleep(60)
rewrite.run_original = slow
sys.exit(cli.main(sys.argv[1:]))
"""


def test_interruption_by_signal(written: Write, tmp_path: Path) -> None:
    source = written(FORMS["mul"].model())
    command = [sys.executable, "-c", SLOW_REWRITE, "rewrite", source, "-o", tmp_path / "out.onnx", "--lower", "softmax"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "verifying\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


def test_a_reader_that_goes_away_is_no_traceback(written: Write) -> None:
    source = written(FORMS["mul"].model())
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "attngraft.cli", "inspect", source, "--json"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )
    os.close(writer)
    assert done.returncode == 1
    assert done.stderr == ""


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """What the builder was asked for; it builds nothing."""
    asked: list[dict] = []

    def build(model: Path, engine_path: Path, **options: object) -> engine_package.BuildResult:
        nodes = [node.op_type for node in onnx.load(model).graph.node]
        asked.append({"model": model, "engine": engine_path, "plugins": nodes.count("MaskedSoftmax"), **options})
        return engine_package.BuildResult(
            engine_path, "rtx", "1.7.1", nodes.count("MaskedSoftmax"), 9, 2_500_000, 1.25, {}
        )

    monkeypatch.setattr(engine_package, "build_engine", build)
    return asked


def test_build_lowers_verifies_and_cleans_up(
    written: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], builds: list[dict]
) -> None:
    source, target = written(FORMS["where -1e9"].model()), tmp_path / "out.engine"
    shapes = [f"--shape={name}=1x2x3x4:2x2x5x4:4x2x8x4" for name in ("q", "k", "v")]
    options = ["--lower", "softmax", "--backend", "rtx", "--no-embed", "--log", tmp_path / "build.log"]
    assert run_cli("build", source, "-o", target, *shapes, *options) == 0
    (asked,) = builds
    assert asked["plugins"] == 1
    assert asked["model"].name == source.name
    assert asked["engine"] == target
    assert asked["shapes"]["q"] == ShapeRange((1, 2, 3, 4), (2, 2, 5, 4), (4, 2, 8, 4))
    assert (asked["backend"], asked["embed_plugins"], asked["log_path"]) == ("rtx", False, tmp_path / "build.log")
    captured = capsys.readouterr()
    assert captured.out == f"wrote {target}: rtx 1.7.1, 1 plugin layers, 2.5 MB, 1.2 s\n"
    assert "verify: running the rewritten model" in captured.err
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize("lower", ["auto", "keep"])
def test_build_takes_the_model_itself_when_nothing_is_lowered(
    written: Write, tmp_path: Path, builds: list[dict], lower: str
) -> None:
    source = written(FORMS["bare"].model())
    assert run_cli("build", source, "-o", tmp_path / "out.engine", "--lower", lower, "-q") == 0
    assert builds[0]["model"] == source
    assert builds[0]["embed_plugins"]


@pytest.mark.parametrize(("ok", "status", "word"), [(True, 0, "ok"), (None, 0, "absent"), (False, 1, "MISSING")])
def test_doctor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ok: bool | None, status: int, word: str
) -> None:
    monkeypatch.setattr(doctor, "diagnose", lambda engine: [doctor.Check("GPU", ok, f"found {engine}", "what to do")])
    assert run_cli("doctor", "model.engine") == status
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.split("  ")[0] == word
    assert "found model.engine" in row
    assert "what to do" in row


class FakeSession:
    """Stands in for the GPU: doubles every input."""

    seen: dict[str, np.ndarray] = {}

    def __init__(self, engine: Path) -> None:
        self.engine = engine

    def __enter__(self) -> FakeSession:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        FakeSession.seen = dict(inputs)
        return {f"twice/{name}": value * 2 for name, value in inputs.items()}


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An engine file's place with its card beside it, and a session that needs no GPU."""
    path = tmp_path / "model.engine"
    card = EngineCard(
        backend="tensorrt",
        tensorrt_version="10.6.0",
        size_bytes=0,
        gpu=None,
        compute_capability=None,
        plugin_library=None,
        plugin_embedded=False,
        contract_version=None,
        plugin_layers=0,
        layers=1,
        source="model.onnx",
        source_sha256="",
        inputs=(TensorCard("x", "float16", (-1, 3)), TensorCard("ids", "int64", (-1,))),
        outputs=(),
        profile={"x": ShapeRange((1, 3), (2, 3), (4, 3)), "ids": ShapeRange((1,), (2,), (4,))},
    )
    card_path(path).write_text(card.to_json())
    monkeypatch.setattr(runtime, "Session", FakeSession)
    return path


def test_run_makes_inputs_up_and_writes_outputs(
    engine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.ones((1, 3), np.float16))
    assert run_cli("run", engine, "--input", f"x={tmp_path / 'x.npy'}", "--output", tmp_path / "outputs") == 0
    captured = capsys.readouterr()
    assert "twice/x: float16 1x3" in captured.out
    assert captured.err == "input ids: made up, int64 2\n"
    assert FakeSession.seen["ids"].dtype == np.int64
    np.testing.assert_array_equal(np.load(tmp_path / "outputs" / "twice_x.npy"), np.full((1, 3), 2, np.float16))


def test_run_without_inputs_uses_the_usual_shapes(engine: Path) -> None:
    assert run_cli("run", engine) == 0
    assert FakeSession.seen["x"].shape == (2, 3)
    assert FakeSession.seen["x"].dtype == np.float16


@pytest.mark.parametrize(
    ("option", "message"),
    [("x", "NAME=FILE.npy"), ("x=absent.npy", "no such file"), ("x=model.engine.json", "not a NumPy")],
)
def test_run_refuses_bad_inputs(
    engine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str, message: str
) -> None:
    monkeypatch.chdir(engine.parent)
    assert message in error_line(capsys, "run", engine, "--input", option)
