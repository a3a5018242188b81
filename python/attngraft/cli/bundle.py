"""The command bundle: an engine packed for Triton Inference Server or into a plain folder, and the check of both."""

from __future__ import annotations

import argparse
from pathlib import Path

from attngraft.cli.options import Commands, add_command, progress_of
from attngraft.errors import EngineError

__all__ = ["add_commands"]


def _bundle(arguments: argparse.Namespace) -> int:
    if arguments.check is not None:
        return _check(arguments)
    for value, what in (
        (arguments.engine, "engine; give its path"),
        (arguments.format, "format; give --format directory or --format triton"),
        (arguments.output, "folder; give it with -o DIR"),
    ):
        if value is None:
            raise EngineError(f"bundle: no {what}, or --check DIR to check a bundle")
    return _write(arguments)


def _write(arguments: argparse.Namespace) -> int:
    from attngraft.bundle import write_bundle

    result = write_bundle(
        arguments.engine,
        arguments.output,
        arguments.format,
        name=arguments.name,
        instances=arguments.instances,
        max_batch=arguments.max_batch,
        force=arguments.force,
        progress=progress_of(arguments),
    )
    size = sum(file.size_bytes for file in result.manifest.files.values())
    print(f"wrote {result.folder}: {result.manifest.format}, {len(result.manifest.files)} files, {size / 1e6:.1f} MB")
    if result.triton is not None:
        batching = result.triton.batching
        print(f"model {result.triton.name}: max_batch_size {batching.max_batch}, {batching.reason}")
    if result.source.library is not None:
        print(f"plugin library: {result.manifest.library}, beside the engine")
    elif result.source.card.plugin_embedded:
        print("plugin library: inside the engine, which the server must allow; README.txt says how")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from attngraft.bundle import check_bundle

    if arguments.engine is not None:
        raise EngineError("bundle: --check takes a bundle and no engine; leave the engine out")
    manifest = check_bundle(arguments.check, progress=progress_of(arguments))
    print(f"{arguments.check}: {len(manifest.files)} files, all as they were written")
    return 0


def add_commands(commands: Commands) -> None:
    bundle = add_command(commands, "bundle", _bundle, "pack an engine for deployment, or check such a bundle")
    bundle.add_argument("engine", type=Path, nargs="?", metavar="ENGINE", help="may be left out with --check")
    bundle.add_argument("-o", "--output", type=Path, metavar="DIR", help="the folder to write")
    bundle.add_argument(
        "--format",
        choices=("directory", "triton"),
        help="a plain folder with a run script, or a model repository for Triton Inference Server",
    )
    bundle.add_argument("--check", type=Path, metavar="DIR", help="compare a bundle's files with its manifest")
    bundle.add_argument("--force", action="store_true", help="replace a bundle that is there")
    bundle.add_argument("--name", help="the model's name in Triton (default the engine's file name)")
    bundle.add_argument("--instances", type=int, metavar="N", help="instances on each GPU in Triton (default 1)")
    bundle.add_argument(
        "--max-batch", type=int, metavar="N", help="largest batch in Triton (default the profiles'); 0: no batching"
    )
