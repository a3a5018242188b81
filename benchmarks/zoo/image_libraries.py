"""Models of timm and torchvision at their published sizes: they have no smaller ones.

Images have 224 pixels a side. Both packages are imported when a model is built: listing the zoo needs neither.
"""

from __future__ import annotations

import torch

from benchmarks.zoo.building import TRANSFORMERS_ATTENTIONS, USUAL_VARIANTS, Call
from benchmarks.zoo.entry import NO_CHOICE, Entry, Model, Size

__all__ = ["ENTRIES"]

FAMILY = "image libraries"
SIDE = 224


def _model(inner: torch.nn.Module, others: int) -> Model:
    inputs = {"image": torch.randn(1, 3, SIDE, SIDE)}
    return Model(Call(inner.eval()), inputs, {"image": {0: "batch"}}, others=others)


def _timm(name: str, *, others: int = 0) -> Entry:
    """`eager` switches timm's use of scaled_dot_product_attention off. `others`: softmaxes that are no attention."""

    def build(size: Size, attention: str) -> Model:
        import timm
        from timm.layers import set_fused_attn

        set_fused_attn(attention == "sdpa")
        return _model(timm.create_model(name, pretrained=False), others)

    return Entry(f"timm_{name}", FAMILY, build, TRANSFORMERS_ATTENTIONS, USUAL_VARIANTS, sized=False)


def _torchvision(name: str) -> Entry:
    def build(size: Size, attention: str) -> Model:
        import torchvision

        return _model(getattr(torchvision.models, name)(weights=None), 0)

    return Entry(f"tv_{name}", FAMILY, build, NO_CHOICE, USUAL_VARIANTS, sized=False)


SEPARABLE_BLOCKS = 9
"""MobileViT v2 pools: a softmax over the tokens of one score each, times the keys, summed."""

ENTRIES = (
    _timm("vit_tiny_patch16_224"),
    _timm("swin_tiny_patch4_window7_224"),
    _timm("maxvit_tiny_tf_224"),
    _timm("eva02_tiny_patch14_224"),
    _timm("xcit_nano_12_p16_224"),
    _timm("levit_128s"),
    _timm("coat_tiny"),
    _timm("vit_relpos_small_patch16_224"),
    _timm("mobilevitv2_050", others=SEPARABLE_BLOCKS),
    _torchvision("swin_t"),
    _torchvision("vit_b_16"),
    _torchvision("maxvit_t"),
)
