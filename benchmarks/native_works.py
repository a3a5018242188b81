"""The architectures that lowering `native` is measured on, at which sizes, and the inputs for that."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto

from benchmarks.padded_text import padding_mask

__all__ = ["EXPORTS", "WORKS", "Work", "example_inputs", "find_exports", "operations", "title"]

FIRST_WORD, LAST_WORD = 3, 98
"""Ids that are in every table of the zoo and are no special tokens."""


@dataclass(frozen=True)
class Work:
    """One architecture at one size. `queries` and `keys` are those of an attention site."""

    title: str
    batch: int
    queries: int
    keys: int
    sites: int
    hidden: int = 768


WORKS = {
    "bert": Work("BERT", 8, 384, 384, sites=2),
    "gpt2": Work("GPT-2", 8, 384, 384, sites=2),
    "llama": Work("Llama", 8, 384, 384, sites=2),
    "gemma2": Work("Gemma-2", 8, 384, 384, sites=2),
    "t5": Work("T5", 8, 384, 384, sites=6),
    "vit": Work("ViT", 8, 197, 197, sites=2),
    "whisper_encoder": Work("Whisper encoder", 1, 1500, 1500, sites=2),
    "deberta_v2": Work("DeBERTa", 8, 384, 384, sites=2),
}

EXPORTS = rf"^({'|'.join(WORKS)})-(eager|sdpa)-(dynamo-op18|torchscript-op17)-fp16$"


def find_exports(folder: Path, only: str | re.Pattern[str]) -> dict[str, list[Path]]:
    """The exports there are, by architecture."""
    found: dict[str, list[Path]] = {}
    for key in WORKS:
        paths = sorted(path for path in folder.glob(f"{key}-*.onnx") if re.match(EXPORTS, path.stem))
        chosen = [path for path in paths if re.search(only, path.stem)]
        if chosen:
            found[key] = chosen
    return found


def title(name: str, work: Work) -> str:
    """`BERT sdpa dynamo op18 B8 S384`."""
    variant = name.split("-", 1)[1].removesuffix("-fp16").replace("-", " ")
    return f"{work.title} {variant} B{work.batch} S{work.queries}"


def example_inputs(model: ModelProto, work: Work, batch: int | None = None) -> dict[str, np.ndarray]:
    """Inputs of a work's size: ids, right-padded masks, and normal floats."""
    rng = np.random.default_rng(0)
    batch = batch or work.batch
    mask = padding_mask(rng, batch, work.keys)
    inputs: dict[str, np.ndarray] = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        dims = [dim.dim_value or None for dim in tensor.shape.dim]
        shape = tuple(dim or (batch if axis == 0 else work.keys) for axis, dim in enumerate(dims))
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if value.name.endswith("mask"):
            inputs[value.name] = mask.astype(dtype)
        elif value.name.endswith("ids"):
            inputs[value.name] = rng.integers(FIRST_WORD, LAST_WORD, shape).astype(dtype)
        else:
            inputs[value.name] = rng.standard_normal(shape).astype(dtype)
    return inputs


def operations(model: ModelProto, work: Work) -> float:
    """Floating-point operations of the projections, from the weights that enter matrix products, and of attention."""
    sizes = {tensor.name: int(np.prod(tensor.dims)) for tensor in model.graph.initializer if len(tensor.dims) == 2}
    for node in model.graph.node:
        if node.op_type in ("Transpose", "Cast", "Identity") and node.input[0] in sizes:
            sizes[node.output[0]] = sizes[node.input[0]]
    weights = sum(
        sizes.get(name, 0) for node in model.graph.node if node.op_type in ("MatMul", "Gemm") for name in node.input[:2]
    )
    attention = 4.0 * work.batch * work.queries * work.keys * work.hidden * work.sites
    return 2.0 * work.batch * work.queries * weights + attention
