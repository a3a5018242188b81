"""The masks of Hugging Face models, as small as they can be.

In: what transformers says about a mask before it makes one. Out: None where nothing is masked, a CompactMask where the
pattern is known from types, shapes and flags alone, transformers' own boolean mask elsewhere. Nothing waits for a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from transformers.masking_utils import and_masks, bidirectional_mask_function, causal_mask_function, sdpa_mask

from attngraft.contract import CausalMode, EmptyRows, MaskConfig, Role
from attngraft.torch.softmax import allowed_keys

__all__ = ["CompactMask", "arguments_of", "compact_mask", "full_mask"]

_ANCHOR = "anchor"
"""The part that is always there, empty: PyTorch's compiler takes no tensor without any."""

_PADDING_PARTS = ("keep", "kv_starts", "kv_lengths")

_PART_BY_PART = (
    torch.ops.aten.alias.default,
    torch.ops.aten.clone.default,
    torch.ops.aten.detach.default,
    torch.ops.aten._to_copy.default,
)
"""Operations that leave a mask what it is when they are applied to its parts."""


@dataclass(frozen=True)
class Pattern:
    """What a mask is besides its padding: keys up to the query's own, and keys within `window` of it."""

    causal: bool = False
    window: tuple[int, int] = (-1, -1)


class CompactMask(Tensor):
    """A boolean mask [B,1,Sq,Sk], True where a query may attend, that exists as its parts until someone touches it.

    keep        bool [B,1,1,Sk], the padding; None: no key is padded
    kv_starts, kv_lengths   int32 [B], bounds of the keys that are not padded; None with `keep`
    causal, window   the rest, as the contract has them, with the diagonal at the bottom right

    attngraft reads the parts. For every operation of PyTorch it is the full mask, which is then made.
    """

    anchor: Tensor
    keep: Tensor | None
    kv_starts: Tensor | None
    kv_lengths: Tensor | None
    causal: bool
    window: tuple[int, int]

    @staticmethod
    def __new__(cls, shape: Any, pattern: Pattern, parts: dict[str, Tensor]) -> CompactMask:
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=parts[_ANCHOR].device)

    def __init__(self, shape: Any, pattern: Pattern, parts: dict[str, Tensor]) -> None:
        self.anchor = parts[_ANCHOR]
        self.causal, self.window = pattern.causal, pattern.window
        self.keep = parts.get("keep")
        self.kv_starts = parts.get("kv_starts")
        self.kv_lengths = parts.get("kv_lengths")

    def __tensor_flatten__(self) -> tuple[list[str], Pattern]:
        names = [_ANCHOR] if self.keep is None else [_ANCHOR, *_PADDING_PARTS]
        return names, Pattern(self.causal, self.window)

    @staticmethod
    def __tensor_unflatten__(parts: dict[str, Tensor], pattern: Pattern, shape: Any, stride: Any) -> CompactMask:
        return CompactMask(shape, pattern, parts)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        padding = "no padding" if self.keep is None else "padding"
        return f"CompactMask({list(self.shape)}, {Pattern(self.causal, self.window)}, {padding}, device={self.device})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs = kwargs or {}
        if func in _PART_BY_PART and kwargs.get("dtype") in (None, torch.bool):
            return _part_by_part(func, *args, **kwargs)
        args, kwargs = pytree.tree_map_only(CompactMask, full_mask, (args, kwargs))
        return func(*args, **kwargs)


def full_mask(mask: CompactMask) -> Tensor:
    """The same as a plain tensor, bool [B,1,Sq,Sk]."""
    batch, _, queries, keys = mask.shape
    causal = CausalMode.BOTTOM_RIGHT if mask.causal else CausalMode.NONE
    left, right = mask.window
    operands = {Role.BIAS: None, Role.KEEP: mask.keep, Role.KV_LENGTHS: None, Role.KV_STARTS: None}
    anything = torch.zeros((1, 1, 1, keys), device=mask.device)
    config = MaskConfig(causal=causal, window_left=left, window_right=right)
    return allowed_keys(anything, queries, config, operands).expand(batch, 1, queries, keys)


def arguments_of(mask: CompactMask) -> dict[str, Any]:
    """The mask as arguments of `attngraft.torch.attention`."""
    return {
        "keep": mask.keep,
        "kv_starts": mask.kv_starts,
        "kv_lengths": mask.kv_lengths,
        "causal": CausalMode.BOTTOM_RIGHT if mask.causal else CausalMode.NONE,
        "window": mask.window,
        # As adding the lowest number makes of rows whose keys are all padding; without padding a row has its own token.
        "empty_rows": EmptyRows.ZEROS if mask.keep is None else EmptyRows.UNIFORM,
    }


def compact_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int | Tensor = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    **options: Any,
) -> Tensor | None:
    """A mask for transformers' AttentionMaskInterface; the arguments are those of its `sdpa_mask`.

    The query at index 0 is the token at q_offset of the sequence, the key at index 0 that at kv_offset.
    attention_mask  [B, tokens], which tokens are no padding; missing ones are padding

    Returns None (no key is masked), or a mask [B,1,Sq,Sk], True where a query may attend.
    """
    pattern = _pattern_of(mask_function, options)
    if pattern not in (None, Pattern()) and not _ends_with_last_query(q_length, kv_length, q_offset, kv_offset):
        pattern = None
    is_2d = attention_mask is None or attention_mask.dim() == 2
    if pattern is None or isinstance(kv_offset, Tensor) or not is_2d or torch.jit.is_tracing():
        options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return sdpa_mask(
            batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
            mask_function=mask_function, attention_mask=attention_mask, **options,
        )  # fmt: skip
    pattern = _simplest(pattern, q_length, kv_length)
    if attention_mask is None and pattern == Pattern():
        return None
    parts = {} if attention_mask is None else _padding(attention_mask, kv_length, kv_offset)
    parts[_ANCHOR] = torch.empty(0, dtype=torch.bool, device=options.get("device", "cpu"))
    return CompactMask((batch_size, 1, q_length, kv_length), pattern, parts)


def _pattern_of(mask_function: Callable[..., Any], options: dict[str, Any]) -> Pattern | None:
    """The pattern of a mask function of transformers; None if it is not known for certain.

    A window is a conjunction that transformers builds anew each time. Two flags tell it from others of that kind: they
    are lowered wherever an overlay (packed sequences, blocks, a function of the user) is added to the window.
    """
    if mask_function is causal_mask_function:
        return Pattern(causal=True)
    if mask_function is bidirectional_mask_function:
        return Pattern()
    size: int | None = options.get("local_size")
    config = options.get("config")
    if size is None or size != getattr(config, "sliding_window", None):
        return None
    is_chunk = getattr(config, "attention_chunk_size", None) is not None
    conjunction = and_masks(mask_function).__code__
    if is_chunk or options.get("use_vmap") or mask_function.__code__ is not conjunction:
        return None
    if options.get("allow_is_causal_skip"):
        return Pattern(causal=True, window=(size - 1, -1))
    if options.get("allow_is_bidirectional_skip"):
        return Pattern(window=(size, size))
    return None


def _simplest(pattern: Pattern, q_length: int, kv_length: int) -> Pattern:
    """The same without what hides no key of this many: the last token sees all before it, a window all within it."""
    left, right = (-1 if width >= kv_length - 1 else width for width in pattern.window)
    return Pattern(False if q_length == 1 else pattern.causal, (left, right))


def _ends_with_last_query(q_length: int, kv_length: int, q_offset: int | Tensor, kv_offset: int | Tensor) -> bool:
    """Whether the last key is the last query's token, so that the diagonal is the contract's. A static cache counts
    its tokens on the device, where nobody asks."""
    if isinstance(q_offset, Tensor) or isinstance(kv_offset, Tensor):
        return False
    return bool(kv_length + kv_offset == q_length + q_offset)


def _padding(attention_mask: Tensor, kv_length: int, kv_offset: int) -> dict[str, Tensor]:
    """`keep`, `kv_starts` and `kv_lengths` of the keys at kv_offset and after. The bounds say no more than `keep` does;
    they let the kernel skip whole blocks of padding."""
    keep = attention_mask[:, kv_offset : kv_offset + kv_length].to(torch.bool)
    if (missing := kv_length - keep.shape[1]) > 0:
        keep = torch.nn.functional.pad(keep, (0, missing))
    index = torch.arange(kv_length, device=keep.device, dtype=torch.int32)
    return {
        "keep": keep[:, None, None, :],
        "kv_starts": torch.where(keep, index, kv_length).amin(1),
        "kv_lengths": torch.where(keep, index + 1, 0).amax(1),
    }


def _part_by_part(func: Any, mask: CompactMask, **kwargs: Any) -> CompactMask:
    names, pattern = mask.__tensor_flatten__()
    kwargs = {name: value for name, value in kwargs.items() if name != "dtype"}
    parts = {name: func(getattr(mask, name), **kwargs) for name in names}
    return CompactMask(mask.shape, pattern, parts)
