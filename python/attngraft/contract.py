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

The plugin (plugin/tensorrt), the kernels (plugin/kernels) and the ONNX functions (lower/onnx_function.py) follow this
file; tests/python/test_contract.py fails when they differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from attngraft.errors import ContractError

__all__ = [
    "CONTRACT_VERSION",
    "DOMAIN",
    "MASKED_SOFTMAX",
    "PLUGIN_VERSION",
    "CausalMode",
    "EmptyRows",
    "KEEP_DTYPES",
    "MAX_RANK",
    "MIN_RANK",
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

MIN_RANK, MAX_RANK = 2, 6
SCORE_DTYPES = ("float32", "float16", "bfloat16")
KEEP_DTYPES = ("bool", "int8", "uint8", "int32", "int64")


class Role:
    """What an input after the scores means. `operands` lists the roles in input order."""

    BIAS = "bias"
    """Additive, of the scores' type or float32; broadcast to the scores by NumPy's rules."""

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


@dataclass(frozen=True)
class MaskedSoftmax:
    """One configuration of `attngraft::MaskedSoftmax` v1.

    Inputs: `scores` [..., Sq, Sk], rank 2 to 6, fp32, fp16 or bf16; then one input for each entry of `operands`.
    Output: probabilities, of the scores' shape and type.
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
    def from_attributes(cls, attributes: Mapping[str, str | bytes | float | int]) -> MaskedSoftmax:
        """The configuration of an ONNX node's attributes; missing ones take their defaults, others are ignored."""
        values = {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()}
        known = {name: values[name] for name in cls.__dataclass_fields__ if name in values}
        if "operands" in known:
            known["operands"] = tuple(role for role in str(known["operands"]).split(",") if role)
        return cls(**known)
