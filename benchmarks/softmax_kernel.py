"""The masked softmax kernel alone against PyTorch, over row lengths and types: results/softmax-kernel.json.

Work: scale, mask and softmax of scores [B, H, Sq, Sk] from one tensor into another, `B8 H32 2048x2048` and about as
many bytes for every other row length. Masks: `padding`, booleans [B, 1, 1, Sk] with lengths drawn from 7/8 Sk to Sk;
`additive`, the same as numbers of the scores' type, 0 and the type's lowest; `plain`, none.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from attngraft.contract import MaskedSoftmax, Role
from benchmarks.results_file import Row, write_results
from benchmarks.timing import graph_replay_us, streaming_bandwidth

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "gpu"))
from kernel_abi import DTYPES, launch, make_params  # noqa: E402 - found through the line above

BATCH, HEADS = 8, 32
SCALE = 0.125
ELEMENTS = 1 << 30
"""Scores of every work: 2 GiB in fp16, read once and written once, far beyond any cache."""

ROW_LENGTHS = (128, 197, 256, 384, 512, 1024, 1500, 2048, 4096, 8192, 16384, 32768, 131072)
OTHER_MASKS_ROW_LENGTHS = (2048,)
OTHER_TYPES_ROW_LENGTHS = (384, 2048)
"""Row lengths that fp32 and bf16 are measured at; compiling the peers takes most of the time."""

TORCH_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--row-length", type=int, action="append", help="measure only these, in fp16 (repeatable)")
    options = parser.parse_args()
    works = [("float16", keys, "padding") for keys in options.row_length or ROW_LENGTHS]
    if not options.row_length:
        works += [("float16", keys, mask) for mask in ("additive", "plain") for keys in OTHER_MASKS_ROW_LENGTHS]
        works += [(dtype, keys, "padding") for dtype in ("float32", "bfloat16") for keys in OTHER_TYPES_ROW_LENGTHS]
    bandwidth = streaming_bandwidth()
    print(f"streaming bandwidth {bandwidth / 1e3:.0f} GB/s", flush=True)
    rows = []
    for work in works:
        rows.append(measure(*work, bandwidth))
        print(describe(rows[-1]), flush=True)
    print(write_results("softmax-kernel", rows))
    return 0


def measure(dtype: str, keys: int, mask: str, bandwidth: float) -> Row:
    """One work: our kernel and its peers in turn, on the same scores."""
    queries = max(1, ELEMENTS // (BATCH * HEADS * keys))
    torch.manual_seed(keys)
    scores = torch.randn(BATCH, HEADS, queries, keys, device="cuda", dtype=TORCH_DTYPES[dtype])
    operand = make_mask(mask, keys, scores.dtype)
    probabilities = torch.empty_like(scores)

    candidates = {"ours": our_kernel(dtype, scores, operand, probabilities), **peers(scores, operand)}
    candidates["ours"]()
    difference = (probabilities - masked_softmax(scores, operand)).abs().max().item()
    elapsed = graph_replay_us(candidates)
    return Row(
        work=f"B{BATCH} H{HEADS} {queries}x{keys} {mask}",
        dtype=dtype,
        ours_us=elapsed.pop("ours"),
        peers_us=elapsed,
        bound_us=(scores.nbytes + probabilities.nbytes) / bandwidth,
        notes={"largest_difference_from_torch": difference},
    )


def make_mask(mask: str, keys: int, dtype: torch.dtype) -> torch.Tensor | None:
    """[B, 1, 1, Sk]; bool (true may attend) or additive."""
    if mask == "plain":
        return None
    lengths = torch.randint(keys * 7 // 8, keys + 1, (BATCH,), device="cuda")
    keep = (torch.arange(keys, device="cuda") < lengths[:, None])[:, None, None, :]
    if mask == "padding":
        return keep
    return torch.zeros(keep.shape, device="cuda", dtype=dtype).masked_fill(~keep, torch.finfo(dtype).min)


def our_kernel(dtype: str, scores: torch.Tensor, mask: torch.Tensor | None, out: torch.Tensor) -> Callable[[], None]:
    operands = {}
    if mask is not None:
        role = Role.KEEP if mask.dtype == torch.bool else Role.BIAS
        operand_dtype = np.dtype(bool) if role == Role.KEEP else DTYPES[dtype]
        operands[role] = (mask.data_ptr(), tuple(mask.shape), operand_dtype)
    config = MaskedSoftmax(operands=tuple(operands), scale=SCALE)
    params = make_params(scores.data_ptr(), out.data_ptr(), tuple(scores.shape), DTYPES[dtype], config, operands)
    kept_alive = (scores, mask, out)

    def run() -> None:
        status = launch(params, torch.cuda.current_stream().cuda_stream)
        assert status == 0 and kept_alive, f"CUDA error {status}"

    return run


def masked_softmax(scores: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    scaled = scores * SCALE
    if mask is None:
        return torch.softmax(scaled, dim=-1)
    return torch.softmax(scaled.where(mask, float("-inf")) if mask.dtype == torch.bool else scaled + mask, dim=-1)


def peers(scores: torch.Tensor, mask: torch.Tensor | None) -> dict[str, Callable[[], object]]:
    """`torch-softmax` neither scales nor masks: what PyTorch's own kernel takes for the softmax alone."""
    torch.compiler.reset()
    compiled = torch.compile(masked_softmax, dynamic=False)
    return {
        "torch-eager": lambda: masked_softmax(scores, mask),
        "torch-compile": lambda: compiled(scores, mask),
        "torch-softmax": lambda: torch.softmax(scores, dim=-1),
    }


def describe(row: Row) -> str:
    peers_text = ", ".join(f"{name} {us:.0f}" for name, us in row.peers_us.items())
    share = row.bound_us / row.ours_us
    return f"{row.work} {row.dtype}: {row.ours_us:.0f} us, {share:.0%} of streaming bandwidth; {peers_text}"


if __name__ == "__main__":
    sys.exit(main())
