"""The meaning of attngraft's operators, stated once.

For query row i and key j of one head, with x the raw score:

    s_ij         = softcap(scale * x_ij) + bias_ij      softcap(t) = cap * tanh(t / cap), absent when cap is 0
    allowed(i,j) = keep_ij and kv_starts[b] <= j < kv_lengths[b] and causal(i,j) and window(i,j) and s_ij > -inf
    p_ij         = exp(s_ij) / sum over allowed j' of exp(s_ij'), exactly 0 where not allowed

    causal(i,j)  = j <= i + offset                      offset = 0 (top_left) or Sk - Sq (bottom_right)
    window(i,j)  = i + offset - left <= j <= i + offset + right; a side of -1 is unbounded. Without `causal` the
                   offset is that of bottom_right, as in FlashAttention.

A NaN or +inf among the allowed scores makes the whole row NaN, as in PyTorch; in a disallowed position it changes
nothing. A row without any allowed key gives what `empty_rows` says. Arithmetic is fp32 whatever the tensors' type.

FusedAttention makes the scores and weighs the values too; G query heads in succession share a key head:

    x_ij         = sum over d of q_id * k_jd            query head h reads key and value head h // G
    context_i    = sum over j of p_ij * v_j             a row without any allowed key: `empty_rows` says what p is

What a NaN or an infinity among the values of a disallowed key does is not said: 0 times it is NaN, unless the key is
skipped.

The plugin (plugin/tensorrt), the kernels (plugin/kernels) and the ONNX functions (lower/onnx_function.py) follow this
file; tests/python/test_contract.py fails when they differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from attngraft.errors import ContractError

__all__ = [
    "CONTRACT_VERSION",
    "DOMAIN",
    "FUSED_ATTENTION",
    "MASKED_SOFTMAX",
    "PLUGIN_VERSION",
    "CausalMode",
    "EmptyRows",
    "FusedAttention",
    "KEEP_DTYPES",
    "Layout",
    "MAX_HEAD_SIZE",
    "MAX_RANK",
    "MIN_RANK",
    "MaskConfig",
    "MaskedSoftmax",
    "Role",
    "SCORE_DTYPES",
]

CONTRACT_VERSION = 1
"""Raised whenever the meaning above changes. The plugin library exports the version that it was built for."""

DOMAIN = "attngraft"
"""ONNX domain of the operators and namespace of the plugins."""

PLUGIN_VERSION = "1"
MASKED_SOFTMAX = "MaskedSoftmax"
FUSED_ATTENTION = "FusedAttention"

MIN_RANK, MAX_RANK = 2, 6
MAX_HEAD_SIZE = 512
"""Of queries and keys, and of values, in FusedAttention."""

SCORE_DTYPES = ("float32", "float16", "bfloat16")
KEEP_DTYPES = ("bool", "int8", "uint8", "int32", "int64")


class Role:
    """What an input after the scores means. `operands` lists the roles in input order."""

    BIAS = "bias"
    """Additive, of the scores' type (in FusedAttention: that of q) or float32; broadcast to the scores by NumPy's
    rules."""

    KEEP = "keep"
    """bool or integer; non-zero may attend; broadcast to the scores by NumPy's rules."""

    KV_LENGTHS = "kv_lengths"
    """int32 [B]: keys from this index on are not allowed. B is the scores' first dimension (1 for rank 2)."""

    KV_STARTS = "kv_starts"
    """int32 [B]: keys before this index are not allowed."""

    ALL = (BIAS, KEEP, KV_LENGTHS, KV_STARTS)


class CausalMode:
    NONE = "none"
    TOP_LEFT = "top_left"
    BOTTOM_RIGHT = "bottom_right"
    ALL = (NONE, TOP_LEFT, BOTTOM_RIGHT)


class EmptyRows:
    """What a row without any allowed key gives."""

    ZEROS = "zeros"
    UNIFORM = "uniform"
    """1 / Sk at every key."""
    UNMASKED = "unmasked"
    """The softmax of s over all keys, as if only `bias` were there; zeros if every s is -inf."""
    ALL = (ZEROS, UNIFORM, UNMASKED)


class Layout:
    """How q, k, v and the context lie in memory: one word for all four, or four words "q,k,v,context".

    B batch, S sequence (Sq or Sk), D head size (Dv for v and the context), H query heads, Hk key heads, G = H / Hk.
    A k or v has Hk heads where q and the context have H.
    """

    BHSD = "bhsd"
    """[B, H, S, D]"""
    BSHD = "bshd"
    """[B, S, H, D]"""
    BSD = "bsd"
    """[B, S, H * D], what a projection gives; needs `heads` and `kv_heads`."""
    QKV = "qkv"
    """One input [B, S, (H + 2 * Hk) * D]: all query heads, all key heads, all value heads. Sk = Sq, Dv = D, and the
    context is `bsd`. Needs `heads` and `kv_heads`, as the next one does."""
    QKV_BY_HEAD = "qkv_by_head"
    """One input [B, S, Hk * (G + 2) * D]: for each key head its G query heads, its key, its value; else as `qkv`."""

    SEPARATE = (BHSD, BSHD, BSD)
    PACKED = (QKV, QKV_BY_HEAD)


_Config = TypeVar("_Config", bound="MaskConfig")


@dataclass(frozen=True)
class MaskConfig:
    """From scores to probabilities: what both operators share. The attributes are the fields, in their order.

    Raises ContractError on construction when a value is not legal.
    """

    operands: tuple[str, ...] = ()
    scale: float = 1.0
    causal: str = CausalMode.NONE
    window_left: int = -1
    window_right: int = -1
    softcap: float = 0.0
    empty_rows: str = EmptyRows.ZEROS

    def __post_init__(self) -> None:
        unknown = [role for role in self.operands if role not in Role.ALL]
        if unknown:
            raise ContractError(f"operands: unknown role {unknown[0]!r}; the roles are {', '.join(Role.ALL)}")
        if len(set(self.operands)) != len(self.operands):
            raise ContractError(f"operands: {','.join(self.operands)!r} names a role twice; give each role once")
        if self.causal not in CausalMode.ALL:
            raise ContractError(f"causal: {self.causal!r} is not one of {', '.join(CausalMode.ALL)}")
        if self.empty_rows not in EmptyRows.ALL:
            raise ContractError(f"empty_rows: {self.empty_rows!r} is not one of {', '.join(EmptyRows.ALL)}")
        if min(self.window_left, self.window_right) < -1:
            raise ContractError("window_left and window_right are -1 (unbounded), 0 or more")
        if not math.isfinite(self.scale):
            raise ContractError(f"scale: {self.scale} is not finite")
        if not (math.isfinite(self.softcap) and self.softcap >= 0):
            raise ContractError(f"softcap: {self.softcap} is negative or not finite; 0 turns it off")

    def attributes(self) -> dict[str, str | float | int]:
        """The ONNX attributes (and plugin fields) of this configuration, all of them, in a fixed order."""
        return {
            "operands": ",".join(self.operands),
            "scale": float(self.scale),
            "causal": self.causal,
            "window_left": int(self.window_left),
            "window_right": int(self.window_right),
            "softcap": float(self.softcap),
            "empty_rows": self.empty_rows,
        }

    @classmethod
    def from_attributes(cls: type[_Config], attributes: Mapping[str, str | bytes | float | int]) -> _Config:
        """The configuration of an ONNX node's attributes; missing ones take their defaults, others are ignored."""
        values = {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()}
        known = {name: values[name] for name in cls.__dataclass_fields__ if name in values}
        if "operands" in known:
            known["operands"] = tuple(role for role in str(known["operands"]).split(",") if role)
        return cls(**known)


@dataclass(frozen=True)
class MaskedSoftmax(MaskConfig):
    """One configuration of `attngraft::MaskedSoftmax` v1.

    Inputs: `scores` [..., Sq, Sk], rank 2 to 6, fp32, fp16 or bf16; then one input for each entry of `operands`.
    Output: probabilities, of the scores' shape and type.
    """


@dataclass(frozen=True)
class FusedAttention(MaskConfig):
    """One configuration of `attngraft::FusedAttention` v1.

    Inputs: `q`, `k`, `v`, or one packed `qkv`, in `layout`, all fp32, fp16 or bf16 alike; then one input for each entry
    of `operands`, which broadcast to the scores [B, H, Sq, Sk]. Output: the context, of q's type.
    heads, kv_heads  0: what the shapes say. At least 1 where a tensor is `bsd` or packed; `heads` is a multiple of
                     `kv_heads`.
    exact            1: fp32 tensors are multiplied in fp32 throughout, not in TF32. Half types: no difference.
    """

    layout: str = Layout.BHSD
    heads: int = 0
    kv_heads: int = 0
    exact: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        words = self.layout.split(",")
        legal = len(words) == 4 and all(word in Layout.SEPARATE for word in words)
        if not (legal or self.layout in (*Layout.SEPARATE, *Layout.PACKED)):
            raise ContractError(
                f"layout: {self.layout!r} is not one of {', '.join((*Layout.SEPARATE, *Layout.PACKED))}, nor four "
                f"words (q,k,v,context) of {', '.join(Layout.SEPARATE)}"
            )
        if min(self.heads, self.kv_heads) < 0:
            raise ContractError("heads and kv_heads are 0 (what the shapes say), 1 or more")
        if self.needs_heads and 0 in (self.heads, self.kv_heads):
            raise ContractError(f"heads and kv_heads: layout {self.layout!r} needs both, 1 or more")
        if self.kv_heads and self.heads % self.kv_heads:
            raise ContractError(f"heads: {self.heads} is no multiple of kv_heads, {self.kv_heads}")
        if self.exact not in (0, 1):
            raise ContractError(f"exact: {self.exact} is neither 0 nor 1")

    def attributes(self) -> dict[str, str | float | int]:
        """All ONNX attributes (and plugin fields): those of the mask, then those of the tensors."""
        return {
            **super().attributes(),
            "layout": self.layout,
            "heads": int(self.heads),
            "kv_heads": int(self.kv_heads),
            "exact": int(self.exact),
        }

    @property
    def is_packed(self) -> bool:
        """Whether q, k and v come in one tensor."""
        return self.layout in Layout.PACKED

    @property
    def needs_heads(self) -> bool:
        """Whether `heads` and `kv_heads` must be given, because a tensor does not show them."""
        return self.is_packed or Layout.BSD in self.layout.split(",")

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """The inputs before the operands."""
        return ("qkv",) if self.is_packed else ("q", "k", "v")

    @property
    def words(self) -> tuple[str, str, str, str]:
        """The layout words of q, k, v and the context; of packed tensors the first three are the packed word."""
        if self.is_packed:
            return (self.layout, self.layout, self.layout, Layout.BSD)
        words = self.layout.split(",")
        return (words[0], words[0], words[0], words[0]) if len(words) == 1 else tuple(words)  # type: ignore[return-value]
