"""attngraft.torch.masked_softmax on the CPU: against float64, every shape and type of a mask, and what is refused."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch_softmax_cases import TOLERANCES, arguments_of_mask, check, random_case, scores_of

from attngraft.contract import CausalMode, EmptyRows
from attngraft.errors import ContractError
from attngraft.torch import masked_softmax

CASES = 30

B, H, SQ, SK = 2, 4, 3, 5

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def make(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * 3).to(dtype)


def assert_is(probabilities: torch.Tensor, s: torch.Tensor, dtype: torch.dtype) -> None:
    """The softmax of s, float64 with -inf where nothing is allowed, each row with a key."""
    assert probabilities.dtype == dtype and probabilities.is_contiguous()
    relative, absolute = TOLERANCES[str(dtype).removeprefix("torch.")]
    expected = torch.softmax(s, -1)
    torch.testing.assert_close(probabilities.double(), expected, rtol=2 * relative, atol=absolute)
    assert (probabilities[expected == 0] == 0).all()


@pytest.mark.parametrize("seed", range(CASES))
def test_random_cases_are_the_contract_in_float64(seed: int) -> None:
    """Ranks 2 to 6, all types, masks and scalars."""
    case = random_case(seed)
    scores = scores_of(case)
    before = scores.clone()
    check(masked_softmax(scores, **arguments_of_mask(case)), case)
    assert torch.equal(scores.nan_to_num(), before.nan_to_num())


MASK_SHAPES = {
    "Sq,Sk": ((SQ, SK), (1, 1, SQ, SK)),
    "1,Sk": ((1, SK), (1, 1, 1, SK)),
    "B,Sk": ((B, SK), (B, 1, 1, SK)),
    "B,Sq,Sk": ((B, SQ, SK), (B, 1, SQ, SK)),
    "B,1,Sq,Sk": ((B, 1, SQ, SK), (B, 1, SQ, SK)),
    "B,H,Sq,Sk": ((B, H, SQ, SK), (B, H, SQ, SK)),
    "B,1,1,Sk": ((B, 1, 1, SK), (B, 1, 1, SK)),
}
"""What is given, and how it lies on the scores [B,H,Sq,Sk]."""

KEEP_TYPES = [torch.bool, torch.int8, torch.uint8, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MASK_SHAPES)
@pytest.mark.parametrize("kind", [*KEEP_TYPES, "additive", "additive float32"])
def test_every_shape_and_type_of_a_mask(kind: torch.dtype | str, name: str, dtype: torch.dtype) -> None:
    given, aligned = MASK_SHAPES[name]
    scores = make(B, H, SQ, SK, dtype=dtype)
    mask = make(*given) > -2
    mask[..., 0] = True
    if isinstance(kind, torch.dtype):
        mask = mask.to(kind) * (1 if kind == torch.bool else 3)
        added = torch.where(mask != 0, 0.0, -math.inf).double()
    else:
        mask = torch.where(mask, make(*given) / 8, -math.inf).to(torch.float32 if kind != "additive" else dtype)
        added = mask.double()
    expected = scores.double() / math.sqrt(64) + added.reshape(aligned)
    assert_is(masked_softmax(scores, mask=mask, head_size=64), expected, dtype)


@pytest.mark.parametrize("rank", [2, 3, 5, 6])
def test_masks_of_scores_of_other_ranks(rank: int) -> None:
    """[Sq,Sk], [B,Sk] and [B,Sq,Sk] with no head, or with several dimensions of them."""
    between = (2, 3, 2)[: max(0, rank - 3)]
    scores = make(*(B, *between)[: rank - 2], SQ, SK)
    ones = (1,) * len(between)
    shapes = {(SQ, SK): (SQ, SK), tuple(scores.shape): tuple(scores.shape)}
    if rank > 2:
        shapes |= {(B, SK): (B, *ones, 1, SK), (B, SQ, SK): (B, *ones, SQ, SK)}
    for given, aligned in shapes.items():
        mask = make(*given) > -2
        mask[..., 1] = True
        s = scores.double().masked_fill(~mask.reshape(aligned), -math.inf)
        assert_is(masked_softmax(scores, mask=mask), s, torch.float32)


def test_a_mask_goes_with_what_it_does_not_become() -> None:
    """A padding mask with a position bias, or an additive mask with `keep`."""
    scores, bias, keep = make(B, H, SQ, SK), make(H, SQ, SK), torch.tensor([[1, 0, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
    s = (scores + bias).double().masked_fill(~keep[:, None, None], -math.inf)
    assert_is(masked_softmax(scores, mask=keep, bias=bias), s, torch.float32)
    assert_is(masked_softmax(scores, mask=bias[None], keep=keep[:, None, None]), s, torch.float32)


@pytest.mark.parametrize("causal", CausalMode.ALL)
def test_causality_window_lengths_and_starts(causal: str) -> None:
    scores = make(B, H, SQ, SK, dtype=torch.bfloat16)
    lengths, starts = torch.tensor([5, 4], dtype=torch.int32), torch.tensor([0, 0], dtype=torch.int32)
    probabilities = masked_softmax(
        scores, kv_lengths=lengths, kv_starts=starts, causal=causal, window=(2, 1), scale=0.5
    )
    offset = 0 if causal == CausalMode.TOP_LEFT else SK - SQ
    i, j = torch.arange(SQ)[:, None] + offset, torch.arange(SK)
    allowed = (j >= i - 2) & (j <= i + 1) & (j < lengths[:, None, None, None])
    if causal != CausalMode.NONE:
        allowed &= j <= i
    assert_is(probabilities, (scores.double() / 2).masked_fill(~allowed, -math.inf), torch.bfloat16)


@pytest.mark.parametrize("empty_rows", EmptyRows.ALL)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_wholly_masked_row_among_others(dtype: torch.dtype, empty_rows: str) -> None:
    scores = make(B, H, SQ, SK, dtype=dtype)
    keep = torch.ones(B, SK, dtype=torch.bool)
    keep[1] = False
    probabilities = masked_softmax(scores, mask=keep, empty_rows=empty_rows)
    whole = torch.softmax(scores.double(), -1)
    expected = {
        EmptyRows.ZEROS: torch.zeros_like(whole),
        EmptyRows.UNIFORM: torch.full_like(whole, 1 / SK),
        EmptyRows.UNMASKED: whole,
    }[empty_rows]
    relative, absolute = TOLERANCES[str(dtype).removeprefix("torch.")]
    expected[0] = whole[0]
    torch.testing.assert_close(probabilities.double(), expected, rtol=2 * relative, atol=absolute)


def test_nan_and_infinity_reach_their_own_row_only() -> None:
    scores = make(6, SK)
    scores[0, 1], scores[1, 2], scores[3, 3], scores[4] = math.nan, math.inf, math.nan, -math.inf
    keep = torch.ones(6, SK, dtype=torch.bool)
    keep[3, 3] = False  # a NaN there changes nothing
    probabilities = masked_softmax(scores, keep=keep)
    assert probabilities[:2].isnan().all() and probabilities[2:].isfinite().all()
    assert probabilities[3, 3] == 0 and (probabilities[4] == 0).all()


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((4, 12, 24, 24), torch.float16),
        ((2, 16, 128, 130), torch.bfloat16),
        ((100_000, 2), torch.float16),
        ((3, 1, 2, 1025), torch.float16),
        ((2, 5, 197), torch.float32),
    ],
)
def test_shapes_that_failed_elsewhere(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """With a mask [B,K] where there is a batch: short rows, odd and misaligned ones, millions of two."""
    scores = make(*shape, dtype=dtype)
    s = scores.double()
    if len(shape) == 2:
        assert_is(masked_softmax(scores), s, dtype)
        return
    mask = torch.arange(shape[-1]) < torch.arange(shape[-1] // 2, shape[-1] // 2 + shape[0])[:, None]
    s = s.masked_fill(~mask.reshape(shape[0], *(1,) * (len(shape) - 2), shape[-1]), -math.inf)
    assert_is(masked_softmax(scores, mask=mask), s, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_far_from_zero(dtype: torch.dtype) -> None:
    """All at -1000; and the type's lowest value as a mask, to which a negative score is added: no row is NaN."""
    scores = torch.full((B, H, SQ, 64), -1000.0, dtype=dtype)
    assert_is(masked_softmax(scores), torch.zeros(scores.shape).double(), dtype)
    scores = -make(B, H, SQ, SK, dtype=dtype).abs()
    mask = torch.zeros(B, SK, dtype=dtype)
    mask[:, 3:] = torch.finfo(dtype).min
    probabilities = masked_softmax(scores, mask=mask)
    assert_is(probabilities, scores.double().masked_fill(torch.arange(SK) >= 3, -math.inf), dtype)
    assert masked_softmax(scores, mask=torch.full_like(mask, torch.finfo(dtype).min)).isfinite().all()


@pytest.mark.parametrize("shape", [(0, H, SQ, SK), (B, H, 0, SK), (B, H, SQ, 0), (0, 0)])
def test_empty_tensors(shape: tuple[int, ...]) -> None:
    for empty_rows in EmptyRows.ALL:
        assert masked_softmax(make(*shape), empty_rows=empty_rows).shape == shape


def test_the_scale_is_given_or_follows_from_the_head_size() -> None:
    scores = make(B, H, SQ, SK)
    assert_is(masked_softmax(scores), scores.double(), torch.float32)
    assert_is(masked_softmax(scores, head_size=16), scores.double() / 4, torch.float32)
    assert_is(masked_softmax(scores, scale=-0.5), scores.double() / -2, torch.float32)
    capped = 2 * torch.tanh(scores.double() / 4 / 2)
    assert_is(masked_softmax(scores, head_size=16, softcap=2.0), capped, torch.float32)


def test_scores_of_any_strides() -> None:
    scores = make(SK, SQ, H, B).permute(3, 2, 1, 0)
    assert_is(masked_softmax(scores), scores.double(), torch.float32)
    assert_is(
        masked_softmax(make(1, 1, SK).expand(B, SQ, SK)), make(1, 1, SK).expand(B, SQ, SK).double(), torch.float32
    )


SCORES = make(B, H, SQ, SK)
SQUARE = make(SQ, H, SQ, SK)

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"scores": make(SK)}, "scores: shape [5] is not [..., Sq, Sk]; give 2 to 6 dimensions"),
    ({"scores": make(1, 1, 1, 1, 1, SQ, SK)}, "scores: shape [1, 1, 1, 1, 1, 3, 5] is not [..., Sq, Sk]"),
    ({"scores": SCORES.int()}, "scores: int32 is not one of float32, float16, bfloat16, float64"),
    (
        {"mask": torch.ones(SK).bool()},
        "mask: shape [5] is none of [3, 5], [2, 5], [2, 3, 5], [2, 4, 3, 5], nor broadcasts to the last; give one of "
        "these, or bias or keep for others",
    ),
    ({"mask": torch.ones(H, SQ, SK)}, "mask: shape [4, 3, 5] is none of [3, 5], [2, 5], [2, 3, 5], [2, 4, 3, 5]"),
    ({"mask": torch.ones(B, 1, SQ, 4)}, "mask: shape [2, 1, 3, 4] is none of"),
    ({"mask": torch.ones(1, B, 1, SQ, SK)}, "mask: shape [1, 2, 1, 3, 5] is none of"),
    (
        {"scores": SQUARE, "mask": torch.ones(SQ, SK).bool()},
        "mask: shape [3, 5] is [Sq, Sk] and [B, Sk] at once; give [1, 1, 3, 5] if it is a row for each query, "
        "[3, 1, 1, 5] if it is one for each batch entry",
    ),
    ({"mask": SCORES.half()}, "mask: float16 is not one of float32; cast it"),
    ({"mask": SCORES.to(torch.complex64)}, "mask: complex64 is not one of bool, int8, uint8, int32, int64; cast it"),
    ({"mask": SCORES, "bias": SCORES}, "mask: an additive mask is what bias is, which is given too; give one of them"),
    (
        {"mask": SCORES > 0, "keep": SCORES > 0},
        "mask: a boolean or integer mask is what keep is, which is given too; give one of them",
    ),
    ({"mask": (SCORES > 0).to("meta")}, "keep: is on meta, scores on cpu; move it there"),
    ({"bias": make(SQ, 4)}, "bias: shape [3, 4] does not broadcast to the scores [2, 4, 3, 5]"),
    ({"bias": make(SK).half()}, "bias: float16 is not one of float32; cast it"),
    ({"keep": make(SK)}, "keep: float32 is not one of bool, int8, uint8, int32, int64; cast it"),
    ({"kv_lengths": torch.ones(B).long()}, "kv_lengths: int64 is not int32; cast it"),
    ({"kv_starts": torch.ones(H).int()}, "kv_starts: shape [4] is not [2], one value a batch entry"),
    ({"scores": make(SQ, SK), "kv_lengths": torch.ones(SQ).int()}, "kv_lengths: shape [3] is not [1], one value"),
    ({"causal": "left"}, "causal: 'left' is not one of none, top_left, bottom_right"),
    ({"empty_rows": "nan"}, "empty_rows: 'nan' is not one of zeros, uniform, unmasked"),
    ({"window": 3}, "window: 3 is not a pair (left, right); -1 leaves a side unbounded"),
    ({"window": (-2, 0)}, "window_left and window_right are -1 (unbounded), 0 or more"),
    ({"scale": math.nan}, "scale: nan is not finite"),
    ({"softcap": -1.0}, "softcap: -1.0 is negative or not finite; 0 turns it off"),
    ({"head_size": 0}, "head_size: 0 is not 1 or more; the scale is 1 / sqrt(head_size)"),
    ({"head_size": 64, "scale": 0.125}, "scale and head_size: both are given; give the scale, or the head size that"),
]


@pytest.mark.parametrize(("changed", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_what_is_outside_the_contract_is_refused_in_one_line(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError, match=re.escape(message)) as raised:
        masked_softmax(**{"scores": SCORES, **changed})
    assert "\n" not in str(raised.value)
