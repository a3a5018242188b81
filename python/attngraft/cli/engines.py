"""Commands on engines: build, run, probe, doctor."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from attngraft.cli.options import (
    Commands,
    add_backend,
    add_command,
    add_lower,
    add_shape,
    add_target,
    on_this_device,
    progress_of,
)

if TYPE_CHECKING:
    from attngraft.lower import Target

__all__ = ["add_commands"]


def _build(arguments: argparse.Namespace) -> int:
    from attngraft.engine import build_engine, parse_shape_option

    shapes = dict(parse_shape_option(option) for option in arguments.shape)
    usual = {name: shape.opt for name, shape in shapes.items()}
    with tempfile.TemporaryDirectory(prefix=".attngraft-", dir=arguments.output.absolute().parent) as folder:
        result = build_engine(
            _model_to_build(arguments, usual, Path(folder)),
            arguments.output,
            backend=arguments.backend,
            shapes=shapes,
            embed_plugins=not arguments.no_embed,
            progress=progress_of(arguments),
            log_path=arguments.log,
        )
    print(
        f"wrote {result.engine_path}: {result.backend} {result.tensorrt_version}, "
        f"{result.plugin_layers} plugin layers, {result.size_bytes / 1e6:.1f} MB, {result.seconds:.1f} s"
    )
    return 0


def _model_to_build(arguments: argparse.Namespace, shapes: dict[str, tuple[int, ...]], folder: Path) -> Path:
    """The model itself where nothing is to be lowered or mended, else its rewrite in `folder`."""
    from attngraft.report.rewriting import change_lines
    from attngraft.rewrite import plan_rewrite, write_rewrite

    progress = progress_of(arguments)
    plan = plan_rewrite(arguments.model, arguments.lower, target=_build_target(arguments), progress=progress)
    if not plan.changes:
        return arguments.model
    rewritten = folder / arguments.model.name
    result = write_rewrite(plan, rewritten, verify=not arguments.no_verify, shapes=shapes or None, progress=progress)
    for line in change_lines(result):
        print(line)
    return rewritten


def _build_target(arguments: argparse.Namespace) -> Target:
    """The TensorRT that `--target` names, else the one that is going to build, on the GPU that is here."""
    from attngraft.engine.backends import find_backend
    from attngraft.lower import Target, parse_target

    if arguments.target is not None:
        return on_this_device(parse_target(arguments.target))
    backend = find_backend(arguments.backend)
    return on_this_device(Target(backend.name, backend.version_pair))


def _run(arguments: argparse.Namespace) -> int:
    import numpy as np

    from attngraft.engine.sidecar import read_card
    from attngraft.runtime import Session
    from attngraft.runtime.run_inputs import made_up_inputs, read_input_option

    given = dict(read_input_option(option) for option in arguments.input)
    made_up = made_up_inputs(read_card(arguments.engine), given, arguments.seed)
    for name, value in made_up.items():
        print(f"input {name}: made up, {value.dtype} {'x'.join(map(str, value.shape))}", file=sys.stderr)
    with Session(arguments.engine) as session:
        outputs = session.run(made_up | given)
    for name, value in outputs.items():
        print(f"{name}: {value.dtype} {'x'.join(map(str, value.shape)) or 'scalar'}")
    if arguments.output is not None:
        arguments.output.mkdir(parents=True, exist_ok=True)
        for name, value in outputs.items():
            path = arguments.output / f"{name.replace('/', '_')}.npy"
            np.save(path, np.asarray(value))
            print(f"wrote {path}")
    return 0


def _probe(arguments: argparse.Namespace) -> int:
    from attngraft.engine.probe import probe
    from attngraft.report.probe import probe_json, probe_lines

    report = probe(backend=arguments.backend, everything=arguments.all, progress=progress_of(arguments))
    print(json.dumps(probe_json(report), indent=2) if arguments.json else "\n".join(probe_lines(report)))
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from attngraft.doctor import diagnose
    from attngraft.report.table import format_table

    checks = diagnose(arguments.engine)
    words = {True: "ok", False: "MISSING", None: "absent"}
    rows = [(words[check.ok], check.name, check.detail, check.remedy or "") for check in checks]
    print(format_table(("state", "what", "found", "remedy"), rows))
    return 1 if any(check.ok is False for check in checks) else 0


def add_commands(commands: Commands) -> None:
    build = add_command(commands, "build", _build, "build a TensorRT engine")
    build.add_argument("model", type=Path, metavar="MODEL")
    build.add_argument("-o", "--output", type=Path, required=True, metavar="ENGINE", help="where the engine goes")
    add_backend(build, "that builds")
    add_target(build)
    add_lower(build)
    add_shape(build, "NAME=MIN:OPT:MAX", "shapes of an input, such as x=1x128:8x384:32x512, or one shape")
    build.add_argument("--no-embed", action="store_true", help="list the plugin library instead of embedding it")
    build.add_argument("--log", type=Path, metavar="FILE", help="write all of TensorRT's messages there")

    run = add_command(commands, "run", _run, "run an engine once")
    run.add_argument("engine", type=Path, metavar="ENGINE")
    run.add_argument(
        "--input", action="append", default=[], metavar="NAME=FILE.npy", help="an input; others are made up"
    )
    run.add_argument("--output", type=Path, metavar="DIR", help="write the outputs there as .npy files")
    run.add_argument("--seed", type=int, default=0, help="of the inputs that are made up (default 0)")

    probe = add_command(commands, "probe", _probe, "say which forms of attention the TensorRT at hand builds and fuses")
    add_backend(probe, "that is asked")
    probe.add_argument("--all", action="store_true", help="all combinations, some hundreds of builds")
    probe.add_argument("--json", action="store_true", help="print the answers as JSON")

    doctor = add_command(commands, "doctor", _doctor, "say what is installed and what is missing")
    doctor.add_argument(
        "engine", type=Path, nargs="?", metavar="ENGINE", help="say also whether this engine can run here"
    )
