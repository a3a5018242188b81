"""A two-layer model to train, with attngraft's masked softmax or with eager attention, on any device."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from attngraft.torch import masked_softmax

__all__ = ["LOSS_TOLERANCE", "STEPS", "loss_curve"]

STEPS = 200

LOSS_TOLERANCE = 1e-4
"""Absolute, of losses around 1: a few roundings of 1e-7 apart at each of 200 steps, on the CPU 1e-6 in the end."""

BATCH, LENGTH, SIZE, WORDS = 8, 10, 16, 7


class Block(torch.nn.Module):
    """Causal self-attention with two heads and a residual; `softmax(scores, keep, bias)` makes the probabilities."""

    def __init__(self, softmax: Callable[[Tensor, Tensor, Tensor], Tensor], size: int, length: int) -> None:
        super().__init__()
        self.heads, self.softmax = 2, softmax
        self.project, self.leave = torch.nn.Linear(size, 3 * size), torch.nn.Linear(size, size)
        self.bias = torch.nn.Parameter(torch.zeros(1, self.heads, length, length))

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        q, k, v = self.project(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        weights = self.softmax(q @ k.transpose(2, 3), keep, self.bias)
        return x + self.leave((weights @ v).transpose(1, 2).flatten(2))


def by_pytorch(scores: Tensor, keep: Tensor, bias: Tensor) -> Tensor:
    """What an eager model does: scale, bias, fill, softmax; every row has a key."""
    queries, keys = scores.shape[-2:]
    causal = torch.ones(queries, keys, dtype=torch.bool, device=scores.device).tril()
    scores = scores.float() / math.sqrt(SIZE // 2) + bias
    allowed = causal & keep[:, None, None]
    return torch.softmax(scores.masked_fill(~allowed, -math.inf), -1).to(bias.dtype)


def by_operator(scores: Tensor, keep: Tensor, bias: Tensor) -> Tensor:
    return masked_softmax(scores, mask=keep, bias=bias, causal="bottom_right", head_size=SIZE // 2)


def loss_curve(with_operator: bool, device: str = "cpu") -> Tensor:
    """Losses of 200 steps of a two-layer model that learns to repeat the word three places back, padded at the end."""
    torch.manual_seed(0)
    softmax = by_operator if with_operator else by_pytorch
    embed, leave = torch.nn.Embedding(WORDS, SIZE), torch.nn.Linear(SIZE, WORDS)
    place = torch.nn.Parameter(torch.randn(LENGTH, SIZE) * 0.1)
    blocks = torch.nn.ModuleList([Block(softmax, SIZE, LENGTH), Block(softmax, SIZE, LENGTH)])
    model = torch.nn.ModuleList([embed, leave, blocks]).to(device)
    place = torch.nn.Parameter(place.detach().to(device))
    optimizer = torch.optim.SGD([*model.parameters(), place], lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([LENGTH, 7, 9, LENGTH, 5, LENGTH, 8, 6])
    keep = (torch.arange(LENGTH) < lengths[:, None]).to(device)
    losses = []
    for _ in range(STEPS):
        words = torch.randint(WORDS, (BATCH, LENGTH), generator=generator).to(device)
        x = embed(words) + place
        for block in blocks:
            x = block(x, keep)
        right = torch.where(keep, words.roll(3, 1), -100)
        right[:, :3] = -100
        loss = functional.cross_entropy(leave(x).transpose(1, 2), right)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).cpu()
