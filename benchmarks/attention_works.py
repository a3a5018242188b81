"""The attention works that are measured, their tensors, what is right, and the least that the hardware could take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from attngraft.contract import CausalMode, FusedAttention, Role

__all__ = ["WORKS", "Tensors", "Work", "make_tensors", "reference_context"]

LENGTHS = (128, 144, 160, 192, 208, 240, 264, 384)
"""Of the eight sequences of a padded batch, 56% of 384 on the average."""

SOFTCAP = 50.0
"""Gemma-2's."""


@dataclass(frozen=True)
class Work:
    """q [B,H,Sq,D], k and v [B,Hk,Sk,D], scale 1 / sqrt(D). `padding`: LENGTHS as kv_lengths, or as a boolean mask.
    `bias`: of the tensors' type, one for each sequence, as T5's is once its mask is in it, or one for all."""

    batch: int
    heads: int
    queries: int
    keys: int
    head_size: int
    dtype: str = "float16"
    kv_heads: int = 0
    """0: as many as `heads`."""
    causal: bool = False
    softcap: float = 0.0
    padding: str = ""
    """"" for none, "lengths" or "keep"."""
    bias: str = ""
    """"" for none, "bias" [B,H,Sq,Sk] or "shared-bias" [1,H,Sq,Sk]."""

    @property
    def name(self) -> str:
        """`B8 H12 S384 d64 lengths`; of one query a sequence `B1 H32 1x65536 d128`."""
        heads = f"H{self.heads}" + (f"/{self.kv_heads}" if self.kv_heads else "")
        size = f"S{self.keys}" if self.queries == self.keys else f"{self.queries}x{self.keys}"
        masks = [self.padding, self.bias, "causal" if self.causal else "", "softcap" if self.softcap else ""]
        return " ".join([f"B{self.batch} {heads} {size} d{self.head_size}", *filter(None, masks)])

    @property
    def config(self) -> FusedAttention:
        roles = {"": (), "lengths": (Role.KV_LENGTHS,), "keep": (Role.KEEP,)}
        return FusedAttention(
            operands=(*((Role.BIAS,) if self.bias else ()), *roles[self.padding]),
            scale=1 / math.sqrt(self.head_size),
            causal=CausalMode.TOP_LEFT if self.causal else CausalMode.NONE,
            softcap=self.softcap,
        )

    @property
    def torch_dtype(self) -> torch.dtype:
        return {"float16": torch.float16, "float32": torch.float32, "bfloat16": torch.bfloat16}[self.dtype]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Keys of each sequence."""
        return LENGTHS if self.padding else (self.keys,) * self.batch

    def operations(self) -> float:
        """Floating-point operations of both products over the pairs that may attend."""
        pairs = sum(length * (length + 1) // 2 if self.causal else self.queries * length for length in self.lengths)
        return 4.0 * self.heads * self.head_size * pairs

    def bytes(self) -> float:
        """Queries, context and bias once, and the keys and values that may be attended to."""
        rows = 2 * self.heads * self.batch * self.queries + 2 * (self.kv_heads or self.heads) * sum(self.lengths)
        return float((rows * self.head_size + math.prod(self.bias_shape)) * self.torch_dtype.itemsize)

    @property
    def bias_shape(self) -> tuple[int, ...]:
        """(0,) without one."""
        batches = {"": 0, "bias": self.batch, "shared-bias": 1}[self.bias]
        return (batches, self.heads, self.queries, self.keys) if batches else (0,)


WORKS = (
    Work(8, 12, 384, 384, 64),
    Work(8, 12, 384, 384, 64, padding="lengths"),
    Work(8, 12, 384, 384, 64, padding="keep"),
    Work(8, 12, 384, 384, 64, bias="bias"),
    Work(8, 12, 384, 384, 64, bias="shared-bias"),
    Work(8, 12, 197, 197, 64, bias="shared-bias"),
    Work(2, 12, 2048, 2048, 64, bias="shared-bias"),
    Work(1, 8, 4096, 4096, 64),
    Work(1, 8, 4096, 4096, 64, causal=True),
    Work(1, 8, 4096, 4096, 64, softcap=SOFTCAP),
    Work(4, 16, 4096, 4096, 128),
    Work(4, 16, 4096, 4096, 128, causal=True),
    Work(8, 12, 197, 197, 64),
    Work(8, 12, 384, 384, 64, causal=True),
    Work(8, 12, 384, 384, 128),
    Work(2, 16, 2048, 2048, 256, kv_heads=8, causal=True, softcap=SOFTCAP),
    Work(4, 8, 512, 512, 320),
    Work(1, 32, 1, 4096, 128),
    Work(1, 32, 1, 65536, 128),
    Work(1, 32, 1, 65536, 128, kv_heads=8),
    Work(1, 8, 4096, 4096, 64, "float32"),
    Work(8, 12, 384, 384, 64, "float32"),
    Work(8, 12, 384, 384, 64, "bfloat16"),
)


@dataclass(frozen=True)
class Tensors:
    """q, k, v and the context as [B,H,S,D] views of [B,S,H,D], as projections give them."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    context: torch.Tensor
    operands: Mapping[str, torch.Tensor]
    mask: torch.Tensor | None
    """As torch takes it: bool [B, 1, 1, Sk], true for the keys within a sequence's length, or the bias; None without
    either."""


def make_tensors(work: Work, device: str) -> Tensors:
    """Normal values, the same each time."""
    torch.manual_seed(work.keys)

    def projected(heads: int, rows: int) -> torch.Tensor:
        shape = (work.batch, rows, heads, work.head_size)
        return torch.randn(shape, device=device, dtype=work.torch_dtype).transpose(1, 2)

    kv_heads = work.kv_heads or work.heads
    q, k, v = projected(work.heads, work.queries), projected(kv_heads, work.keys), projected(kv_heads, work.keys)
    lengths = torch.tensor(work.lengths, dtype=torch.int32, device=device)
    keep = (torch.arange(work.keys, device=device) < lengths[:, None])[:, None, None, :].contiguous()
    operands = {"": {}, "lengths": {Role.KV_LENGTHS: lengths}, "keep": {Role.KEEP: keep}}[work.padding]
    mask = keep if work.padding else None
    if work.bias:
        mask = torch.randn(work.bias_shape, device=device, dtype=work.torch_dtype)
        operands = {Role.BIAS: mask, **operands}
    return Tensors(q, k, v, torch.empty_like(q), operands, mask)


def reference_context(work: Work, tensors: Tensors) -> torch.Tensor:
    """The context [B,H,Sq,D] in float64, a head at a time."""
    expected = torch.empty(tensors.q.shape, dtype=torch.float64, device=tensors.q.device)
    group = work.heads // (work.kv_heads or work.heads)
    above = torch.ones(work.queries, work.keys, dtype=torch.bool, device=tensors.q.device).triu(1)
    for batch in range(work.batch):
        for head in range(work.heads):
            k, v = (tensor[batch, head // group].double() for tensor in (tensors.k, tensors.v))
            scores = tensors.q[batch, head].double() @ k.T * work.config.scale
            if work.softcap:
                scores = work.softcap * torch.tanh(scores / work.softcap)
            if work.causal:
                scores.masked_fill_(above, -math.inf)
            if work.bias:
                scores += tensors.mask.expand(work.batch, -1, -1, -1)[batch, head]
            elif tensors.mask is not None:
                scores.masked_fill_(~tensors.mask[batch, 0], -math.inf)
            expected[batch, head] = scores.softmax(-1) @ v
    return expected
