"""The masks of patched models: equal to transformers' own, and compact wherever that can be known without looking."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from patched_models import BATCH, LENGTH, MODELS, WINDOW, token_mask
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from transformers import masking_utils

from attngraft.errors import ContractError
from attngraft.torch import fused_attention, register_attention
from attngraft.torch.transformers_attention import attention_forward
from attngraft.torch.transformers_mask import CompactMask, arguments_of, compact_mask, full_mask

BEFORE = 5
"""Tokens in the cache before the ones that are asked about; with LENGTH more than the window."""

register_attention()


def config_of(name: str, implementation: str) -> hf.PretrainedConfig:
    config = MODELS[name].configure()
    config._attn_implementation = implementation
    return config


def cache_of(config: hf.PretrainedConfig, is_static: bool) -> hf.Cache:
    """A cache that holds BEFORE tokens."""
    if is_static:
        cache = hf.StaticCache(config=config, max_cache_len=BEFORE + LENGTH + 3)
    else:
        cache = hf.DynamicCache(config=config)
    for layer in range(config.num_hidden_layers):
        heads = config.num_key_value_heads
        cache.update(torch.randn(BATCH, heads, BEFORE, 8), torch.randn(BATCH, heads, BEFORE, 8), layer)
    return cache


def mask_of(make: Callable[..., Tensor | None], name: str, implementation: str, **arguments: Any) -> Tensor | None:
    embeddings = torch.zeros(BATCH, arguments.pop("queries", LENGTH), 8)
    return make(config_of(name, implementation), embeddings, **arguments)


def assert_same_mask(make: Callable[..., Tensor | None], name: str, **arguments: Any) -> Tensor | None:
    """Compares with the additive mask of eager attention, and returns attngraft's."""
    eager = mask_of(make, name, "eager", **arguments)
    ours = mask_of(make, name, "attngraft", **arguments)
    if ours is None:
        assert eager is None or bool((eager == 0).all())
        return None
    assert eager is not None and ours.dtype == torch.bool and ours.shape == eager.shape
    may = full_mask(ours) if isinstance(ours, CompactMask) else ours
    torch.testing.assert_close(may, eager == 0, rtol=0, atol=0)
    return ours


CAUSAL = masking_utils.create_causal_mask
SLIDING = masking_utils.create_sliding_window_causal_mask
BOTH_WAYS = masking_utils.create_bidirectional_mask
SLIDING_BOTH_WAYS = masking_utils.create_bidirectional_sliding_window_mask
CHUNKED = masking_utils.create_chunked_causal_mask

COMPACT = {
    "causal": (CAUSAL, "llama", True, (-1, -1)),
    "sliding": (SLIDING, "mistral", True, (WINDOW - 1, -1)),
    "both ways": (BOTH_WAYS, "bert", False, (-1, -1)),
    "sliding both ways": (SLIDING_BOTH_WAYS, "mistral", False, (WINDOW, WINDOW)),
}


@pytest.mark.parametrize("side", ["left", "right", "hole", None])
@pytest.mark.parametrize("kind", COMPACT)
def test_known_patterns_are_compact(kind: str, side: str | None) -> None:
    make, name, causal, window = COMPACT[kind]
    padding = None if side is None else token_mask(side)
    mask = assert_same_mask(make, name, attention_mask=padding, past_key_values=None)
    if padding is None and kind == "both ways":
        assert mask is None
        return
    assert isinstance(mask, CompactMask)
    assert (mask.causal, mask.window) == (causal, window)
    if padding is None:
        assert mask.keep is None and mask.kv_starts is None and mask.kv_lengths is None
        return
    assert torch.equal(mask.keep, padding[:, None, None, :].bool())
    positions = [row.nonzero() for row in padding]
    assert mask.kv_starts.tolist() == [int(found.min()) for found in positions]
    assert mask.kv_lengths.tolist() == [int(found.max()) + 1 for found in positions]


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("is_padded", [True, False])
@pytest.mark.parametrize("kind", ["causal", "sliding"])
def test_a_growing_cache_keeps_masks_compact(kind: str, is_padded: bool, queries: int) -> None:
    make, name, _, _ = COMPACT[kind]
    padding = token_mask("left", BEFORE + queries) if is_padded else None
    cache = cache_of(config_of(name, "eager"), is_static=False)
    mask = assert_same_mask(make, name, queries=queries, attention_mask=padding, past_key_values=cache)
    nothing_is_masked = not is_padded and queries == 1  # a window's cache keeps no more tokens than it shows
    assert mask is None if nothing_is_masked else isinstance(mask, CompactMask)


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("is_padded", [True, False])
@pytest.mark.parametrize("kind", ["causal", "sliding"])
def test_a_static_cache_counts_on_the_device(kind: str, is_padded: bool, queries: int) -> None:
    make, name, _, _ = COMPACT[kind]
    padding = token_mask("left", BEFORE + queries) if is_padded else None
    cache = cache_of(config_of(name, "eager"), is_static=True)
    mask = assert_same_mask(make, name, queries=queries, attention_mask=padding, past_key_values=cache)
    assert mask is not None


def after_second(batch: Any, head: Any, q: Any, kv: Any) -> Any:
    return kv >= 2


OVERLAYS = {
    "or": {"or_mask_function": after_second},
    "and": {"and_mask_function": after_second},
    "blocks": {"block_sequence_ids": torch.tensor([[-1, 0, 0, 0, -1, 1, 1, -1, -1, -1, -1]]).expand(BATCH, -1)},
    "packed": {"position_ids": torch.cat([torch.arange(4), torch.arange(LENGTH - 4)]).expand(BATCH, -1)},
}


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize(("make", "name"), [(CAUSAL, "llama"), (SLIDING, "mistral")])
def test_overlays_are_left_to_transformers(make: Callable[..., Any], name: str, overlay: str) -> None:
    padding = None if overlay == "packed" else token_mask("left")
    arguments = {"attention_mask": padding, "past_key_values": None, **OVERLAYS[overlay]}
    mask = assert_same_mask(make, name, **arguments)
    assert mask is not None and not isinstance(mask, CompactMask)


@pytest.mark.parametrize("is_padded", [True, False])
def test_chunks_are_left_to_transformers(is_padded: bool) -> None:
    padding = token_mask("left") if is_padded else None
    mask = assert_same_mask(CHUNKED, "llama4", attention_mask=padding, past_key_values=None)
    assert mask is not None and not isinstance(mask, CompactMask)


def test_a_window_that_the_function_does_not_have_is_no_window() -> None:
    """Some models give a local size beside a function without one."""
    options = {"local_size": 2, "config": config_of("mistral", "attngraft"), "allow_is_bidirectional_skip": True}
    function = masking_utils.bidirectional_mask_function
    assert compact_mask(BATCH, LENGTH, LENGTH, mask_function=function, **options) is None


def some_mask() -> CompactMask:
    mask = compact_mask(BATCH, 4, LENGTH, LENGTH - 4, 0, attention_mask=token_mask("hole").bool())
    assert isinstance(mask, CompactMask)
    return mask


OPERATIONS: dict[str, Callable[[Tensor], Any]] = {
    "slice": lambda mask: mask[:, :, 1:, :5],
    "invert": lambda mask: ~mask,
    "number": lambda mask: mask.to(torch.float32),
    "where": lambda mask: torch.where(mask, 0.0, -1.0),
    "add": lambda mask: torch.ones(4, LENGTH) + mask,
    "in place": lambda mask: torch.zeros(BATCH, 1, 4, LENGTH).masked_fill_(mask, 2.0),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations_see_the_whole_mask(operation: str) -> None:
    mask = some_mask()
    whole = full_mask(mask)
    assert mask.shape == whole.shape == (BATCH, 1, 4, LENGTH) and mask.dtype == torch.bool
    assert 0 < whole.sum() < whole.numel()
    result = OPERATIONS[operation](mask)
    assert not isinstance(result, CompactMask)
    torch.testing.assert_close(result, OPERATIONS[operation](whole), rtol=0, atol=0)


@pytest.mark.parametrize("copy", [Tensor.clone, Tensor.detach, lambda mask: mask.to("meta")])
def test_copies_stay_compact(copy: Callable[[Tensor], Tensor]) -> None:
    mask = some_mask()
    copied = copy(mask)
    assert isinstance(copied, CompactMask) and copied.shape == mask.shape
    assert (copied.causal, copied.window) == (mask.causal, mask.window)
    assert copied.device == copied.keep.device == copied.kv_starts.device == copy(torch.zeros(1)).device
    assert repr(mask).startswith("CompactMask([3, 1, 4, 11]")


def layer() -> torch.nn.Module:
    return torch.nn.Identity().eval()


def heads(queries: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(4)
    return torch.randn(BATCH, 4, queries, 8), torch.randn(BATCH, 2, keys, 8), torch.randn(BATCH, 2, keys, 8)


def test_masks_of_other_shapes_are_not_taken_by_their_parts() -> None:
    """With fewer queries the diagonal would be another one."""
    q, k, v = heads(3, LENGTH)
    with pytest.raises(ContractError, match="does not broadcast"):
        attention_forward(layer(), q, k, v, some_mask())
    for_all = compact_mask(1, 3, LENGTH, LENGTH - 3, 0, attention_mask=token_mask("left")[1:2].bool())
    expected, _ = attention_forward(layer(), q, k, v, full_mask(for_all))
    torch.testing.assert_close(attention_forward(layer(), q, k, v, for_all)[0], expected, rtol=0, atol=0)


@pytest.mark.parametrize("kind", COMPACT)
def test_nothing_asks_the_device_for_a_value(kind: str) -> None:
    """Fake tensors have no values: reading one raises."""
    make, name, _, _ = COMPACT[kind]
    with FakeTensorMode(), torch.no_grad():
        padding = torch.ones(BATCH, LENGTH, dtype=torch.long)
        with pytest.raises(DataDependentOutputException):
            bool(padding.all())
        mask = mask_of(make, name, "attngraft", attention_mask=padding, past_key_values=None)
        q, k, v = heads(LENGTH, LENGTH)
        context, weights = attention_forward(layer(), q, k, v, mask)
        seen = torch.empty((), dtype=torch.long)  # as a static cache counts
        static = compact_mask(BATCH, 3, LENGTH, seen, 0, attention_mask=padding.bool())
    assert static is not None and static.shape == (BATCH, 1, 3, LENGTH)
    assert isinstance(mask, CompactMask) and context.shape == (BATCH, LENGTH, 4, 8) and weights is None


def test_masks_are_compact_in_compiled_code() -> None:
    """The graph of a sliding window makes no tensor of queries by keys."""
    seen: list[Any] = []

    def keep_graph(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.append(graph)
        return graph.forward

    config = config_of("mistral", "attngraft")

    def run(embeddings: Tensor, padding: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = SLIDING(config, embeddings, padding, past_key_values=None)
        return fused_attention(q, k, v, **arguments_of(mask))

    inputs = (torch.zeros(BATCH, LENGTH, 8), token_mask("left"), *heads(LENGTH, LENGTH))
    compiled = torch.compile(run, fullgraph=True, backend=keep_graph)
    mask = SLIDING(config, inputs[0], inputs[1], past_key_values=None)
    expected, _ = attention_forward(layer(), *inputs[2:], full_mask(mask))
    torch.testing.assert_close(compiled(*inputs).transpose(1, 2), expected)
    sizes = [node.meta["example_value"].shape for node in seen[0].graph.nodes if _is_tensor(node)]
    assert len(sizes) > 5 and not any(tuple(size[-2:]) == (LENGTH, LENGTH) for size in sizes)


def _is_tensor(node: torch.fx.Node) -> bool:
    value = node.meta.get("example_value")
    return isinstance(value, Tensor) and not isinstance(value, CompactMask)
