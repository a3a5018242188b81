"""Commands on engines: run, probe, doctor, and build, which is in a file of its own."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from attngraft.cli.build import add_build
from attngraft.cli.options import Commands, add_backend, add_command, progress_of

__all__ = ["add_commands"]


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
    add_build(commands)

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
