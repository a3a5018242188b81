"""Tensors beyond 2^31 elements and beyond 32-bit offsets, compared on the GPU."""

from __future__ import annotations

import pytest
import torch

from attngraft.contract import MaskedSoftmax, Role
from kernel_abi import DTYPES, launch, make_params

ROWS_COMPARED = 4096
TOLERANCE = 1.1e-3  # one unit in the last place of fp16


def run(shape: tuple[int, ...], config: MaskedSoftmax, **operands: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    scores = torch.empty(shape, dtype=torch.float16, device="cuda").normal_()
    output = torch.full_like(scores, float("nan"))
    views = {
        role: (tensor.data_ptr(), tuple(tensor.shape), torch.empty(0, dtype=tensor.dtype).numpy().dtype)
        for role, tensor in operands.items()
    }
    params = make_params(scores.data_ptr(), output.data_ptr(), shape, DTYPES["float16"], config, views)
    assert launch(params, torch.cuda.current_stream().cuda_stream) == 0
    torch.cuda.synchronize()
    return scores, output


def assert_rows_match(scores: torch.Tensor, output: torch.Tensor, keep: torch.Tensor | None = None) -> None:
    """First rows, last rows and rows around 2^31 elements; and every row sums to one, so every row was written."""
    keys = scores.shape[-1]
    flat, result = scores.view(-1, keys), output.view(-1, keys)
    middle = min(2**31 // keys, flat.shape[0] - 1)
    for start in (0, max(0, middle - ROWS_COMPARED // 2), flat.shape[0] - ROWS_COMPARED):
        rows = slice(start, start + ROWS_COMPARED)
        wanted = flat[rows].double()
        if keep is not None:
            wanted = wanted.masked_fill(~keep, float("-inf"))
        wanted = wanted.softmax(-1)
        assert ((result[rows].double() - wanted).abs() <= TOLERANCE * wanted + 6.1e-8).all()
    for chunk in result.split(2**20):
        assert ((chunk.sum(-1, dtype=torch.float32) - 1).abs() < 1e-2).all()


@pytest.mark.parametrize("shape", [(2, 64, 4096, 4100), (1, 2_097_153, 1024)])
def test_offsets_beyond_32_bits(shape: tuple[int, ...]) -> None:
    assert_rows_match(*run(shape, MaskedSoftmax()))


def test_a_mask_on_more_than_two_to_the_31_elements() -> None:
    keep = torch.rand(4100, device="cuda") < 0.5
    scores, output = run((2, 64, 4096, 4100), MaskedSoftmax(operands=(Role.KEEP,)), keep=keep)
    assert_rows_match(scores, output, keep)
    assert not output.view(-1, 4100)[-1][~keep].any()


def test_one_row_of_a_hundred_million_keys() -> None:
    keys = 100_000_001
    scores, output = run((1, keys), MaskedSoftmax(scale=8.0))
    wanted = (scores.double() * 8).softmax(-1)
    assert ((output.double() - wanted).abs() <= TOLERANCE * wanted + 6.1e-8).all()
