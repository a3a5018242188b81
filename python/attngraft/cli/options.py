"""What several commands share: options, and what their values mean."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from attngraft.errors import VerificationError

if TYPE_CHECKING:
    from attngraft.lower import Target

__all__ = [
    "Commands",
    "Progress",
    "add_backend",
    "add_command",
    "add_lower",
    "add_shape",
    "add_target",
    "fixed_shapes",
    "progress_of",
    "target_of",
]

LOWER_CHOICES = ("auto", "keep", "softmax", "native", "attention")

Progress = Callable[[str], None]

Commands = argparse._SubParsersAction  # argparse has no public name for it


def target_of(arguments: argparse.Namespace) -> Target | None:
    """The TensorRT that `--target` names, else the one that is installed, on the GPU that is here."""
    from attngraft.engine.device import on_this_device
    from attngraft.lower import default_target, parse_target

    target = default_target() if arguments.target is None else parse_target(arguments.target)
    return None if target is None else on_this_device(target)


def fixed_shapes(options: Sequence[str]) -> dict[str, tuple[int, ...]] | None:
    """Shapes for verification, NAME=1x3x224x224 each."""
    shapes: dict[str, tuple[int, ...]] = {}
    for option in options:
        name, separator, text = option.rpartition("=")
        if not separator or not name or not all(part.isdigit() for part in text.split("x")):
            raise VerificationError(f"shape {option!r}: not understood; write NAME=1x3x224x224")
        shapes[name] = tuple(int(part) for part in text.split("x"))
    return shapes or None


def progress_of(arguments: argparse.Namespace) -> Progress | None:
    return None if arguments.quiet else lambda message: print(message, file=sys.stderr, flush=True)


def add_command(
    commands: Commands,
    name: str,
    function: Callable[[argparse.Namespace], int],
    help_text: str,
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=help_text, description=help_text)
    command.set_defaults(command=function)
    command.add_argument("-q", "--quiet", action="store_true", help="no progress on standard error")
    return command


def add_lower(command: argparse.ArgumentParser) -> None:
    command.add_argument("--lower", choices=LOWER_CHOICES, default="auto", help="what the sites become (default auto)")
    command.add_argument("--no-verify", action="store_true", help="do not compare the result with the original")


def add_target(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--target",
        metavar="VERSION",
        help="the TensorRT that the lowerings are chosen for, such as 10.6, 11 or rtx-1.7, and a GPU's compute "
        "capability behind it, such as 10.6@9.0 (default what is found)",
    )


def add_backend(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument(
        "--backend",
        choices=("auto", "tensorrt", "rtx"),
        default="auto",
        help=f"the TensorRT {what}; auto: TensorRT with a GPU, else TensorRT-RTX",
    )


def add_shape(command: argparse.ArgumentParser, form: str, help_text: str) -> None:
    command.add_argument("--shape", action="append", default=[], metavar=form, help=help_text)
