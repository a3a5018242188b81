"""Sequence-to-sequence models of text: self-attention, causal attention and cross-attention in one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers

from benchmarks.zoo.building import (
    CORE_VARIANTS,
    TOKENS,
    TRANSFORMERS_ATTENTIONS,
    USUAL_VARIANTS,
    Call,
    from_config,
    padding_mask,
    token_ids,
)
from benchmarks.zoo.entry import Entry, Model, Size

__all__ = ["DECODED_TOKENS", "ENTRIES", "bart_like"]

FAMILY = "encoder-decoders"
DECODED_TOKENS = 5


def bart_like(size: Size, **more: Any) -> dict[str, Any]:
    """Keyword arguments that the descendants of BART share."""
    return {
        "d_model": size.hidden,
        "encoder_layers": size.layers,
        "decoder_layers": size.layers,
        "encoder_attention_heads": size.heads,
        "decoder_attention_heads": size.heads,
        "encoder_ffn_dim": size.inner,
        "decoder_ffn_dim": size.inner,
        "vocab_size": size.vocabulary,
        "max_position_embeddings": size.positions,
        **more,
    }


def _t5(size: Size) -> dict[str, Any]:
    return {
        "d_model": size.hidden,
        "d_kv": size.head_size,
        "d_ff": size.inner,
        "num_layers": size.layers,
        "num_heads": size.heads,
        "vocab_size": size.vocabulary,
    }


def _marian(size: Size) -> dict[str, Any]:
    return bart_like(size, pad_token_id=0, decoder_start_token_id=0)


def _entry(
    name: str, model: str, config: str, keywords: Callable[[Size], dict[str, Any]], variants: tuple = USUAL_VARIANTS
) -> Entry:
    def build(size: Size, attention: str) -> Model:
        inputs = {
            "input_ids": token_ids(size),
            "attention_mask": padding_mask(size.tokens),
            "decoder_input_ids": token_ids(size, DECODED_TOKENS),
        }
        inner = from_config(model, getattr(transformers, config)(**keywords(size)), attention)
        axes = {"input_ids": TOKENS, "attention_mask": TOKENS, "decoder_input_ids": {0: "batch", 1: "target"}}
        return Model(Call(inner, tuple(inputs)), inputs, axes)

    return Entry(name, FAMILY, build, TRANSFORMERS_ATTENTIONS, variants)


ENTRIES = (
    _entry("t5", "T5Model", "T5Config", _t5, CORE_VARIANTS),
    _entry("umt5", "UMT5Model", "UMT5Config", _t5),
    _entry("bart", "BartModel", "BartConfig", bart_like),
    _entry("mbart", "MBartModel", "MBartConfig", bart_like),
    _entry("marian", "MarianModel", "MarianConfig", _marian),
    _entry("pegasus", "PegasusModel", "PegasusConfig", bart_like),
    _entry("m2m_100", "M2M100Model", "M2M100Config", bart_like),
    _entry("blenderbot", "BlenderbotModel", "BlenderbotConfig", bart_like),
)
