"""A call of an attention function: its arguments, checked, in the form that every path takes."""

from __future__ import annotations

import operator
from dataclasses import dataclass

from torch import Tensor

from attngraft.contract import CausalMode, EmptyRows, FusedAttention
from attngraft.torch.arguments import mask_fields, operands_of
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
    operands = operands_of((bias, keep, kv_lengths, kv_starts))
    check_attention(q, k, v, operands)
    head_size = operator.index(q.shape[3])  # one number for each compiled graph, also where shapes are symbolic
    scale = max(head_size, 1) ** -0.5 if scale is None else scale
    fields = mask_fields(operands, causal, window, scale, softcap, empty_rows)
    return AttentionCall(q, k, v, operands, FusedAttention(**fields, exact=int(exact)))
