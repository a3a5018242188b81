"""The command line: inspect, rewrite, verify, build, run, probe, doctor.

Results go to standard output, progress and errors to standard error. An error is one line and exit status 1, an
interruption exit status 130; either way no file is left half-written.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attngraft.errors import AttngraftError, ModelError, VerificationError

if TYPE_CHECKING:
    from attngraft.lower import Target
    from attngraft.report.inspect_model import FusionQuestion

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
    from attngraft.report.inspect_model import inspect_model
    from attngraft.report.inspection import inspection_lines
    from attngraft.report.schema import inspection_json

    if arguments.model is None:
        return _inspect_engine(arguments)
    model, inspection = inspect_model(
        arguments.model,
        target=_target(arguments),
        question=_fusion_question(arguments),
        progress=_progress(arguments),
    )
    if arguments.html is not None:
        from attngraft.report.page import write_page

        write_page(arguments.html, model, inspection)
        print(f"wrote {arguments.html}")
    elif arguments.json:
        print(json.dumps(inspection_json(inspection), indent=2))
    else:
        print("\n".join(inspection_lines(inspection, verbose=arguments.verbose)))
    return 0


def _target(arguments: argparse.Namespace) -> Target | None:
    """The TensorRT that `--target` names, else the one that is installed, on the GPU that is here."""
    from attngraft.lower import default_target, parse_target

    target = default_target() if arguments.target is None else parse_target(arguments.target)
    return None if target is None else _on_this_device(target)


def _on_this_device(target: Target) -> Target:
    """On the first GPU here, unless the target names one or there is none."""
    from attngraft.engine.device import describe_device

    device = describe_device()
    return target if device is None else target.on(device.compute_capability)


def _fusion_question(arguments: argparse.Namespace) -> FusionQuestion | None:
    from attngraft.engine import parse_shape_option
    from attngraft.report.inspect_model import FusionQuestion

    if not arguments.fused and arguments.engine is None:
        return None
    shapes = dict(parse_shape_option(option) for option in arguments.shape)
    return FusionQuestion(arguments.engine, arguments.backend, shapes)


def _inspect_engine(arguments: argparse.Namespace) -> int:
    """An engine without its model: which ONNX nodes its fused attention kernels hold."""
    from attngraft.engine.inspector import fused_kernels_of_file
    from attngraft.report.kernels import kernel_lines, kernels_json

    if arguments.engine is None:
        raise ModelError("inspect: no model; give an ONNX file, or an engine with --engine ENGINE")
    made_by, kernels = fused_kernels_of_file(arguments.engine)
    if arguments.json:
        print(json.dumps(kernels_json(str(arguments.engine), made_by, kernels), indent=2))
    else:
        print("\n".join(kernel_lines(made_by, kernels)))
    return 0


def _rewrite(arguments: argparse.Namespace) -> int:
    from attngraft.report.rewriting import rewrite_lines
    from attngraft.rewrite import plan_rewrite, write_rewrite

    progress = _progress(arguments)
    plan = plan_rewrite(arguments.model, arguments.lower, target=_target(arguments), progress=progress)
    result = write_rewrite(
        plan,
        arguments.output,
        verify=not arguments.no_verify,
        shapes=_fixed_shapes(arguments.shape),
        progress=progress,
    )
    print("\n".join(rewrite_lines(result)))
    print(f"wrote {arguments.output}")
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
    """The model itself where nothing is to be lowered or mended, else its rewrite in `folder`."""
    from attngraft.report.rewriting import change_lines
    from attngraft.rewrite import plan_rewrite, write_rewrite

    progress = _progress(arguments)
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
        return _on_this_device(parse_target(arguments.target))
    backend = find_backend(arguments.backend)
    return _on_this_device(Target(backend.name, backend.version_pair))


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

    report = probe(backend=arguments.backend, everything=arguments.all, progress=_progress(arguments))
    print(json.dumps(probe_json(report), indent=2) if arguments.json else "\n".join(probe_lines(report)))
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from attngraft.doctor import diagnose
    from attngraft.report.table import format_table

    checks = diagnose(arguments.engine)
    words = {True: "ok", False: "MISSING", None: "absent"}
    rows = [(words[check.ok], check.name, check.detail, check.remedy or "") for check in checks]
    print(format_table(("state", "what", "found", "remedy"), rows))
    return EXIT_ERROR if any(check.ok is False for check in checks) else 0


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


def _add_inspect(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    inspect = _command(commands, "inspect", _inspect, "show the attention sites of a model, one line each")
    inspect.add_argument("model", type=Path, nargs="?", metavar="MODEL", help="may be left out with --engine")
    form = inspect.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the sites as JSON")
    form.add_argument("--html", type=Path, metavar="FILE", help="write one page with a picture of each distinct site")
    form.add_argument("-v", "--verbose", action="store_true", help="a line for every site, equal ones too")
    _add_target(inspect)
    source = inspect.add_mutually_exclusive_group()
    source.add_argument("--fused", action="store_true", help="build the model and say which sites TensorRT fuses")
    source.add_argument("--engine", type=Path, metavar="ENGINE", help="say which sites are fused in this engine")
    _add_backend(inspect, "that --fused asks")
    _add_shape(inspect, "NAME=MIN:OPT:MAX", "shapes of an input for --fused; others get usual ones")


def _add_model_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    _add_inspect(commands)

    rewrite = _command(commands, "rewrite", _rewrite, "rewrite the attention sites and prove the result")
    rewrite.add_argument("model", type=Path, metavar="MODEL")
    rewrite.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help="where the new model goes")
    _add_lower(rewrite)
    _add_target(rewrite)
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
    _add_backend(build, "that builds")
    _add_target(build)
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

    probe = _command(commands, "probe", _probe, "say which forms of attention the TensorRT at hand builds and fuses")
    _add_backend(probe, "that is asked")
    probe.add_argument("--all", action="store_true", help="all combinations, some hundreds of builds")
    probe.add_argument("--json", action="store_true", help="print the answers as JSON")

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


def _add_target(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--target",
        metavar="VERSION",
        help="the TensorRT that the lowerings are chosen for, such as 10.6, 11 or rtx-1.7, and a GPU's compute "
        "capability behind it, such as 10.6@9.0 (default what is found)",
    )


def _add_backend(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument(
        "--backend",
        choices=("auto", "tensorrt", "rtx"),
        default="auto",
        help=f"the TensorRT {what}; auto: TensorRT with a GPU, else TensorRT-RTX",
    )


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
