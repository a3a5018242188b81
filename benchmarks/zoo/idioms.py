"""Attention as people write it by hand: one idiom an entry, around the same packed projection."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.zoo.building import TOKENS, USUAL_VARIANTS, Call, padding_mask
from benchmarks.zoo.entry import NO_CHOICE, Entry, Model, Size

__all__ = ["ENTRIES"]

FAMILY = "idioms"
MASKED = -1e4
SOFTCAP = 30.0


class Idiom(nn.Module):
    """A packed projection into heads, attention by `attend(self, q, k, v, mask)`, and the heads joined again.

    q, k, v [B, H, S, D]; mask [B, S], 1 where a key may be attended to.
    """

    def __init__(self, size: Size, attend: Callable[..., Any]) -> None:
        super().__init__()
        self.heads, self.head_size, self.attend = size.heads, size.head_size, attend
        self.scale = size.head_size**-0.5
        self.projection = nn.Linear(size.hidden, 3 * size.hidden)
        triangle = torch.ones(size.positions, size.positions).tril()
        self.register_buffer("triangle", triangle.view(1, 1, size.positions, size.positions))
        self.relative = nn.Parameter(torch.randn(1, size.heads, size.tokens, size.tokens))
        self.mixing = nn.Parameter(torch.randn(size.heads, size.heads))

    def forward(self, states: Tensor, mask: Tensor | None = None) -> Any:
        batch, tokens, hidden = states.shape
        packed = self.projection(states).reshape(batch, tokens, 3, self.heads, self.head_size)
        query, key, value = packed.permute(2, 0, 3, 1, 4).unbind(0)
        result = self.attend(self, query, key, value, mask)
        context, *more = result if isinstance(result, tuple) else (result,)
        joined = context.transpose(1, 2).reshape(batch, tokens, hidden)
        return (joined, *more) if more else joined

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        return (query @ key.transpose(-2, -1)) * self.scale


def _keys(mask: Tensor) -> Tensor:
    return mask[:, None, None, :]


def plain(m: Idiom, q: Tensor, k: Tensor, v: Tensor, mask: None) -> Tensor:
    return m.scores(q, k).softmax(-1) @ v


def scaled_query(m: Idiom, q: Tensor, k: Tensor, v: Tensor, mask: None) -> Tensor:
    return ((q * m.scale) @ k.transpose(-2, -1)).softmax(-1) @ v


def scaled_key(m: Idiom, q: Tensor, k: Tensor, v: Tensor, mask: None) -> Tensor:
    return (q @ (k.transpose(-2, -1) * m.scale)).softmax(-1) @ v


def divided(m: Idiom, q: Tensor, k: Tensor, v: Tensor, mask: None) -> Tensor:
    return ((q @ k.transpose(-2, -1)) / math.sqrt(m.head_size)).softmax(-1) @ v


def computed_scale(m: Idiom, q: Tensor, k: Tensor, v: Tensor, mask: None) -> Tensor:
    root = torch.sqrt(torch.tensor(q.size(-1), dtype=q.dtype))
    return ((q @ k.transpose(-2, -1)) / root).softmax(-1) @ v


def einsum(m: Idiom, q: Tensor, k: Tensor, v: Tensor, mask: None) -> Tensor:
    probabilities = (torch.einsum("bhid,bhjd->bhij", q, k) * m.scale).softmax(-1)
    return torch.einsum("bhij,bhjd->bhid", probabilities, v)


def batched(m: Idiom, q: Tensor, k: Tensor, v: Tensor, mask: None) -> Tensor:
    """Scores of rank 3, the scale as baddbmm's alpha."""
    batch, heads, tokens, head_size = q.shape
    q, k = (part.reshape(batch * heads, tokens, head_size) for part in (q, k))
    empty = torch.zeros(batch * heads, tokens, tokens, dtype=q.dtype)
    scores = torch.baddbmm(empty, q, k.transpose(1, 2), beta=0, alpha=m.scale)
    return scores.view(batch, heads, tokens, tokens).softmax(-1) @ v


def cosine(m: Idiom, q: Tensor, k: Tensor, v: Tensor, mask: None) -> Tensor:
    q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
    return (q @ k.transpose(-2, -1) * 10.0).softmax(-1) @ v


def fp32_softmax(m: Idiom, q: Tensor, k: Tensor, v: Tensor, mask: None) -> Tensor:
    return functional.softmax(m.scores(q, k), dim=-1, dtype=torch.float32).to(v.dtype) @ v


def columns(m: Idiom, q: Tensor, k: Tensor, v: Tensor, mask: None) -> Tensor:
    """Keys are rows: the softmax is over axis -2."""
    return m.scores(k, q).softmax(-2).transpose(-2, -1) @ v


def triangle_buffer(m: Idiom, q: Tensor, k: Tensor, v: Tensor, mask: None) -> Tensor:
    tokens = q.size(-2)
    scores = m.scores(q, k).masked_fill(m.triangle[:, :, :tokens, :tokens] == 0, float("-inf"))
    return scores.softmax(-1) @ v


def triangle_made(m: Idiom, q: Tensor, k: Tensor, v: Tensor, mask: None) -> Tensor:
    tokens = q.size(-2)
    causal = torch.full((tokens, tokens), float("-inf"), dtype=q.dtype).triu(1)
    return (m.scores(q, k) + causal).softmax(-1) @ v


def relative_bias(m: Idiom, q: Tensor, k: Tensor, v: Tensor, mask: None) -> Tensor:
    return (m.scores(q, k) + m.relative).softmax(-1) @ v


def softcap(m: Idiom, q: Tensor, k: Tensor, v: Tensor, mask: None) -> Tensor:
    return (torch.tanh(m.scores(q, k) / SOFTCAP) * SOFTCAP).softmax(-1) @ v


def without_maximum(m: Idiom, q: Tensor, k: Tensor, v: Tensor, mask: None) -> Tensor:
    scores = m.scores(q, k)
    return (scores - scores.max(-1, keepdim=True)[0]).softmax(-1) @ v


def clamped(m: Idiom, q: Tensor, k: Tensor, v: Tensor, mask: None) -> Tensor:
    return m.scores(q, k).clamp(-5e4, 5e4).softmax(-1) @ v


def by_hand(m: Idiom, q: Tensor, k: Tensor, v: Tensor, mask: None) -> Tensor:
    scores = m.scores(q, k)
    powers = torch.exp(scores - scores.amax(-1, keepdim=True))
    return (powers / powers.sum(-1, keepdim=True)) @ v


def softmax_plus_one(m: Idiom, q: Tensor, k: Tensor, v: Tensor, mask: None) -> Tensor:
    scores = m.scores(q, k)
    powers = torch.exp(scores - scores.amax(-1, keepdim=True))
    return (powers / (1 + powers.sum(-1, keepdim=True))) @ v


def from_logarithms(m: Idiom, q: Tensor, k: Tensor, v: Tensor, mask: None) -> Tensor:
    return functional.log_softmax(m.scores(q, k), -1).exp() @ v


def used_twice(m: Idiom, q: Tensor, k: Tensor, v: Tensor, mask: None) -> tuple[Tensor, ...]:
    scores = m.scores(q, k)
    probabilities = scores.softmax(-1)
    return probabilities @ v, probabilities, scores


def mixed_heads(m: Idiom, q: Tensor, k: Tensor, v: Tensor, mask: None) -> Tensor:
    probabilities = m.scores(q, k).softmax(-1)
    return torch.einsum("bhij,gh->bgij", probabilities, m.mixing.to(v.dtype)) @ v


def masked_infinite(m: Idiom, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return m.scores(q, k).masked_fill(_keys(mask) == 0, float("-inf")).softmax(-1) @ v


def masked_finite(m: Idiom, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return m.scores(q, k).masked_fill(_keys(mask) == 0, -1e9).softmax(-1) @ v


def masked_lowest(m: Idiom, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = m.scores(q, k)
    return torch.where(_keys(mask).bool(), scores, torch.finfo(scores.dtype).min).softmax(-1) @ v


def masked_by_product(m: Idiom, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    keep = _keys(mask).to(q.dtype)
    return (m.scores(q, k) * keep + (1 - keep) * MASKED).softmax(-1) @ v


def bias_and_mask(m: Idiom, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (m.scores(q, k) + m.relative + (1 - _keys(mask).to(q.dtype)) * MASKED).softmax(-1) @ v


def masked_first(m: Idiom, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """The mask is added before the scale."""
    return ((q @ k.transpose(-2, -1) + (1 - _keys(mask).to(q.dtype)) * MASKED) * m.scale).softmax(-1) @ v


def masked_afterwards(m: Idiom, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (m.scores(q, k).softmax(-1) * _keys(mask).to(q.dtype)) @ v


def nan_to_zero(m: Idiom, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = m.scores(q, k).masked_fill(_keys(mask) == 0, float("-inf"))
    return torch.nan_to_num(scores.softmax(-1)) @ v


def causal_and_padding(m: Idiom, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    tokens = q.size(-2)
    keep = (m.triangle[:, :, :tokens, :tokens] * _keys(mask).to(q.dtype)) != 0
    return m.scores(q, k).masked_fill(~keep, float("-inf")).softmax(-1) @ v


def _entry(name: str, attend: Callable[..., Any], *, mask: bool = False, sites: int | None = None) -> Entry:
    """`sites` where PyTorch computes no softmax that could be counted. A relative bias fixes the number of tokens."""

    def build(size: Size, attention: str) -> Model:
        inputs, axes = {"states": torch.randn(2, size.tokens, size.hidden)}, {"states": TOKENS}
        if mask:
            inputs["mask"], axes["mask"] = padding_mask(size.tokens), TOKENS
        if attend in (relative_bias, bias_and_mask):
            axes = {name: {0: "batch"} for name in inputs}
        return Model(Call(Idiom(size, attend), select=lambda result: result), inputs, axes, sites=sites)

    return Entry(f"hand_{name}", FAMILY, build, NO_CHOICE, USUAL_VARIANTS)


ENTRIES = (
    _entry("plain", plain),
    _entry("timm", scaled_query),
    _entry("kt_scale", scaled_key),
    _entry("div", divided),
    _entry("dimsqrt", computed_scale),
    _entry("einsum", einsum),
    _entry("bmm", batched),
    _entry("cosine", cosine),
    _entry("fp32softmax", fp32_softmax),
    _entry("bhnm_axis", columns),
    _entry("nanogpt", triangle_buffer),
    _entry("triu_inf", triangle_made),
    _entry("relbias", relative_bias),
    _entry("softcap", softcap),
    _entry("maxsub", without_maximum),
    _entry("clamp", clamped),
    _entry("decomp", by_hand, sites=1),
    _entry("softmax1", softmax_plus_one, sites=1),
    _entry("logsoftmax", from_logarithms),
    _entry("double_use", used_twice),
    _entry("headmix", mixed_heads),
    _entry("masked_fill", masked_infinite, mask=True),
    _entry("masked_fill_1e9", masked_finite, mask=True),
    _entry("where_min", masked_lowest, mask=True),
    _entry("mulmask", masked_by_product, mask=True),
    _entry("relbias_mask", bias_and_mask, mask=True),
    _entry("mask_first", masked_first, mask=True),
    _entry("post_mask", masked_afterwards, mask=True),
    _entry("nan_to_num", nan_to_zero, mask=True),
    _entry("causal_padding", causal_and_padding, mask=True),
)
