"""Tiny Hugging Face models with random weights, one for each way in which models call attention, and input for them.

`MODELS` maps a name to a `ModelCase`; `build` makes the model, on eager attention, in evaluation mode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import transformers as hf
from torch import Tensor

__all__ = ["DECODERS", "MODELS", "ModelCase", "PADDED", "build", "inputs_of", "token_mask"]

VOCABULARY = 97
BATCH, LENGTH = 3, 11
WIDTH, HEADS, LAYERS = 32, 4, 2
WINDOW = 4
"""Shorter than LENGTH, so that it hides keys."""

SPREAD = 5.0
"""Factor of the initial weights: scores become as uneven as a trained model's, so that a wrong mask shows."""

_TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
_GROUPED = {**_TEXT, "num_key_value_heads": 2, "head_dim": 8}
_VISION = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "image_size": 16,
    "patch_size": 4,
}
_BART = {
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}


@dataclass(frozen=True)
class ModelCase:
    """kind: the model's class; configure: makes its configuration; inputs: names of what it takes; spread: factor of
    its initial weights."""

    kind: type[hf.PreTrainedModel]
    configure: Callable[[], hf.PretrainedConfig]
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")
    spread: float = SPREAD


def _gemma3() -> hf.PretrainedConfig:
    """Text and images, each of whose tokens see each other: nested configurations and an overlay on the mask."""
    vision = hf.SiglipVisionConfig(**_VISION)
    text = hf.Gemma3TextConfig(**_GROUPED, sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"])
    return hf.Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_index=VOCABULARY - 1,
        boi_token_index=VOCABULARY - 2, eoi_token_index=VOCABULARY - 3,
    )  # fmt: skip


def _clip() -> hf.PretrainedConfig:
    text = {**_TEXT, "eos_token_id": VOCABULARY - 1}
    return hf.CLIPConfig(text_config=text, vision_config=_VISION, projection_dim=16)


def _whisper() -> hf.PretrainedConfig:
    return hf.WhisperConfig(**_BART, num_mel_bins=8, max_source_positions=LENGTH, max_target_positions=64)


def _gpt_oss() -> hf.PretrainedConfig:
    return hf.GptOssConfig(
        **_GROUPED, sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"], num_local_experts=2,
        num_experts_per_tok=1,
    )  # fmt: skip


def _gemma2() -> hf.PretrainedConfig:
    return hf.Gemma2Config(
        **_GROUPED, sliding_window=WINDOW, attn_logit_softcapping=3.0, query_pre_attn_scalar=12,
        layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip


def _t5() -> hf.PretrainedConfig:
    return hf.T5Config(
        vocab_size=VOCABULARY, d_model=WIDTH, d_kv=8, num_heads=HEADS, num_layers=LAYERS, d_ff=48, pad_token_id=0,
        eos_token_id=1, decoder_start_token_id=0,
    )  # fmt: skip


def _gpt2() -> hf.PretrainedConfig:
    return hf.GPT2Config(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=64, bos_token_id=1,
        eos_token_id=None, pad_token_id=0, scale_attn_by_inverse_layer_idx=True,
    )  # fmt: skip


def _llama4() -> hf.PretrainedConfig:
    """Attention in chunks, which no compact mask describes; a window of that size is set too, and not used."""
    return hf.Llama4TextConfig(
        **_GROUPED, attention_chunk_size=WINDOW, sliding_window=WINDOW, intermediate_size_mlp=48, num_local_experts=2,
        layer_types=["chunked_attention", "full_attention"], moe_layers=[],
    )  # fmt: skip


_SEQ2SEQ = ("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask")

MODELS: dict[str, ModelCase] = {
    "bert": ModelCase(hf.BertModel, lambda: hf.BertConfig(**_TEXT)),
    "roberta": ModelCase(hf.RobertaModel, lambda: hf.RobertaConfig(**_TEXT)),
    "vit": ModelCase(hf.ViTModel, lambda: hf.ViTConfig(**_VISION), ("pixel_values",)),
    "gpt2": ModelCase(hf.GPT2LMHeadModel, _gpt2),
    "llama": ModelCase(hf.LlamaForCausalLM, lambda: hf.LlamaConfig(**_GROUPED)),
    "mistral": ModelCase(hf.MistralForCausalLM, lambda: hf.MistralConfig(**_GROUPED, sliding_window=WINDOW)),
    "gemma2": ModelCase(hf.Gemma2ForCausalLM, _gemma2),
    "gemma3": ModelCase(
        hf.Gemma3ForConditionalGeneration, _gemma3, ("input_ids", "attention_mask", "token_type_ids", "pixel_values")
    ),
    "qwen3": ModelCase(hf.Qwen3ForCausalLM, lambda: hf.Qwen3Config(**_GROUPED)),
    "llama4": ModelCase(hf.Llama4ForCausalLM, _llama4),
    "gpt_oss": ModelCase(hf.GptOssForCausalLM, _gpt_oss),
    "t5": ModelCase(hf.T5ForConditionalGeneration, _t5, _SEQ2SEQ, spread=2.0),  # it scales no scores
    "bart": ModelCase(hf.BartForConditionalGeneration, lambda: hf.BartConfig(**_BART), _SEQ2SEQ),
    "whisper": ModelCase(
        hf.WhisperForConditionalGeneration, _whisper, ("input_features", "decoder_input_ids", "decoder_attention_mask")
    ),
    "clip": ModelCase(hf.CLIPModel, _clip, ("input_ids", "attention_mask", "pixel_values")),
}

PADDED = tuple(name for name, case in MODELS.items() if "attention_mask" in case.inputs)
DECODERS = ("gpt2", "llama", "mistral", "gemma2", "gemma3", "qwen3", "llama4", "gpt_oss")


def build(name: str, dtype: torch.dtype = torch.float32) -> hf.PreTrainedModel:
    torch.manual_seed(0)
    case = MODELS[name]
    config = case.configure()
    config._attn_implementation = "eager"
    model = case.kind(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(case.spread)
            else:
                parameter.add_(torch.rand_like(parameter) * 0.1)
    return model.to(dtype).eval()


def token_mask(side: str = "left", length: int = LENGTH) -> Tensor:
    """int64 [B, length]: no padding, some, and more than a window's width of it; `hole`: a gap amid the tokens."""
    mask = torch.ones(BATCH, length, dtype=torch.long)
    for row, missing in enumerate((0, 2, WINDOW + 2)):
        hidden = {"left": slice(0, missing), "right": slice(length - missing, None), "hole": slice(2, 2 + missing)}
        mask[row, hidden[side]] = 0
    return mask


def inputs_of(name: str, dtype: torch.dtype = torch.float32, side: str = "left") -> dict[str, Tensor]:
    """What the model's forward pass takes, with padding on one side."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, VOCABULARY - 4, (BATCH, LENGTH), generator=generator)
    everything = {
        "input_ids": ids,
        "attention_mask": token_mask(side),
        "token_type_ids": torch.zeros_like(ids),
        "decoder_input_ids": ids.flip(1)[:, :7],
        "decoder_attention_mask": token_mask("right", 7),
        "input_features": torch.randn(BATCH, 8, 2 * LENGTH, generator=generator).to(dtype),
        "pixel_values": torch.randn(BATCH, 3, 16, 16, generator=generator).to(dtype),
    }
    chosen = {key: everything[key] for key in MODELS[name].inputs}
    if name == "clip":
        chosen["input_ids"][:, -1] = VOCABULARY - 1  # the token whose row is the text's
    if name == "gemma3":
        chosen["input_ids"][:, 6:10] = VOCABULARY - 1
        chosen["token_type_ids"][:, 6:10] = 1
    return chosen
