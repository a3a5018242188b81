"""Speech models: convolutions before attention, and a decoder step over cached keys and values."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from benchmarks.zoo.building import (
    CORE_VARIANTS,
    TOKENS,
    TRANSFORMERS_ATTENTIONS,
    USUAL_VARIANTS,
    Call,
    from_config,
    token_ids,
)
from benchmarks.zoo.encoder_decoders import DECODED_TOKENS, bart_like
from benchmarks.zoo.entry import Entry, Model, Size, Variant

__all__ = ["ENTRIES"]

FAMILY = "speech"
SAMPLES = 400
HEARD_SAMPLES = 300
"""Of the second, shorter recording."""
CACHED_TOKENS = 6


def _frames(size: Size) -> int:
    """Whisper's encoder halves the number of mel frames; at real size it makes the published 1500."""
    return 1500 if size.name == "real" else 20


def _whisper_config(size: Size) -> Any:
    keywords = bart_like(size)
    del keywords["max_position_embeddings"]
    return transformers.WhisperConfig(
        **keywords, num_mel_bins=16, max_source_positions=_frames(size), max_target_positions=32, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip


def _whisper(size: Size, attention: str) -> Model:
    inputs = {
        "input_features": torch.randn(2, 16, 2 * _frames(size)),
        "decoder_input_ids": token_ids(size, DECODED_TOKENS),
    }
    axes = {"input_features": {0: "batch"}, "decoder_input_ids": {0: "batch", 1: "target"}}
    return Model(Call(from_config("WhisperModel", _whisper_config(size), attention), tuple(inputs)), inputs, axes)


def _whisper_encoder(size: Size, attention: str) -> Model:
    inputs = {"input_features": torch.randn(2, 16, 2 * _frames(size))}
    inner = from_config("WhisperModel", _whisper_config(size), attention).get_encoder()
    return Model(Call(inner, tuple(inputs)), inputs, {"input_features": {0: "batch"}})


class _DecoderStep(torch.nn.Module):
    """One token of Whisper's decoder: self-attention over a cache that grows, cross-attention over a cache that stays.

    Takes the token, then for each layer the own keys and values and those of the recording.
    """

    def __init__(self, decoder: torch.nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ids, *parts = tensors
        own, recording = transformers.DynamicCache(), transformers.DynamicCache()
        for layer in range(len(parts) // 4):
            key, value, cross_key, cross_value = parts[4 * layer : 4 * layer + 4]
            own.update(key, value, layer)
            recording.update(cross_key, cross_value, layer)
        cache = transformers.EncoderDecoderCache(own, recording)
        result = self.decoder(
            input_ids=ids, encoder_hidden_states=parts[2].transpose(1, 2).flatten(2), past_key_values=cache,
            use_cache=True,
        )  # fmt: skip
        layers = result.past_key_values.self_attention_cache.layers
        return (result.last_hidden_state, *(tensor for layer in layers for tensor in (layer.keys, layer.values)))


def _whisper_step(size: Size, attention: str) -> Model:
    inner = from_config("WhisperModel", _whisper_config(size), attention).get_decoder()
    frames = _frames(size)
    inputs: dict[str, torch.Tensor] = {"decoder_input_ids": token_ids(size, 1)}
    axes: dict[str, dict[int, str]] = {"decoder_input_ids": {0: "batch"}}
    for layer in range(size.layers):
        parts = (("key", CACHED_TOKENS), ("value", CACHED_TOKENS), ("cross_key", frames), ("cross_value", frames))
        for part, length in parts:
            inputs[f"{part}_{layer}"] = torch.randn(2, size.heads, length, size.head_size)
            axes[f"{part}_{layer}"] = {0: "batch"} if length == frames else {0: "batch", 2: "past"}
    return Model(_DecoderStep(inner), inputs, axes)


def _audio(size: Size) -> dict[str, Any]:
    """Keyword arguments that the descendants of wav2vec 2.0 share."""
    return size.text(
        conv_dim=[16, 16], conv_stride=[4, 2], conv_kernel=[8, 3], num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=2, num_feat_extract_layers=2, feat_extract_norm="layer",
        do_stable_layer_norm=True,
    )  # fmt: skip


def _audio_entry(name: str, model: str, config: str, attentions: tuple[str, ...] = TRANSFORMERS_ATTENTIONS,
                 **more: Any) -> Entry:  # fmt: skip
    def build(size: Size, attention: str) -> Model:
        mask = torch.ones(2, SAMPLES, dtype=torch.long)
        mask[1, HEARD_SAMPLES:] = 0
        inputs = {"input_values": torch.randn(2, SAMPLES), "attention_mask": mask}
        inner = from_config(model, getattr(transformers, config)(**_audio(size), **more), attention)
        return Model(Call(inner, tuple(inputs)), inputs, dict.fromkeys(inputs, TOKENS))

    return Entry(name, FAMILY, build, attentions, USUAL_VARIANTS)


def _spectrogram(size: Size, attention: str) -> Model:
    config = transformers.ASTConfig(**size.vision(), patch_size=4, frequency_stride=4, time_stride=4, max_length=16,
                                    num_mel_bins=16)  # fmt: skip
    inputs = {"input_values": torch.randn(2, 16, 16)}
    return Model(
        Call(from_config("ASTModel", config, attention), tuple(inputs)), inputs, {"input_values": {0: "batch"}}
    )


def _entry(name: str, build: Any, variants: tuple[Variant, ...] = USUAL_VARIANTS) -> Entry:
    return Entry(name, FAMILY, build, TRANSFORMERS_ATTENTIONS, variants)


ENTRIES = (
    _entry("whisper", _whisper, CORE_VARIANTS),
    _entry("whisper_encoder", _whisper_encoder),
    _entry("whisper_step", _whisper_step),
    _audio_entry("wav2vec2", "Wav2Vec2Model", "Wav2Vec2Config"),
    _audio_entry("hubert", "HubertModel", "HubertConfig"),
    _audio_entry("wavlm", "WavLMModel", "WavLMConfig", ("eager",)),
    _audio_entry("conformer", "Wav2Vec2ConformerModel", "Wav2Vec2ConformerConfig", ("eager",),
                 position_embeddings_type="relative", conv_depthwise_kernel_size=3),
    _entry("ast", _spectrogram),
)  # fmt: skip
