"""bench and profile on real engines: relations between the parts of a run that hold on any GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import numpy as np
import onnx
import pytest

from attngraft.cli import main
from attngraft.engine import ShapeRange
from attngraft.errors import EngineError
from attngraft.onnx_graph import load_model
from attngraft.rewrite import rewrite_model
from attngraft.runtime import Session
from attngraft.runtime.layer_times import time_layers
from attngraft.runtime.site_times import group_by_site
from attngraft.runtime.timed_engine import PARTS, opened_engines
from attngraft.runtime.timing import EngineTimes, time_engines
from engine_cases import BuildFunction
from report_models import encoder_model

LAYERS = 12
"""Enough launches that enqueueing them takes longer than launching one graph, on any host."""

DEFAULT_LEVEL = 3
"""TensorRT's own builder level: a lower one may leave the fusion out."""

SHAPES = {"x": ShapeRange.parse("1x1x256:4x64x256:8x128x256"), "mask": ShapeRange.parse("1x1x1x1:4x1x1x64:8x1x1x128")}

CLOCKS_US = 5.0
"""More than the GPU's clock and the host's differ by over a run, an event's resolution of 0.5 us included."""


@pytest.fixture(scope="module")
def encoder(build: BuildFunction) -> Path:
    """Twelve attention layers in fp16, fused by TensorRT."""
    return build(encoder_model(layers=LAYERS), SHAPES, optimization_level=DEFAULT_LEVEL)


@pytest.fixture(scope="module")
def lowered(build: BuildFunction, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two of them with the fused plugin."""
    folder = tmp_path_factory.mktemp("lowered")
    onnx.save(encoder_model(), folder / "original.onnx")
    rewrite_model(folder / "original.onnx", folder / "lowered.onnx", lower="attention", verify=False)
    return build(onnx.load(folder / "lowered.onnx"), SHAPES)


def encoder_inputs(batch: int, sequence: int = 64) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "x": rng.standard_normal((batch, sequence, 256)).astype(np.float16),
        "mask": np.zeros((batch, 1, 1, sequence), np.float16),
    }


def medians(times: EngineTimes) -> Mapping[str, float]:
    return {part: median(samples) for part, samples in times.samples_us.items()}


def test_a_graph_is_launched_faster_than_its_work_is_enqueued(encoder: Path) -> None:
    plain, graph = time_engines([encoder], encoder_inputs(4), modes=("plain", "graph"), rounds=5, runs=20)
    assert (plain.mode, graph.mode) == ("plain", "graph")
    assert medians(graph)["enqueue"] < medians(plain)["enqueue"]
    assert medians(graph)["total"] < medians(plain)["total"]


def test_parts_of_a_run_fit_into_it(encoder: Path) -> None:
    for times in time_engines([encoder], encoder_inputs(8), modes=("plain", "graph"), rounds=3, runs=10):
        assert tuple(times.samples_us) == PARTS
        assert {len(samples) for samples in times.samples_us.values()} == {30}
        assert all(value > 0 for samples in times.samples_us.values() for value in samples)
        for h2d, enqueue, gpu, d2h, total in zip(*(times.samples_us[part] for part in PARTS)):
            assert h2d + gpu + d2h <= total + CLOCKS_US
            assert enqueue < total


def test_more_work_takes_longer(encoder: Path) -> None:
    (few,) = time_engines([encoder], encoder_inputs(1), rounds=3)
    (many,) = time_engines([encoder], encoder_inputs(8, 128), rounds=3)
    assert medians(few)["h2d"] < medians(many)["h2d"]
    assert medians(few)["gpu"] < medians(many)["gpu"]


def test_what_is_timed_computes_the_answer(encoder: Path) -> None:
    inputs = encoder_inputs(2)
    with Session(encoder, cuda_graph=False) as session:
        expected = session.run(inputs)["y"]
    with opened_engines([encoder]) as (timed,):
        for mode in ("plain", "graph"):
            timed.prepare(inputs)
            timed.capture()
            output = timed._pinned[[spec.name for spec in timed.specs].index("y")].array(expected.shape, expected.dtype)
            output[...] = np.nan
            timed.run(mode)
            np.testing.assert_array_equal(output, expected)


def test_an_engine_against_itself(attention_engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same file twice: where turns are fair, neither is much faster."""
    assert main(["bench", str(attention_engine), str(attention_engine), "--mode", "graph", "--json", "-", "-q"]) == 0
    first, second = json.loads(capsys.readouterr().out)["points"][0]["results"]
    assert first["ratio"]["gpu"]["value"] == 1.0
    assert 0.8 < second["ratio"]["gpu"]["value"] < 1.25


def test_bench_on_the_command_line(encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--json", tmp_path / "out.json", "--svg", tmp_path / "out.svg", "--html", tmp_path / "out.html"]
    sweep = ["--batch", "1,8", "--length", "x.1,mask.3=64,128", "--rounds", "3"]
    assert main([str(argument) for argument in ("bench", encoder, *sweep, *files)]) == 0
    text = capsys.readouterr().out
    assert "p50 / p90 / p99 of 60 runs" in text
    found = json.loads((tmp_path / "out.json").read_text())
    assert [(point["batch"], point["length"]) for point in found["points"]] == [(1, 64), (1, 128), (8, 64), (8, 128)]
    assert found["points"][3]["shapes"] == {"x": [8, 128, 256], "mask": [8, 1, 1, 128]}
    assert found["device"] and found["engines"][0]["made_by"].startswith("TensorRT ")
    assert (tmp_path / "out.svg").read_text().count("latency against") >= 4
    assert "<svg" in (tmp_path / "out.html").read_text()


def test_shapes_that_the_engine_does_not_take(
    encoder: Path, attention_engine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", str(encoder), "--batch", "1,9", "-q"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "9x64x256 is outside the engine's profile" in captured.err
    assert main(["bench", str(attention_engine), "--length", "x.1=33", "-q"]) == 1  # the mask stays at 8
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1 and str(attention_engine) in captured.err


def test_layers_of_a_fused_engine(encoder: Path) -> None:
    times = time_layers(encoder, runs=20)
    sites = group_by_site(times, load_model(encoder.with_name("model.onnx")))
    assert times.missing == ""
    assert [site.how for site in sites] == ["fused kernel"] * LAYERS
    assert all(site.us > 0 for site in sites)
    assert 0 < sum(site.us for site in sites) < times.us
    assert len(group_by_site(times)) == LAYERS


def test_layers_of_an_engine_with_plugins(lowered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", str(lowered), "--model", str(lowered.with_name("model.onnx")), "--json", "-q"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [site["how"] for site in found["sites"]] == ["plugin"] * 2
    assert all(site["us"] > 0 and 0 < site["share"] < 1 for site in found["sites"])
    assert sum(layer["share"] for layer in found["layers"]) == pytest.approx(1)
    assert found["attention_us"] == pytest.approx(sum(site["us"] for site in found["sites"]))
    assert main(["profile", str(lowered), "-q"]) == 0
    assert "2 plugin" in capsys.readouterr().out


def test_an_engine_that_cannot_be_timed(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no such file"):
        time_engines([tmp_path / "absent.engine"], {})
