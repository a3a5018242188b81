"""From PyTorch's tensors to the softmax kernels and back: plugin/torch over a reference launch, on CPU tensors."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch_cases import elsewhere, load_emulated, scalars_of, to_torch
from torch_softmax_cases import check, random_case, scores_of

from attngraft.contract import EmptyRows, Role
from attngraft.torch import library

CASES = 30

B, H, SQ, SK = 2, 4, 3, 5

SCALARS = (1.0, 0, -1, -1, 0.0, 0)
"""No scale, no bound, no cap, zeros."""


@pytest.fixture(scope="module", autouse=True)
def emulated() -> None:
    load_emulated()


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


@pytest.mark.parametrize("seed", range(CASES))
def test_the_operator_is_the_contract_in_float64(seed: int) -> None:
    """Every rank, type and mix of masks; scores and masks in memory of any order."""
    case = random_case(seed)
    rng = np.random.default_rng(seed)
    scores = elsewhere(scores_of(case), case.scores.shape, rng)
    masks = {role: to_torch(array) for role, array in case.operands.items()}
    for role in {Role.BIAS, Role.KEEP} & masks.keys():
        masks[role] = elsewhere(masks[role], case.scores.shape, rng)
    operands = (masks.get(role) for role in Role.ALL)
    probabilities = torch.ops.attngraft_emulated.masked_softmax(scores, *operands, *scalars_of(case.config))
    assert probabilities.is_contiguous() and probabilities.dtype == scores.dtype
    check(probabilities, case)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint8, torch.int32, torch.int64])
def test_every_type_of_keep(dtype: torch.dtype) -> None:
    scores, keep = normal(B, H, SQ, SK), (torch.rand(B, H, SQ, SK) > 0.4).to(dtype) * (1 if dtype == torch.bool else 64)
    keep[..., 0] = 1
    probabilities = torch.ops.attngraft_emulated.masked_softmax(scores, None, keep, None, None, *SCALARS)
    expected = torch.softmax(scores.masked_fill(keep == 0, -math.inf), -1)
    torch.testing.assert_close(probabilities, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("role", [Role.BIAS, Role.KEEP])
def test_a_mask_whose_keys_are_no_neighbours_is_copied(role: str) -> None:
    """The launch refuses it as it is."""
    scores, mask = normal(B, H, SQ, SK), normal(SK, SQ).T if role == Role.BIAS else (normal(SK, SQ) > -1).T
    results = []
    for given in (mask, mask.contiguous()):
        operands = (given if role == name else None for name in Role.ALL)
        results.append(torch.ops.attngraft_emulated.masked_softmax(scores, *operands, *SCALARS))
    assert torch.equal(*results)


@pytest.mark.parametrize("empty_rows", EmptyRows.ALL)
def test_rows_that_the_bias_leaves_without_keys(empty_rows: str) -> None:
    bias = torch.zeros(SQ, 1)
    bias[1] = -math.inf
    scalars = (*SCALARS[:-1], EmptyRows.ALL.index(empty_rows))
    probabilities = torch.ops.attngraft_emulated.masked_softmax(normal(B, SQ, SK), bias, None, None, None, *scalars)
    assert (probabilities[:, 1] == (1 / SK if empty_rows == EmptyRows.UNIFORM else 0.0)).all()
    torch.testing.assert_close(probabilities[:, ::2].sum(-1), torch.ones(B, 2))


@pytest.mark.parametrize("shape", [(0, SK), (SQ, 0), (B, H, 0, SK), (0, H, SQ, SK)])
def test_empty_tensors(shape: tuple[int, ...]) -> None:
    arguments = (None, None, None, None, *SCALARS)
    assert torch.ops.attngraft_emulated.masked_softmax(torch.ones(shape), *arguments).shape == shape


def test_the_schema_is_that_of_the_package() -> None:
    schema = str(torch.ops.attngraft_emulated.masked_softmax.default._schema)
    assert schema == f"attngraft_emulated::masked_softmax{library.SCHEMAS['masked_softmax']}"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"scores": normal(SK)}, "scores: expected two to six dimensions"),
    ({"scores": normal(1, 1, 1, 1, 1, SQ, SK)}, "scores: expected two to six dimensions"),
    ({"scores": normal(SQ, SK).double()}, "scores: expected float32, float16 or bfloat16"),
    ({"bias": normal(SQ, 4)}, "bias: expected a shape that broadcasts to the scores"),
    ({"bias": normal(1, 1, 1, 1, SK)}, "bias: expected no more dimensions than the scores have"),
    ({"bias": normal(SK).half()}, "bias: expected the type of scores, or float32"),
    ({"keep": normal(SK)}, "keep: expected bool, int8, uint8, int32 or int64"),
    ({"kv_lengths": normal(B)}, "kv_lengths: expected int32"),
    ({"kv_starts": torch.ones(3, dtype=torch.int32)}, f"kv_starts: expected shape [{B}]"),
    ({"scores": normal(SQ, SK), "kv_starts": torch.ones(SQ, dtype=torch.int32)}, "kv_starts: expected shape [1]"),
    ({"causal": -1}, "causal: expected 0, 1 or 2"),
    ({"empty_rows": 3}, "empty_rows: expected 0, 1 or 2"),
]


@pytest.mark.parametrize(("changed", "message"), REFUSED, ids=[message[:30] for _, message in REFUSED])
def test_what_the_kernels_cannot_check_is_refused(changed: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "scores": normal(B, H, SQ, SK),
        **dict.fromkeys(Role.ALL),
        **{"scale": 1.0, "causal": 0, "window_left": -1, "window_right": -1, "softcap": 0.0, "empty_rows": 0},
    } | changed
    with pytest.raises(RuntimeError, match=re.escape(f"attngraft::masked_softmax: {message}")):
        torch.ops.attngraft_emulated.masked_softmax(*arguments.values())
