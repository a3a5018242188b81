"""Whole models in TensorRT, as given against softmax-lowered: results/softmax-in-tensorrt.json.

For each work both engines are built, checked against ONNX Runtime on the same inputs, and timed in one interleaved run.
TensorRT builds a 12-layer model in one to two minutes: `--work` picks works, others stay in the file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from attngraft.engine import ShapeRange, build_engine
from attngraft.rewrite import rewrite_model
from benchmarks.engine_timing import LoadedEngine
from benchmarks.model_works import WORKS, Work
from benchmarks.results_file import Row, write_results
from benchmarks.timing import graph_replay_us, matrix_rate


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


if __name__ == "__main__":
    sys.exit(main())
