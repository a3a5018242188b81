"""What keeps the softmax kernels busy, and what they wait for, by Nsight Compute: results/softmax-profile.json."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import torch

from benchmarks import nsight
from benchmarks.softmax_kernel import TORCH_DTYPES, all_works, make_mask, our_kernel, work_name

PROFILED = (
    "B8 H32 2048x2048 padding float16",
    "B8 H32 7269x577 padding float16",
    "B8 H32 32x131072 plain float16",
)
"""Whole rows, rows that begin anywhere, and rows that the blocks of a cluster share."""


def _prepare(dtype: str, shape: tuple[int, ...], mask: str) -> Callable[[], object]:
    scores = torch.randn(*shape, device="cuda", dtype=TORCH_DTYPES[dtype])
    return our_kernel(dtype, scores, make_mask(mask, shape, scores.dtype), mask, torch.empty_like(scores))


def main(argv: list[str] | None = None) -> int:
    works = {f"{work_name(shape, mask)} {dtype}": partial(_prepare, dtype, shape, mask)
             for dtype, shape, mask in all_works()}  # fmt: skip
    return nsight.main("benchmarks.softmax_profile", "softmax-profile", "softmax", works, PROFILED, argv)


if __name__ == "__main__":
    sys.exit(main())
