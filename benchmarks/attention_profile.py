"""What keeps the attention kernels busy, and what they wait for, by Nsight Compute: results/attention-profile.json.

Needs `ncu` on the path and leave to read the GPU's counters. The clocks are left as they are. Shares of the pipes come
from counted instructions and from what a multiprocessor issues in a cycle (CUDA C++ Programming Guide, throughput of
arithmetic instructions, compute capability 9.0).
"""

from __future__ import annotations

import argparse
import csv
import shutil
import subprocess
import sys
from collections.abc import Mapping

import torch

from benchmarks.attention_kernel import our_kernel
from benchmarks.attention_works import WORKS, Work, make_tensors
from benchmarks.results_file import Row, write_results

__all__ = ["PROFILED", "main", "shares"]

PROFILED = (
    "B8 H12 S384 d64 float16",
    "B8 H12 S384 d64 lengths float16",
    "B1 H8 S4096 d64 float16",
    "B1 H8 S4096 d64 causal float16",
    "B1 H8 S4096 d64 softcap float16",
    "B4 H16 S4096 d128 float16",
    "B1 H32 1x4096 d128 float16",
)

TIME = "gpu__time_duration.sum"
CYCLES = "sm__cycles_active.avg"
TENSOR = "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active"
ISSUED = "smsp__inst_executed.sum"
PIPES = {"alu": 2, "fma": 1, "xu": 8}
"""Cycles that an instruction of a warp keeps a pipe of a scheduler: 16, 32 and 4 lanes a cycle. `xu` has the
exponentials, `alu` maxima, comparisons and conversions."""
STALLS = "smsp__pcsamp_warps_issue_stalled_"
SCHEDULERS = 4
"""Of a multiprocessor."""

WARM_LAUNCHES = 3


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--launch", metavar="WORK", help=argparse.SUPPRESS)  # what Nsight Compute runs
    parser.add_argument("works", nargs="*", default=PROFILED, metavar="WORK", help="name and type of a work")
    options = parser.parse_args(argv)
    known = {f"{work.name} {work.dtype}": work for work in WORKS}
    if options.launch:
        launch(known[options.launch])
        return 0
    unknown = [name for name in options.works if name not in known]
    if unknown:
        print(f"no work is called {unknown[0]!r}; there are: {', '.join(known)}", file=sys.stderr)
        return 1
    if shutil.which("ncu") is None:
        print("ncu is not on the path; install NVIDIA Nsight Compute", file=sys.stderr)
        return 1
    rows = []
    for name in options.works:
        try:
            metrics = profile(name)
        except RuntimeError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
        found = shares(metrics, torch.cuda.get_device_properties(0).multi_processor_count)
        print(f"{name}: {metrics[TIME]:.1f} us; {', '.join(f'{key} {share:.0%}' for key, share in found.items())}")
        work = known[name]
        rows.append(Row(work.name, work.dtype, metrics[TIME], {}, 0.0, {"shares": found}))
    print(write_results("attention-profile", rows))
    return 0


def launch(work: Work) -> None:
    """The table's choice, a few times."""
    run = our_kernel(work, make_tensors(work, "cuda"))
    for _ in range(WARM_LAUNCHES + 1):
        run()
    torch.cuda.synchronize()


def profile(name: str) -> dict[str, float]:
    """The metrics of the last of a work's launches. Raises RuntimeError with what Nsight Compute said."""
    counters = [TIME, CYCLES, TENSOR, ISSUED, *(f"smsp__inst_executed_pipe_{pipe}.sum" for pipe in PIPES)]
    command = [
        "ncu", "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
        "--kernel-name", "regex:[aA]ttentionKernel", "--launch-skip", str(WARM_LAUNCHES), "--launch-count", "1",
        "--metrics", ",".join([*counters, "group:smsp__pcsamp_warp_stall_reasons"]),
        sys.executable, "-m", "benchmarks.attention_profile", "--launch", name,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    if done.returncode != 0 or len(lines) < 3:
        said = [line for line in (done.stdout + done.stderr).splitlines() if "==ERROR==" in line]
        raise RuntimeError(f"ncu measured nothing: {said[0] if said else done.stderr.strip()[-200:]}")
    names, _units, values = csv.reader([lines[0], lines[1], lines[-1]])
    metrics = {}
    for key, text in zip(names, values, strict=True):
        try:
            metrics[key] = float(text.replace(",", ""))
        except ValueError:
            continue  # a name, or what this device does not count
    metrics[TIME] /= 1e3  # nanoseconds, as the base unit is
    return metrics


def shares(metrics: Mapping[str, float], multiprocessors: int) -> dict[str, float]:
    """Of the active cycles: what each unit was busy. Of the samples of warps: why they did not issue."""
    slots = metrics[CYCLES] * multiprocessors * SCHEDULERS
    busy = {"tensor": metrics[TENSOR] / 100, "issue": metrics[ISSUED] / slots}
    busy |= {pipe: metrics[f"smsp__inst_executed_pipe_{pipe}.sum"] * cycles / slots for pipe, cycles in PIPES.items()}
    samples = {key.removeprefix(STALLS): count for key, count in metrics.items() if key.startswith(STALLS)}
    samples = {reason: count for reason, count in samples.items() if not reason.endswith("not_issued")}
    whole = sum(samples.values())
    reasons = sorted(samples, key=samples.__getitem__, reverse=True)
    return busy | {f"waits: {reason}": samples[reason] / whole for reason in reasons if samples[reason] >= whole / 20}


if __name__ == "__main__":
    sys.exit(main())
