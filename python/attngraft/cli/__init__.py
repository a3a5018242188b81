"""The command line: inspect, rewrite, verify, build, run, bench, profile, bundle, probe, doctor.

Results go to standard output, progress and errors to standard error. An error is one line and exit status 1, an
interruption exit status 130; either way no file is left half-written.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from attngraft.cli import bundle, engines, measure, models
from attngraft.errors import AttngraftError

__all__ = ["main"]

EXIT_ERROR = 1
EXIT_INTERRUPTED = 130
"""128 plus the number of SIGINT, as shells report it."""


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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="attngraft", description="Attention in TensorRT: found, rewritten, proved, built."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    models.add_commands(commands)
    engines.add_commands(commands)
    measure.add_commands(commands)
    bundle.add_commands(commands)
    return parser


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import attngraft

        print(f"attngraft {attngraft.__version__}")
        parser.exit()
