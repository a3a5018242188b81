"""The zoo of exports: its registry, a sample end to end, and the scripts that count and measure with it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from attngraft.errors import BuildError
from attngraft.match import match_model
from benchmarks import native_works, rewriter_native
from benchmarks.make_tables import counts_table
from benchmarks.rewriter_counts import reduce_answers
from benchmarks.rewriter_peers import PEERS
from benchmarks.rewriter_speed import layered_model
from benchmarks.rewriter_steps import STEPS
from benchmarks.zoo.__main__ import main as zoo_main
from benchmarks.zoo.entry import SIZES, Entry
from benchmarks.zoo.exporting import read_facts
from benchmarks.zoo.registry import ENTRIES, jobs
from benchmarks.zoo.truth import count_softmaxes
from benchmarks.zoo.weights import KEPT_BYTES, restore, strip

ROOT = Path(__file__).parents[2]

SAMPLE = (
    "bert-eager-dynamo-op18-fp16",
    "bert-sdpa-torchscript-op17-fp16",
    "bert_classifier-eager-torchscript-op17-fp32",
    "bert_nomask-eager-torchscript-op17-fp32",
    "diffusion_folded-plain-torchscript-op17-fp16",
    "hand_einsum-plain-torchscript-op17-fp32",
    "hand_relbias_mask-plain-torchscript-op17-fp32",
    "llama_past-sdpa-torchscript-op17-fp32",
    "local_function-plain-graph-op17-fp32",
    "loop_body-plain-graph-op17-fp16",
    "not_mixture-plain-torchscript-op17-fp32",
    "not_pooling_product-plain-torchscript-op17-fp32",
    "scan_body-plain-graph-op17-fp32",
    "sdpa_causal-plain-dynamo-op23-fp32",
    "t5-eager-torchscript-op17-fp32",
)
"""Each is there for something that the others lack: an exporter, a type, a body, a negative, a cache."""


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the sample's exports, made by the command line."""
    folder = tmp_path_factory.mktemp("zoo")
    command = [sys.executable, "-m", "benchmarks.zoo", "--folder", str(folder), "--filter", f"^({'|'.join(SAMPLE)})$"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert f"{len(SAMPLE)} of {len(SAMPLE)} exports" in finished.stderr, finished.stderr
    return folder / "small"


@pytest.mark.parametrize("name", SAMPLE)
def test_export_is_recognised_rewritten_equal_and_builds(name: str, exports: Path) -> None:
    path = exports / f"{name}.onnx"
    facts = read_facts(path)
    assert facts is not None
    found = STEPS["match"](path)
    assert found["sites"] == facts["sites"], found
    for lower in ("softmax", "native", "native for rtx"):
        verdict = STEPS[f"rewrite {lower}"](path)
        assert verdict["verdict"] in ("equal", "nothing to do"), (lower, verdict)
    STEPS["build native"](path)  # raises where TensorRT-RTX refuses it


@pytest.mark.parametrize("name", ("bert-sdpa-torchscript-op17-fp16", "sdpa_causal-plain-dynamo-op23-fp32"))
def test_export_that_does_not_build_as_it_is(name: str, exports: Path) -> None:
    with pytest.raises(BuildError):
        STEPS["build keep"](exports / f"{name}.onnx")


def test_peers_fuse_no_more_than_there_is(exports: Path) -> None:
    path = exports / "bert-eager-dynamo-op18-fp16.onnx"
    for name in ("onnxruntime-session", "onnxscript"):
        counts = PEERS[name](path)
        assert 0 <= counts["fused"] <= 1, name


def test_names_are_unique_and_plain() -> None:
    names = [job.name for job in jobs(SIZES["small"])]
    assert len(names) == len(set(names))
    assert all(
        re.fullmatch(r"\w+-(eager|sdpa|plain)-(dynamo|torchscript|graph)-op\d+-(fp32|fp16|bf16)", n) for n in names
    )
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES)


REFUSED = (
    "python -m benchmarks.zoo: error: argument --filter: '[' is no regular expression: "
    "unterminated character set at position 0"
)


def test_a_bad_filter_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        zoo_main(["--list", "--filter", "["])
    assert capsys.readouterr().err.splitlines()[-1] == REFUSED


def test_every_family_has_both_exporters_and_half_types() -> None:
    exporters: dict[str, set[str]] = {}
    for job in jobs(SIZES["small"]):
        exporters.setdefault(job.entry.family, set()).update((job.variant.exporter, job.variant.dtype))
    assert all({"dynamo", "torchscript", "fp32", "fp16"} <= found for found in exporters.values()), exporters


@pytest.mark.parametrize(
    ("name", "attention", "counted"),
    (("bert_classifier", "sdpa", (1, 1)), ("t5", "eager", (3, 0)), ("hand_decomp", "plain", (1, 0))),
)
def test_softmaxes_are_counted_in_pytorch(name: str, attention: str, counted: tuple[int, int]) -> None:
    (entry,) = (entry for entry in ENTRIES if entry.name == name)
    assert isinstance(entry, Entry)
    with torch.random.fork_rng(devices=[]):
        assert count_softmaxes(entry.build(SIZES["small"], attention)) == counted


FORKED = """
import json, os, time
from benchmarks.zoo.forked import run_forked

def work(kind):
    if kind == "raise":
        raise ValueError("two\\nlines")
    if kind == "die":
        os._exit(3)
    if kind == "hang":
        time.sleep(60)
    return kind

outcomes = run_forked(("work", "raise", "die", "hang"), work, time_limit=2)
print(json.dumps({one.job: one.value or one.error for one in outcomes}))
"""


def test_a_forked_job_that_fails_is_one_line() -> None:
    printed = subprocess.run([sys.executable, "-c", FORKED], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(printed.stdout) == {
        "work": "work",
        "raise": "ValueError: two lines",
        "die": "the process died with exit code 3",
        "hang": "stopped after 2 s",
    }


def test_weights_come_back_with_shape_type_and_magnitude(exports: Path) -> None:
    model = onnx.load(exports / "t5-eager-torchscript-op17-fp32.onnx")
    rng = np.random.default_rng(0)
    large = onnx.numpy_helper.from_array((rng.standard_normal((400, 100)) * 0.02).astype(np.float16), "large")
    mask = onnx.numpy_helper.from_array(np.triu(np.full((400, 400), -np.inf, np.float32), 1), "mask")
    model.graph.initializer.extend((large, mask))
    assert len(large.raw_data) > KEPT_BYTES
    stripped = strip(model)
    assert stripped.ByteSize() < model.ByteSize() - len(large.raw_data) + 200
    assert restore(stripped) >= 1
    tensors = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in stripped.graph.initializer}
    assert (tensors["large"].shape, tensors["large"].dtype) == ((400, 100), np.float16)
    assert tensors["large"].astype(np.float32).std() == pytest.approx(0.02, rel=0.02)
    np.testing.assert_array_equal(tensors["mask"], onnx.numpy_helper.to_array(mask))
    again = strip(model)
    restore(again)
    assert again == stripped


def test_answers_add_up() -> None:
    facts = {"a-eager-dynamo-op18-fp32": {"sites": 2, "others": 1, "family": "f"}}
    (name,) = facts
    answers = {(name, "match"): {"value": {"sites": 3}}}
    answers |= {(name, f"peer {peer}"): {"value": {"fused": 1}} for peer in PEERS}
    answers[name, "peer onnxsim"] = {"value": None}
    answers[name, "rewrite native"] = {"value": {"lowered": 2, "verdict": "differs"}}
    answers |= {(name, f"build {lower}"): {"value": {"fused": 2}} for lower in ("native", "auto")}
    answers[name, "build keep"] = {"value": None}
    counts = reduce_answers(facts, answers)
    recognition = counts["recognition"][-1].counts
    assert (recognition["attngraft"], recognition["others touched"]) == (2, 1)
    assert (recognition["onnxscript"], recognition["onnxsim"]) == (1, 0)
    (native,) = (row.counts for row in counts["lowerings"])
    assert (native["sites lowered"], native["models: differs"], native["models: equal"]) == (2, 1, 0)
    builds = counts["tensorrt-rtx"][0]
    assert builds.work == "dynamo op18 fp32"
    assert [builds.counts[f"build: {lower}"] for lower in ("keep", "native", "auto")] == [0, 1, 1]
    assert counts_table(counts["tensorrt-rtx"]).splitlines()[-1] == "| all | 1 | 2 | 0 | 0 | 1 | 2 | 1 | 2 |"


def test_native_measurement_needs_a_gpu_for_its_engines_only(exports: Path, tmp_path: Path) -> None:
    found = native_works.find_exports(exports, "sdpa")
    assert {key: [path.stem for path in paths] for key, paths in found.items()} == {
        "bert": ["bert-sdpa-torchscript-op17-fp16"]
    }
    said = rewriter_native.check(found["bert"][0], native_works.WORKS["bert"], tmp_path)
    lowered, difference = re.fullmatch(r"\S+: (\d) of 1 sites lowered; largest difference (\S+)", said).groups()
    assert int(lowered) == 1 and float(difference) < 1e-3


def test_operations_are_those_of_the_products() -> None:
    work = native_works.Work("layers", batch=2, queries=8, keys=8, sites=3, hidden=32)
    projections, attention = 3 * 4 * 2 * (2 * 8) * 32 * 32, 3 * 4 * 2 * 8 * 8 * 32
    assert native_works.operations(layered_model(3), work) == projections + attention


def test_layers_of_the_speed_measurement_are_sites() -> None:
    assert len(match_model(layered_model(3)).sites) == 3
