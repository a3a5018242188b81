"""What the families build their entries with: modules of transformers as functions of tensors, and example inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers

from benchmarks.zoo.entry import Entry, Model, Size, Variant

__all__ = [
    "CORE_VARIANTS",
    "TOKENS",
    "USUAL_VARIANTS",
    "Call",
    "from_config",
    "image_entry",
    "padding_mask",
    "text_entry",
    "token_ids",
]

TOKENS = {0: "batch", 1: "sequence"}
BATCH = 2
PADDED_TOKENS = 2
"""At the end of the second sequence, so that a mask that gets lost shows."""

FIRST_WORD = 3
"""Ids below it are padding and other special tokens in the configurations here."""

USUAL_VARIANTS = (
    Variant("torchscript", 17, "fp32"),
    Variant("torchscript", 17, "fp16"),
    Variant("dynamo", 18, "fp32"),
    Variant("dynamo", 18, "fp16"),
    Variant("dynamo", 23, "fp32"),
)

CORE_VARIANTS = (
    *(Variant("torchscript", opset, "fp32") for opset in (13, 17, 20)),
    Variant("torchscript", 17, "fp16"),
    *(Variant("dynamo", opset, "fp32") for opset in (18, 23, 24)),
    *(Variant("dynamo", opset, "fp16") for opset in (18, 23)),
    Variant("dynamo", 18, "bf16"),
)
"""For the architectures that are exported most."""

TRANSFORMERS_ATTENTIONS = ("eager", "sdpa")


class Call(torch.nn.Module):
    """A module as a function of positional tensors: `names` are the keywords that they are passed by, `options` further
    keywords, `select` what is returned (the first output otherwise)."""

    def __init__(
        self,
        inner: torch.nn.Module,
        names: tuple[str, ...] = (),
        select: Callable[[Any], Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.inner, self.names, self.select, self.options = inner, names, select, options

    def forward(self, *tensors: torch.Tensor) -> Any:
        if self.names:
            result = self.inner(**dict(zip(self.names, tensors, strict=True)), **self.options)
        else:
            result = self.inner(*tensors, **self.options)
        if self.select is not None:
            return self.select(result)
        return result if torch.is_tensor(result) else result[0]


def from_config(model: str, config: Any, attention: str) -> torch.nn.Module:
    """A module of transformers with random weights. A few classes have no eager form to ask for: their only one is."""
    if hasattr(config, "use_cache"):
        config.use_cache = False
    if hasattr(config, "num_local_experts"):
        config._experts_implementation = "batched_mm"  # the default, grouped_mm, has no ONNX form
    model_class = getattr(transformers, model)
    try:
        return model_class._from_config(config, attn_implementation=attention).eval()
    except ValueError:
        if attention != "eager":
            raise
        return model_class._from_config(config).eval()


def token_ids(size: Size, tokens: int | None = None) -> torch.Tensor:
    """[2, tokens] int64."""
    return torch.randint(FIRST_WORD, size.vocabulary - 1, (BATCH, tokens or size.tokens))


def padding_mask(tokens: int) -> torch.Tensor:
    """[2, tokens] int64, 1 where a token is; the second sequence is shorter."""
    mask = torch.ones(BATCH, tokens, dtype=torch.long)
    mask[1, -PADDED_TOKENS:] = 0
    return mask


def text_entry(
    name: str,
    family: str,
    model: str,
    config: str,
    keywords: Callable[[Size], Mapping[str, Any]] = Size.text,
    *,
    mask: bool = True,
    core: bool = False,
    others: Callable[[Size], int] | int = 0,
    attentions: tuple[str, ...] = TRANSFORMERS_ATTENTIONS,
    traced: bool = True,
    **call: Any,
) -> Entry:
    """A model of transformers that takes `input_ids` and, if `mask`, a padding mask. `traced`: whether the TorchScript
    exporter writes a file that runs."""

    def build(size: Size, attention: str) -> Model:
        inputs = {"input_ids": token_ids(size)}
        if mask:
            inputs["attention_mask"] = padding_mask(size.tokens)
        inner = from_config(model, getattr(transformers, config)(**keywords(size)), attention)
        return Model(
            Call(inner, tuple(inputs), **call),
            inputs,
            dict.fromkeys(inputs, TOKENS),
            others=others if isinstance(others, int) else others(size),
        )

    variants = CORE_VARIANTS if core else USUAL_VARIANTS
    runnable = tuple(variant for variant in variants if traced or variant.exporter != "torchscript")
    return Entry(name, family, build, attentions, runnable)


def image_entry(
    name: str,
    family: str,
    model: str,
    config: str,
    keywords: Callable[[Size], Mapping[str, Any]] = Size.images,
    *,
    side: Callable[[Size], int] | None = None,
    core: bool = False,
    sized: bool = True,
    others: int = 0,
    attentions: tuple[str, ...] = TRANSFORMERS_ATTENTIONS,
    **call: Any,
) -> Entry:
    """A model of transformers that takes `pixel_values` [B, 3, side, side]."""

    def build(size: Size, attention: str) -> Model:
        pixels = side(size) if side else size.image
        inputs = {"pixel_values": torch.randn(BATCH, 3, pixels, pixels)}
        inner = from_config(model, getattr(transformers, config)(**keywords(size)), attention)
        return Model(Call(inner, tuple(inputs), **call), inputs, {"pixel_values": {0: "batch"}}, others=others)

    return Entry(name, family, build, attentions, CORE_VARIANTS if core else USUAL_VARIANTS, sized)
