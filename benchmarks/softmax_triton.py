"""Scale, mask and softmax by a Triton program a row: the form of Triton's tutorial, a peer of the benchmarks."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["one_row_softmax"]

KEYS_OF_A_WARP = 512
MOST_WARPS = 32


@triton.jit
def _softmax(
    scores,
    mask,
    out,
    scale,
    keys,
    rows_of_batch,
    IS_KEEP: tl.constexpr,
    HAS_MASK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < keys
    s = tl.load(scores + row * keys + columns, mask=inside, other=-float("inf")).to(tl.float32) * scale
    if HAS_MASK:
        values = tl.load(mask + row // rows_of_batch * keys + columns, mask=inside, other=0)
        if IS_KEEP:
            s = tl.where(values != 0, s, -float("inf"))
        else:
            s += values.to(tl.float32)
    powers = tl.exp(s - tl.max(s, axis=0))
    result = powers / tl.sum(powers, axis=0)
    tl.store(out + row * keys + columns, result.to(out.dtype.element_ty), mask=inside)


def one_row_softmax(scores: torch.Tensor, operand: torch.Tensor | None, out: torch.Tensor, scale: float) -> None:
    """scores and out [B, H, Sq, Sk], contiguous; operand [B, 1, 1, Sk]: bool (true may attend) or additive, or None."""
    batch, heads, queries, keys = scores.shape
    block = triton.next_power_of_2(keys)
    is_keep = operand is not None and operand.dtype == torch.bool
    mask = scores if operand is None else operand.view(torch.uint8) if is_keep else operand
    warps = min(MOST_WARPS, max(1, block // KEYS_OF_A_WARP))
    _softmax[(batch * heads * queries,)](
        scores, mask, out, scale, keys, heads * queries,
        IS_KEEP=is_keep, HAS_MASK=operand is not None, BLOCK=block, num_warps=warps,
    )  # fmt: skip
