"""Causal language models, whole sequences and decoding steps with a cache."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from benchmarks.zoo.building import TRANSFORMERS_ATTENTIONS, USUAL_VARIANTS, Call, from_config, text_entry, token_ids
from benchmarks.zoo.entry import Entry, Model, Size

__all__ = ["ENTRIES"]

FAMILY = "decoders"
CACHED_TOKENS = 6


def _gpt2(size: Size) -> dict[str, Any]:
    return {
        "n_embd": size.hidden,
        "n_layer": size.layers,
        "n_head": size.heads,
        "vocab_size": size.vocabulary,
        "n_positions": size.positions,
    }


def _gptj(size: Size) -> dict[str, Any]:
    return {**_gpt2(size), "rotary_dim": size.head_size // 2}


def _gpt_neo(size: Size) -> dict[str, Any]:
    return {
        "hidden_size": size.hidden,
        "num_layers": 2,
        "num_heads": size.heads,
        "vocab_size": size.vocabulary,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 4,
        "max_position_embeddings": size.positions,
    }


def _opt(size: Size) -> dict[str, Any]:
    return {
        "hidden_size": size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "ffn_dim": size.inner,
        "vocab_size": size.vocabulary,
        "word_embed_proj_dim": size.hidden,
        "max_position_embeddings": size.positions,
    }


def _bloom(size: Size) -> dict[str, Any]:
    return {
        "hidden_size": size.hidden,
        "n_layer": size.layers,
        "n_head": size.heads,
        "vocab_size": size.vocabulary,
    }


def _mpt(size: Size) -> dict[str, Any]:
    return {
        "d_model": size.hidden,
        "n_layers": size.layers,
        "n_heads": size.heads,
        "vocab_size": size.vocabulary,
        "max_seq_len": size.positions,
    }


def _grouped(size: Size, **more: Any) -> dict[str, Any]:
    """Half as many heads for keys and values."""
    return size.text(num_key_value_heads=size.heads // 2, **more)


def _grouped_head(size: Size, **more: Any) -> dict[str, Any]:
    """The same for configurations whose head size is a number of its own."""
    return _grouped(size, head_dim=size.head_size, **more)


def _window(size: Size) -> int:
    """Shorter than the example."""
    return size.positions // 16


def _windowed(size: Size) -> dict[str, Any]:
    """Two layers, of which one sees a window."""
    return _grouped_head(size, layers=2, sliding_window=_window(size))


def _mixture(size: Size, **more: Any) -> dict[str, Any]:
    return _grouped(size, num_local_experts=2, num_experts_per_tok=1, **more)


def _gpt_oss(size: Size) -> dict[str, Any]:
    return {**_windowed(size), "num_local_experts": 2, "num_experts_per_tok": 1}


def _two_or_more(size: Size) -> int:
    """One gate a layer."""
    return max(2, size.layers)


def _one_each(size: Size) -> int:
    return size.layers


def _llama_step(name: str, tokens: int) -> Entry:
    """`tokens` new tokens after a cache of variable length, which is returned longer."""

    def build(size: Size, attention: str) -> Model:
        config = transformers.LlamaConfig(**_grouped(size))
        inner = from_config("LlamaForCausalLM", config, attention)
        shape = (2, size.heads // 2, CACHED_TOKENS, size.head_size)
        cache = {f"{part}_{layer}": torch.randn(shape) for layer in range(size.layers) for part in ("key", "value")}
        inputs = {
            "input_ids": token_ids(size, tokens),
            "attention_mask": torch.ones(2, CACHED_TOKENS + tokens, dtype=torch.long),
            **cache,
        }
        axes: dict[str, dict[int, str]] = {"input_ids": {0: "batch"}, "attention_mask": {0: "batch", 1: "total"}}
        if tokens > 1:
            axes["input_ids"][1] = "sequence"
        axes |= {part: {0: "batch", 2: "past"} for part in cache}
        return Model(_CachedDecoder(inner), inputs, axes)

    return Entry(name, FAMILY, build, TRANSFORMERS_ATTENTIONS, USUAL_VARIANTS)


class _CachedDecoder(torch.nn.Module):
    """ids, mask, then key and value of each layer; returns logits and the longer keys and values."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ids, mask, *parts = tensors
        cache = transformers.DynamicCache()
        for layer in range(len(parts) // 2):
            cache.update(parts[2 * layer], parts[2 * layer + 1], layer)
        result = self.inner(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True)
        layers = result.past_key_values.layers
        return (result.logits, *(tensor for layer in layers for tensor in (layer.keys, layer.values)))


def _gpt2_probabilities() -> Entry:
    """Next-token probabilities: a softmax over the vocabulary at the end."""

    def build(size: Size, attention: str) -> Model:
        inner = from_config("GPT2LMHeadModel", transformers.GPT2Config(**_gpt2(size)), attention)
        module = Call(inner, ("input_ids",), lambda result: result.logits[:, -1].softmax(-1))
        inputs = {"input_ids": token_ids(size)}
        return Model(module, inputs, {"input_ids": {0: "batch", 1: "sequence"}}, others=1)

    return Entry("gpt2_probabilities", FAMILY, build, TRANSFORMERS_ATTENTIONS, USUAL_VARIANTS)


ENTRIES = (
    text_entry("gpt2", FAMILY, "GPT2LMHeadModel", "GPT2Config", _gpt2, core=True),
    text_entry("gpt2_nomask", FAMILY, "GPT2LMHeadModel", "GPT2Config", _gpt2, mask=False),
    _gpt2_probabilities(),
    text_entry("gpt_neo", FAMILY, "GPTNeoModel", "GPTNeoConfig", _gpt_neo, attentions=("eager",)),
    text_entry("gptj", FAMILY, "GPTJModel", "GPTJConfig", _gptj, attentions=("eager",)),
    text_entry("codegen", FAMILY, "CodeGenModel", "CodeGenConfig", _gptj, attentions=("eager",)),
    text_entry("gpt_neox", FAMILY, "GPTNeoXModel", "GPTNeoXConfig"),
    text_entry("gpt_bigcode", FAMILY, "GPTBigCodeModel", "GPTBigCodeConfig", _gpt2),
    text_entry("opt", FAMILY, "OPTModel", "OPTConfig", _opt),
    text_entry("bloom", FAMILY, "BloomModel", "BloomConfig", _bloom, attentions=("eager",)),
    text_entry("mpt", FAMILY, "MptModel", "MptConfig", _mpt, attentions=("eager",)),
    text_entry("falcon", FAMILY, "FalconModel", "FalconConfig"),
    text_entry("falcon_alibi", FAMILY, "FalconModel", "FalconConfig", lambda size: size.text(alibi=True),
               traced=False),
    text_entry("llama", FAMILY, "LlamaModel", "LlamaConfig", _grouped, core=True),
    text_entry("llama_nomask", FAMILY, "LlamaModel", "LlamaConfig", _grouped, mask=False),
    _llama_step("llama_past", 1),
    _llama_step("llama_chunk", 3),
    text_entry("mistral", FAMILY, "MistralModel", "MistralConfig",
               lambda size: _grouped_head(size, sliding_window=_window(size))),
    text_entry("qwen2", FAMILY, "Qwen2Model", "Qwen2Config", _grouped),
    text_entry("qwen3", FAMILY, "Qwen3Model", "Qwen3Config", _grouped_head),
    text_entry("gemma", FAMILY, "GemmaModel", "GemmaConfig",
               lambda size: size.text(num_key_value_heads=1, head_dim=size.head_size)),
    text_entry("gemma2", FAMILY, "Gemma2Model", "Gemma2Config", _windowed),
    text_entry("gemma3", FAMILY, "Gemma3TextModel", "Gemma3TextConfig", _windowed),
    text_entry("phi", FAMILY, "PhiModel", "PhiConfig"),
    text_entry("phi3", FAMILY, "Phi3Model", "Phi3Config", lambda size: _grouped(size, pad_token_id=0)),
    text_entry("olmo2", FAMILY, "Olmo2Model", "Olmo2Config", _grouped),
    text_entry("cohere", FAMILY, "CohereModel", "CohereConfig", _grouped, traced=False),
    text_entry("starcoder2", FAMILY, "Starcoder2Model", "Starcoder2Config", _grouped),
    text_entry("stablelm", FAMILY, "StableLmModel", "StableLmConfig", _grouped),
    text_entry("granite", FAMILY, "GraniteModel", "GraniteConfig", _grouped),
    text_entry("smollm3", FAMILY, "SmolLM3Model", "SmolLM3Config",
               lambda size: _grouped(size, pad_token_id=0)),
    text_entry("gpt_oss", FAMILY, "GptOssModel", "GptOssConfig", _gpt_oss, others=_two_or_more,
               attentions=("eager",)),
    text_entry("mixtral", FAMILY, "MixtralModel", "MixtralConfig", _mixture, others=_one_each),
)  # fmt: skip
