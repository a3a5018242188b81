"""From a PyTorch module to an engine with the plugin in it. No GPU: TensorRT-RTX builds ahead of time."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from attngraft.engine import ShapeRange, build_engine
from attngraft.match import match_model
from attngraft.onnx_export import EXPORTERS, SAMPLES, SampleModel, compare_with_module
from attngraft.onnx_graph import load_model
from attngraft.rewrite import rewrite_model
from attngraft.verify import verify_models

# The small models' outputs are of order 1. In fp32 exporting and rewriting reorder sums, in fp16 they also move
# roundings of 2^-11.
WORST_DIFFERENCE = {"fp32": 1e-5, "fp16": 1e-2}

TEXT_RANGE = ShapeRange((1, 1), (2, 24), (4, 64))

IN_ALL_FORMS = ("bert-base", "gpt2", "vit-base")
USUAL_FORMS = (("dynamo", "sdpa", "fp16"), ("torchscript", "eager", "fp32"))

FORMS = [
    (name, exporter, attention, dtype)
    for name in sorted(SAMPLES)
    for exporter in EXPORTERS
    for attention, dtype in (("eager", "fp32"), ("sdpa", "fp32"), ("eager", "fp16"), ("sdpa", "fp16"))
    # PyTorch's TorchScript exporter gives LayerNormalization inputs of two types there: the file is not valid ONNX.
    if (exporter, attention, dtype) != ("torchscript", "sdpa", "fp16")
    if name in IN_ALL_FORMS or (exporter, attention, dtype) in USUAL_FORMS
]


@dataclass(frozen=True)
class Exported:
    path: Path
    sample: SampleModel
    dtype: str

    @property
    def shapes(self) -> dict[str, ShapeRange]:
        """An optimization profile with every dynamic axis in it."""
        if "input_ids" in self.sample.input_names:
            return {name: TEXT_RANGE for name in self.sample.input_names}
        (name,), one = self.sample.input_names, tuple(self.sample.args[0].shape[1:])
        return {name: ShapeRange((1, *one), (2, *one), (4, *one))}

    @property
    def other_arguments(self) -> list[torch.Tensor]:
        """Of another batch and sequence than the example's, right padding and holes in the mask.

        The first token is always there: in a causal row that is masked as a whole PyTorch's exports differ from SDPA.
        """
        batch, sequence = 3, 17
        if "input_ids" not in self.sample.input_names:
            (example,) = self.sample.args
            return [torch.randn(batch, *example.shape[1:]).to(example.dtype)]
        mask = torch.ones(batch, sequence, dtype=torch.int64)
        mask[0, 5:], mask[2, 4:9] = 0, 0
        return [torch.randint(3, 200, (batch, sequence)), mask]

    @property
    def shape_options(self) -> list[str]:
        return [f"--shape={name}={shapes}" for name, shapes in self.shapes.items()]


def export(name: str, folder: Path, exporter: str, attention: str, dtype: str) -> Exported:
    sample = SAMPLES[name].build(small=True, dtype=dtype, attention=attention)
    path = sample.export(folder / "model.onnx", exporter=exporter)
    return Exported(path, sample, dtype)


def attngraft(*arguments: object) -> str:
    """Standard output of the command line, run as its users run it."""
    command = [sys.executable, "-m", "attngraft.cli", *map(str, arguments)]
    finished = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.mark.parametrize(("name", "exporter", "attention", "dtype"), FORMS, ids=["-".join(form) for form in FORMS])
def test_export_rewrite_verify_build(name: str, exporter: str, attention: str, dtype: str, tmp_path: Path) -> None:
    exported = export(name, tmp_path, exporter, attention, dtype)
    (difference,) = compare_with_module(exported.path, exported.sample.module, exported.other_arguments)
    assert difference < WORST_DIFFERENCE[dtype]

    layers = exported.sample.layers
    assert len(match_model(load_model(exported.path)).sites) == layers

    rewritten = tmp_path / "rewritten.onnx"
    assert rewrite_model(exported.path, rewritten, lower="softmax", verify=False).lowered == layers
    report = verify_models(exported.path, rewritten)
    assert report.passed, str(report)
    assert report.worst < WORST_DIFFERENCE[dtype], str(report)

    built = build_engine(rewritten, tmp_path / "model.engine", backend="rtx", shapes=exported.shapes)
    assert built.plugin_layers == layers
    assert built.engine_path.stat().st_size == built.size_bytes > 0


def test_the_command_line_goes_the_same_way(tmp_path: Path) -> None:
    exported = export("bert-base", tmp_path, "dynamo", "eager", "fp32")
    rewritten, engine = tmp_path / "rewritten.onnx", tmp_path / "model.engine"

    found = json.loads(attngraft("inspect", exported.path, "--json"))
    assert len(found["sites"]) == exported.sample.layers
    assert {tuple(site["operands"]) for site in found["sites"]} == {("keep",)}

    attngraft("rewrite", exported.path, "-o", rewritten, "--lower", "softmax")
    assert "equal" in attngraft("verify", exported.path, rewritten)
    printed = attngraft(
        "build", rewritten, "-o", engine, "--backend", "rtx", "--lower", "keep", *exported.shape_options
    )  # fmt: skip
    assert f"{exported.sample.layers} plugin layers" in printed
    assert engine.exists()


def test_auto_leaves_a_model_that_gains_nothing_as_it_was(tmp_path: Path) -> None:
    exported = export("vit-base", tmp_path, "dynamo", "eager", "fp32")
    result = rewrite_model(exported.path, tmp_path / "rewritten.onnx", lower="auto")
    assert result.lowered == 0
    assert (tmp_path / "rewritten.onnx").read_bytes() == exported.path.read_bytes()
