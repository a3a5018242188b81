"""The masked softmax kernel alone against PyTorch, over row lengths, types and masks: results/softmax-kernel.json.

Work: scale, mask and softmax of scores [B, H, Sq, Sk] from one tensor into another, `B8 H32 2048x2048` and about as
many bytes for every other row length. Masks: `padding`, booleans [B, 1, 1, Sk] with lengths drawn from 7/8 Sk to Sk;
`lengths`, the same as a number for each batch element, beyond which no score is read; `additive`, the same as numbers
of the scores' type, 0 and the type's lowest; `bias`, numbers [B, 1, Sq, Sk]; `keep`, booleans of that shape; `causal`,
Sq = Sk; `plain`, none. The limit counts every byte once that must be read or written.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from attngraft.contract import CausalMode, MaskedSoftmax, Role
from benchmarks.results_file import Row, write_results
from benchmarks.softmax_peers import softmax_peers
from benchmarks.timing import graph_replay_us, streaming_bandwidth
from benchmarks.zoo.arguments import pattern

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "gpu"))
from kernel_abi import DTYPES, launch, make_params  # noqa: E402 - found through the line above

BATCH, HEADS = 8, 32
SCALE = 0.125
ELEMENTS = 1 << 30
"""Scores of every work: 2 GiB in fp16, read once and written once, far beyond any cache."""

ROW_LENGTHS = (
    128, 197, 200, 256, 384, 512, 577, 584, 1024, 1500, 1504, 2048, 4096, 4097, 4104, 8192, 16384, 32768, 65536, 131072,
    262144,
)  # fmt: skip
"""With a padding mask in fp16; odd ones beside the next whole number of vectors."""
MASKS_ROW_LENGTHS = {
    "plain": (128, 197, 384, 577, 1024, 1500, 2048, 4097, 8192, 32768, 131072),
    "lengths": (128, 384, 1024, 2048, 8192, 32768),
    "additive": (384, 1024, 2048, 16384),
    "bias": (384, 577, 1024, 1500, 2048, 16384),
    "keep": (384, 1024, 2048, 16384),
    "causal": (1024, 2048, 4096, 8192),
}
TYPES_ROW_LENGTHS = {"bfloat16": (384, 2048, 8192), "float32": (384, 1024, 2048, 4096, 8192, 16384)}
"""Row lengths that the other types are measured at; compiling the peers takes most of the time."""
FEW_ROWS = ((1, 32, 1, 4096), (1, 32, 1, 32768), (1, 8, 1, 131072), (1, 12, 128, 128))
"""Shapes that do not fill the device, without a mask."""

TORCH_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=pattern, default="", metavar="REGEX",
                        help="only works in which it finds something, such as '197 padding float16'")  # fmt: skip
    parser.add_argument("--no-peers", action="store_true", help="only our kernel, and write nothing: for tuning")
    parser.add_argument("--time-limit", type=float, default=float("inf"), metavar="SECONDS",
                        help="start no further work after so long; works are then drawn in any order")  # fmt: skip
    options = parser.parse_args()
    deadline = time.monotonic() + options.time_limit
    works = [work for work in all_works() if re.search(options.only, full_name(*work))]
    bandwidth = streaming_bandwidth()
    print(f"streaming bandwidth {bandwidth / 1e3:.0f} GB/s", flush=True)
    order = list(range(len(works)))
    if options.time_limit < float("inf"):
        random.Random(0).shuffle(order)
    measured: dict[int, Row] = {}
    for index in order:
        if time.monotonic() > deadline:
            print(f"time is up; {len(works) - len(measured)} works are left", file=sys.stderr)
            break
        measured[index] = measure(*works[index], bandwidth, has_peers=not options.no_peers)
        print(describe(measured[index]), flush=True)
    if not options.no_peers:
        print(write_results("softmax-kernel", [measured[index] for index in sorted(measured)]))
    return 0


def all_works() -> list[tuple[str, tuple[int, ...], str]]:
    """Types, shapes and masks of the tables above."""
    works = [("float16", shape_of(keys, "padding"), "padding") for keys in ROW_LENGTHS]
    works += [("float16", shape_of(keys, mask), mask) for mask, table in MASKS_ROW_LENGTHS.items() for keys in table]
    works += [
        (dtype, shape_of(keys, mask), mask)
        for dtype, table in TYPES_ROW_LENGTHS.items()
        for keys in table
        for mask in ("padding", "lengths")
    ]
    return works + [("float16", shape, "few-rows") for shape in FEW_ROWS]


def shape_of(keys: int, mask: str) -> tuple[int, ...]:
    """[B, H, Sq, Sk] of about ELEMENTS scores."""
    if mask == "causal":
        heads = max(1, min(HEADS, ELEMENTS // (BATCH * keys * keys)))
        return (max(1, ELEMENTS // (heads * keys * keys)), heads, keys, keys)
    return (BATCH, HEADS, max(1, ELEMENTS // (BATCH * HEADS * keys)), keys)


def work_name(shape: tuple[int, ...], mask: str) -> str:
    batch, heads, queries, keys = shape
    return f"B{batch} H{heads} {queries}x{keys} {mask}"


def full_name(dtype: str, shape: tuple[int, ...], mask: str) -> str:
    return f"{work_name(shape, mask)} {dtype}"


def measure(dtype: str, shape: tuple[int, ...], mask: str, bandwidth: float, *, has_peers: bool) -> Row:
    """One work: our kernel and its peers in turn, on the same scores."""
    torch.manual_seed(shape[-1])
    scores = torch.randn(*shape, device="cuda", dtype=TORCH_DTYPES[dtype])
    operand = make_mask(mask, shape, scores.dtype)
    probabilities = torch.empty_like(scores)
    candidates = {"ours": our_kernel(dtype, scores, operand, mask, probabilities)}
    if has_peers:
        candidates |= softmax_peers(scores, operand, mask, masked_softmax, SCALE)
    candidates["ours"]()
    difference = (probabilities - masked_softmax(scores, operand, mask)).abs().max().item()
    elapsed = graph_replay_us(candidates)
    return Row(
        work=work_name(shape, mask),
        dtype=dtype,
        ours_us=elapsed.pop("ours"),
        peers_us=elapsed,
        bound_us=bytes_moved(scores, operand, mask) / bandwidth,
        notes={"largest_difference_from_torch": difference},
    )


def bytes_moved(scores: torch.Tensor, operand: torch.Tensor | None, mask: str) -> float:
    """Scores that an allowed key has, all probabilities, and the mask once."""
    queries, keys = scores.shape[-2:]
    read = 1.0
    if mask == "causal":
        read = (keys + 1) / 2 / keys
    elif mask == "lengths":
        read = operand.sum().item() / operand.numel() / keys
    return scores.nbytes * (1 + read) + (operand.nbytes if operand is not None else 0)


def make_mask(mask: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
    """bool (true may attend), additive, or lengths [B]."""
    batch, _, queries, keys = shape
    if mask in ("plain", "few-rows", "causal"):
        return None
    if mask == "bias":
        return torch.randn(batch, 1, queries, keys, device="cuda", dtype=dtype)
    if mask == "keep":
        return torch.rand(batch, 1, queries, keys, device="cuda") < 0.9
    lengths = torch.randint(keys * 7 // 8, keys + 1, (batch,), device="cuda", dtype=torch.int32)
    if mask == "lengths":
        return lengths
    keep = keep_of(lengths, keys)
    if mask == "padding":
        return keep
    return torch.zeros(keep.shape, device="cuda", dtype=dtype).masked_fill(~keep, torch.finfo(dtype).min)


def keep_of(lengths: torch.Tensor, keys: int) -> torch.Tensor:
    return (torch.arange(keys, device="cuda") < lengths[:, None])[:, None, None, :]


def our_kernel(
    dtype: str, scores: torch.Tensor, operand: torch.Tensor | None, mask: str, out: torch.Tensor
) -> Callable[[], None]:
    operands = {}
    if operand is not None:
        role, operand_dtype = Role.BIAS, DTYPES[dtype]
        if mask == "lengths":
            role, operand_dtype = Role.KV_LENGTHS, np.dtype(np.int32)
        elif operand.dtype == torch.bool:
            role, operand_dtype = Role.KEEP, np.dtype(bool)
        operands[role] = (operand.data_ptr(), tuple(operand.shape), operand_dtype)
    causal = CausalMode.BOTTOM_RIGHT if mask == "causal" else CausalMode.NONE
    config = MaskedSoftmax(operands=tuple(operands), scale=SCALE, causal=causal)
    params = make_params(scores.data_ptr(), out.data_ptr(), tuple(scores.shape), DTYPES[dtype], config, operands)
    kept_alive = (scores, operand, out)

    def run() -> None:
        status = launch(params, torch.cuda.current_stream().cuda_stream)
        assert status == 0 and kept_alive, f"CUDA error {status}"

    return run


def masked_softmax(scores: torch.Tensor, operand: torch.Tensor | None, mask: str) -> torch.Tensor:
    scaled = scores * SCALE
    if mask == "causal":
        queries, keys = scores.shape[-2:]
        operand = torch.ones(queries, keys, device=scores.device, dtype=torch.bool).tril(keys - queries)
    elif mask == "lengths":
        operand = keep_of(operand, scores.shape[-1])
    if operand is None:
        return torch.softmax(scaled, dim=-1)
    is_keep = operand.dtype == torch.bool
    return torch.softmax(scaled.where(operand, float("-inf")) if is_keep else scaled + operand, dim=-1)


def describe(row: Row) -> str:
    peers_text = ", ".join(f"{name} {us:.0f}" for name, us in row.peers_us.items())
    share = row.bound_us / row.ours_us
    return f"{row.work} {row.dtype}: {row.ours_us:.0f} us, {share:.0%} of streaming bandwidth; {peers_text}"


if __name__ == "__main__":
    sys.exit(main())
