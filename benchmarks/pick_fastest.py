"""What `build --pick fastest` finds and gains, model by model: results/pick-fastest.json.

Works are whole models of published size (`bert-fp16`, `gpt2-fp16`, ..., the trained ViT-S `vit-b1`), the two-layer
exports of real size that lowering `native` is measured on (named as their files), and ONNX files that --model names.
All candidates of a work are timed in one interleaved run, by `pick` itself.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from attngraft.engine import ShapeRange, profiles_of_options
from attngraft.errors import RewriteError
from attngraft.onnx_graph import load_model
from attngraft.pick import PickResult, Recipe, make_recipe, pick_fastest
from attngraft.pick.candidates import KEEP, UNIFORM, graph_digest, plan_uniform, site_classes
from attngraft.pick.speed import noise_us
from attngraft.report.pick import pick_json, pick_lines
from attngraft.verify.widen import narrowest_type
from benchmarks import model_works, native_works
from benchmarks.results_file import PLAIN, Row, write_results
from benchmarks.timing import matrix_rate
from benchmarks.work_options import UNKNOWN_OPERATIONS, add_work_options, each_chosen_work
from benchmarks.zoo.weights import restored_copy

__all__ = ["main"]

LABELS = {KEEP: PLAIN, "native": "tensorrt-native"}
"""What candidates are called among the peers, where that is not their name."""

DTYPES = {onnx.TensorProto.FLOAT: "float32", onnx.TensorProto.FLOAT16: "float16", onnx.TensorProto.BFLOAT16: "bfloat16"}


@dataclass(frozen=True)
class Work:
    """A model at one size. `model` puts its file into a folder; `profiles` belong to that file."""

    title: str
    model: Callable[[Path], Path]
    profiles: Callable[[Path], tuple[dict[str, ShapeRange], ...]]
    operations: Callable[[Path], float]


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    return each_chosen_work(options, _works(options), functools.partial(_work, options=options))


def _work(key: str, work: Work, folder: Path, *, options: argparse.Namespace) -> None:
    """Measures one work and writes its row, or only checks that it can be measured."""
    model = work.model(folder)
    recipe = make_recipe(
        model,
        folder / "picked.engine",
        profiles=work.profiles(model),
        backend="rtx" if options.check else "tensorrt",
        timing_cache=None if options.check else options.timing_cache,
        optimization_level=options.builder_level,
        verify=not options.no_verify,
    )
    if options.check:
        print(f"{key}: {check(recipe)}", flush=True)
        return
    result = pick_fastest(recipe, progress=lambda line: print(line, file=sys.stderr, flush=True))
    print(f"{key}:", *pick_lines(pick_json(result)), sep="\n", flush=True)
    print(write_results("pick-fastest", [measured_row(work, model, recipe, result)]), flush=True)


def check(recipe: Recipe) -> str:
    """All that needs no GPU: which candidates there are, without mixes, and classes of sites."""
    names: dict[str, str] = {}
    for lower in UNIFORM:
        try:
            names.setdefault(graph_digest(recipe, plan_uniform(recipe, lower)), lower)
        except RewriteError as error:
            print(f"  {lower}: {error}")
    classes = site_classes(plan_uniform(recipe, "auto").sites)
    told = ", ".join(f"{len(group.names)} sites {group.label}" for group in classes)
    return f"{', '.join(names.values())}; {told or 'no sites'}"


def measured_row(work: Work, model: Path, recipe: Recipe, result: PickResult) -> Row:
    """The row of one pick; candidates that failed or are the same as others have no time in it."""
    import torch

    winner, dtype = result.verdict.winner, DTYPES[narrowest_type(recipe.model)]
    plain = next((trial for trial in result.trials if trial.name == KEEP and trial.speed is not None), None)
    content = pick_json(result)
    notes: dict[str, Any] = {name: content[name] for name in ("picked", "ties", "over_plain", "lead", "against")}
    notes["noise_us"] = None if plain is None else noise_us(winner.speed, plain.speed)
    notes["plugin_layers"] = winner.built.plugin_layers
    notes["spread_us"] = {one["name"]: one["spread_us"] for one in content["candidates"] if one["gpu_us"]}
    notes["differences"] = {one["name"]: one["worst"] for one in content["candidates"] if one["worst"]}
    notes["same"] = {one["name"]: one["same_as"] for one in content["candidates"] if one["same_as"]}
    notes["failures"] = {one["name"]: one["failure"] for one in content["candidates"] if one["failure"]}
    times = {trial.name: trial.speed.us for trial in result.trials if trial.speed is not None}
    return Row(
        work.title,
        dtype,
        winner.speed.us,
        {LABELS.get(name, name): us for name, us in times.items()},
        work.operations(model) / matrix_rate(getattr(torch, dtype)),
        notes,
    )


def _works(options: argparse.Namespace) -> dict[str, Work]:
    if options.model:
        profiles = profiles_of_options(options.shape)
        return {path.stem: _model_work(path, profiles) for path in options.model}
    found: dict[str, Work] = {}
    for key, paths in native_works.find_exports(options.exports, "").items():
        found |= {path.stem: _export_work(native_works.WORKS[key], path) for path in paths}
    return {**found, **{key: _whole_work(work) for key, work in model_works.WORKS.items()}}


def _model_work(path: Path, profiles: tuple[dict[str, ShapeRange], ...]) -> Work:
    def declared(model: Path) -> tuple[dict[str, ShapeRange], ...]:
        """The ranges given for inputs that the model has: several models may share an option."""
        names = {value.name for value in load_model(model).graph.input}
        return tuple({name: shapes for name, shapes in profile.items() if name in names} for profile in profiles)

    return Work(path.stem, lambda _: path, declared, lambda _: UNKNOWN_OPERATIONS)


def _export_work(size: native_works.Work, path: Path) -> Work:
    """An export of the zoo, stripped or not, at the size that lowering `native` is measured at."""

    def profiles(model: Path) -> tuple[dict[str, ShapeRange], ...]:
        inputs = native_works.example_inputs(load_model(model), size)
        return ({name: ShapeRange.fixed(array.shape) for name, array in inputs.items()},)

    return Work(
        native_works.title(path.stem, size),
        functools.partial(restored_copy, path),
        profiles,
        lambda model: native_works.operations(load_model(model), size),
    )


def _whole_work(work: model_works.Work) -> Work:
    shapes = {name: ShapeRange.fixed(array.shape) for name, array in work.inputs().items()}
    return Work(work.name, work.model, lambda _: (shapes,), lambda _: work.operations)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_work_options(
        parser,
        check="say which candidates there are",
        shape=("NAME=MIN:OPT:MAX", "shapes of an input of --model, as for attngraft build"),
        timing_cache=("pick-fastest.timing", "shared by all candidates"),
    )
    parser.add_argument("--no-verify", action="store_true",
                        help="prove no rewritten model; engines are compared all the same")  # fmt: skip
    parser.add_argument("--builder-level", type=int, metavar="N", help="TensorRT's optimization level")
    return parser


if __name__ == "__main__":
    sys.exit(main())
