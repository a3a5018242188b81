"""The contract's masked softmax by PyTorch operations, differentiable and without a NaN from finite input.

In: scores [..., Sq, Sk] of rank 2 to 6, or a block of their rows. Out: probabilities of the same shape and type.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attngraft.contract import CausalMode, EmptyRows, MaskConfig, Role
from attngraft.torch.checks import Operands

__all__ = [
    "accumulation_type",
    "allowed_keys",
    "biased",
    "capped",
    "log_sum_exp",
    "probabilities",
    "reached_keys",
    "rows_of",
]


def accumulation_type(dtype: torch.dtype) -> torch.dtype:
    """float32, or float64 for float64 tensors."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def capped(x: Tensor, config: MaskConfig) -> Tensor:
    """softcap(scale * x)."""
    t = x * config.scale
    return torch.tanh(t / config.softcap) * config.softcap if config.softcap else t


def biased(s: Tensor, bias: Tensor | None) -> Tensor:
    """The scores plus the bias, in the scores' type."""
    return s if bias is None else s + bias.to(s.dtype)


def rows_of(mask: Tensor | None, rows: slice) -> Tensor | None:
    """What a mask that broadcasts to [..., Sq, Sk] says of some of the query rows."""
    return mask if mask is None or mask.dim() < 2 or mask.shape[-2] == 1 else mask[..., rows, :]


def allowed_keys(
    scores: Tensor, queries: int, config: MaskConfig, operands: Operands, rows: slice = slice(None)
) -> Tensor:
    """Where s may count, as the masks say and where s is not -inf. Of the scores' shape, or one that broadcasts to it.

    scores   [..., rows, Sk], or, where nothing but the masks is to speak, a tensor of that rank that broadcasts to it
    queries  Sq, of which `scores` are the `rows`
    """
    allowed = scores != -math.inf
    keys, device = scores.shape[-1], scores.device
    diagonal = 0 if config.causal == CausalMode.TOP_LEFT else keys - queries
    i = torch.arange(queries, device=device)[rows, None] + diagonal
    j = torch.arange(keys, device=device)[None, :]
    if config.causal != CausalMode.NONE:
        allowed = allowed & (j <= i)
    if config.window_left >= 0:
        allowed = allowed & (j >= i - config.window_left)
    if config.window_right >= 0:
        allowed = allowed & (j <= i + config.window_right)
    if (keep := rows_of(operands[Role.KEEP], rows)) is not None:
        allowed = allowed & (keep != 0)
    batch = (-1,) + (1,) * (scores.dim() - 1)
    if (lengths := operands[Role.KV_LENGTHS]) is not None:
        allowed = allowed & (j < lengths.reshape(batch))
    if (starts := operands[Role.KV_STARTS]) is not None:
        allowed = allowed & (j >= starts.reshape(batch))
    return allowed


def reached_keys(s: Tensor, allowed: Tensor, empty_rows: str) -> tuple[Tensor, Tensor]:
    """Keys that a row weighs, and whether it has any, [..., 1]. They are the allowed ones; under `unmasked` a row
    without any weighs all whose s is not -inf."""
    filled = allowed.any(-1, keepdim=True)
    if empty_rows != EmptyRows.UNMASKED:
        return allowed, filled
    allowed = torch.where(filled, allowed, s != -math.inf)
    return allowed, allowed.any(-1, keepdim=True)


def probabilities(s: Tensor, allowed: Tensor, empty_rows: str) -> Tensor:
    """Softmax over the allowed keys, 0 elsewhere; rows without any give what `empty_rows` says.

    A row that would divide zero by zero takes part as a row of zeros and is replaced afterwards: neither its value nor
    its gradient ever is NaN.
    """
    reached, filled = reached_keys(s, allowed, empty_rows)
    weights = torch.softmax(torch.where(reached, s, -math.inf).masked_fill(~filled, 0.0), dim=-1)
    return torch.where(filled, weights, 1.0 / max(s.shape[-1], 1) if empty_rows == EmptyRows.UNIFORM else 0.0)


def log_sum_exp(s: Tensor, allowed: Tensor) -> Tensor:
    """[..., rows]: the logarithm of the sum of exp(s) over the allowed keys; -inf for a row without any, NaN where the
    probabilities are."""
    if s.shape[-1] == 0:
        return s.new_full(s.shape[:-1], -math.inf)
    logarithms = torch.logsumexp(torch.where(allowed, s, -math.inf), dim=-1)
    return torch.where(logarithms == math.inf, math.nan, logarithms)
