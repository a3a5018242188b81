"""Patched Hugging Face models on a GPU: the kernel is taken, nothing waits for it, and the numbers are eager's."""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path

import pytest
import torch

BUILT = Path(__file__).parents[2] / "build" / "lib" / "libattngraft_torch.so"
if BUILT.is_file():  # before attngraft.torch is imported, which loads it
    os.environ.setdefault("ATTNGRAFT_TORCH_LIBRARY", str(BUILT))

from patched_models import BATCH, DECODERS, LENGTH, MODELS, build, inputs_of, token_mask  # noqa: E402
from transformers import masking_utils  # noqa: E402

from attngraft.torch import patch, path_of, register_attention  # noqa: E402
from attngraft.torch.front_door import KERNEL  # noqa: E402
from attngraft.torch.transformers_attention import attention_forward  # noqa: E402
from attngraft.torch.transformers_mask import CompactMask, arguments_of  # noqa: E402

DEVICE = "cuda"

TOLERANCES = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""As a share of the largest element: the rounding of eager attention and of ours, layer upon layer."""

GRADIENT_TOLERANCE = 1e-3
"""The same for gradients in float32."""

NEW_TOKENS = 8

GENERATIONS = sorted({*product(DECODERS, ("dynamic", "static"))} - {("llama4", "static")})
"""transformers 5.17 makes no chunked masks for a static cache: it hands the function an argument that it has not."""
HEADS, KV_HEADS, HEAD_SIZE = 4, 2, 8


def on_device(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.to(DEVICE) for name, tensor in inputs.items()}


def loss_of(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """A number that depends on every row that is no padding."""
    mask = inputs.get("decoder_attention_mask", inputs.get("attention_mask"))
    rows = model(**inputs)[0]
    weights = torch.randn(rows.shape, generator=torch.Generator().manual_seed(2)).to(rows)
    return (rows * weights * (1 if mask is None or mask.shape != rows.shape[:2] else mask[..., None])).sum()


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_outputs_are_those_of_eager_attention(name: str, dtype: torch.dtype) -> None:
    model, inputs = build(name, dtype).to(DEVICE), on_device(inputs_of(name, dtype))
    reference = model(**inputs)[0].double()
    ours = patch(model)(**inputs)[0].double()
    assert (ours - reference).abs().max() <= TOLERANCES[dtype] * reference.abs().max()


@pytest.mark.parametrize("name", [name for name in MODELS if name != "clip"])
def test_gradients_are_those_of_eager_attention(name: str) -> None:
    model, inputs = build(name).to(DEVICE), on_device(inputs_of(name))
    used = [parameter for parameter in model.parameters() if parameter.requires_grad]
    reference = torch.autograd.grad(loss_of(model, inputs), used, allow_unused=True)
    ours = torch.autograd.grad(loss_of(patch(model), inputs), used, allow_unused=True)
    largest = max(gradient.abs().max() for gradient in reference if gradient is not None)
    for found, expected in zip(ours, reference, strict=True):
        assert (found is None) == (expected is None)
        assert expected is None or (found - expected).abs().max() <= GRADIENT_TOLERANCE * largest


@pytest.mark.filterwarnings("ignore")  # of compiling: PyTorch's and transformers' own
@pytest.mark.parametrize(("name", "cache"), GENERATIONS)
def test_greedy_generation_gives_the_same_tokens(name: str, cache: str) -> None:
    """The static cache is what transformers compiles on a GPU."""
    model, inputs = build(name).to(DEVICE), on_device(inputs_of(name))
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "cache_implementation": cache}
    reference = model.generate(**inputs, **options)
    torch.compiler.reset()
    torch.testing.assert_close(patch(model).generate(**inputs, **options), reference, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*prototype feature")  # PyTorch says so of the mode
@pytest.mark.parametrize("is_padded", [True, False])
@torch.no_grad()
def test_masks_and_attention_wait_for_nothing_and_take_the_kernel(is_padded: bool) -> None:
    register_attention()
    config = MODELS["mistral"].configure()
    config._attn_implementation = "attngraft"
    padding = token_mask("left").to(DEVICE) if is_padded else None
    embeddings = torch.zeros(BATCH, LENGTH, HEADS * HEAD_SIZE, device=DEVICE)
    q = torch.randn(BATCH, HEADS, LENGTH, HEAD_SIZE, device=DEVICE)
    k, v = torch.randn(2, BATCH, KV_HEADS, LENGTH, HEAD_SIZE, device=DEVICE)
    module = torch.nn.Identity().eval()
    torch.cuda.set_sync_debug_mode("error")
    try:
        mask = masking_utils.create_sliding_window_causal_mask(config, embeddings, padding, past_key_values=None)
        attention_forward(module, q, k, v, mask)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert isinstance(mask, CompactMask)
    assert path_of(q, k, v, **arguments_of(mask)).name == KERNEL


@pytest.mark.filterwarnings("ignore")  # PyTorch's own: deprecations, and advice on TF32
def test_a_compiled_model_is_the_same() -> None:
    model, inputs = build("gemma2", torch.bfloat16).to(DEVICE), on_device(inputs_of("gemma2", torch.bfloat16))
    patch(model)
    torch.compiler.reset()
    with torch.no_grad():
        expected = model(**inputs).logits.double()
        ours = torch.compile(model, fullgraph=True)(**inputs).logits.double()
    assert (ours - expected).abs().max() <= TOLERANCES[torch.bfloat16] * expected.abs().max()
