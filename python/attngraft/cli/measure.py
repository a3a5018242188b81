"""Commands that measure engines: bench, profile."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from attngraft.cli.options import Commands, add_command, add_shape, fixed_shapes, progress_of
from attngraft.errors import EngineError

if TYPE_CHECKING:
    from attngraft.report.bench import BenchReport
    from attngraft.runtime.sweep import Length, Sweep

__all__ = ["add_commands"]

RUNS_A_TURN = 20
ROUNDS = 20
PROFILED_RUNS = 50

STANDARD_OUTPUT = "-"

MODES = {"graph": ("graph",), "plain": ("plain",), "both": ("plain", "graph")}


def _bench(arguments: argparse.Namespace) -> int:
    from attngraft.engine.device import describe_device
    from attngraft.report.bench import BenchReport
    from attngraft.runtime.sweep import sweep_engines

    sweep, modes = _sweep(arguments), MODES[arguments.mode]
    _check_targets(arguments, sweep)
    made_by, points = sweep_engines(
        arguments.engine,
        sweep,
        modes=modes,
        rounds=ROUNDS if arguments.rounds is None else arguments.rounds,
        runs=RUNS_A_TURN,
        seconds=arguments.seconds,
        seed=arguments.seed,
        progress=progress_of(arguments),
    )
    device = describe_device()
    _tell(
        BenchReport(
            device=None if device is None else device.name,
            engines=tuple(arguments.engine),
            made_by=tuple(made_by),
            modes=modes,
            runs=RUNS_A_TURN,
            points=tuple(points),
            length=sweep.length.title if sweep.length else None,
        ),
        arguments,
    )
    return 0


def _tell(report: BenchReport, arguments: argparse.Namespace) -> None:
    """The table or the JSON on standard output, and the files that were asked for, all of them or none."""
    from attngraft.engine.files import write_atomically
    from attngraft.report.bench import bench_json, bench_lines
    from attngraft.report.bench_page import bench_page
    from attngraft.report.latency_plot import latency_plots, latency_svg

    text = json.dumps(bench_json(report), indent=2)
    print(text if arguments.json == STANDARD_OUTPUT else "\n".join(bench_lines(report)))
    files: dict[Path, bytes] = {}
    if arguments.json not in (None, STANDARD_OUTPUT):
        files[Path(arguments.json)] = f"{text}\n".encode()
    if arguments.html is not None:
        files[arguments.html] = bench_page(report).encode()
    if arguments.svg is not None:
        files[arguments.svg] = latency_svg(latency_plots(report)).encode()
    write_atomically(files)
    if arguments.json != STANDARD_OUTPUT:  # where the JSON is to be read by a program
        for path in files:
            print(f"wrote {path}")


def _check_targets(arguments: argparse.Namespace, sweep: Sweep) -> None:
    """What would be known only after minutes of measuring."""
    named = (arguments.html, arguments.svg, None if arguments.json == STANDARD_OUTPUT else arguments.json)
    for path in (Path(name) for name in named if name is not None):
        if not path.absolute().parent.is_dir():
            raise EngineError(f"{path}: there is no such folder; make it or choose another path")
    sizes = (sweep.batches, sweep.length.sizes if sweep.length else ())
    if arguments.svg is not None and all(len(set(size)) < 2 for size in sizes):
        raise EngineError("--svg: there is nothing to plot against; give --batch or --length two sizes or more")
    if arguments.seconds is not None and not 0 < arguments.seconds < float("inf"):
        raise EngineError(f"--seconds {arguments.seconds:g}: give a time above 0")


def _sweep(arguments: argparse.Namespace) -> Sweep:
    """The inputs that the options speak of; `profile` has no sizes to sweep over."""
    from attngraft.runtime.run_inputs import read_input_option
    from attngraft.runtime.sweep import Sweep

    return Sweep(
        given=dict(read_input_option(option) for option in arguments.input),
        shapes=fixed_shapes(arguments.shape) or {},
        batches=_sizes(arguments.batch, "--batch") if arguments.batch is not None else (),
        length=_length(arguments.length) if arguments.length is not None else None,
    )


def _sizes(text: str, option: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise EngineError(f"{option} {text!r}: not understood; give sizes above 0 as 1,8,32")
    return tuple(dict.fromkeys(int(part) for part in parts))


def _length(option: str) -> Length:
    from attngraft.runtime.sweep import Length

    names, separator, sizes = option.rpartition("=")
    axes = []
    for text in names.split(","):
        name, dot, axis = text.rpartition(".")
        if not (separator and dot and name and axis.isascii() and axis.isdigit()):
            raise EngineError(f"--length {option!r}: not understood; write INPUT.AXIS=128,256 or A.1,B.1=128,256")
        axes.append((name, int(axis)))
    return Length(tuple(axes), _sizes(sizes, f"--length {names}="))


def _profile(arguments: argparse.Namespace) -> int:
    from attngraft.onnx_graph import load_model
    from attngraft.report.profile import profile_json, profile_lines
    from attngraft.runtime.layer_times import time_layers
    from attngraft.runtime.site_times import group_by_site

    model = None if arguments.model is None else load_model(arguments.model)
    times = time_layers(
        arguments.engine,
        _sweep(arguments),
        runs=arguments.runs,
        seed=arguments.seed,
        progress=progress_of(arguments),
    )
    sites = group_by_site(times, model)
    print(
        json.dumps(profile_json(times, sites), indent=2) if arguments.json else "\n".join(profile_lines(times, sites))
    )
    return 0


def _add_inputs(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--input", action="append", default=[], metavar="NAME=FILE.npy", help="an input; others are made up"
    )
    add_shape(
        command, "NAME=DIMS", "shape of an input that is made up, such as x=8x384; default the profile's usual one"
    )
    command.add_argument("--seed", type=int, default=0, help="of the inputs that are made up (default 0)")


def _add_bench(commands: Commands) -> None:
    bench = add_command(commands, "bench", _bench, "time engines against each other, part by part of a run")
    bench.add_argument("engine", type=Path, nargs="+", metavar="ENGINE", help="several take turns")
    _add_inputs(bench)
    bench.add_argument("--batch", metavar="N,N,...", help="sizes of the inputs' dynamic first dimension, each timed")
    bench.add_argument(
        "--length",
        metavar="INPUT.AXIS=N,N,...",
        help="sizes of another dimension, each timed; several that grow together as A.1,B.1=128,256",
    )
    bench.add_argument(
        "--mode", choices=tuple(MODES), default="both", help="replay a CUDA graph, enqueue plainly, or both (default)"
    )
    duration = bench.add_mutually_exclusive_group()
    duration.add_argument(
        "--rounds", type=int, metavar="N", help=f"each engine's turns of {RUNS_A_TURN} runs (default {ROUNDS})"
    )
    duration.add_argument(
        "--seconds", type=float, metavar="S", help="as many rounds as begin in that time, at each size"
    )
    bench.add_argument(
        "--json", metavar="FILE", help="write the percentiles as JSON; - prints them in place of the table"
    )
    bench.add_argument("--html", type=Path, metavar="FILE", help="write one page with plots and table")
    bench.add_argument(
        "--svg", type=Path, metavar="FILE", help="write the plots of latency against --batch or --length"
    )


def _add_profile(commands: Commands) -> None:
    profile = add_command(commands, "profile", _profile, "show GPU time by attention site and by layer")
    profile.add_argument("engine", type=Path, metavar="ENGINE")
    profile.add_argument(
        "--model", type=Path, metavar="MODEL", help="the ONNX file that it was built from, whose sites are told apart"
    )
    _add_inputs(profile)
    profile.add_argument(
        "--runs",
        type=int,
        default=PROFILED_RUNS,
        metavar="N",
        help=f"runs to take medians of (default {PROFILED_RUNS})",
    )
    profile.add_argument("--json", action="store_true", help="print all layers and sites as JSON")
    profile.set_defaults(batch=None, length=None)


def add_commands(commands: Commands) -> None:
    _add_bench(commands)
    _add_profile(commands)
