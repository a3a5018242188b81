"""Commands on models: inspect, rewrite, verify."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from attngraft.cli.options import (
    Commands,
    add_backend,
    add_command,
    add_lower,
    add_shape,
    add_target,
    fixed_shapes,
    progress_of,
    target_of,
)
from attngraft.errors import ModelError

if TYPE_CHECKING:
    from attngraft.report.inspect_model import FusionQuestion

__all__ = ["add_commands"]


def _inspect(arguments: argparse.Namespace) -> int:
    from attngraft.report.inspect_model import inspect_model
    from attngraft.report.inspection import inspection_lines
    from attngraft.report.schema import inspection_json

    if arguments.model is None:
        return _inspect_engine(arguments)
    model, inspection = inspect_model(
        arguments.model,
        target=target_of(arguments),
        question=_fusion_question(arguments),
        progress=progress_of(arguments),
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

    progress = progress_of(arguments)
    plan = plan_rewrite(arguments.model, arguments.lower, target=target_of(arguments), progress=progress)
    result = write_rewrite(
        plan,
        arguments.output,
        verify=not arguments.no_verify,
        shapes=fixed_shapes(arguments.shape),
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
        shapes=fixed_shapes(arguments.shape),
        seed=arguments.seed,
        progress=progress_of(arguments),
    )
    print(report)
    report.raise_if_failed()
    return 0


def _add_inspect(commands: Commands) -> None:
    inspect = add_command(commands, "inspect", _inspect, "show the attention sites of a model, one line each")
    inspect.add_argument("model", type=Path, nargs="?", metavar="MODEL", help="may be left out with --engine")
    form = inspect.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the sites as JSON")
    form.add_argument("--html", type=Path, metavar="FILE", help="write one page with a picture of each distinct site")
    form.add_argument("-v", "--verbose", action="store_true", help="a line for every site, equal ones too")
    add_target(inspect)
    source = inspect.add_mutually_exclusive_group()
    source.add_argument("--fused", action="store_true", help="build the model and say which sites TensorRT fuses")
    source.add_argument("--engine", type=Path, metavar="ENGINE", help="say which sites are fused in this engine")
    add_backend(inspect, "that --fused asks")
    add_shape(inspect, "NAME=MIN:OPT:MAX", "shapes of an input for --fused; others get usual ones")


def add_commands(commands: Commands) -> None:
    _add_inspect(commands)

    rewrite = add_command(commands, "rewrite", _rewrite, "rewrite the attention sites and prove the result")
    rewrite.add_argument("model", type=Path, metavar="MODEL")
    rewrite.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help="where the new model goes")
    add_lower(rewrite)
    add_target(rewrite)
    add_shape(rewrite, "NAME=DIMS", "shape of an input for verification, such as x=1x3x224x224")

    verify = add_command(commands, "verify", _verify, "compare two models in ONNX Runtime")
    verify.add_argument("original", type=Path, metavar="ORIGINAL")
    verify.add_argument("rewritten", type=Path, metavar="REWRITTEN")
    verify.add_argument("--seed", type=int, default=0, help="of the random inputs (default 0)")
    add_shape(verify, "NAME=DIMS", "shape of an input, such as x=1x3x224x224")
