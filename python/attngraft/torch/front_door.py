"""attention: one function for every device, type and wish. The fused kernel where it applies, PyTorch's ways elsewhere.

The three paths compute the same. Which one is taken depends on nothing but the arguments and the device: `path_of`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from attngraft.contract import CausalMode, EmptyRows
from attngraft.errors import ContractError
from attngraft.torch import eager
from attngraft.torch.autocast import without_autocast
from attngraft.torch.call import AttentionCall, attention_call
from attngraft.torch.checks import attention_kernel_cannot, softmax_kernel_cannot
from attngraft.torch.device import device_cannot
from attngraft.torch.fused import call_operator
from attngraft.torch.library import kernel_is_missing
from attngraft.torch.sdpa import sdpa, sdpa_cannot

__all__ = ["Path", "attention", "path_of"]

KERNEL, SDPA, EAGER = "kernel", "sdpa", "eager"


@dataclass(frozen=True)
class Path:
    """The way that `attention` takes. name: "kernel", "sdpa" (torch's scaled_dot_product_attention) or "eager" (two
    matrix products and a masked softmax between them). reason: why not the one before it, or all is well."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def attention(
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
    need_weights: bool = False,
    dropout_p: float = 0.0,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of any float tensors on any device; tensors, masks and scalars as in `fused_attention`.

    need_weights  return (context, weights), weights [B,H,Sq,Sk] of q's type; with dropout those that were used
    dropout_p     share of the weights that are dropped, in training only: pass 0 elsewhere

    Returns the context [B,H,Sq,Dv] of q's type. Raises ContractError for arguments outside the contract.
    """
    call = attention_call(
        q, k, v, bias=bias, keep=keep, kv_lengths=kv_lengths, kv_starts=kv_starts, causal=causal, window=window,
        scale=scale, softcap=softcap, empty_rows=empty_rows, exact=exact,
    )  # fmt: skip
    path = _choose(call, need_weights, dropout_p).name
    with without_autocast(q.device):
        if path == KERNEL:
            return call_operator(call, False)[0]
        if path == SDPA:
            return sdpa(call, dropout_p)
        if need_weights and _softmax_cannot(call, dropout_p) is None:
            return eager.with_kernel_weights(call.q, call.k, call.v, call.operands, call.config)
        context, weights = eager.with_weights(call.q, call.k, call.v, call.operands, call.config, dropout_p)
        return (context, weights) if need_weights else context


def path_of(
    q: Tensor, k: Tensor, v: Tensor, *, need_weights: bool = False, dropout_p: float = 0.0, **arguments: Any
) -> Path:
    """The path that `attention` takes for the same arguments, and why. Computes nothing; raises as `attention` does."""
    return _choose(attention_call(q, k, v, **arguments), need_weights, dropout_p)


def _choose(call: AttentionCall, need_weights: bool, dropout_p: float) -> Path:
    if not 0.0 <= dropout_p < 1.0:
        raise ContractError(f"dropout_p: {dropout_p} is not in 0 to 1; it is the share of the weights that are dropped")
    if need_weights:
        softmax = _softmax_cannot(call, dropout_p) or "the softmax between the products is the kernel of masked_softmax"
        return Path(EAGER, f"the weights are asked for; {softmax}")
    why_not_kernel = (
        device_cannot(call.q.device)
        or attention_kernel_cannot(call.q, call.v)
        or kernel_is_missing()
        or ("the kernel drops no weights" if dropout_p else None)
    )
    if why_not_kernel is None:
        return Path(KERNEL, "the fused kernel takes all of it")
    why_not_sdpa = sdpa_cannot(call, dropout_p)
    if why_not_sdpa is None:
        return Path(SDPA, why_not_kernel)
    return Path(EAGER, f"{why_not_kernel}; {why_not_sdpa}")


def _softmax_cannot(call: AttentionCall, dropout_p: float) -> str | None:
    """Why the kernel of masked_softmax does not make the weights; None if it does."""
    return (
        device_cannot(call.q.device)
        or softmax_kernel_cannot(call.q.dtype)
        or kernel_is_missing()
        or ("the kernel drops no weights" if dropout_p else None)
    )
