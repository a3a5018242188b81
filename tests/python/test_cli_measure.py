"""bench and profile: options, tables, JSON, plots and errors, on a GPU of host memory with two clocks."""

from __future__ import annotations

import dataclasses
import gc
import json
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import cuda.bindings
import numpy as np
import onnx
import pytest
from cli_support import error_line, run_cli
from report_models import encoder_model
from test_report_page import Balanced

from attngraft.cli import measure
from attngraft.engine import build_engine
from attngraft.engine.layers import EngineLayer, layers_of_message
from attngraft.engine.shapes import ShapeRange
from attngraft.engine.sidecar import read_card
from attngraft.engine.site_layers import is_plugin, site_nodes, site_of_layer
from attngraft.onnx_graph import load_model
from attngraft.report.bench import engine_names, percentiles, round_ratio
from attngraft.report.latency_plot import Plot, PlotLine, PlotPoint, latency_svg, latency_ticks
from attngraft.report.profile import profile_json, profile_lines
from attngraft.rewrite import rewrite_model
from attngraft.runtime.cuda import cuda_driver, cuda_runtime
from attngraft.runtime.layer_times import LayerTime, LayerTimes
from attngraft.runtime.site_times import group_by_site
from benchmarks.make_tables import _body
from benchmarks.session_latency import row_of
from timed_gpu import COPY_US, GRAPH_LAUNCH_US, PLAIN_LAUNCH_US, WORK_US, TimedMachine

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TimedMachine]:
    found = TimedMachine(tmp_path)
    found.patch(monkeypatch, cuda.bindings)
    monkeypatch.setattr(measure, "RUNS_A_TURN", 2)
    yield found
    gc.collect()  # what is left must be freed by the GPU that it is from
    cuda_runtime.cache_clear()
    cuda_driver.cache_clear()


@pytest.fixture
def engines(machine: TimedMachine) -> list[Path]:
    return [machine.engine("fast.engine"), machine.engine("slow.engine")]


def test_bench_prints_percentiles_and_ratios(engines: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli("bench", *engines, "--rounds", 3, "-q") == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    header, _, *rows, blank, units, ratios, made_by = captured.out.splitlines()
    assert header.split("  ")[0] == "engine"
    assert [row.split()[:2] for row in rows] == [
        [name, mode] for name in ("fast.engine", "slow.engine") for mode in ("plain", "graph")
    ]
    cells = [cell for cell in rows[3].split("  ") if cell]
    total = {name: us + COPY_US for name, us in WORK_US.items()}
    ratio = (total["slow.engine"] + GRAPH_LAUNCH_US) / (total["fast.engine"] + PLAIN_LAUNCH_US)
    assert cells[2].strip() == "3.0 / 3.0 / 3.0"
    assert cells[3].strip() == "5.0 / 5.0 / 5.0"
    assert cells[6].strip() == "258.0 / 258.0 / 258.0"
    assert cells[8].strip() == f"{ratio:.3f} ({ratio:.3f}-{ratio:.3f})"
    assert blank == ""
    assert units == "microseconds, p50 / p90 / p99 of 6 runs in turns of 2"
    assert ratios.startswith("ratio: p50 over that of the point's first line")
    assert made_by.startswith("TensorRT 10.6.0 on ")


def test_one_engine_in_one_mode_has_nothing_to_be_compared_with(
    engines: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli("bench", engines[0], "--rounds", 1, "--mode", "graph", "-q") == 0
    assert "ratio" not in capsys.readouterr().out


def test_bench_json_has_its_schema(engines: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    sweep = ["--batch", "1,8", "--length", "x.0=2,4", "--shape", "x=3x4"]
    assert run_cli("bench", *engines, "--rounds", 2, "--mode", "graph", *sweep, "--json", "-") == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert "point 4 of 4: x 4x4" in captured.err
    assert set(found) == {"attngraft_bench", "device", "engines", "modes", "runs_a_turn", "length", "points"}
    assert found["engines"] == [{"engine": str(engine), "made_by": "TensorRT 10.6.0"} for engine in engines]
    assert (found["attngraft_bench"], found["modes"], found["runs_a_turn"], found["length"]) == (1, ["graph"], 2, "x.0")
    places = [(point["batch"], point["length"], point["shapes"]["x"]) for point in found["points"]]
    assert places == [(batch, length, [length, 4]) for batch in (1, 8) for length in (2, 4)]
    slow = found["points"][0]["results"][1]
    assert (slow["engine"], slow["mode"], slow["runs"]) == (str(engines[1]), "graph", 4)
    assert set(slow["us"]) == {"h2d", "enqueue", "gpu", "d2h", "total"}
    assert slow["us"]["total"] == dict.fromkeys(("p50", "p90", "p99"), 258.0)
    assert set(slow["ratio"]) == {"gpu", "total"}
    assert slow["ratio"]["total"] == pytest.approx(dict.fromkeys(("value", "low", "high"), 258 / 108))


def test_bench_writes_its_files(engines: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / name for name in ("out.json", "out.html", "out.svg")]
    options = [text for file in files for text in (f"--{file.suffix[1:]}", file)]
    assert run_cli("bench", *engines, "--rounds", 1, "--batch", "1,2,8", "-q", *options) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("  ")[0] == "batch"
    assert lines[-3:] == [f"wrote {file}" for file in files]
    assert len(json.loads(files[0].read_text())["points"]) == 3
    picture = ElementTree.parse(files[2]).getroot()
    assert len(picture.findall(f".//{SVG}circle")) == 4 * 3
    assert "latency against batch" in picture.attrib["aria-label"]
    page = Balanced()
    page.feed(files[1].read_text())
    assert (page.open, page.fetched) == ([], [])
    assert files[1].read_text().count("<tr>") == 1 + 4 * 3
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "fast.engine", "out.html", "out.json", "out.svg", "slow.engine",
    ]  # fmt: skip


def test_bench_takes_inputs_from_files(
    machine: TimedMachine, engines: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.full((5, 4), 3, np.float32))
    file = f"x={tmp_path / 'x.npy'}"
    assert run_cli("bench", engines[0], "--input", file, "--rounds", 1, "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["points"][0]["shapes"] == {"x": [5, 4]}
    assert "comes from a file" in error_line(capsys, "bench", engines[0], "--input", file, "--shape", "x=2x4")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--batch", "1,9"], "fast.engine: input 'x': 9x4 is outside the engine's profile 1x4:2x4:8x4"),
        (["--shape", "x=2x5"], "2x5 is outside the engine's profile"),
        (["--shape", "z=2x4"], "fast.engine: input 'z': the engine has no such input; its inputs are x"),
        (["--shape", "x"], "write NAME=1x3x224x224"),
        (["--batch", "1,x"], "--batch '1,x': not understood"),
        (["--batch", "0"], "sizes above 0"),
        (["--length", "x=1,2"], "write INPUT.AXIS=128,256"),
        (["--length", "x.1"], "write INPUT.AXIS=128,256"),
        (["--length", "x.7=4"], "length x.7: input 'x' has rank 2"),
        (["--length", "x.0="], "sizes above 0"),
        (["--rounds", "0"], "0 rounds of 2 runs"),
        (["--seconds", "0"], "--seconds 0: give a time above 0"),
        (["--svg", "out.svg"], "nothing to plot against"),
        (["--svg", "out.svg", "--batch", "4,4"], "nothing to plot against"),
        (["--json", "absent/out.json"], "there is no such folder"),
    ],
)
def test_bench_refuses(
    machine: TimedMachine,
    engines: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(machine.folder)
    assert message in error_line(capsys, "bench", engines[0], *options)
    assert machine.gpu.ran == []


def test_bench_says_what_is_no_engine(
    machine: TimedMachine, engines: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "absent.engine: no such file" in error_line(capsys, "bench", engines[0], machine.folder / "absent.engine")
    machine.gpu.fail_capture = True
    assert "fast.engine: the engine's work cannot be captured" in error_line(capsys, "bench", engines[0])


def test_profile_groups_by_attention(engines: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli("profile", engines[0], "--runs", 3, "-q") == 0
    text = capsys.readouterr().out
    rows = {line.split("  ")[0]: line.split() for line in text.splitlines()}
    assert rows["attention"][1:] == ["30.0", "30.0%", "1", "1", "fused", "kernel"]
    assert rows["everything else"][2:] == ["70.0", "70.0%", "2"]
    assert rows["/layer.0/Softmax"][1:3] == ["30.0", "30.0%"]
    assert rows["/layer.0/out_myl0_8"][1:] == ["50.0", "50.0%", "gemm", "/layer.0/out"]
    longest = [line.split("  ")[0] for line in text.splitlines()]
    assert longest.index("/layer.0/out_myl0_8") < longest.index("_gemm_mha_v2_myl0_7") < longest.index("plain name")


def test_profile_json_has_its_schema(engines: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli("profile", engines[0], "--json", "--shape", "x=8x4") == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert "profiling" in captured.err
    assert set(found) == {
        "attngraft_profile", "engine", "made_by", "shapes", "runs", "us", "attention_us", "attention_share", "sites",
        "layers", "missing",
    }  # fmt: skip
    assert (found["shapes"], found["runs"], found["missing"]) == ({"x": [8, 4]}, measure.PROFILED_RUNS, None)
    assert found["attention_share"] == pytest.approx(0.3)
    assert sum(layer["share"] for layer in found["layers"]) == pytest.approx(1)
    (site,) = found["sites"]
    assert (site["name"], site["how"], site["layers"]) == ("/layer.0/Softmax", "fused kernel", ["_gemm_mha_v2_myl0_7"])


def test_profile_says_what_an_engine_does_not_tell(
    machine: TimedMachine, engines: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    machine.layers = ["_gemm_mha_v2_myl0_7"]
    assert run_cli("profile", engines[0], "-q") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("the engine has no layer information; build it with profiling verbosity DETAILED")
    assert any(line.startswith("attention ") and line.split()[1] == "30.0" for line in lines)  # told by its name


def test_profile_refuses(engines: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert "no such file" in error_line(capsys, "profile", engines[0], "--model", "absent.onnx").lower()
    assert "0 runs" in error_line(capsys, "profile", engines[0], "--runs", "0")
    assert "outside the engine's profile" in error_line(capsys, "profile", engines[0], "--shape", "x=9x4")


def test_percentiles_are_those_of_the_samples() -> None:
    assert percentiles(range(101)) == {"p50": 50.0, "p90": 90.0, "p99": 99.0}
    assert percentiles([1.0, 2.0])["p50"] == 1.5


def test_ratios_compare_rounds_in_pairs() -> None:
    base = [10.0, 10, 10, 20, 20, 20, 40, 40, 40]  # the GPU becomes slower and slower
    ratio = round_ratio([value / 2 for value in base], base, runs=3)
    assert (ratio.value, ratio.low, ratio.high) == (0.5, 0.5, 0.5)
    other = round_ratio([10.0, 10, 10, 10, 10, 10, 10, 10, 10], base, runs=3)
    assert other.value == 0.5
    assert other.low == pytest.approx(0.3) and other.high == pytest.approx(0.9)


def test_names_tell_engines_apart() -> None:
    assert engine_names([Path("a/x.engine"), Path("b/y.engine")]) == ["x.engine", "y.engine"]
    assert engine_names([Path("a/x.engine"), Path("b/x.engine")]) == ["a/x.engine", "b/x.engine"]
    assert engine_names([Path("x.engine")] * 2) == ["x.engine", "x.engine (2)"]


def test_ticks_enclose_the_latencies() -> None:
    assert latency_ticks(12, 90) == [10, 20, 50, 100]
    assert latency_ticks(100, 100) == [100, 200]
    assert latency_ticks(0.7, 5) == [0.5, 1, 2, 5]


def test_a_plot_is_to_scale_and_escaped() -> None:
    line = PlotLine("<a> & b", (PlotPoint(1, 100, 120), PlotPoint(10, 1000, 1500), PlotPoint(100, 10000, 10000)))
    root = ElementTree.fromstring(latency_svg([Plot("latency", "batch", (line,))]))
    places = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in root.iter(f"{SVG}circle")]
    assert places[1][0] - places[0][0] == pytest.approx(places[2][0] - places[1][0], abs=0.2)
    assert places[0][1] - places[1][1] == pytest.approx(places[1][1] - places[2][1], abs=0.2) and places[0][1] > 0
    p50, p99 = (line for line in root.iter(f"{SVG}polyline") if "class" in line.attrib)
    assert (p50.attrib["class"], p99.attrib["class"]) == ("p50", "p99")
    assert any("<a> & b" in (text.text or "") for text in root.iter(f"{SVG}text"))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert all(0 < x < width and 0 < y < height for x, y in places)


SHAPES = {"x": ShapeRange.parse("1x1x256:4x64x256:8x128x256"), "mask": ShapeRange.parse("1x1x1x1:4x1x1x64:8x1x1x128")}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LayerTimes]:
    """Two attention layers as TensorRT-RTX builds them plainly, with the softmax plugin, and with the fused one; every
    layer takes 10 us."""
    folder = tmp_path_factory.mktemp("built")
    plain = folder / "keep.onnx"
    onnx.save(encoder_model(), plain)
    found = {}
    for lower in ("keep", "softmax", "attention"):
        model, engine, log = (folder / f"{lower}.{kind}" for kind in ("onnx", "engine", "log"))
        if lower != "keep":
            rewrite_model(plain, model, lower=lower, verify=False)
        build_engine(model, engine, backend="rtx", shapes=SHAPES, log_path=log)
        layers = layers_of_message(log.read_text()[log.read_text().index("Layers:") :])
        timed = tuple(LayerTime(layer, 10.0) for layer in layers)
        found[lower] = LayerTimes(engine, "TensorRT-RTX", read_card(engine), {"x": (4, 64, 256)}, 5, timed)
    return found


NAMES = ["/layer.0/Softmax", "/layer.1/Softmax"]


@pytest.mark.parametrize(
    ("lower", "how", "least"), [("keep", "fused kernel", 1), ("softmax", "plugin", 3), ("attention", "plugin", 1)]
)
def test_sites_of_real_engines(built: dict[str, LayerTimes], lower: str, how: str, least: int) -> None:
    times = built[lower]
    original = load_model(times.engine.with_name("keep.onnx"))
    sites = group_by_site(times, original)
    assert [(site.name, site.how) for site in sites] == [(name, how) for name in NAMES]
    assert all(len(site.layers) >= least and site.us == 10.0 * len(site.layers) for site in sites)
    own = group_by_site(times, load_model(times.engine.with_name(f"{lower}.onnx")))
    assert [site.how for site in own] == [how] * 2
    alone = group_by_site(times)
    assert [(site.how, len(site.layers)) for site in alone] == [(how, 1)] * 2
    assert all(name in site.name for name, site in zip(NAMES, alone))


def test_a_site_that_the_engine_does_not_have(built: dict[str, LayerTimes]) -> None:
    lowered = load_model(built["keep"].engine.with_name("attention.onnx"))
    sites = group_by_site(built["keep"], lowered)
    assert [site.how for site in sites] == ["not found"] * 2 + ["fused kernel"] * 2
    text = "\n".join(profile_lines(built["keep"], sites))
    assert "2 not found, 2 fused kernel" in text
    assert "/layer.{0,1}/Softmax/FusedAttention/FusedAttention" in text


def test_foreign_plugins_are_no_attention(built: dict[str, LayerTimes]) -> None:
    times = built["keep"]
    foreign = LayerTime(EngineLayer("nms", "PluginV2DynamicExt"), 10.0)
    with_it = LayerTimes(times.engine, "", times.card, {}, 1, (*times.layers, foreign))
    assert is_plugin(foreign.layer) and times.card.plugin_layers == 0
    assert [site.how for site in group_by_site(with_it)] == ["fused kernel"] * 2
    unknown = LayerTimes(times.engine, "", None, {}, 1, (foreign,))
    assert [(site.name, site.how) for site in group_by_site(unknown)] == [("nms", "plugin")]


def test_json_of_a_real_engine(built: dict[str, LayerTimes]) -> None:
    times = built["softmax"]
    found = profile_json(times, group_by_site(times, load_model(times.engine.with_name("keep.onnx"))))
    assert found["us"] == 10.0 * len(times.layers)
    assert 0 < found["attention_share"] < 1
    assert found["attention_us"] == sum(site["us"] for site in found["sites"])
    assert json.loads(json.dumps(found)) == found


def test_nodes_of_a_site_go_from_its_operands_to_its_result(data_folder: Path) -> None:
    (site,) = site_nodes(load_model(data_folder / "bert_sdpa_torchscript.onnx"))
    own = "/model/encoder/layer.0/attention/self"
    assert site.nodes == {
        f"{own}/{name}" for name in ("Mul", "Mul_1", "MatMul", "Add", "Softmax", "IsNaN", "Where_1", "MatMul_1")
    }
    assert site_of_layer(EngineLayer("k", nodes=(f"{own}/MatMul", f"{own}/Add")), [site]) is site
    assert site_of_layer(EngineLayer("k", nodes=(f"{own}/MatMul", f"{own}/query/MatMul")), [site]) is None
    assert site_of_layer(EngineLayer("k", nodes=(f"{own}/query/MatMul", f"{own}/Softmax")), [site]) is site
    assert site_of_layer(EngineLayer("k"), [site]) is None


def test_results_of_the_session_become_a_table() -> None:
    whole = {"plain": [400.0, 420.0, 440.0], "graph": [300.0, 310.0, 320.0]}
    served = {
        "session": [220.0, 230.0],
        "session-plain": [330.0],
        "session-bound": [221.0],
        "bare-graph": [212.0],
        "bare-graph-and-copies": [218.0],
    }
    on_host = {"session": [21.0, 22.0, 23.0], "session-bound": [9.0], "bare-graph-and-copies": [8.0]}
    row = row_of("BERT-base fp16 B1 S384", "float16", whole, served, on_host, bound_us=50.0)
    assert (row.ours_us, row.peers_us["bare-graph"], row.notes["session_adds_us"]) == (225.0, 212.0, 13.0)
    versions = dict.fromkeys(("device", "driver", "cuda", "tensorrt", "torch"), "x")
    results = {**versions, "commit": "c", "date": "2026-01-01T00:00:00Z", "rows": [dataclasses.asdict(row)]}
    last = _body("session", results).splitlines()[-1]
    assert last == (
        "| BERT-base fp16 B1 S384 | float16 | 420 / 440 | 310 / 320 | 330 / 330 | 225 / 230 | 221 / 221 | 212 / 212 | "
        "218 / 218 | 13.0 | 7.0 | 9.0 | 22.0 | 9.0 | 8.0 | 50.0 |"
    )
