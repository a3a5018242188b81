"""What a mask means, as frozen records."""

from __future__ import annotations

from dataclasses import dataclass

from attngraft.contract import CausalMode

__all__ = ["MaskMeaning", "PaddingMask"]


@dataclass(frozen=True)
class PaddingMask:
    """A tensor of the model whose elements say which keys may be attended: allowed where it is not 0 (or not false).

    tensor      boolean or integer, any rank; for example the model's input attention_mask [B, Sk].
    unsqueeze   axes of size 1 to insert, as the operator Unsqueeze takes them, so that it broadcasts to the scores.
                Its batch is the scores': a model that reads the first rows of a longer tensor is not told apart.
    invert      the other way about: not allowed where it is not 0.
    zero_one    whether the model itself only tests the elements against 0. If not, it computes with them as numbers
                ((1 - mask) * fill), and this record equals the model where they are 0 and 1 alone.
    """

    tensor: str
    unsqueeze: tuple[int, ...] = ()
    invert: bool = False
    zero_one: bool = True


@dataclass(frozen=True)
class MaskMeaning:
    """A mask over scores [..., Sq, Sk], for query row i and key j:

        allowed(..., i, j) = causal(i, j) and window(i, j) and every padding

    with `causal`, `window_left` and `window_right` as in contract.py.

    fill     what an additive mask is where not allowed; it is 0 where allowed. 0 if nothing is ever masked, -inf for a
             condition, which has no fill.
    rest     a tensor, no mask and of at most the scores' rank, that an additive mask adds as well; None if there is
             none. Where not allowed the mask is rest + fill if `rest_under_fill`, else `fill` alone.
    """

    causal: str = CausalMode.NONE
    window_left: int = -1
    window_right: int = -1
    paddings: tuple[PaddingMask, ...] = ()
    fill: float = float("-inf")
    rest: str | None = None
    rest_under_fill: bool = True
