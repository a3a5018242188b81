"""The command line: inspect, rewrite, verify, build, run, doctor.

Results go to standard output, progress and errors to standard error. An error is one line and exit status 1, an
interruption exit status 130; either way no file is left half-written.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attngraft.errors import AttngraftError, EngineError, VerificationError

if TYPE_CHECKING:
    from attngraft.engine.sidecar import EngineCard

__all__ = ["main"]

EXIT_ERROR = 1
EXIT_INTERRUPTED = 130
"""128 plus the number of SIGINT, as shells report it."""

LOWER_CHOICES = ("auto", "keep", "softmax", "native", "attention")

Progress = Callable[[str], None]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        status = arguments.command(arguments)
        sys.stdout.flush()
        return status
    except AttngraftError as error:
        return _fail(error)
    except KeyboardInterrupt:
        print("attngraft: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe has gone, `| head` for one; Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_ERROR
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}")


def _fail(error: object) -> int:
    print(f"attngraft: error: {' '.join(str(error).split())}", file=sys.stderr)
    return EXIT_ERROR


def _inspect(arguments: argparse.Namespace) -> int:
    from attngraft.lower import choose_lowerings
    from attngraft.match import match_model
    from attngraft.onnx_graph import load_model
    from attngraft.report.inspection import inspection_json, other_line, site_line, summary_lines

    sites = match_model(load_model(arguments.model))
    choices, reasons = choose_lowerings(sites, "auto")
    if arguments.json:
        print(json.dumps(inspection_json(str(arguments.model), sites, choices), indent=2))
        return 0
    for site in sites.sites:
        print(site_line(site, choices[site.name]))
    for other in sites.others:
        print(other_line(other))
    print("\n".join(summary_lines(sites, choices, reasons)))
    return 0


def _rewrite(arguments: argparse.Namespace) -> int:
    from attngraft.report.inspection import summary_lines
    from attngraft.rewrite import rewrite_model

    result = rewrite_model(
        arguments.model,
        arguments.output,
        lower=arguments.lower,
        verify=not arguments.no_verify,
        shapes=_fixed_shapes(arguments.shape),
        progress=_progress(arguments),
    )
    print("\n".join(summary_lines(result.sites, result.choices, result.reasons)))
    if result.report is not None:
        print(result.report)
    if not result.lowered:
        print("nothing to gain: the model is written as it was")
    print(f"wrote {result.target}")
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from attngraft.verify import verify_models

    report = verify_models(
        arguments.original,
        arguments.rewritten,
        shapes=_fixed_shapes(arguments.shape),
        seed=arguments.seed,
        progress=_progress(arguments),
    )
    print(report)
    report.raise_if_failed()
    return 0


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
            progress=_progress(arguments),
            log_path=arguments.log,
        )
    print(
        f"wrote {result.engine_path}: {result.backend} {result.tensorrt_version}, "
        f"{result.plugin_layers} plugin layers, {result.size_bytes / 1e6:.1f} MB, {result.seconds:.1f} s"
    )
    return 0


def _model_to_build(arguments: argparse.Namespace, shapes: dict[str, tuple[int, ...]], folder: Path) -> Path:
    """The model itself where nothing is to be lowered, else its rewrite in `folder`."""
    from attngraft.rewrite import plan_rewrite, write_rewrite

    plan = plan_rewrite(arguments.model, arguments.lower, progress=_progress(arguments))
    if not plan.lowered:
        return arguments.model
    return write_rewrite(
        plan,
        folder / arguments.model.name,
        verify=not arguments.no_verify,
        shapes=shapes or None,
        progress=_progress(arguments),
    ).target


def _run(arguments: argparse.Namespace) -> int:
    import numpy as np

    from attngraft.engine.sidecar import read_card
    from attngraft.runtime import Session

    given = dict(_input_option(option) for option in arguments.input)
    inputs = _missing_inputs(read_card(arguments.engine), given, arguments.seed) | given
    with Session(arguments.engine) as session:
        outputs = session.run(inputs)
    for name, value in outputs.items():
        print(f"{name}: {value.dtype} {'x'.join(map(str, value.shape)) or 'scalar'}")
    if arguments.output is not None:
        arguments.output.mkdir(parents=True, exist_ok=True)
        for name, value in outputs.items():
            path = arguments.output / f"{name.replace('/', '_')}.npy"
            np.save(path, np.asarray(value))
            print(f"wrote {path}")
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from attngraft.doctor import diagnose
    from attngraft.report.table import format_table

    checks = diagnose(arguments.engine)
    words = {True: "ok", False: "MISSING", None: "absent"}
    rows = [(words[check.ok], check.name, check.detail, check.remedy or "") for check in checks]
    print(format_table(("state", "what", "found", "remedy"), rows))
    return EXIT_ERROR if any(check.ok is False for check in checks) else 0


def _missing_inputs(card: EngineCard | None, given: Mapping[str, object], seed: int) -> dict[str, object]:
    """Random values, at the profile's usual shapes, for the inputs that no file was given for."""
    import numpy as np

    if card is None:
        return {}
    generator = np.random.default_rng(seed)
    drawn: dict[str, object] = {}
    for tensor in card.inputs:
        if tensor.name in given:
            continue
        shape = card.profile[tensor.name].opt
        if tensor.dtype == "bfloat16":
            raise EngineError(f"input {tensor.name!r} is bfloat16; give it with --input {tensor.name}=FILE.npy")
        if np.dtype(tensor.dtype).kind == "f":
            drawn[tensor.name] = generator.standard_normal(shape).astype(tensor.dtype)
        else:  # ids and masks: 1 is legal in both
            drawn[tensor.name] = np.ones(shape, dtype=tensor.dtype)
        print(f"input {tensor.name}: made up, {tensor.dtype} {'x'.join(map(str, shape))}", file=sys.stderr)
    return drawn


def _input_option(option: str) -> tuple[str, object]:
    import numpy as np

    name, separator, path = option.rpartition("=")
    if not separator or not name:
        raise EngineError(f"input {option!r}: no input name; write NAME=FILE.npy")
    try:
        return name, np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise EngineError(f"{path}: no such file; give input {name!r} as a NumPy .npy file") from None
    except ValueError:
        raise EngineError(f"{path}: is not a NumPy .npy file; save input {name!r} with numpy.save") from None


def _fixed_shapes(options: Sequence[str]) -> dict[str, tuple[int, ...]] | None:
    """Shapes for verification, NAME=1x3x224x224 each."""
    shapes: dict[str, tuple[int, ...]] = {}
    for option in options:
        name, separator, text = option.rpartition("=")
        if not separator or not name or not all(part.isdigit() for part in text.split("x")):
            raise VerificationError(f"shape {option!r}: not understood; write NAME=1x3x224x224")
        shapes[name] = tuple(int(part) for part in text.split("x"))
    return shapes or None


def _progress(arguments: argparse.Namespace) -> Progress | None:
    return None if arguments.quiet else lambda message: print(message, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="attngraft", description="Attention in TensorRT: found, rewritten, proved, built."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    _add_model_commands(commands)
    _add_engine_commands(commands)
    return parser


def _add_model_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    inspect = _command(commands, "inspect", _inspect, "show the attention sites of a model, one line each")
    inspect.add_argument("model", type=Path, metavar="MODEL")
    inspect.add_argument("--json", action="store_true", help="print the sites as JSON")

    rewrite = _command(commands, "rewrite", _rewrite, "rewrite the attention sites and prove the result")
    rewrite.add_argument("model", type=Path, metavar="MODEL")
    rewrite.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help="where the new model goes")
    _add_lower(rewrite)
    _add_shape(rewrite, "NAME=DIMS", "shape of an input for verification, such as x=1x3x224x224")

    verify = _command(commands, "verify", _verify, "compare two models in ONNX Runtime")
    verify.add_argument("original", type=Path, metavar="ORIGINAL")
    verify.add_argument("rewritten", type=Path, metavar="REWRITTEN")
    verify.add_argument("--seed", type=int, default=0, help="of the random inputs (default 0)")
    _add_shape(verify, "NAME=DIMS", "shape of an input, such as x=1x3x224x224")


def _add_engine_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    build = _command(commands, "build", _build, "build a TensorRT engine")
    build.add_argument("model", type=Path, metavar="MODEL")
    build.add_argument("-o", "--output", type=Path, required=True, metavar="ENGINE", help="where the engine goes")
    build.add_argument("--backend", choices=("auto", "tensorrt", "rtx"), default="auto")
    _add_lower(build)
    _add_shape(build, "NAME=MIN:OPT:MAX", "shapes of an input, such as x=1x128:8x384:32x512, or one shape")
    build.add_argument("--no-embed", action="store_true", help="list the plugin library instead of embedding it")
    build.add_argument("--log", type=Path, metavar="FILE", help="write all of TensorRT's messages there")

    run = _command(commands, "run", _run, "run an engine once")
    run.add_argument("engine", type=Path, metavar="ENGINE")
    run.add_argument(
        "--input", action="append", default=[], metavar="NAME=FILE.npy", help="an input; others are made up"
    )
    run.add_argument("--output", type=Path, metavar="DIR", help="write the outputs there as .npy files")
    run.add_argument("--seed", type=int, default=0, help="of the inputs that are made up (default 0)")

    doctor = _command(commands, "doctor", _doctor, "say what is installed and what is missing")
    doctor.add_argument(
        "engine", type=Path, nargs="?", metavar="ENGINE", help="say also whether this engine can run here"
    )


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    function: Callable[[argparse.Namespace], int],
    help_text: str,
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=help_text, description=help_text)
    command.set_defaults(command=function)
    command.add_argument("-q", "--quiet", action="store_true", help="no progress on standard error")
    return command


def _add_lower(command: argparse.ArgumentParser) -> None:
    command.add_argument("--lower", choices=LOWER_CHOICES, default="auto", help="what the sites become (default auto)")
    command.add_argument("--no-verify", action="store_true", help="do not compare the result with the original")


def _add_shape(command: argparse.ArgumentParser, form: str, help_text: str) -> None:
    command.add_argument("--shape", action="append", default=[], metavar=form, help=help_text)


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import attngraft

        print(f"attngraft {attngraft.__version__}")
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
