"""What attngraft.torch.patch and the attention that it registers refuse, and how they say so."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import transformers as hf
from patched_models import BATCH, LENGTH, build, inputs_of

from attngraft.errors import ContractError, MissingDependency
from attngraft.torch import attention, patch, register_attention, unpatch
from attngraft.torch.transformers_attention import attention_forward

SMALL = {
    "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48,
}  # fmt: skip


def deberta() -> torch.nn.Module:
    return hf.DebertaV2Model(hf.DebertaV2Config(**SMALL))


def encoder_decoder() -> torch.nn.Module:
    """A part that cannot be switched beside one that can."""
    decoder = hf.BertLMHeadModel(hf.BertConfig(**SMALL, is_decoder=True, add_cross_attention=True))
    return hf.EncoderDecoderModel(encoder=deberta(), decoder=decoder)


def long_t5() -> torch.nn.Module:
    """Layers that ask the interface beside layers that do not."""
    return hf.LongT5Model(hf.LongT5Config(vocab_size=97, d_model=32, d_kv=8, num_heads=4, num_layers=1, d_ff=32))


def bloom() -> torch.nn.Module:
    return hf.BloomModel(hf.BloomConfig(vocab_size=97, hidden_size=32, n_layer=1, n_head=4))


def resnet() -> torch.nn.Module:
    return hf.ResNetModel(hf.ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1]))


def layoutlm() -> torch.nn.Module:
    return hf.LayoutLMModel(hf.LayoutLMConfig(**SMALL))


REFUSED: dict[Callable[[], torch.nn.Module], str] = {
    deberta: "DisentangledSelfAttention computes attention by itself",
    encoder_decoder: "DisentangledSelfAttention computes attention by itself",
    long_t5: "LongT5LocalAttention computes attention by itself",
    bloom: "BloomAttention computes attention by itself",
    resnet: "has no layer that asks transformers' attention interface",
    layoutlm: "LayoutLMModel declares that it supports no attention but its own",
    lambda: torch.nn.TransformerEncoderLayer(8, 2): "is no Hugging Face model",
}


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # DeBERTa's own
@pytest.mark.parametrize(("make", "reason"), REFUSED.items())
def test_models_are_refused_as_a_whole_and_stay_as_they_are(make: Callable[[], torch.nn.Module], reason: str) -> None:
    model = make()
    configs = [module.config for module in model.modules() if isinstance(module, hf.PreTrainedModel)]
    before = [config._attn_implementation for config in configs]
    with pytest.raises(ContractError, match=reason) as caught:
        patch(model)
    assert "\n" not in str(caught.value) and type(model).__name__ in str(caught.value)
    assert [config._attn_implementation for config in configs] == before
    with pytest.raises(ContractError, match="is not patched"):
        unpatch(model)


def call(module: torch.nn.Module | None = None, mask: torch.Tensor | None = None, **arguments: Any) -> Any:
    torch.manual_seed(0)
    q, k, v = torch.randn(BATCH, 4, LENGTH, 8), torch.randn(BATCH, 2, LENGTH, 8), torch.randn(BATCH, 2, LENGTH, 8)
    return attention_forward(module or torch.nn.Identity().eval(), q, k, v, mask, **arguments)


@pytest.mark.parametrize(
    "argument", ["cu_seq_lens_q", "max_length_k", "indices", "block_indices", "cache", "head_mask", "anything"]
)
def test_arguments_that_are_not_understood_are_refused(argument: str) -> None:
    with pytest.raises(ContractError, match=f"Identity: attention argument {argument} is not known"):
        call(**{argument: torch.ones(1)})
    assert call(**{argument: None})[0].shape == (BATCH, LENGTH, 4, 8)


def test_sinks_are_not_forgotten() -> None:
    module = torch.nn.Identity().eval()
    module.sinks = torch.nn.Parameter(torch.randn(4))
    with pytest.raises(ContractError, match="attention sinks"):
        call(module)
    with_sinks, _ = call(module, s_aux=module.sinks)
    assert not torch.allclose(with_sinks, call()[0])


@pytest.mark.parametrize(
    "mask", [torch.ones(BATCH, LENGTH, dtype=torch.bool), torch.ones(BATCH, 1, 1, LENGTH, dtype=torch.long)]
)
def test_masks_whose_meaning_is_open_are_refused(mask: torch.Tensor) -> None:
    with pytest.raises(ContractError, match="neither boolean .* nor additive"):
        call(mask=mask)


def test_masks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ContractError, match="does not broadcast"):
        call(mask=torch.zeros(BATCH, 1, LENGTH, LENGTH + 1))


def test_additive_masks_of_narrow_types_do_not_overflow() -> None:
    """The lowest float16 plus a bias below it is -inf in float16."""
    lowest = torch.full((1, 1, LENGTH, LENGTH), torch.finfo(torch.float16).min, dtype=torch.float16).triu(1)
    bias = -torch.rand(1, 4, LENGTH, LENGTH, generator=torch.Generator().manual_seed(1)).half() * 100
    context, weights = call(mask=lowest, position_bias=bias, output_attentions=True)
    assert context.isfinite().all() and (weights.triu(1) == 0).all()
    torch.testing.assert_close(weights, call(mask=lowest.float() + bias.float(), output_attentions=True)[1])


def test_dropout_is_for_training_and_keeps_the_mean() -> None:
    module = torch.nn.Identity().eval()
    still, _ = call(module, dropout=0.5)
    torch.testing.assert_close(still, call()[0])
    torch.manual_seed(1)
    q = torch.randn(BATCH, 4, 400, 8)
    ones = torch.ones(BATCH, 4, 400, 8)
    dropped, _ = attention_forward(module.train(), q, q, ones, None, dropout=0.5)
    assert dropped.std() > 0.02 and abs(dropped.mean() - 1) < 0.02


def test_the_scale_is_that_of_the_head_size_unless_given() -> None:
    torch.testing.assert_close(call(scaling=8**-0.5)[0], call()[0])
    assert not torch.allclose(call(scaling=1.0)[0], call()[0])


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependency, match=r"attngraft\[transformers\]"):
        register_attention()
    assert attention(*(torch.randn(1, 1, 2, 4),) * 3).shape == (1, 1, 2, 4)


def test_an_older_transformers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    older = ModuleType("transformers")
    older.__version__ = "4.57.1"
    monkeypatch.setitem(sys.modules, "transformers", older)
    with pytest.raises(MissingDependency, match=r"needs transformers>=5.4, .*; 4.57.1 does not; pip install"):
        patch(build("bert"))


def test_a_model_that_is_no_longer_patched_is_on_its_old_attention() -> None:
    model, inputs = build("llama"), inputs_of("llama")
    model.set_attn_implementation("sdpa")
    reference = model(**inputs).logits
    unpatch(patch(model))
    torch.testing.assert_close(model(**inputs).logits, reference, rtol=0, atol=0)
