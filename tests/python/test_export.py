"""Exporting modules: both exporters, one notation, nothing half-written. Whole samples: test_end_to_end.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from attngraft.errors import MissingDependency, ModelError, VerificationError
from attngraft.onnx_export import EXPORTERS, SAMPLES, export_module
from attngraft.onnx_export import exporter as exporter_module
from attngraft.onnx_export.__main__ import main
from attngraft.onnx_export.exporter import DEFAULT_OPSET

# Absolute, of sums of eight products of order 1 in another order.
FP32_DIFFERENCE = 1e-5

PUBLISHED_PARAMETERS = {
    "bert-base": 109e6,
    "gpt2": 124e6,
    "llama": 506e6,  # not published at this depth: a table of 32000 and 10 layers of 44e6
    "t5-base-encoder": 110e6,
    "vit-base": 86e6,
    "vit-small": 22e6,
    "whisper-small-encoder": 88e6,
}


class Linear(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 64)  # weights large enough to be worth a file of their own

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class Noisy(Linear):
    """No two calls agree, so no file can agree with it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + torch.randn(64)


class Refused(Linear):
    """Neither exporter can follow it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("this module\ncannot be run")


def export_linear(module: torch.nn.Module, path: Path, **options: object) -> Path:
    options = {"input_names": ["x"], "output_names": ["y"], **options}
    return export_module(module, [torch.ones(2, 8)], path, **options)


def test_bfloat16_sample_has_bfloat16_weights(tmp_path: Path) -> None:
    sample = SAMPLES["bert-base"].build(small=True, dtype="bf16")
    path = export_module(
        sample.module, sample.args, tmp_path / "model.onnx", input_names=sample.input_names,
        output_names=sample.output_names, dynamic_axes=sample.dynamic_axes,
    )  # fmt: skip
    assert onnx.TensorProto.BFLOAT16 in {tensor.data_type for tensor in onnx.load(path).graph.initializer}


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_file_has_the_names_axes_and_opset_asked_for(exporter: str, tmp_path: Path) -> None:
    axes = {"x": {0: "rows"}}
    path = export_linear(Linear(), tmp_path / "linear.onnx", exporter=exporter, dynamic_axes=axes)
    model = onnx.load(path)
    (x,), (y,) = model.graph.input, model.graph.output
    assert (x.name, y.name) == ("x", "y")
    dims = x.type.tensor_type.shape.dim
    assert (dims[0].dim_param, dims[1].dim_value) == ("rows", 8)
    assert {opset.domain: opset.version for opset in model.opset_import}[""] == DEFAULT_OPSET[exporter]


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_external_data_lies_beside_the_file(exporter: str, tmp_path: Path) -> None:
    module = Linear()
    path = export_linear(module, tmp_path / "linear.onnx", exporter=exporter, external_data=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["linear.onnx", "linear.onnx.data"]
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"x": np.ones((2, 8), np.float32)})
    np.testing.assert_allclose(result, module(torch.ones(2, 8)).detach().numpy(), atol=FP32_DIFFERENCE)


def test_weights_that_fit_no_single_message_become_external(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weight_bytes = sum(parameter.nbytes for parameter in Linear().parameters())
    monkeypatch.setattr(exporter_module, "EXTERNAL_DATA_BYTES", exporter_module.GRAPH_BYTES + weight_bytes + 1)
    export_linear(Linear(), tmp_path / "fits.onnx")
    monkeypatch.setattr(exporter_module, "EXTERNAL_DATA_BYTES", exporter_module.GRAPH_BYTES + weight_bytes)
    export_linear(Linear(), tmp_path / "large.onnx")
    assert {file.name for file in tmp_path.iterdir()} == {"fits.onnx", "large.onnx", "large.onnx.data"}


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize(("module", "error"), ((Refused(), ModelError), (Noisy(), VerificationError)))
def test_a_failure_is_one_line_and_leaves_the_old_file(
    module: torch.nn.Module, error: type[Exception], exporter: str, tmp_path: Path
) -> None:
    target = tmp_path / "model.onnx"
    target.write_bytes(b"what was there")
    with pytest.raises(error) as raised:
        export_linear(module, target, exporter=exporter, check=True)
    assert "\n" not in str(raised.value)
    assert target.read_bytes() == b"what was there"
    assert list(tmp_path.iterdir()) == [target]


def test_every_part_of_the_module_keeps_its_training_mode(tmp_path: Path) -> None:
    module = Linear().train()
    module.layer.eval()
    export_linear(module, tmp_path / "linear.onnx", exporter="torchscript")
    assert (module.training, module.layer.training) == (True, False)


@pytest.mark.parametrize(
    ("options", "found"),
    (
        ({"exporter": "magic"}, "'magic'"),
        ({"input_names": ["x", "z"]}, "2 names for 1 arguments"),
        ({"dynamic_axes": {"z": {0: "rows"}}}, "'z' is no input"),
    ),
)
def test_wrong_options_are_named(options: dict[str, object], found: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=found):
        export_linear(Linear(), tmp_path / "linear.onnx", **options)
    assert not list(tmp_path.iterdir())


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="folder does not exist"):
        export_linear(Linear(), tmp_path / "nowhere" / "linear.onnx")


@pytest.mark.parametrize("package", ("torch", "onnxscript"))
def test_a_missing_package_names_the_extra(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Linear()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependency, match=rf"{package}: not installed.*attngraft\[export\]"):
        export_module(module, [None], tmp_path / "linear.onnx", input_names=["x"], output_names=["y"])


def test_importing_the_package_imports_no_framework() -> None:
    code = "import sys, attngraft.onnx_export; print({'torch', 'transformers', 'onnxscript'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_sample_has_the_published_size(name: str) -> None:
    with torch.device("meta"):
        sample = SAMPLES[name].build()
    parameters = sum(parameter.numel() for parameter in sample.module.parameters())
    assert parameters == pytest.approx(PUBLISHED_PARAMETERS[name], rel=0.02)
    assert sample.layers == (10 if name == "llama" else 12)


def test_sample_is_the_same_every_time_and_draws_nothing_from_the_callers_generator() -> None:
    torch.manual_seed(0)
    first = SAMPLES["bert-base"].build(small=True)
    drawn = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(1), drawn)
    second = SAMPLES["bert-base"].build(small=True)
    assert all(torch.equal(a, b) for a, b in zip(first.module.parameters(), second.module.parameters(), strict=False))


@pytest.mark.parametrize("options", ({"dtype": "fp8"}, {"attention": "flash"}))
def test_unknown_sample_options_are_named(options: dict[str, str]) -> None:
    with pytest.raises(ModelError, match="is not one of"):
        SAMPLES["bert-base"].build(small=True, **options)


def test_command_line_prints_the_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "vit.onnx"
    assert main(["vit-base", "--small", "--check", "-o", str(target)]) == 0
    assert capsys.readouterr().out.strip() == str(target)
    assert target.exists()


def test_command_line_reports_an_error_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vit-base", "--small", "-o", str(tmp_path / "nowhere" / "vit.onnx")]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("attngraft: error: ") and "folder does not exist" in last
