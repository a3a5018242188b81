"""Attention as Hugging Face models call it, by attngraft.torch.attention.

In: what a model hands to transformers' AttentionInterface. Out: what its eager attention would return.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils.output_capturing import _active_collector

from attngraft.contract import EmptyRows
from attngraft.errors import ContractError
from attngraft.torch.front_door import attention
from attngraft.torch.fused import fused_attention
from attngraft.torch.transformers_mask import CompactMask, arguments_of, full_mask

__all__ = ["attention_forward"]

_NO_MATTER = frozenset(
    {
        "cache_position",
        "deterministic",
        "is_causal",
        "num_items_in_batch",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",
        "return_dict",
        "sliding_window",
        "use_cache",
    }
)
"""Arguments that say nothing which the mask does not say too, or that are not about attention at all."""


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    s_aux: Tensor | None = None,
    output_attentions: bool | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """An attention function for transformers' AttentionInterface.

    query [B,H,Sq,D], key [B,Hk,Sk,D], value [B,Hk,Sk,Dv]
    attention_mask  boolean (True may attend) or additive, broadcast to [B,H,Sq,Sk]; None: all keys may be attended
    position_bias   additive, broadcast likewise; s_aux [H], the heads' attention sinks

    Returns the context [B,Sq,H,Dv], contiguous, and the weights [B,H,Sq,Sk] where the caller wants them, else None.
    Raises ContractError for other arguments, none of which is ignored.
    """
    _refuse_unknown(module, s_aux, others)
    arguments: dict[str, Any] = {
        **_mask_arguments(attention_mask, query, key, position_bias),
        "scale": scaling,
        "softcap": softcap or 0.0,
        "exact": _products_are_exact(),
    }
    dropout_p = float(dropout) if module.training else 0.0
    need_weights = bool(output_attentions) or _weights_are_collected()
    if s_aux is not None and not need_weights and not dropout_p:
        context, logarithms = fused_attention(query, key, value, **arguments, return_lse=True)
        return _as_rows(_with_sinks(context, logarithms, s_aux)), None
    result = attention(query, key, value, **arguments, need_weights=need_weights, dropout_p=dropout_p)
    context, weights = result if isinstance(result, tuple) else (result, None)
    if s_aux is not None:
        _, logarithms = fused_attention(query, key, value, **arguments, return_lse=True)
        context = _with_sinks(context, logarithms, s_aux)
        weights = None if weights is None else _with_sinks(weights, logarithms, s_aux)
    return _as_rows(context), weights


@torch.compiler.assume_constant_result
def _products_are_exact() -> bool:
    """Whether PyTorch's own products of float32 tensors are, which is what eager attention is made of."""
    products = torch.backends.cuda.matmul
    if hasattr(products, "fp32_precision"):  # from 2.9 on; reading the older flag beside it is an error
        return bool(products.fp32_precision != "tf32")
    return not products.allow_tf32


def _as_rows(context: Tensor) -> Tensor:
    """[B,H,Sq,Dv] as [B,Sq,H,Dv]: no copy where the query's heads were neighbours in memory."""
    return context.transpose(1, 2).contiguous()


def _with_sinks(of_keys: Tensor, logarithms: Tensor, sinks: Tensor) -> Tensor:
    """Context or weights [B,H,Sq,X] of rows in which exp(sink) takes part in the sum: they shrink by the share of the
    keys in it, exp(lse) / (exp(lse) + exp(sink))."""
    share = torch.sigmoid(logarithms - sinks.to(logarithms.dtype).reshape(1, -1, 1))
    return (of_keys.to(share.dtype) * share[..., None]).to(of_keys.dtype)


def _mask_arguments(mask: Tensor | None, q: Tensor, k: Tensor, position_bias: Tensor | None) -> dict[str, Any]:
    """Masks and `empty_rows` for attngraft.torch.attention."""
    if isinstance(mask, CompactMask):
        if mask.shape[0] == q.shape[0] and mask.shape[2:] == (q.shape[2], k.shape[2]):
            return {**arguments_of(mask), "bias": _bias(q, position_bias)}
        mask = full_mask(mask)
    if mask is None or mask.is_floating_point():
        return {"bias": _bias(q, position_bias, mask)}
    if mask.dtype == torch.bool and mask.dim() == q.dim():
        return {"keep": mask, "bias": _bias(q, position_bias), "empty_rows": EmptyRows.UNIFORM}
    raise ContractError(
        f"attention_mask: {mask.dtype} {list(mask.shape)} is neither boolean [B,1,Sq,Sk] nor additive; "
        "convert it with .bool(), or to q's type"
    )


def _bias(q: Tensor, position_bias: Tensor | None, mask: Tensor | None = None) -> Tensor | None:
    """What is added to the scores, of a type that a bias may have."""
    if position_bias is not None and mask is not None:
        return position_bias.to(torch.float32) + mask.to(torch.float32)  # a narrow type's two low numbers make -inf
    given = mask if position_bias is None else position_bias
    return given if given is None or given.dtype == q.dtype else given.to(torch.float32)


def _refuse_unknown(module: nn.Module, s_aux: Tensor | None, others: dict[str, Any]) -> None:
    where = type(module).__name__
    for name, given in others.items():
        if name not in _NO_MATTER and given is not None:
            raise ContractError(
                f'{where}: attention argument {name} is not known to "attngraft"; use "eager" or "sdpa"'
            )
    if s_aux is None and getattr(module, "sinks", None) is not None:
        raise ContractError(f'{where}: has attention sinks and does not pass them as s_aux; use "eager"')


def _weights_are_collected() -> bool:
    """Whether the model collects its layers' attention weights: transformers 5 does it by hooks, of which the
    attention function is told nothing."""
    if torch.compiler.is_compiling() and not _active_collector.compiling:
        return False  # the forward pass that collects began outside of what is compiled, and ContextVars are not traced
    collected = _active_collector.get()
    return collected is not None and any("attentions" in name for name in collected)
