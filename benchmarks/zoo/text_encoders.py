"""Encoders of text."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from benchmarks.zoo.building import (
    TOKENS,
    TRANSFORMERS_ATTENTIONS,
    USUAL_VARIANTS,
    Call,
    from_config,
    padding_mask,
    text_entry,
    token_ids,
)
from benchmarks.zoo.entry import Entry, Model, Size

__all__ = ["ENTRIES"]

FAMILY = "text encoders"


def _distilbert(size: Size) -> dict[str, Any]:
    return {
        "dim": size.hidden,
        "n_layers": size.layers,
        "n_heads": size.heads,
        "hidden_dim": size.inner,
        "vocab_size": size.vocabulary,
    }


def _modernbert(size: Size) -> dict[str, Any]:
    return size.text(layers=2, pad_token_id=0, global_attn_every_n_layers=2, local_attention=4)


def _deberta(size: Size) -> dict[str, Any]:
    return size.text(relative_attention=True, pos_att_type=["p2c", "c2p"], max_relative_positions=size.positions // 4)


def _deberta_v2(size: Size) -> dict[str, Any]:
    return {
        **_deberta(size),
        "position_buckets": size.positions // 8,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
    }


def _clip_text(size: Size) -> dict[str, Any]:
    return size.text(max_position_embeddings=size.positions, eos_token_id=1, bos_token_id=0, pad_token_id=2)


def _mobilebert(size: Size) -> dict[str, Any]:
    return size.text(
        embedding_size=size.hidden, intra_bottleneck_size=size.hidden, true_hidden_size=size.hidden,
        num_feedforward_networks=1,
    )  # fmt: skip


def _xlnet(size: Size) -> dict[str, Any]:
    return {
        "d_model": size.hidden,
        "n_layer": size.layers,
        "n_head": size.heads,
        "d_inner": size.inner,
        "vocab_size": size.vocabulary,
    }


def _returned_probabilities() -> Entry:
    def build(size: Size, attention: str) -> Model:
        inputs = {"input_ids": token_ids(size), "attention_mask": padding_mask(size.tokens)}
        inner = from_config("BertModel", transformers.BertConfig(**size.text()), attention)

        def select(result: Any) -> tuple[torch.Tensor, ...]:
            return result.last_hidden_state, result.attentions[0]

        module = Call(inner, tuple(inputs), select, output_attentions=True)
        return Model(module, inputs, dict.fromkeys(inputs, TOKENS))

    return Entry("bert_outattn", FAMILY, build, ("eager",), USUAL_VARIANTS)


def _additive_mask() -> Entry:
    """The caller makes the mask [B, 1, S, S] itself."""

    def build(size: Size, attention: str) -> Model:
        tokens = size.tokens
        inputs = {"input_ids": token_ids(size), "attention_mask": torch.zeros(2, 1, tokens, tokens)}
        inner = from_config("BertModel", transformers.BertConfig(**size.text()), attention)
        axes = {"input_ids": TOKENS, "attention_mask": {0: "batch", 2: "sequence", 3: "sequence"}}
        return Model(Call(inner, tuple(inputs)), inputs, axes)

    return Entry("bert_4dmask", FAMILY, build, TRANSFORMERS_ATTENTIONS, USUAL_VARIANTS)


def _classifier() -> Entry:
    """The probabilities of the classes are a softmax too."""

    def build(size: Size, attention: str) -> Model:
        inputs = {"input_ids": token_ids(size), "attention_mask": padding_mask(size.tokens)}
        config = transformers.BertConfig(**size.text(num_labels=5))
        inner = from_config("BertForSequenceClassification", config, attention)
        module = Call(inner, tuple(inputs), lambda result: result.logits.softmax(-1))
        return Model(module, inputs, dict.fromkeys(inputs, TOKENS), others=1)

    return Entry("bert_classifier", FAMILY, build, TRANSFORMERS_ATTENTIONS, USUAL_VARIANTS)


def _unfolded(name: str, model: str, config: str) -> Entry:
    """Exported without constant folding or optimisation."""

    def build(size: Size, attention: str) -> Model:
        inputs = {"input_ids": token_ids(size), "attention_mask": padding_mask(size.tokens)}
        inner = from_config(model, getattr(transformers, config)(**size.text()), attention)
        options = {"do_constant_folding": False, "optimize": False}
        return Model(Call(inner, tuple(inputs)), inputs, dict.fromkeys(inputs, TOKENS), options=options)

    return Entry(name, FAMILY, build, TRANSFORMERS_ATTENTIONS, USUAL_VARIANTS)


ENTRIES = (
    text_entry("bert", FAMILY, "BertModel", "BertConfig", core=True),
    text_entry("bert_nomask", FAMILY, "BertModel", "BertConfig", mask=False),
    _additive_mask(),
    _returned_probabilities(),
    _classifier(),
    _unfolded("bert_unfolded", "BertModel", "BertConfig"),
    _unfolded("llama_unfolded", "LlamaModel", "LlamaConfig"),
    text_entry("roberta", FAMILY, "RobertaModel", "RobertaConfig", core=True),
    text_entry("xlm_roberta", FAMILY, "XLMRobertaModel", "XLMRobertaConfig"),
    text_entry("electra", FAMILY, "ElectraModel", "ElectraConfig"),
    text_entry("albert", FAMILY, "AlbertModel", "AlbertConfig"),
    text_entry("mpnet", FAMILY, "MPNetModel", "MPNetConfig", attentions=("eager",)),
    text_entry("distilbert", FAMILY, "DistilBertModel", "DistilBertConfig", _distilbert, core=True),
    text_entry("modernbert", FAMILY, "ModernBertModel", "ModernBertConfig", _modernbert),
    text_entry("deberta", FAMILY, "DebertaModel", "DebertaConfig", _deberta, attentions=("eager",)),
    text_entry("deberta_v2", FAMILY, "DebertaV2Model", "DebertaV2Config", _deberta_v2, core=True,
               attentions=("eager",)),
    text_entry("clip_text", FAMILY, "CLIPTextModel", "CLIPTextConfig", _clip_text),
    text_entry("clip_text_nomask", FAMILY, "CLIPTextModel", "CLIPTextConfig", _clip_text, mask=False),
    text_entry("ernie", FAMILY, "ErnieModel", "ErnieConfig"),
    text_entry("rembert", FAMILY, "RemBertModel", "RemBertConfig", attentions=("eager",)),
    text_entry("roformer", FAMILY, "RoFormerModel", "RoFormerConfig", attentions=("eager",)),
    text_entry("mobilebert", FAMILY, "MobileBertModel", "MobileBertConfig", _mobilebert),
    text_entry("esm", FAMILY, "EsmModel", "EsmConfig",
               lambda size: size.text(pad_token_id=0, mask_token_id=1, position_embedding_type="rotary")),
    text_entry("xlnet", FAMILY, "XLNetModel", "XLNetConfig", _xlnet, attentions=("eager",)),
    text_entry("fnet", FAMILY, "FNetModel", "FNetConfig", mask=False, attentions=("eager",)),
)  # fmt: skip
