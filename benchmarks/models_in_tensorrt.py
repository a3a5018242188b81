"""Whole models in TensorRT, as given against softmax-lowered: results/softmax-in-tensorrt.json.

For each work both engines are built, checked against ONNX Runtime on the same inputs, and timed in one interleaved run.
TensorRT builds a 12-layer model in one to two minutes: `--work` picks works, others stay in the file.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from attngraft.engine import ShapeRange, build_engine
from attngraft.onnx_export import SAMPLES, export_module
from attngraft.rewrite import rewrite_model
from benchmarks.engine_timing import LoadedEngine
from benchmarks.padded_text import padding_mask
from benchmarks.results_file import Row, write_results
from benchmarks.timing import graph_replay_us, matrix_rate

VIT = Path(os.environ.get("ATTNGRAFT_VIT", ".demo/vit_s_focus.onnx"))
"""The demo's model; `make demo` fetches it."""


@dataclass(frozen=True)
class Work:
    """One model at one size. `sites` of attention softmaxes are to become plugin layers."""

    name: str
    dtype: torch.dtype
    model: Callable[[Path], Path]
    """Puts the ONNX file into a folder and returns its path."""
    inputs: Callable[[], dict[str, np.ndarray]]
    sites: int
    operations: float
    """Floating-point operations of the transformer layers, see `transformer_operations`."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", choices=sorted(WORKS), action="append", help="measure only these (repeatable)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for key in options.work or WORKS:
            row = measure(WORKS[key], Path(folder))
            print(
                f"{row.work}: softmax lowered {row.ours_us:.0f} us, as given {row.peers_us['tensorrt-plain']:.0f} us, "
                f"{row.notes}",
                flush=True,
            )
            print(write_results("softmax-in-tensorrt", [row]))
    return 0


def measure(work: Work, folder: Path) -> Row:
    """Builds both engines of a work, checks and times them."""
    model, lowered = work.model(folder), folder / "lowered.onnx"
    rewrite_model(model, lowered, lower="softmax", verify=False)
    arrays = work.inputs()
    reference = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, arrays)[0]
    shapes = {name: ShapeRange.fixed(array.shape) for name, array in arrays.items()}
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}

    engines, differences = {}, {}
    for name, source, plugins in (("tensorrt-plain", model, 0), ("ours", lowered, work.sites)):
        built = build_engine(
            source, folder / f"{name}.engine", backend="tensorrt", shapes=shapes, embed_plugins=False,
            timing_cache=folder / "timing.cache",
        )  # fmt: skip
        assert built.plugin_layers == plugins, f"{name}: {built.plugin_layers} plugin layers, expected {plugins}"
        engines[name] = LoadedEngine(built.engine_path, tensors)
        engines[name]()
        (output,) = engines[name].outputs.values()
        differences[name] = float(np.abs(output.float().cpu().numpy() - reference.astype(np.float32)).max())
    elapsed = graph_replay_us(engines)
    return Row(
        work=work.name,
        dtype=str(work.dtype).removeprefix("torch."),
        ours_us=elapsed.pop("ours"),
        peers_us=elapsed,
        bound_us=work.operations / matrix_rate(work.dtype),
        notes={"largest_difference_from_onnxruntime": differences},
    )


def transformer_operations(batch: int, tokens: int, hidden: int, layers: int) -> float:
    """Of all matrix products in layers with a four times wider inner projection: per token 24 hidden^2 for the
    projections and 4 tokens * hidden for attention."""
    return float(batch * tokens * layers * (24 * hidden**2 + 4 * tokens * hidden))


def exported_bert(dtype: str) -> Callable[[Path], Path]:
    def export(folder: Path) -> Path:
        sample = SAMPLES["bert-base"].build(dtype=dtype)
        return export_module(
            sample.module,
            sample.args,
            folder / "bert.onnx",
            input_names=sample.input_names,
            output_names=sample.output_names,
            dynamic_axes=sample.dynamic_axes,
        )

    return export


def demo_vit(folder: Path) -> Path:
    if not VIT.is_file():
        sys.exit(f"{VIT} is missing; run make demo, which fetches it, or set ATTNGRAFT_VIT")
    return VIT


def padded_text(batch: int, sequence: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    mask = padding_mask(rng, batch, sequence).astype(np.int64)
    return {"input_ids": rng.integers(3, 30000, (batch, sequence)), "attention_mask": mask}


def images(batch: int) -> dict[str, np.ndarray]:
    return {"input_image": np.random.default_rng(0).standard_normal((batch, 3, 224, 224), dtype=np.float32)}


BERT_OPERATIONS = transformer_operations(batch=8, tokens=384, hidden=768, layers=12)

WORKS = {
    "bert-fp16": Work("BERT-base fp16 B8 S384", torch.float16, exported_bert("fp16"), lambda: padded_text(8, 384),
                      sites=12, operations=BERT_OPERATIONS),
    "bert-fp32": Work("BERT-base fp32 B8 S384", torch.float32, exported_bert("fp32"), lambda: padded_text(8, 384),
                      sites=12, operations=BERT_OPERATIONS),
    "vit-b1": Work("ViT-S fp32 B1 224x224", torch.float32, demo_vit, lambda: images(1), sites=12,
                   operations=transformer_operations(batch=1, tokens=197, hidden=384, layers=12)),
    "vit-b8": Work("ViT-S fp32 B8 224x224", torch.float32, demo_vit, lambda: images(8), sites=12,
                   operations=transformer_operations(batch=8, tokens=197, hidden=384, layers=12)),
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
