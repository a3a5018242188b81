"""A call of an attention function: its arguments, checked, in the form that every path takes."""

from __future__ import annotations

import operator
from dataclasses import dataclass

from torch import Tensor

from attngraft.contract import CausalMode, EmptyRows, FusedAttention, Role
from attngraft.errors import ContractError
from attngraft.torch.autocast import in_autocast_types
from attngraft.torch.checks import Operands, check_attention

__all__ = ["AttentionCall", "attention_call"]


@dataclass(frozen=True)
class AttentionCall:
    """q [B,H,Sq,D], k [B,Hk,Sk,D], v [B,Hk,Sk,Dv] of one type, that of autocast where it is on."""

    q: Tensor
    k: Tensor
    v: Tensor
    operands: Operands
    config: FusedAttention


def attention_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    keep: Tensor | None = None,
    kv_lengths: Tensor | None = None,
    kv_starts: Tensor | None = None,
    causal: str = CausalMode.NONE,
    window: tuple[int, int] = (-1, -1),
    scale: float | None = None,
    softcap: float = 0.0,
    empty_rows: str = EmptyRows.ZEROS,
    exact: bool = False,
) -> AttentionCall:
    """The arguments as `attngraft.torch.fused_attention` has them. Raises ContractError for others."""
    q, k, v, bias = in_autocast_types(q, k, v, bias)
    operands = {Role.BIAS: bias, Role.KEEP: keep, Role.KV_LENGTHS: kv_lengths, Role.KV_STARTS: kv_starts}
    check_attention(q, k, v, operands)
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise ContractError(f"window: {window!r} is not a pair (left, right); -1 leaves a side unbounded")
    head_size = operator.index(q.shape[3])  # one number for each compiled graph, also where shapes are symbolic
    config = FusedAttention(
        operands=tuple(role for role in Role.ALL if operands[role] is not None),
        scale=max(head_size, 1) ** -0.5 if scale is None else _constant(scale),
        causal=causal,
        window_left=window[0],
        window_right=window[1],
        softcap=_constant(softcap),
        empty_rows=empty_rows,
        exact=int(exact),
    )
    return AttentionCall(q, k, v, operands, config)


def _constant(number: float) -> float:
    """The same number. torch.compile makes a symbol of a float that changes between calls, which the checks of a
    configuration do not take; writing it out and reading it again makes it a constant of the graph."""
    return float.fromhex(float(number).hex())
