"""One attention block as an export: a packed projection, attention in a form that TensorRT does not fuse, and the
projection of its context."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from attngraft.onnx_export import export_module
from benchmarks.model_works import Work

__all__ = ["BLOCKS"]

SOFTCAP = 50.0
"""Gemma-2's."""

EXAMPLE_TOKENS = 16
"""Of the tracing; the exports take any number."""

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Heads [B,H,S,D] of query, key and values in, the context of that shape out."""


class Block(nn.Module):
    """states [B, S, heads * head_size] in and out."""

    def __init__(self, heads: int, head_size: int, attend: Attend) -> None:
        super().__init__()
        self.heads, self.head_size, self.attend = heads, head_size, attend
        hidden = heads * head_size
        self.projection, self.output = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)

    def forward(self, states: Tensor) -> Tensor:
        batch, tokens, hidden = states.shape
        by_heads = (
            part.view(batch, tokens, self.heads, self.head_size).transpose(1, 2)
            for part in self.projection(states).chunk(3, dim=-1)
        )
        return self.output(self.attend(*by_heads).transpose(1, 2).reshape(batch, tokens, hidden))


def capped(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    return (torch.tanh(scores / SOFTCAP) * SOFTCAP).softmax(-1) @ value


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5).softmax(-1) @ value


def block_work(name: str, batch: int, heads: int, tokens: int, head_size: int, attend: Attend, dtype: str) -> Work:
    """A block at one size. Its name in the results is that of the attention in it."""
    hidden = heads * head_size
    torch_dtype = getattr(torch, dtype)

    def model(folder: Path) -> Path:
        torch.manual_seed(0)
        block = Block(heads, head_size, attend).to(torch_dtype)
        example = torch.randn(2, EXAMPLE_TOKENS, hidden, dtype=torch_dtype)
        return export_module(
            block, (example,), folder / f"{name}.onnx", exporter="torchscript", input_names=["states"],
            output_names=["result"], dynamic_axes={"states": {0: "batch", 1: "sequence"}},
        )  # fmt: skip

    def inputs() -> dict[str, np.ndarray]:
        states = np.random.default_rng(0).standard_normal((batch, tokens, hidden))
        return {"states": states.astype(dtype)}

    operations = float(batch * tokens * (8 * hidden**2 + 4 * tokens * hidden))
    title = f"block {name} B{batch} H{heads} S{tokens} d{head_size}"
    return Work(title, torch_dtype, model, inputs, sites=1, operations=operations)


BLOCKS = {
    "block-softcap": block_work("softcap", 1, 8, 4096, 64, capped, "float16"),
    "block-causal": block_work("causal-sdpa", 8, 12, 384, 64, causal, "float16"),
    "block-d320": block_work("plain", 4, 8, 512, 320, plain, "float16"),
    "block-fp32": block_work("plain-fp32", 1, 8, 4096, 64, plain, "float32"),
}
