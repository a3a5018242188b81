"""Models to export: an encoder, a decoder and a vision transformer of transformers' own code, with random weights.

`SAMPLES["bert-base"].build(dtype="fp16", attention="eager")` gives the module with example arguments, names and dynamic
axes, ready for `export_module`. Weights are drawn from a fixed seed, so that two runs export the same file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from attngraft.errors import ModelError
from attngraft.onnx_export.dependencies import import_for_export

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


@dataclass(frozen=True)
class Sample:
    """How to make one model. The defaults of its transformers configuration are the published sizes."""

    description: str
    model: str
    config: str
    layers_key: str
    output: str
    small_sizes: Mapping[str, Any]

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

        config = getattr(transformers, self.config)(**(self.small_sizes if small else {}))
        config.use_cache = False
        torch_dtype = getattr(torch, DTYPES[dtype])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            model_class = getattr(transformers, self.model)
            inner = model_class._from_config(config, attn_implementation=attention).eval().to(torch_dtype)
            inputs = _image(torch, config, torch_dtype) if self.is_vision else _text(torch, config)
        axes = {name: {0: "batch"} if self.is_vision else dict(TEXT_AXES) for name in inputs}
        return SampleModel(
            module=_one_output(torch, inner, self.is_vision, self.output),
            args=tuple(inputs.values()),
            input_names=tuple(inputs),
            output_names=(self.output,),
            dynamic_axes=axes,
            layers=getattr(config, self.layers_key),
        )

    @property
    def is_vision(self) -> bool:
        return self.config == "ViTConfig"


def _text(torch: Any, config: Any) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, config.vocab_size, (EXAMPLE_BATCH, EXAMPLE_SEQUENCE))
    mask = torch.ones_like(ids)
    mask[1, -EXAMPLE_PADDING:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def _image(torch: Any, config: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    shape = (EXAMPLE_BATCH, config.num_channels, config.image_size, config.image_size)
    return {"pixel_values": torch.randn(shape).to(dtype)}


def _one_output(torch: Any, inner: torch.nn.Module, is_vision: bool, output: str) -> torch.nn.Module:
    """`inner` as a module of positional tensors in and one tensor out, which is what both exporters take."""

    class TextModel(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            return getattr(self.inner(input_ids=input_ids, attention_mask=attention_mask), output)

    class VisionModel(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
            return getattr(self.inner(pixel_values=pixel_values), output)

    return (VisionModel() if is_vision else TextModel()).eval()


_SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}

SAMPLES: Mapping[str, Sample] = MappingProxyType(
    {
        "bert-base": Sample(
            description="encoder, 12 layers, hidden size 768, head size 64, padding mask",
            model="BertModel",
            config="BertConfig",
            layers_key="num_hidden_layers",
            output="last_hidden_state",
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
        "vit-base": Sample(
            description="vision transformer, 12 layers, hidden size 768, head size 64, 224x224 in patches of 16",
            model="ViTModel",
            config="ViTConfig",
            layers_key="num_hidden_layers",
            output="last_hidden_state",
            small_sizes={**_SMALL, "image_size": 32, "patch_size": 8},
        ),
    }
)
