"""The fused attention kernel alone against PyTorch's attention: results/attention-kernel.json.

Before anything is timed, every kernel of ours is checked against attention in float64, in an output that was poisoned
with NaN; a wrong one is not timed, is named in the row's notes, and makes the exit status 1. `ours` is what the
kernels' table chooses; the times of all variants that serve a work are in its notes.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.attention_works import WORKS, Tensors, Work, make_tensors, reference_context
from benchmarks.results_file import Row, write_results
from benchmarks.timing import graph_replay_us, matrix_rate, streaming_bandwidth
from benchmarks.zoo.arguments import pattern

for _folder in ("gpu", "python"):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / _folder))
from attention_abi import FusedAttentionParams  # noqa: E402 - found through the lines above
from attention_cases import TOLERANCES  # noqa: E402
from attention_device import (  # noqa: E402
    attention_variants,
    launch_attention,
    params_of_tensors,
    workspace_bytes,
)

OURS = "ours"

FLASH = "torch-sdpa-flash"
BACKENDS = {
    FLASH: SDPBackend.FLASH_ATTENTION,
    "torch-sdpa-cudnn": SDPBackend.CUDNN_ATTENTION,
    "torch-sdpa-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "torch-sdpa-math": SDPBackend.MATH,
}
WHERE_FLASH_REFUSES = frozenset({"torch-sdpa-efficient", "torch-sdpa-math"})
"""Backends that are asked only there: under masks, in fp32, with large heads. Elsewhere they are far behind."""

Candidate = Callable[[], torch.Tensor]
"""Enqueues one attention on PyTorch's current stream and returns the context [B,H,Sq,D]."""


@dataclass
class Found:
    """The candidates of a work that can be timed, and what is to be said of them and the others."""

    candidates: dict[str, Candidate] = field(default_factory=dict)
    chosen: int = 0
    """The variant that `ours` is."""
    differences: dict[str, float] = field(default_factory=dict)
    """The largest from attention in float64."""
    refused: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)

    def notes(self, variants: Mapping[str, float]) -> dict[str, object]:
        notes = {"variants_us": variants, "largest_difference": self.differences, "refused": self.refused}
        return {key: value for key, value in {**notes, "wrong": self.wrong}.items() if value}


@dataclass(frozen=True)
class Limits:
    """The device's measured rates, in bytes and operations a microsecond."""

    bandwidth: float
    rates: Mapping[str, float]

    def bound_us(self, work: Work) -> float:
        """The longer of the time for its operations and that for its bytes."""
        return max(work.operations() / self.rates[work.dtype], work.bytes() / self.bandwidth)


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    deadline = time.monotonic() + options.time_limit
    works = [work for work in WORKS if options.only.search(f"{work.name} {work.dtype}")]
    if not works:
        print(
            f"--only {options.only.pattern!r} finds none of: {', '.join(work.name for work in WORKS)}", file=sys.stderr
        )
        return 1
    limits = measured_limits(works)
    rows: list[Row] = []
    try:
        for work in works:
            if time.monotonic() > deadline:
                print("time is up; --only picks what is left", file=sys.stderr)
                break
            rows.append(measure(work, limits, with_variants=options.variants, with_flex=options.flex))
            print(describe(rows[-1]), flush=True)
    finally:  # what was measured before a kernel failed is worth keeping
        if rows:
            print(write_results("attention-kernel", rows))
    wrong = [f"{row.work} {row.dtype}: {row.notes['wrong']}" for row in rows if "wrong" in row.notes]
    for line in wrong:
        print(f"WRONG RESULT: {line}", file=sys.stderr)
    return 1 if wrong else 0


def measured_limits(works: list[Work]) -> Limits:
    rates = {work.dtype: work.torch_dtype for work in works}
    limits = Limits(streaming_bandwidth(), {name: matrix_rate(dtype) for name, dtype in rates.items()})
    shown = ", ".join(f"{name} {rate / 1e6:.0f} TFLOP/s" for name, rate in limits.rates.items())
    print(f"streaming bandwidth {limits.bandwidth / 1e3:.0f} GB/s; {shown}", flush=True)
    return limits


def measure(work: Work, limits: Limits, *, with_variants: bool, with_flex: bool) -> Row:
    """One work: our kernels and their peers in turn, on the same tensors."""
    tensors = make_tensors(work, "cuda")
    expected = reference_context(work, tensors)
    found = Found()
    _add_ours(found, work, tensors, expected, with_variants)
    _add_peers(found, work, tensors, expected, with_flex)
    del expected
    elapsed = graph_replay_us(found.candidates)
    ours = elapsed.pop(OURS, None)
    variants = {name: elapsed.pop(name) for name in list(elapsed) if name.startswith("variant ")}
    if ours is not None:
        variants = {f"variant {found.chosen}": ours, **variants}
    return Row(work.name, work.dtype, ours, elapsed, limits.bound_us(work), found.notes(variants))


def _add_ours(found: Found, work: Work, tensors: Tensors, expected: torch.Tensor, with_variants: bool) -> None:
    """The table's choice, and each other variant that serves the work."""
    variants = attention_variants(_params(work, tensors))
    if not variants:
        found.wrong[OURS] = "no variant serves this work"
        return
    found.chosen = variants[0]
    others = {f"variant {number}": number for number in variants[1:]} if with_variants else {}
    for name, number in {OURS: 0, **others}.items():
        candidate = our_kernel(work, tensors, number)
        tensors.context.fill_(float("nan"))
        try:
            difference = _difference(candidate(), expected)
        except LaunchError as error:
            found.wrong[name] = str(error)
            continue
        allowed = TOLERANCES[work.dtype] * expected.abs().max().item()
        if not difference <= allowed:  # true for NaN too
            found.wrong[name] = f"differs by {difference:.3g} from attention in float64; {allowed:.3g} is allowed"
            continue
        found.differences[name] = difference
        found.candidates[name] = candidate


class LaunchError(RuntimeError):
    """Our launch returned an error; nothing was enqueued."""


def _params(work: Work, tensors: Tensors, variant: int = 0) -> FusedAttentionParams:
    return params_of_tensors(tensors.q, tensors.k, tensors.v, tensors.context, work.config, tensors.operands, variant)


def our_kernel(work: Work, tensors: Tensors, variant: int = 0) -> Candidate:
    params = _params(work, tensors, variant)
    workspace = torch.full((workspace_bytes(params) // 4 + 1,), float("nan"), device=tensors.q.device)
    params.workspace = workspace.data_ptr()
    kept_alive = (tensors, workspace)

    def run() -> torch.Tensor:
        status = launch_attention(params, torch.cuda.current_stream().cuda_stream)
        if status != 0 or not kept_alive:
            raise LaunchError(f"the launch returned CUDA error {status}")
        return tensors.context

    return run


def _difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest absolute one; NaN if there is a NaN."""
    return (actual.double() - expected).abs().max().item()


def _add_peers(found: Found, work: Work, tensors: Tensors, expected: torch.Tensor, with_flex: bool) -> None:
    for name, candidate in peers(work, tensors, with_flex).items():
        if name in WHERE_FLASH_REFUSES and FLASH in found.candidates:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # why a backend refuses, a line for each reason
                found.differences[name] = _difference(candidate(), expected)
        except Exception as error:  # RuntimeError from SDPA, several classes from the compiler
            found.refused[name] = " ".join(str(error).split())[:200]
            continue
        found.candidates[name] = candidate


def peers(work: Work, tensors: Tensors, with_flex: bool) -> dict[str, Candidate]:
    """PyTorch's ways to do the same, whether or not they take this work. Its SDPA has no softcap."""
    if not work.softcap:
        return {name: functools.partial(_sdpa, work, tensors, backend) for name, backend in BACKENDS.items()}
    found: dict[str, Candidate] = {"torch-eager": functools.partial(_eager_softcap, work, tensors)}
    if with_flex:
        found["torch-flex"] = _flex_softcap(work, tensors)
    return found


def _sdpa(work: Work, tensors: Tensors, backend: SDPBackend) -> torch.Tensor:
    with sdpa_kernel(backend):
        return functional.scaled_dot_product_attention(
            tensors.q, tensors.k, tensors.v, attn_mask=tensors.mask, is_causal=work.causal,
            scale=work.config.scale, enable_gqa=bool(work.kv_heads),
        )  # fmt: skip


def _eager_softcap(work: Work, tensors: Tensors) -> torch.Tensor:
    group = work.heads // (work.kv_heads or work.heads)
    k, v = (tensor.repeat_interleave(group, dim=1) if group > 1 else tensor for tensor in (tensors.k, tensors.v))
    scores = torch.tanh(tensors.q @ k.transpose(-1, -2) * (work.config.scale / work.softcap)) * work.softcap
    if work.causal:
        above = torch.ones(work.queries, work.keys, dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(above, -math.inf)
    return torch.softmax(scores, dim=-1) @ v


def _flex_softcap(work: Work, tensors: Tensors) -> Candidate:
    from torch.nn.attention.flex_attention import flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)

    def capped(score: torch.Tensor, _batch: object, _head: object, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        soft = work.softcap * torch.tanh(score / work.softcap)
        return torch.where(q >= k, soft, -math.inf) if work.causal else soft

    return lambda: compiled(
        tensors.q, tensors.k, tensors.v, score_mod=capped, scale=work.config.scale, enable_gqa=bool(work.kv_heads)
    )


def describe(row: Row) -> str:
    """One line: ours, its share of the limit, the variants and the peers."""
    ours = "none" if row.ours_us is None else f"{row.ours_us:.1f} us, {row.bound_us / row.ours_us:.0%} of the limit"
    times = {**row.notes.get("variants_us", {}), **row.peers_us}
    others = ", ".join(f"{name} {us:.1f}" for name, us in times.items())
    wrong = f"; WRONG: {row.notes['wrong']}" if "wrong" in row.notes else ""
    return f"{row.work} {row.dtype}: ours {ours}; {others}{wrong}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=pattern, default=pattern(""), metavar="REGEX",
                        help="only works whose name and type it finds, as in 'S4096 d64 causal float16'")  # fmt: skip
    parser.add_argument("--variants", action=argparse.BooleanOptionalAction, default=True,
                        help="time every variant that serves a work, or the table's choice alone")  # fmt: skip
    parser.add_argument("--flex", action="store_true", help="FlexAttention under a softcap, which takes compiling")
    parser.add_argument("--time-limit", type=float, default=float("inf"), metavar="SECONDS",
                        help="start no further work after so long")  # fmt: skip
    return parser


if __name__ == "__main__":
    sys.exit(main())
