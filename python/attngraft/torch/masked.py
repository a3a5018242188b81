"""masked_softmax: scale, masks and softmax of attention scores in one kernel."""

from __future__ import annotations

from torch import Tensor

from attngraft.contract import CausalMode, EmptyRows, MaskedSoftmax, Role
from attngraft.errors import ContractError
from attngraft.torch.arguments import mask_fields, operands_of, scalars_of
from attngraft.torch.autocast import bias_in_autocast
from attngraft.torch.checks import Operands, check_softmax, softmax_kernel_cannot
from attngraft.torch.device import require_kernel
from attngraft.torch.mask_argument import with_mask
from attngraft.torch.softmax_operator import masked_softmax_operator

__all__ = ["call_softmax", "masked_softmax"]


def masked_softmax(
    scores: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    keep: Tensor | None = None,
    kv_lengths: Tensor | None = None,
    kv_starts: Tensor | None = None,
    causal: str = CausalMode.NONE,
    window: tuple[int, int] = (-1, -1),
    scale: float | None = None,
    head_size: int | None = None,
    softcap: float = 0.0,
    empty_rows: str = EmptyRows.ZEROS,
) -> Tensor:
    """Probabilities of attention scores as docs/contract.md has them: on a CUDA device by the kernel, on the CPU by
    PyTorch operations.

    scores [..., Sq, Sk], rank 2 to 6: float32, float16 or bfloat16 (on the CPU float64 too). The first dimension is the
      batch B; scores of rank 2 are a batch of one.
    mask        in the shapes that models have: [Sq,Sk], [B,Sk], [B,Sq,Sk], or one of the scores' own rank that
                broadcasts to them, [B,1,Sq,Sk] or [B,H,Sq,Sk]. bool or integer: non-zero may attend, as in `keep`. Of a
                float type: additive, as in `bias`. Give one tensor for each: a mask, or what it becomes.
    bias        additive, of the scores' type or float32; broadcast to the scores by NumPy's rules
    keep        bool or integer, non-zero may attend; broadcast to the scores by NumPy's rules
    kv_lengths, kv_starts   int32 [B]: keys from the one on, and before the other, are not allowed
    causal      "none", "top_left" or "bottom_right"
    window      (left, right): keys that far from the diagonal are allowed; -1 leaves a side unbounded
    scale       of the scores; 1 / sqrt(head_size) where that is given in its place, else 1
    softcap     0 turns it off
    empty_rows  what a row without any allowed key gives: "zeros", "uniform" or "unmasked"

    Returns the probabilities, of the scores' shape and type, contiguous; differentiable once in scores and bias. A key
    without weight passes no gradient on, whatever it is given. Inside torch.autocast the scores keep their type.
    Raises ContractError for arguments outside the contract, MissingDependency where there is no kernel for CUDA.
    """
    bias = bias if bias is None else bias_in_autocast(scores, bias)
    operands = operands_of((bias, keep, kv_lengths, kv_starts))
    if mask is not None:
        operands = with_mask(operands, mask, scores)
    check_softmax(scores, operands)
    fields = mask_fields(operands, causal, window, _scale(scale, head_size), softcap, empty_rows)
    advice = "cast the scores, or take torch.softmax"
    require_kernel("masked_softmax", scores.device, softmax_kernel_cannot(scores.dtype), advice)
    return call_softmax(scores, operands, MaskedSoftmax(**fields))


def call_softmax(scores: Tensor, operands: Operands, config: MaskedSoftmax) -> Tensor:
    """The operator itself, of arguments that were checked."""
    return masked_softmax_operator(scores, *(operands[role] for role in Role.ALL), *scalars_of(config))


def _scale(scale: float | None, head_size: int | None) -> float:
    if head_size is None:
        return 1.0 if scale is None else scale
    if scale is not None:
        raise ContractError(
            "scale and head_size: both are given; give the scale, or the head size that it follows from"
        )
    if head_size < 1:
        raise ContractError(f"head_size: {head_size} is not 1 or more; the scale is 1 / sqrt(head_size)")
    return float(head_size) ** -0.5
