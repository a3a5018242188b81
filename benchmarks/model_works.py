"""Whole models that are measured in TensorRT: where they come from, their inputs and their operations."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from attngraft.onnx_export import SAMPLES, export_module
from benchmarks.padded_text import padding_mask

__all__ = ["WORKS", "Work", "transformer_operations"]

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
