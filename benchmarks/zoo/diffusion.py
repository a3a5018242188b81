"""Attention as in latent diffusion: images as tokens, cross-attention to text, heads folded into the batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.zoo.building import USUAL_VARIANTS, Call
from benchmarks.zoo.entry import NO_CHOICE, Entry, Model, Size

__all__ = ["ENTRIES"]

FAMILY = "diffusion"
SIDE = 4
TEXT_TOKENS = 7


class FoldedAttention(nn.Module):
    """Heads are folded into the batch, so that the scores [B * H, Sq, Sk] have rank 3."""

    def __init__(self, size: Size, upcast: bool) -> None:
        super().__init__()
        self.heads, self.head_size, self.upcast = size.heads, size.head_size, upcast
        self.query, self.key, self.value, self.out = (nn.Linear(size.hidden, size.hidden) for _ in range(4))

    def forward(self, states: Tensor, context: Tensor) -> Tensor:
        batch, tokens, hidden = states.shape
        query = self._fold(self.query(states))
        key, value = self._fold(self.key(context)), self._fold(self.value(context))
        empty = torch.empty(query.shape[0], query.shape[1], key.shape[1], dtype=query.dtype)
        scores = torch.baddbmm(empty, query, key.transpose(-1, -2), beta=0, alpha=self.head_size**-0.5)
        probabilities = (scores.float() if self.upcast else scores).softmax(-1).to(states.dtype)
        result = torch.bmm(probabilities, value)
        joined = result.reshape(batch, self.heads, tokens, self.head_size).transpose(1, 2)
        return self.out(joined.reshape(batch, tokens, hidden))

    def _fold(self, states: Tensor) -> Tensor:
        batch, tokens, _ = states.shape
        split = states.reshape(batch, tokens, self.heads, self.head_size).transpose(1, 2)
        return split.reshape(batch * self.heads, tokens, self.head_size)


class SdpaAttention(FoldedAttention):
    def forward(self, states: Tensor, context: Tensor) -> Tensor:
        batch, tokens, hidden = states.shape
        parts = (self.query(states), self.key(context), self.value(context))
        split = (part.view(batch, -1, self.heads, self.head_size).transpose(1, 2) for part in parts)
        result = functional.scaled_dot_product_attention(*split)
        return self.out(result.transpose(1, 2).reshape(batch, tokens, hidden))


class Block(nn.Module):
    """A block of a denoising network: convolution, self-attention over pixels, cross-attention to text, gated layer."""

    def __init__(self, size: Size, attention: type[FoldedAttention], upcast: bool) -> None:
        super().__init__()
        self.norm, self.enter = nn.GroupNorm(4, size.hidden), nn.Conv2d(size.hidden, size.hidden, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(size.hidden) for _ in range(3))
        self.own, self.cross = attention(size, upcast), attention(size, upcast)
        self.gate, self.leave = nn.Linear(size.hidden, 2 * size.inner), nn.Linear(size.inner, size.hidden)

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        batch, channels, height, width = image.shape
        states = self.enter(self.norm(image)).permute(0, 2, 3, 1).reshape(batch, height * width, channels)
        normal = self.norms[0](states)
        states = states + self.own(normal, normal)
        states = states + self.cross(self.norms[1](states), text)
        left, right = self.gate(self.norms[2](states)).chunk(2, -1)
        states = states + self.leave(left * functional.gelu(right))
        return states.reshape(batch, height, width, channels).permute(0, 3, 1, 2) + image


class Autoencoder(nn.Module):
    """The one-headed attention in the middle of a latent autoencoder: convolutions of size 1 as projections."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, size.hidden)
        self.query, self.key, self.value, self.out = (nn.Conv2d(size.hidden, size.hidden, 1) for _ in range(4))

    def forward(self, image: Tensor) -> Tensor:
        batch, channels, height, width = image.shape
        normal = self.norm(image)
        query = self.query(normal).reshape(batch, channels, height * width).permute(0, 2, 1)
        key = self.key(normal).reshape(batch, channels, height * width)
        scores = torch.bmm(query, key) * channels**-0.5
        value = self.value(normal).reshape(batch, channels, height * width)
        result = torch.bmm(value, scores.softmax(2).permute(0, 2, 1))
        return image + self.out(result.reshape(batch, channels, height, width))


def _block(name: str, attention: type[FoldedAttention], **options: Any) -> Entry:
    def build(size: Size, _: str) -> Model:
        inputs = {"image": torch.randn(2, size.hidden, SIDE, SIDE), "text": torch.randn(2, TEXT_TOKENS, size.hidden)}
        axes = {"image": {0: "batch"}, "text": {0: "batch", 1: "words"}}
        return Model(Call(Block(size, attention, **options)), inputs, axes)

    return Entry(name, FAMILY, build, NO_CHOICE, USUAL_VARIANTS)


def _autoencoder(size: Size, _: str) -> Model:
    inputs = {"image": torch.randn(2, size.hidden, SIDE, SIDE)}
    return Model(Call(Autoencoder(size)), inputs, {"image": {0: "batch"}})


ENTRIES = (
    _block("diffusion_folded", FoldedAttention, upcast=False),
    _block("diffusion_upcast", FoldedAttention, upcast=True),
    _block("diffusion_sdpa", SdpaAttention, upcast=False),
    Entry("diffusion_autoencoder", FAMILY, _autoencoder, NO_CHOICE, USUAL_VARIANTS),
)
