"""What keeps the attention kernels busy, and what they wait for, by Nsight Compute: results/attention-profile.json."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from benchmarks import nsight
from benchmarks.attention_kernel import our_kernel
from benchmarks.attention_works import WORKS, Work, make_tensors

PROFILED = (
    "B8 H12 S384 d64 float16",
    "B8 H12 S384 d64 lengths float16",
    "B1 H8 S4096 d64 float16",
    "B1 H8 S4096 d64 causal float16",
    "B1 H8 S4096 d64 softcap float16",
    "B4 H16 S4096 d128 float16",
    "B4 H16 S4096 d128 causal float16",
    "B8 H12 S197 d64 float16",
    "B8 H12 S384 d64 bias float16",
    "B1 H32 1x4096 d128 float16",
)


def _prepare(work: Work) -> Callable[[], object]:
    return our_kernel(work, make_tensors(work, "cuda"))


def main(argv: list[str] | None = None) -> int:
    works = {f"{work.name} {work.dtype}": partial(_prepare, work) for work in WORKS}
    module = "benchmarks.attention_profile"
    return nsight.main(module, "attention-profile", "[aA]ttentionKernel", works, PROFILED, argv)


if __name__ == "__main__":
    sys.exit(main())
