"""attngraft.torch.patch: Hugging Face models compute the same on attngraft's attention as on their eager attention."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
import transformers as hf
from patched_models import BATCH, DECODERS, LENGTH, MODELS, PADDED, build, inputs_of
from torch import Tensor
from transformers.utils import ModelOutput

from attngraft.torch import patch, register_attention, unpatch

TOLERANCE = 1e-5
"""Share of the largest element by which float32 results may differ: two orders of the same sums, layer upon layer."""

GRADIENT_TOLERANCE = 1e-4
"""The same for gradients, which go through the softmax's difference of near numbers."""

NARROW_TOLERANCE = 2.0
"""bfloat16 may be that many times as far from float32 as eager attention is: both round, ours less often."""

NEW_TOKENS = 8

GENERATIONS = sorted({*product(DECODERS, ("dynamic", "static"))} - {("llama4", "static")})
"""transformers 5.17 makes no chunked masks for a static cache: it hands the function an argument that it has not."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors this small wait longer for threads than they take."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tensors_of(outputs: ModelOutput, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor that a model returns, weights and hidden states of all layers included."""
    for name, value in outputs.items():
        if isinstance(value, Tensor):
            yield prefix + name, value
        elif isinstance(value, ModelOutput):
            yield from tensors_of(value, f"{prefix}{name}.")
        elif isinstance(value, tuple):
            for index, element in enumerate(value):
                yield f"{prefix}{name}[{index}]", element


def distance(ours: Tensor, reference: Tensor) -> float:
    """The largest difference, as a share of the reference's largest element; NaN if there is one."""
    scale = reference.double().abs().max().clamp_min(1e-30)
    return ((ours.double() - reference.double()).abs().max() / scale).item()


def assert_same(ours: ModelOutput, reference: ModelOutput, tolerance: float = TOLERANCE) -> None:
    expected = dict(tensors_of(reference))
    found = dict(tensors_of(ours))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].shape == tensor.shape and found[name].dtype == tensor.dtype, name
        assert distance(found[name], tensor) <= tolerance, name


def loss_of(outputs: ModelOutput, inputs: dict[str, Tensor]) -> Tensor:
    """A number that depends on every element of the rows that are no padding."""
    mask = inputs.get("decoder_attention_mask", inputs.get("attention_mask"))
    if "text_model_output" in outputs:
        rows, extra = outputs.text_model_output.last_hidden_state, outputs.image_embeds.square().sum()
    else:
        rows, extra = outputs[0], 0.0
    weights = torch.randn(rows.shape[1:], generator=torch.Generator().manual_seed(2))
    weighed = rows.float() * weights
    return extra + (weighed if mask is None else weighed * mask[..., None]).sum()


def gradients_of(model: torch.nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    model.zero_grad()
    loss_of(model(**inputs), inputs).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_outputs_and_weights_are_those_of_eager_attention(name: str) -> None:
    model, inputs = build(name), inputs_of(name)
    with_weights = model(**inputs, output_attentions=True)
    reference = model(**inputs, output_hidden_states=True)
    assert patch(model) is model
    assert_same(model(**inputs, output_attentions=True), with_weights)
    assert_same(model(**inputs, output_hidden_states=True), reference)


@pytest.mark.parametrize("side", ["right", "hole"])
@pytest.mark.parametrize("name", PADDED)
@torch.no_grad()
def test_padding_may_be_anywhere(name: str, side: str) -> None:
    model, inputs = build(name), inputs_of(name, side=side)
    reference = model(**inputs)
    assert_same(patch(model)(**inputs), reference)


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_bfloat16_is_no_further_from_float32_than_eager(name: str) -> None:
    exact = build(name)
    narrow = build(name, torch.bfloat16)
    for parameter, rounded in zip(exact.parameters(), narrow.parameters(), strict=True):
        parameter.copy_(rounded)
    inputs, exact_inputs = inputs_of(name, torch.bfloat16), inputs_of(name)
    reference = dict(tensors_of(exact(**{k: inputs[k].to(v.dtype) for k, v in exact_inputs.items()})))
    eager = dict(tensors_of(narrow(**inputs)))
    ours = dict(tensors_of(patch(narrow)(**inputs)))
    for key, tensor in reference.items():
        allowed = max(NARROW_TOLERANCE * distance(eager[key], tensor), torch.finfo(torch.bfloat16).eps)
        assert distance(ours[key], tensor) <= allowed, key


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_eager_attention(name: str) -> None:
    model, inputs = build(name), inputs_of(name)
    reference = gradients_of(model, inputs)
    ours = gradients_of(patch(model), inputs)
    assert ours.keys() == reference.keys()
    largest = max(gradient.abs().max() for gradient in reference.values())
    for key, gradient in reference.items():
        torch.testing.assert_close(
            ours[key], gradient, rtol=GRADIENT_TOLERANCE, atol=GRADIENT_TOLERANCE * largest.item(), msg=key
        )


@pytest.mark.parametrize(("name", "cache"), GENERATIONS)
def test_greedy_generation_gives_the_same_tokens(name: str, cache: str) -> None:
    model, inputs = build(name), inputs_of(name)
    options = {
        "max_new_tokens": NEW_TOKENS,
        "do_sample": False,
        "cache_implementation": cache,
        "output_logits": True,
        "return_dict_in_generate": True,
        "disable_compile": True,
    }
    reference = model.generate(**inputs, **options)
    ours = patch(model).generate(**inputs, **options)
    assert reference.sequences.shape[1] == LENGTH + NEW_TOKENS
    torch.testing.assert_close(ours.sequences, reference.sequences, rtol=0, atol=0)
    assert distance(torch.stack(ours.logits), torch.stack(reference.logits)) <= TOLERANCE


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss"])
@torch.no_grad()
def test_a_cache_is_filled_in_pieces(name: str) -> None:
    """More keys than queries, and a window's cache that has dropped tokens."""
    model, inputs = build(name), inputs_of(name)

    def logits_in_pieces() -> Tensor:
        cache, pieces = None, []
        for start, stop in ((0, 6), (6, 9), (9, LENGTH)):
            outputs = model(
                inputs["input_ids"][:, start:stop], attention_mask=inputs["attention_mask"][:, :stop],
                past_key_values=cache, use_cache=True,
            )  # fmt: skip
            cache = outputs.past_key_values
            pieces.append(outputs.logits)
        return torch.cat(pieces, 1)

    reference = logits_in_pieces()
    patch(model)
    assert distance(logits_in_pieces(), reference) <= TOLERANCE


@pytest.mark.parametrize("name", ["bart", "whisper", "t5"])
def test_generation_with_an_encoder_gives_the_same_tokens(name: str) -> None:
    model, inputs = build(name), inputs_of(name)
    inputs = {key: value for key, value in inputs.items() if not key.startswith("decoder")}
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "num_beams": 2}
    reference = model.generate(**inputs, **options)
    torch.testing.assert_close(patch(model).generate(**inputs, **options), reference, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["bert", "llama", "gpt_oss", "bart"])
def test_dropout_in_training_drops_what_eager_drops(name: str) -> None:
    """With the weights asked for both draw the same random numbers."""
    model, inputs = build(name), inputs_of(name, side="right")
    for module in model.modules():
        for attribute in ("attention_dropout", "dropout"):
            if isinstance(getattr(module, attribute, None), float):
                setattr(module, attribute, 0.3)
            elif isinstance(getattr(module, attribute, None), torch.nn.Dropout):
                getattr(module, attribute).p = 0.3
    model.train()

    def run() -> ModelOutput:
        torch.manual_seed(5)
        return model(**inputs, output_attentions=True)

    reference = run()
    dropped = [tensor for key, tensor in tensors_of(reference) if "attentions" in key]
    assert dropped and all((tensor == 0).float().mean() > 0.2 for tensor in dropped)
    patch(model)
    assert_same(run(), reference)
    model.eval()
    torch.testing.assert_close(model(**inputs)[0], model(**inputs)[0], rtol=0, atol=0)


@pytest.mark.parametrize("name", ["bert", "llama", "mistral", "bart"])
@torch.no_grad()
def test_a_wholly_padded_entry_gives_what_eager_gives(name: str) -> None:
    model, inputs = build(name), inputs_of(name)
    inputs["attention_mask"][1] = 0
    reference = model(**inputs, output_attentions=True)
    assert_same(patch(model)(**inputs, output_attentions=True), reference)
    assert all(tensor.isfinite().all() for _, tensor in tensors_of(reference))


@torch.no_grad()
def test_masks_of_the_users_own_are_additive_or_boolean() -> None:
    model, inputs = build("llama"), inputs_of("llama")
    may = torch.rand(BATCH, 1, LENGTH, LENGTH, generator=torch.Generator().manual_seed(3)) > 0.4
    may |= torch.eye(LENGTH, dtype=torch.bool)
    additive = torch.where(may, 0.0, torch.finfo(torch.float32).min)
    reference = model(inputs["input_ids"], attention_mask=additive)
    patch(model)
    assert_same(model(inputs["input_ids"], attention_mask=additive), reference)
    assert_same(model(inputs["input_ids"], attention_mask=may), reference)


@torch.no_grad()
def test_packed_sequences_stay_apart() -> None:
    model = build("llama")
    ids = inputs_of("llama")["input_ids"]
    positions = torch.cat([torch.arange(4), torch.arange(LENGTH - 4)]).expand(BATCH, -1)
    reference = model(ids, position_ids=positions, use_cache=False)
    assert_same(patch(model)(ids, position_ids=positions, use_cache=False), reference)
    alone = model(ids[:, 4:], position_ids=positions[:, 4:], use_cache=False)
    assert distance(alone.logits, reference.logits[:, 4:]) <= TOLERANCE


def test_autocast_and_checkpointing_keep_the_gradients() -> None:
    model, inputs = build("mistral"), inputs_of("mistral")
    reference = gradients_of(model, inputs)
    patch(model).gradient_checkpointing_enable()
    model.train()
    ours = gradients_of(model, inputs)
    largest = max(gradient.abs().max() for gradient in reference.values())
    assert all((ours[key] - reference[key]).abs().max() <= GRADIENT_TOLERANCE * largest for key in reference)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        logits = model(**inputs).logits
    assert logits.dtype == torch.bfloat16 and logits.isfinite().all()


@pytest.mark.parametrize(("name", "is_padded"), [("gemma2", True), ("gemma2", False), ("bert", True)])
def test_compiles_without_a_graph_break(name: str, is_padded: bool) -> None:
    model, inputs = build(name), inputs_of(name)
    if not is_padded:
        del inputs["attention_mask"]
    reference = gradients_of(model, inputs)
    torch.compiler.reset()
    compiled = torch.compile(patch(model), fullgraph=True, backend="aot_eager")
    ours = gradients_of(compiled, inputs)
    largest = max(gradient.abs().max() for gradient in reference.values())
    for key, gradient in reference.items():
        assert (ours["_orig_mod." + key] - gradient).abs().max() <= GRADIENT_TOLERANCE * largest, key


@torch.no_grad()
def test_compiles_with_shapes_that_change() -> None:
    model = build("llama")
    inputs = inputs_of("llama")
    shorter = {key: value[:2, 3:] for key, value in inputs.items()}
    expected = [model(**inputs), model(**shorter)]
    torch.compiler.reset()
    compiled = torch.compile(patch(model), fullgraph=True, dynamic=True, backend="eager")
    assert_same(compiled(**inputs, use_cache=False), _without_cache(expected[0]))
    assert_same(compiled(**shorter, use_cache=False), _without_cache(expected[1]))


def _without_cache(outputs: ModelOutput) -> ModelOutput:
    return type(outputs)(logits=outputs.logits)


@torch.no_grad()
def test_a_model_may_be_made_with_attngraft(tmp_path: Any) -> None:
    model, inputs = build("mistral"), inputs_of("mistral")
    reference = model(**inputs)
    model.save_pretrained(tmp_path)
    register_attention()
    loaded = hf.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="attngraft").eval()
    assert loaded.config._attn_implementation == "attngraft"
    assert_same(loaded(**inputs), reference)


@torch.no_grad()
def test_the_way_back_and_copies() -> None:
    model = build("clip")
    model.vision_model.config._attn_implementation = "sdpa"
    implementations = [config._attn_implementation for config in _configs_of(model)]
    assert set(implementations) == {"eager", "sdpa"}
    patch(patch(model))
    assert {config._attn_implementation for config in _configs_of(model)} == {"attngraft"}
    assert "_attn_implementation" not in str(model.config.to_dict())
    copied = copy.deepcopy(model)
    assert [c._attn_implementation for c in _configs_of(unpatch(copied))] == implementations
    assert {config._attn_implementation for config in _configs_of(model)} == {"attngraft"}
    assert [c._attn_implementation for c in _configs_of(unpatch(model))] == implementations


def _configs_of(model: hf.PreTrainedModel) -> list[Any]:
    return [module.config for module in model.modules() if isinstance(module, hf.PreTrainedModel)]
