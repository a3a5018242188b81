"""Whole models that are measured in TensorRT: where they come from, their inputs and their operations."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from attngraft.onnx_export import SAMPLES
from benchmarks.padded_text import padding_mask
from benchmarks.zoo.weights import restored_copy

__all__ = ["EXPORTS", "WORKS", "Work", "exported", "half_floats", "padded_text", "transformer_operations"]

VIT = Path(os.environ.get("ATTNGRAFT_VIT", ".demo/vit_s_focus.onnx"))
"""The demo's model; `make demo` fetches it."""

EXPORTS = Path(".zoo/whole")
"""Exports of samples that were made before, stripped ones too, as SAMPLE-ATTENTION-DTYPE.onnx."""


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


def transformer_operations(batch: int, tokens: int, hidden: int, layers: int, weights: int | None = None) -> float:
    """Of all matrix products in layers: per token two for each of a layer's `weights` (by default those of attention
    and a four times wider inner projection, 12 hidden^2) and 4 tokens * hidden for attention."""
    weights = 12 * hidden**2 if weights is None else weights
    return float(batch * tokens * layers * (2 * weights + 4 * tokens * hidden))


def exported(sample: str, dtype: str, attention: str) -> Callable[[Path], Path]:
    """Exports a sample, or takes it from EXPORTS."""

    def export(folder: Path) -> Path:
        made = EXPORTS / f"{sample}-{attention}-{dtype}.onnx"
        if made.exists():
            return restored_copy(made, folder)
        return SAMPLES[sample].build(dtype=dtype, attention=attention).export(folder / made.name)

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


def half_floats(*shape: int) -> np.ndarray:
    """Normal ones, the same every time."""
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32).astype(np.float16)


BERT_OPERATIONS = transformer_operations(batch=8, tokens=384, hidden=768, layers=12)
LLAMA_LAYER = 2 * 2048 * 2048 + 2 * 2048 * 256 + 3 * 2048 * 5632

WORKS = {
    "bert-fp16": Work("BERT-base fp16 B8 S384", torch.float16, exported("bert-base", "fp16", "eager"),
                      lambda: padded_text(8, 384), sites=12, operations=BERT_OPERATIONS),
    "bert-sdpa-fp16": Work("BERT-base SDPA fp16 B8 S384", torch.float16, exported("bert-base", "fp16", "sdpa"),
                           lambda: padded_text(8, 384), sites=12, operations=BERT_OPERATIONS),
    "bert-fp32": Work("BERT-base fp32 B8 S384", torch.float32, exported("bert-base", "fp32", "eager"),
                      lambda: padded_text(8, 384), sites=12, operations=BERT_OPERATIONS),
    "gpt2-fp16": Work("GPT-2 SDPA fp16 B1 S512", torch.float16, exported("gpt2", "fp16", "sdpa"),
                      lambda: padded_text(1, 512), sites=12,
                      operations=transformer_operations(1, 512, 768, 12) + 2.0 * 512 * 768 * 50257),
    "llama-fp16": Work("Llama of 1 GB SDPA fp16 B1 S512", torch.float16, exported("llama", "fp16", "sdpa"),
                       lambda: padded_text(1, 512), sites=10,
                       operations=transformer_operations(1, 512, 2048, 10, LLAMA_LAYER)),
    "t5-encoder-fp16": Work("T5-base encoder SDPA fp16 B8 S384", torch.float16,
                            exported("t5-base-encoder", "fp16", "sdpa"), lambda: padded_text(8, 384), sites=12,
                            operations=BERT_OPERATIONS),
    "whisper-encoder-fp16": Work("Whisper-small encoder SDPA fp16 B1 S1500", torch.float16,
                                 exported("whisper-small-encoder", "fp16", "sdpa"),
                                 lambda: {"input_features": half_floats(1, 80, 3000)}, sites=12,
                                 operations=transformer_operations(1, 1500, 768, 12)),
    "vit-s-fp16": Work("ViT-S SDPA fp16 B8 224x224", torch.float16, exported("vit-small", "fp16", "sdpa"),
                       lambda: {"pixel_values": half_floats(8, 3, 224, 224)}, sites=12,
                       operations=transformer_operations(8, 197, 384, 12)),
    "vit-b1": Work("ViT-S fp32 B1 224x224", torch.float32, demo_vit, lambda: images(1), sites=12,
                   operations=transformer_operations(batch=1, tokens=197, hidden=384, layers=12)),
    "vit-b8": Work("ViT-S fp32 B8 224x224", torch.float32, demo_vit, lambda: images(8), sites=12,
                   operations=transformer_operations(batch=8, tokens=197, hidden=384, layers=12)),
}  # fmt: skip
