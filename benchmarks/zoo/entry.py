"""What a zoo entry is: how to build a model at a size, and which exports are made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from onnx import ModelProto

__all__ = ["DTYPES", "NO_CHOICE", "SIZES", "Entry", "GraphEntry", "Model", "Size", "Variant"]

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

NO_CHOICE = ("plain",)
"""Attention forms of a model that has only one."""


@dataclass(frozen=True)
class Size:
    """Sizes that the entries build their models from."""

    name: str
    hidden: int
    heads: int
    layers: int
    inner: int
    vocabulary: int = 100
    positions: int = 64
    tokens: int = 8
    image: int = 32
    patch: int = 8

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads

    def text(self, *, layers: int = 1, **more: Any) -> dict[str, Any]:
        """Keyword arguments that most text configurations of transformers share; at least `layers` layers."""
        return {**self.vision(layers=layers), "vocab_size": self.vocabulary, **more}

    def vision(self, *, layers: int = 1, **more: Any) -> dict[str, Any]:
        """The same without a vocabulary."""
        return {
            "hidden_size": self.hidden,
            "num_hidden_layers": max(layers, self.layers),
            "num_attention_heads": self.heads,
            "intermediate_size": self.inner,
            **more,
        }

    def images(self, **more: Any) -> dict[str, Any]:
        """`vision` with the size of images and patches."""
        return self.vision(image_size=self.image, patch_size=self.patch, **more)


SIZES = {
    "small": Size("small", hidden=32, heads=4, layers=1, inner=64),
    # Head size 64 and one layer: what TensorRT can fuse, built in seconds.
    "fusable": Size("fusable", hidden=256, heads=4, layers=1, inner=512, image=64, patch=8),
    # The layers of BERT-base and ViT-base, two of them, with a small table so that files stay small.
    "real": Size("real", hidden=768, heads=12, layers=2, inner=3072, vocabulary=1000, positions=512, tokens=16,
                 image=224, patch=16),
}  # fmt: skip


@dataclass(frozen=True)
class Model:
    """A module that takes the tensors of `inputs` by position, and what is known about its softmaxes.

    axes    for each input its axes of variable size; axes of one name have one size.
    others  softmaxes that are no attention: gates, classifiers, pooling.
    sites   attention softmaxes, where they cannot be counted by running the module: written by hand as exp and sum, or
            in branches that an example does not take. None: all counted ones but `others`.
    options passed on to torch.onnx.export.
    """

    module: torch.nn.Module
    inputs: Mapping[str, torch.Tensor]
    axes: Mapping[str, Mapping[int, str]]
    others: int = 0
    sites: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, order=True)
class Variant:
    """One way to export: exporter "dynamo" or "torchscript" (for GraphEntry "graph"), opset, and type of weights."""

    exporter: str
    opset: int
    dtype: str

    def __str__(self) -> str:
        return f"{self.exporter}-op{self.opset}-{self.dtype}"


@dataclass(frozen=True)
class Entry:
    """A PyTorch model. `build(size, attention)` makes it with freshly drawn weights; `attentions` are the forms that it
    can be told to compute attention in. `sized`: whether sizes other than `small` change it."""

    name: str
    family: str
    build: Callable[[Size, str], Model]
    attentions: tuple[str, ...] = NO_CHOICE
    variants: tuple[Variant, ...] = ()
    sized: bool = True


@dataclass(frozen=True)
class GraphEntry:
    """An ONNX graph that no PyTorch exporter makes: `make(size, variant)` returns the model, its number of attention
    softmaxes and that of other softmaxes."""

    name: str
    family: str
    make: Callable[[Size, Variant], tuple[ModelProto, int, int]]
    variants: tuple[Variant, ...] = ()
    attentions: tuple[str, ...] = NO_CHOICE
    sized: bool = False
