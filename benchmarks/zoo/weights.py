"""Exports without their weights, to carry many of them to another machine: `python -m benchmarks.zoo.weights`.

`strip` empties the large random tensors and notes a seed and a deviation in each; `restore` draws new ones. The
restored model is not the exported one, but it has its shapes, types and magnitudes, and is the same every time.
"""

from __future__ import annotations

import argparse
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, numpy_helper

__all__ = ["restore", "restored_copy", "strip"]

KEPT_BYTES = 64 << 10
"""Tensors up to this size stay: norms, biases, tables of positions, masks."""

SAMPLED_VALUES = 4096
FEW_VALUES = 64
"""A tensor with so few distinct values in a sample is no random matrix: a mask, ones, zeros, a table of steps."""

FLOAT_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
NOTE = re.compile(r"drawn with seed (\d+) and deviation (\S+)")


def strip(model: ModelProto) -> ModelProto:
    """A copy whose large random weights are gone, with a note how to draw them in their doc strings."""
    small = ModelProto()
    small.CopyFrom(model)
    for tensor in _weights(small):
        array = numpy_helper.to_array(tensor).astype(np.float32)
        if array.nbytes <= KEPT_BYTES or not _is_random(array):
            continue
        seed = zlib.crc32(tensor.name.encode())
        for storage in ("raw_data", "float_data", "int32_data"):
            tensor.ClearField(storage)
        tensor.doc_string = f"drawn with seed {seed} and deviation {float(array.std()):.6g}"
    return small


def restore(model: ModelProto) -> int:
    """Draws the weights that `strip` took, in place. Returns how many tensors that were: 0 for a model as exported."""
    drawn = 0
    for tensor in _weights(model):
        note = NOTE.fullmatch(tensor.doc_string)
        if note is None:
            continue
        seed, deviation = int(note[1]), float(note[2])
        values = np.random.default_rng(seed).standard_normal(tuple(tensor.dims), dtype=np.float32) * deviation
        filled = numpy_helper.from_array(
            values.astype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)), tensor.name
        )
        tensor.CopyFrom(filled)
        drawn += 1
    return drawn


def restored_copy(path: Path, folder: Path) -> Path:
    """The export, stripped or not, with weights, under its own name in `folder`."""
    model = onnx.load(path)
    restore(model)
    onnx.save(model, folder / path.name)
    return folder / path.name


def _weights(model: ModelProto) -> Iterator[TensorProto]:
    yield from (tensor for tensor in model.graph.initializer if tensor.data_type in FLOAT_TYPES)
    for node in model.graph.node:
        if node.op_type == "Constant":
            yield from (a.t for a in node.attribute if a.name == "value" and a.t.data_type in FLOAT_TYPES)


def _is_random(array: np.ndarray) -> bool:
    sample = array.reshape(-1)[:: max(1, array.size // SAMPLED_VALUES)]
    return bool(np.isfinite(array).all()) and np.unique(sample).size > FEW_VALUES


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo.weights", description="Exports without weights.")
    parser.add_argument("source", type=Path, metavar="DIR", help="folder of exports")
    parser.add_argument("target", type=Path, metavar="DIR", help="folder for the stripped ones")
    options = parser.parse_args(argv)
    options.target.mkdir(parents=True, exist_ok=True)
    for path in sorted(options.source.glob("*.onnx")):
        stripped = options.target / path.name
        onnx.save(strip(onnx.load(path)), stripped)
        print(f"{stripped}: {path.stat().st_size / 1e6:.1f} MB became {stripped.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
