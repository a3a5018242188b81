"""Transformers of images, and of images with text."""

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
    image_entry,
    padding_mask,
    token_ids,
)
from benchmarks.zoo.entry import Entry, Model, Size

__all__ = ["ENTRIES"]

FAMILY = "vision"
FEATURE_SIDE = 64
"""Pixels a side for models that halve the image several times."""


def _swin(size: Size) -> dict[str, Any]:
    return {
        "image_size": 32,
        "patch_size": 2,
        "embed_dim": size.hidden // 2,
        "depths": [2, 2],
        "num_heads": [size.heads // 2, size.heads],
        "window_size": 4,
    }


def _segformer(size: Size) -> dict[str, Any]:
    return {
        "num_encoder_blocks": 2,
        "depths": [1, 1],
        "sr_ratios": [2, 1],
        "hidden_sizes": [size.hidden // 2, size.hidden],
        "patch_sizes": [7, 3],
        "strides": [4, 2],
        "num_attention_heads": [size.heads // 4, size.heads // 2],
        "mlp_ratios": [2, 2],
    }


def _mobilevit(size: Size) -> dict[str, Any]:
    return {
        "image_size": FEATURE_SIDE,
        "hidden_sizes": [16, 24, 32],
        "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 64],
    }


def _beit(size: Size) -> dict[str, Any]:
    return size.images(use_relative_position_bias=True)


def _dinov2(size: Size) -> dict[str, Any]:
    keywords = size.images()
    del keywords["intermediate_size"]
    return keywords


def _pvt(size: Size) -> dict[str, Any]:
    return {
        "image_size": FEATURE_SIDE,
        "depths": [1, 1, 1, 1],
        "hidden_sizes": [size.hidden // 2, size.hidden, size.hidden, size.hidden],
        "num_attention_heads": [1, 2, 2, 4],
        "mlp_ratios": [2, 2, 2, 2],
    }


def _clip() -> Entry:
    def build(size: Size, attention: str) -> Model:
        text = size.text(max_position_embeddings=size.positions, eos_token_id=1, bos_token_id=0, pad_token_id=2)
        config = transformers.CLIPConfig(text_config=text, vision_config=size.images(), projection_dim=16)
        inputs = {
            "input_ids": token_ids(size),
            "pixel_values": torch.randn(2, 3, size.image, size.image),
            "attention_mask": padding_mask(size.tokens),
        }
        axes = {"input_ids": TOKENS, "pixel_values": {0: "images"}, "attention_mask": TOKENS}
        return Model(Call(from_config("CLIPModel", config, attention), tuple(inputs)), inputs, axes)

    return Entry("clip", FAMILY, build, TRANSFORMERS_ATTENTIONS, CORE_VARIANTS)


def _detr() -> Entry:
    """Boxes from a convolutional backbone, cross-attention from learned queries, and class probabilities."""

    def build(size: Size, attention: str) -> Model:
        backbone = transformers.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 8, 8, 16], depths=[1, 1, 1, 1], out_features=["stage4"]
        )
        config = transformers.DetrConfig(
            use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone,
            num_queries=4, d_model=size.hidden, encoder_layers=size.layers, decoder_layers=size.layers,
            encoder_attention_heads=size.heads, decoder_attention_heads=size.heads, encoder_ffn_dim=size.inner,
            decoder_ffn_dim=size.inner, num_labels=3,
        )  # fmt: skip
        inputs = {"pixel_values": torch.randn(2, 3, FEATURE_SIDE, FEATURE_SIDE)}
        inner = from_config("DetrForObjectDetection", config, attention)
        module = Call(inner, tuple(inputs), lambda result: (result.logits.softmax(-1), result.pred_boxes))
        return Model(module, inputs, {"pixel_values": {0: "batch"}}, others=1)

    return Entry("detr", FAMILY, build, ("eager",), USUAL_VARIANTS)


ENTRIES = (
    image_entry("vit", FAMILY, "ViTModel", "ViTConfig", core=True),
    image_entry("deit", FAMILY, "DeiTModel", "DeiTConfig"),
    image_entry("dinov2", FAMILY, "Dinov2Model", "Dinov2Config", _dinov2),
    image_entry("dinov2_registers", FAMILY, "Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", _dinov2),
    image_entry("dinov3_vit", FAMILY, "DINOv3ViTModel", "DINOv3ViTConfig",
                lambda size: size.images(num_register_tokens=4)),
    image_entry("beit", FAMILY, "BeitModel", "BeitConfig", _beit),
    image_entry("data2vec_vision", FAMILY, "Data2VecVisionModel", "Data2VecVisionConfig", _beit),
    image_entry("swin", FAMILY, "SwinModel", "SwinConfig", _swin, side=lambda size: 32, core=True),
    image_entry("swinv2", FAMILY, "Swinv2Model", "Swinv2Config", _swin, side=lambda size: 32,
                attentions=("eager",)),
    image_entry("segformer", FAMILY, "SegformerModel", "SegformerConfig", _segformer,
                side=lambda size: FEATURE_SIDE),
    image_entry("pvt", FAMILY, "PvtModel", "PvtConfig", _pvt, side=lambda size: FEATURE_SIDE,
                attentions=("eager",)),
    image_entry("mobilevit", FAMILY, "MobileViTModel", "MobileViTConfig", _mobilevit,
                side=lambda size: FEATURE_SIDE, sized=False, attentions=("eager",)),
    image_entry("yolos", FAMILY, "YolosModel", "YolosConfig",
                lambda size: size.vision(image_size=[size.image, size.image], patch_size=size.patch,
                                         num_detection_tokens=4)),
    image_entry("clip_vision", FAMILY, "CLIPVisionModel", "CLIPVisionConfig"),
    # The pooled state comes from attention of its own, which exporters drop unless it is an output.
    image_entry("siglip_vision", FAMILY, "SiglipVisionModel", "SiglipVisionConfig",
                select=lambda result: (result.last_hidden_state, result.pooler_output)),
    _clip(),
    _detr(),
)  # fmt: skip
