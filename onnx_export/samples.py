"""Models to export: encoders and decoders of text, images and speech, of transformers' own code, with random weights.

`SAMPLES["bert-base"].build(dtype="fp16", attention="eager")` gives the module with example arguments, names and dynamic
axes, ready for `export_module`. Weights are drawn from a fixed seed, so that two runs export the same file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from attngraft.errors import ModelError
from attngraft.onnx_export.dependencies import import_for_export
from attngraft.onnx_export.exporter import export_module

if TYPE_CHECKING:
    import torch

__all__ = ["ATTENTIONS", "DTYPES", "SAMPLES", "Sample", "SampleModel"]

DTYPES = MappingProxyType({"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"})

ATTENTIONS = ("eager", "sdpa")
"""How the module computes attention: MatMul, scale, mask and softmax one by one, or scaled_dot_product_attention."""

EXAMPLE_BATCH = 2
EXAMPLE_SEQUENCE = 24
"""Sizes of the example arguments; both axes are dynamic in the exported file."""

EXAMPLE_PADDING = 7
"""Padded tokens at the end of the second sequence, so that a mask that gets lost shows."""

SEED = 20

TEXT_AXES = MappingProxyType({0: "batch", 1: "sequence"})


@dataclass(frozen=True)
class SampleModel:
    """A module with all that `export_module` asks for, in its argument order."""

    module: torch.nn.Module
    args: tuple[torch.Tensor, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    dynamic_axes: Mapping[str, Mapping[int, str]]
    layers: int
    """Transformer layers, which is also the number of attention sites."""

    def export(self, target: str | Path, **options: Any) -> Path:
        """Writes the ONNX file; options, errors and result as of `export_module`."""
        return export_module(
            self.module,
            self.args,
            target,
            input_names=self.input_names,
            output_names=self.output_names,
            dynamic_axes=self.dynamic_axes,
            **options,
        )


def _text(torch: Any, config: Any, _: torch.dtype) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, config.vocab_size, (EXAMPLE_BATCH, EXAMPLE_SEQUENCE))
    mask = torch.ones_like(ids)
    mask[1, -EXAMPLE_PADDING:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def _image(torch: Any, config: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    shape = (EXAMPLE_BATCH, config.num_channels, config.image_size, config.image_size)
    return {"pixel_values": torch.randn(shape).to(dtype)}


def _speech(torch: Any, config: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Whisper's encoder halves the number of frames."""
    shape = (EXAMPLE_BATCH, config.num_mel_bins, 2 * config.max_source_positions)
    return {"input_features": torch.randn(shape).to(dtype)}


@dataclass(frozen=True)
class Sample:
    """How to make one model. The defaults of its transformers configuration, with `sizes`, are the published sizes.

    inputs  makes the example arguments from torch, the configuration and the type of the weights.
    part    what of the model is exported, an attribute of it; "" for all of it.
    """

    description: str
    model: str
    config: str
    small_sizes: Mapping[str, Any]
    sizes: Mapping[str, Any] = field(default_factory=dict)
    layers_key: str = "num_hidden_layers"
    output: str = "last_hidden_state"
    inputs: Callable[[Any, Any, torch.dtype], dict[str, torch.Tensor]] = _text
    part: str = ""

    def build(self, *, small: bool = False, dtype: str = "fp32", attention: str = "eager") -> SampleModel:
        """The module in evaluation mode on the CPU with its example arguments.

        small: two layers, hidden size 64, head size 32, for tests; else the published sizes.
        Raises MissingDependency without PyTorch or transformers, ModelError for an unknown dtype or attention.
        """
        if dtype not in DTYPES:
            raise ModelError(f"dtype: {dtype!r} is not one of {', '.join(DTYPES)}")
        if attention not in ATTENTIONS:
            raise ModelError(f"attention: {attention!r} is not one of {', '.join(ATTENTIONS)}")
        torch = import_for_export("torch")
        transformers = import_for_export("transformers")

        config = getattr(transformers, self.config)(**(self.small_sizes if small else self.sizes))
        config.use_cache = False
        torch_dtype = getattr(torch, DTYPES[dtype])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            model_class = getattr(transformers, self.model)
            inner = model_class._from_config(config, attn_implementation=attention).eval().to(torch_dtype)
            inputs = self.inputs(torch, config, torch_dtype)
        return SampleModel(
            module=_one_output(torch, getattr(inner, self.part) if self.part else inner, tuple(inputs), self.output),
            args=tuple(inputs.values()),
            input_names=tuple(inputs),
            output_names=(self.output,),
            dynamic_axes={name: dict(TEXT_AXES) if self.inputs is _text else {0: "batch"} for name in inputs},
            layers=getattr(config, self.layers_key),
        )


def _one_output(torch: Any, inner: torch.nn.Module, names: tuple[str, ...], output: str) -> torch.nn.Module:
    """`inner` as a module of positional tensors in, which it calls `names`, and one tensor out: both exporters take
    that."""

    class TextModel(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            return getattr(self.inner(input_ids=input_ids, attention_mask=attention_mask), output)

    class OneInputModel(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, tensor: torch.Tensor) -> torch.Tensor:
            return getattr(self.inner(**{names[0]: tensor}), output)

    return (OneInputModel() if len(names) == 1 else TextModel()).eval()


_SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}

_VIT_BASE = Sample(
    description="vision transformer, 12 layers, hidden size 768, head size 64, 224x224 in patches of 16",
    model="ViTModel",
    config="ViTConfig",
    inputs=_image,
    small_sizes={**_SMALL, "image_size": 32, "patch_size": 8},
)

SAMPLES: Mapping[str, Sample] = MappingProxyType(
    {
        "bert-base": Sample(
            description="encoder, 12 layers, hidden size 768, head size 64, padding mask",
            model="BertModel",
            config="BertConfig",
            small_sizes={**_SMALL, "vocab_size": 200, "max_position_embeddings": 128},
        ),
        "gpt2": Sample(
            description="decoder, 12 layers, hidden size 768, head size 64, causal and padding mask",
            model="GPT2LMHeadModel",
            config="GPT2Config",
            layers_key="n_layer",
            output="logits",
            small_sizes={
                "n_embd": 64,
                "n_layer": 2,
                "n_head": 2,
                "vocab_size": 200,
                "n_positions": 128,
                "bos_token_id": 0,
                "eos_token_id": 0,
            },
        ),
        "llama": Sample(
            description="decoder, 10 layers, hidden size 2048, 32 heads of 64, 4 of keys and values: 1 GB in fp16",
            model="LlamaModel",
            config="LlamaConfig",
            small_sizes={**_SMALL, "num_key_value_heads": 1, "vocab_size": 200, "max_position_embeddings": 128},
            sizes={
                "hidden_size": 2048,
                "intermediate_size": 5632,
                "num_hidden_layers": 10,
                "num_attention_heads": 32,
                "num_key_value_heads": 4,
            },
        ),
        "t5-base-encoder": Sample(
            description="encoder, 12 layers, hidden size 768, head size 64, position bias and padding mask",
            model="T5EncoderModel",
            config="T5Config",
            layers_key="num_layers",
            small_sizes={"d_model": 64, "d_kv": 32, "d_ff": 128, "num_layers": 2, "num_heads": 2, "vocab_size": 200},
            sizes={"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12},
        ),
        "vit-base": _VIT_BASE,
        "vit-small": replace(
            _VIT_BASE,
            description="vision transformer, 12 layers, hidden size 384, head size 64, 224x224 in patches of 16",
            sizes={"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536},
        ),
        "whisper-small-encoder": Sample(
            description="encoder of speech, 12 layers, hidden size 768, head size 64, 1500 positions, no mask",
            model="WhisperModel",
            config="WhisperConfig",
            layers_key="encoder_layers",
            inputs=_speech,
            small_sizes={
                "d_model": 64,
                "encoder_layers": 2,
                "decoder_layers": 1,
                "encoder_attention_heads": 2,
                "decoder_attention_heads": 2,
                "encoder_ffn_dim": 128,
                "decoder_ffn_dim": 128,
                "num_mel_bins": 16,
                "max_source_positions": 20,
            },
            sizes={
                "d_model": 768,
                "encoder_layers": 12,
                "decoder_layers": 1,
                "encoder_attention_heads": 12,
                "decoder_attention_heads": 12,
                "encoder_ffn_dim": 3072,
                "decoder_ffn_dim": 3072,
            },
            part="encoder",
        ),
    }
)
