"""PyTorch's own attention: nn.MultiheadAttention, nn.Transformer's layers, scaled_dot_product_attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.zoo.building import CORE_VARIANTS, TOKENS, Call
from benchmarks.zoo.entry import NO_CHOICE, Entry, Model, Size

__all__ = ["ENTRIES"]

FAMILY = "torch"
SQUARE = {0: "sequence", 1: "sequence"}
HEADS_FIRST = {0: "batch", 2: "sequence"}
KEYS_FIRST = {0: "batch", 2: "keys"}


def _states(size: Size) -> torch.Tensor:
    return torch.randn(2, size.tokens, size.hidden)


def _padding(size: Size) -> torch.Tensor:
    """[B, S] bool, true where a key is to be ignored, as PyTorch's modules want it."""
    mask = torch.zeros(2, size.tokens, dtype=torch.bool)
    mask[1, -2:] = True
    return mask


def _causal(size: Size) -> torch.Tensor:
    """[S, S], 0 or -inf."""
    return torch.full((size.tokens, size.tokens), float("-inf")).triu(1)


class _SelfAttention(nn.Module):
    """nn.MultiheadAttention of one tensor, with or without its probabilities, with the mask given by `keyword`."""

    def __init__(self, size: Size, keyword: str | None, weights: bool, **options: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(size.hidden, size.heads, batch_first=True)
        self.keyword, self.weights, self.options = keyword, weights, options

    def forward(self, states: torch.Tensor, mask: torch.Tensor | None = None) -> Any:
        masks = {self.keyword: mask} if self.keyword else {}
        result, probabilities = self.attention(
            states, states, states, need_weights=self.weights, **masks, **self.options
        )
        return (result, probabilities) if self.weights else result


class _Encoder(nn.Module):
    def __init__(self, size: Size, keyword: str | None, **options: Any) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(size.hidden, size.heads, size.inner, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, size.layers, enable_nested_tensor=False)
        self.keyword, self.options = keyword, options

    def forward(self, states: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.encoder(states, **({self.keyword: mask} if self.keyword else {}), **self.options)


class _Decoder(nn.Module):
    """Causal self-attention and cross-attention to a memory with padding."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(size.hidden, size.heads, size.inner, batch_first=True)

    def forward(self, states: torch.Tensor, memory: torch.Tensor, causal: torch.Tensor, padding: torch.Tensor) -> Any:
        return self.layer(states, memory, tgt_mask=causal, memory_key_padding_mask=padding)


def _everything(result: Any) -> Any:
    return result


def _module_entry(name: str, module: Callable[[Size], nn.Module], mask: Callable[[Size], torch.Tensor] | None = None,
                  mask_axes: dict[int, str] = TOKENS) -> Entry:  # fmt: skip
    def build(size: Size, attention: str) -> Model:
        inputs, axes = {"states": _states(size)}, {"states": TOKENS}
        if mask is not None:
            inputs["mask"], axes["mask"] = mask(size), mask_axes
        return Model(Call(module(size).eval(), select=_everything), inputs, axes)

    return Entry(name, FAMILY, build, NO_CHOICE, CORE_VARIANTS)


def _decoder_entry() -> Entry:
    def build(size: Size, attention: str) -> Model:
        memory = torch.randn(2, size.tokens + 3, size.hidden)
        padding = torch.zeros(2, size.tokens + 3, dtype=torch.bool)
        padding[1, -2:] = True
        inputs = {"states": _states(size), "memory": memory, "causal": _causal(size), "padding": padding}
        memory_axes = {0: "batch", 1: "keys"}
        axes = {"states": TOKENS, "memory": memory_axes, "causal": SQUARE, "padding": memory_axes}
        return Model(Call(_Decoder(size).eval()), inputs, axes)

    variants = tuple(variant for variant in CORE_VARIANTS if variant.exporter == "dynamo")  # tracing fixes lengths here
    return Entry("tdec", FAMILY, build, NO_CHOICE, variants)


class _Sdpa(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> Any:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.options)


def _sdpa_entry(name: str, mask: str | None = None, groups: int = 1, **options: Any) -> Entry:
    def build(size: Size, attention: str) -> Model:
        tokens, head_size = size.tokens, size.head_size
        q = torch.randn(2, size.heads, tokens, head_size)
        k, v = (torch.randn(2, size.heads // groups, tokens, head_size) for _ in range(2))
        inputs = {"q": q, "k": k, "v": v}
        axes: dict[str, dict[int, str]] = {"q": HEADS_FIRST, "k": KEYS_FIRST, "v": KEYS_FIRST}
        if mask is not None:
            keep = torch.ones(2, 1, tokens, tokens, dtype=torch.bool).tril()
            inputs["mask"] = keep if mask == "bool" else torch.zeros(keep.shape).masked_fill(~keep, float("-inf"))
            axes["mask"] = {0: "batch", 2: "sequence", 3: "keys"}
        return Model(Call(_Sdpa(**options)), inputs, axes)

    return Entry(name, FAMILY, build, NO_CHOICE, CORE_VARIANTS)


def _attention_entries(weights: bool) -> tuple[Entry, ...]:
    suffix = "_nw" if weights else ""
    return (
        _module_entry(f"mha{suffix}", lambda size: _SelfAttention(size, None, weights)),
        _module_entry(f"mha_kpm{suffix}", lambda size: _SelfAttention(size, "key_padding_mask", weights), _padding),
        _module_entry(f"mha_fmask{suffix}", lambda size: _SelfAttention(size, "attn_mask", weights), _causal, SQUARE),
        _module_entry(f"mha_bmask{suffix}", lambda size: _SelfAttention(size, "attn_mask", weights),
                      lambda size: _causal(size) != 0, SQUARE),
    )  # fmt: skip


ENTRIES = (
    *_attention_entries(weights=False),
    *_attention_entries(weights=True),
    _module_entry("mha_causal", lambda size: _SelfAttention(size, "attn_mask", False, is_causal=True), _causal, SQUARE),
    _module_entry("tenc", lambda size: _Encoder(size, None)),
    _module_entry("tenc_kpm", lambda size: _Encoder(size, "src_key_padding_mask"), _padding),
    _module_entry("tenc_causal", lambda size: _Encoder(size, "mask", is_causal=True), _causal, SQUARE),
    _decoder_entry(),
    _sdpa_entry("sdpa_none"),
    _sdpa_entry("sdpa_bool", "bool"),
    _sdpa_entry("sdpa_float", "float"),
    _sdpa_entry("sdpa_causal", is_causal=True),
    _sdpa_entry("sdpa_scale", scale=0.3),
    _sdpa_entry("sdpa_scale1", scale=1.0),
    _sdpa_entry("sdpa_gqa", groups=2, enable_gqa=True),
)
