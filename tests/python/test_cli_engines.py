"""The commands about engines: build, run and doctor, over stand-ins for what needs a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from chain_models import FORMS
from cli_support import Write, error_line, run_cli

from attngraft import doctor, runtime
from attngraft import engine as engine_package
from attngraft.engine.shapes import ShapeRange
from attngraft.engine.sidecar import EngineCard, TensorCard, card_path


SHAPES = [f"--shape={name}=1x2x3x4:2x2x5x4:4x2x8x4" for name in ("q", "k", "v")]


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
    options = [
        "--shape=condition=1x1x1x3:2x1x1x5:4x1x1x8",
        "--lower",
        "softmax",
        "--backend",
        "rtx",
        "--no-embed",
        "--log",
        tmp_path / "build.log",
    ]
    assert run_cli("build", source, "-o", target, *SHAPES, *options) == 0
    (asked,) = builds
    assert asked["plugins"] == 1
    assert asked["model"].name == source.name
    assert asked["engine"] == target
    assert asked["shapes"][0]["q"] == ShapeRange((1, 2, 3, 4), (2, 2, 5, 4), (4, 2, 8, 4))
    assert asked["origin"].source == source
    assert [site.lowering for site in asked["origin"].sites] == ["softmax"]
    assert asked["origin"].worst_difference.of == "rewritten model"
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
    assert run_cli("build", source, "-o", tmp_path / "out.engine", "--lower", lower, "-q", *SHAPES) == 0
    assert builds[0]["model"] == source
    assert builds[0]["origin"].worst_difference is None
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
        profiles=({"x": ShapeRange((1, 3), (2, 3), (4, 3)), "ids": ShapeRange((1,), (2,), (4,))},),
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
