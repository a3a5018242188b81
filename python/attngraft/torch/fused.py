"""fused_attention: everything from q, k and v to the context in one kernel."""

from __future__ import annotations

from torch import Tensor

from attngraft.contract import CausalMode, EmptyRows, Role
from attngraft.torch.arguments import scalars_of
from attngraft.torch.call import AttentionCall, attention_call
from attngraft.torch.checks import attention_kernel_cannot
from attngraft.torch.device import require_kernel
from attngraft.torch.operator import fused_attention_operator

__all__ = ["call_operator", "fused_attention"]

_ADVICE = "attngraft.torch.attention takes PyTorch's own attention there"


def fused_attention(
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
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention as docs/contract.md has it, of tensors on a CUDA device by the fused kernel, on the CPU by PyTorch.

    q [B,H,Sq,D], k [B,Hk,Sk,D], v [B,Hk,Sk,Dv]: float32, float16 or bfloat16 (on the CPU float64 too), H a multiple of
      Hk. They are read where they are, in any memory order whose innermost elements are neighbours: views of packed
      projections and [B,S,H,D].transpose(1, 2) are not copied.
    bias        additive, of q's type or float32; broadcast to the scores [B,H,Sq,Sk]
    keep        bool or integer, non-zero may attend; broadcast to the scores
    kv_lengths, kv_starts   int32 [B]: keys from the one on, and before the other, are not allowed
    causal      "none", "top_left" or "bottom_right"
    window      (left, right): keys that far from the diagonal are allowed; -1 leaves a side unbounded
    scale       of the scores; 1 / sqrt(D) by default
    softcap     0 turns it off
    empty_rows  what a row without any allowed key gives: "zeros", "uniform" or "unmasked"
    exact       products of float32 tensors in float32, not in TF32

    Returns the context [B,H,Sq,Dv], of q's type and memory order; with `return_lse` also the natural logarithm of the
    sum of exp(s) over the allowed keys, float32 [B,H,Sq], -inf for a row without any. Both are differentiable, once.
    Raises ContractError for arguments outside the contract, MissingDependency where there is no kernel for CUDA.
    """
    call = attention_call(
        q, k, v, bias=bias, keep=keep, kv_lengths=kv_lengths, kv_starts=kv_starts, causal=causal, window=window,
        scale=scale, softcap=softcap, empty_rows=empty_rows, exact=exact,
    )  # fmt: skip
    require_kernel("fused_attention", call.q.device, attention_kernel_cannot(call.q, call.v), _ADVICE)
    context, logarithms = call_operator(call, return_lse)
    return (context, logarithms) if return_lse else context


def call_operator(call: AttentionCall, with_log_sum_exp: bool) -> tuple[Tensor, Tensor]:
    """Context and log-sum-exp, [0] where it is not wanted."""
    return fused_attention_operator(
        call.q,
        call.k,
        call.v,
        *(call.operands[role] for role in Role.ALL),
        *scalars_of(call.config),
        bool(call.config.exact),
        with_log_sum_exp,
    )
