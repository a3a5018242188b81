"""Counters of one kernel launch by Nsight Compute, and what they say of it.

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
from collections.abc import Callable, Mapping, Sequence

import torch

from benchmarks.results_file import Row, write_results

__all__ = ["main"]

TIME = "gpu__time_duration.sum"
CYCLES = "sm__cycles_active.avg"
TENSOR = "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active"
MEMORY = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
ISSUED = "smsp__inst_executed.sum"
PIPES = {"alu": 2, "fma": 1, "xu": 8}
"""Cycles that an instruction of a warp keeps a pipe of a scheduler: 16, 32 and 4 lanes a cycle. `xu` has the
exponentials, `alu` maxima, comparisons and conversions."""
STALLS = "smsp__pcsamp_warps_issue_stalled_"
SCHEDULERS = 4
"""Of a multiprocessor."""

WARM_LAUNCHES = 3


def main(
    module: str,
    results: str,
    kernels: str,
    works: Mapping[str, Callable[[], Callable[[], object]]],
    profiled: Sequence[str],
    argv: list[str] | None = None,
) -> int:
    """The command line of a benchmark that profiles: results/RESULTS.json, one row for each of the works asked for.

    module: to be run again, under Nsight Compute. kernels: a regular expression that their names match. works: by
    name with its type as last word, what makes its tensors and returns the call. profiled: those by default.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--launch", metavar="WORK", help=argparse.SUPPRESS)  # what Nsight Compute runs
    parser.add_argument("works", nargs="*", default=profiled, metavar="WORK", help="name and type of a work")
    options = parser.parse_args(argv)
    if options.launch:
        _launch(works[options.launch]())
        return 0
    unknown = [name for name in options.works if name not in works]
    if unknown:
        print(f"no work is called {unknown[0]!r}; there are: {', '.join(works)}", file=sys.stderr)
        return 1
    if shutil.which("ncu") is None:
        print("ncu is not on the path; install NVIDIA Nsight Compute", file=sys.stderr)
        return 1
    rows = []
    for name in options.works:
        try:
            metrics = _profile(module, kernels, name)
        except RuntimeError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
        found = _shares(metrics, torch.cuda.get_device_properties(0).multi_processor_count)
        print(f"{name}: {metrics[TIME]:.1f} us; {', '.join(f'{key} {share:.0%}' for key, share in found.items())}")
        work, dtype = name.rsplit(" ", 1)
        rows.append(Row(work, dtype, metrics[TIME], {}, 0.0, {"shares": found}))
    print(write_results(results, rows))
    return 0


def _launch(run: Callable[[], object]) -> None:
    """The table's choice, a few times."""
    for _ in range(WARM_LAUNCHES + 1):
        run()
    torch.cuda.synchronize()


def _profile(module: str, kernels: str, name: str) -> dict[str, float]:
    """The metrics of the last of a work's launches. Raises RuntimeError with what Nsight Compute said."""
    counters = [TIME, CYCLES, TENSOR, MEMORY, ISSUED, *(f"smsp__inst_executed_pipe_{pipe}.sum" for pipe in PIPES)]
    command = [
        "ncu", "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
        "--kernel-name", f"regex:{kernels}", "--launch-skip", str(WARM_LAUNCHES), "--launch-count", "1",
        "--metrics", ",".join([*counters, "group:smsp__pcsamp_warp_stall_reasons"]),
        sys.executable, "-m", module, "--launch", name,
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


def _shares(metrics: Mapping[str, float], multiprocessors: int) -> dict[str, float]:
    """Of the active cycles: what each unit was busy. Of the samples of warps: why they did not issue."""
    slots = metrics[CYCLES] * multiprocessors * SCHEDULERS
    busy = {"memory": metrics[MEMORY] / 100, "tensor": metrics[TENSOR] / 100, "issue": metrics[ISSUED] / slots}
    busy |= {pipe: metrics[f"smsp__inst_executed_pipe_{pipe}.sum"] * cycles / slots for pipe, cycles in PIPES.items()}
    samples = {key.removeprefix(STALLS): count for key, count in metrics.items() if key.startswith(STALLS)}
    samples = {reason: count for reason, count in samples.items() if not reason.endswith("not_issued")}
    whole = sum(samples.values())
    reasons = sorted(samples, key=samples.__getitem__, reverse=True)
    return busy | {f"waits: {reason}": samples[reason] / whole for reason in reasons if samples[reason] >= whole / 20}
