"""Whole models in TensorRT as given, with lowering `native`, and with `attention`: results/attention-in-tensorrt.json.

Works are blocks whose attention TensorRT does not fuse (`block-...`), whole models of published size (`bert-fp16`,
`gpt2-fp16`, ...), the two-layer exports of real size that lowering `native` is measured on (named as their files), and
ONNX files that --model names. Every engine is compared with the model in float32; the engines of a work are timed in
one interleaved run.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx
import torch

from attngraft.engine import parse_shape_option
from attngraft.match import match_model
from attngraft.onnx_graph import load_model
from attngraft.verify.inputs import draw_inputs, input_kinds
from benchmarks import native_works
from benchmarks.attention_blocks import BLOCKS
from benchmarks.engine_forms import OURS, PLAIN, MeasuredModel, build_forms, rewritten, time_forms
from benchmarks.model_works import WORKS, Work
from benchmarks.results_file import Row, write_results
from benchmarks.work_options import UNKNOWN_OPERATIONS, add_work_options, each_chosen_work
from benchmarks.zoo.weights import restored_copy

__all__ = ["main"]

NATIVE = "tensorrt-native"
LOWERINGS = {NATIVE: "native", OURS: "attention"}


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    return each_chosen_work(options, _works(options), functools.partial(_work, options=options))


def _work(key: str, make: Callable[[], Work], folder: Path, *, options: argparse.Namespace) -> None:
    """Measures one work and writes its row, or only checks that it can be measured."""
    if options.check:
        print(f"{key}: {check(make(), folder)}", flush=True)
        return
    row = measure(make(), folder, options.timing_cache)
    print(describe(row), flush=True)
    print(write_results("attention-in-tensorrt", [row]), flush=True)


def measure(work: Work, folder: Path, cache: Path) -> Row:
    """Builds the forms of one work and times them."""
    started = time.monotonic()
    original = work.model(folder)
    one = MeasuredModel(work.name, str(work.dtype).removeprefix("torch."), work.operations, work.inputs())
    forms = {PLAIN: original}
    for label, lowering in LOWERINGS.items():
        path, one.notes[f"{label} lowered"] = rewritten(original, folder / f"{original.stem}.{lowering}.onnx", lowering)
        if path is not None:
            forms[label] = path
    build_forms(one, original, forms, folder, cache)
    print(f"{work.name}: built in {time.monotonic() - started:.0f} s, {one.notes}", flush=True)
    (row,) = time_forms([one])
    return row


def check(work: Work, folder: Path) -> str:
    """All that needs no GPU: makes the model and rewrites it, with the rewriter's own proof in ONNX Runtime."""
    original = work.model(folder)
    said = [
        f"{lowering}: {rewritten(original, folder / f'{lowering}.onnx', lowering, verify=True)[1]}"
        for lowering in LOWERINGS.values()
    ]
    sizes = {name: array.shape for name, array in work.inputs().items()}
    return f"{work.name}, inputs {sizes}; {'; '.join(said)}"


def describe(row: Row) -> str:
    times = {OURS: row.ours_us, **row.peers_us}
    shown = ", ".join(f"{label} {us:.1f}" for label, us in times.items() if us is not None)
    return f"{row.work} {row.dtype}: {shown} us"


def _works(options: argparse.Namespace) -> dict[str, Callable[[], Work]]:
    """What makes each work, by name; only those that are chosen are made. The longest builds come last."""
    if options.model:
        shapes = {name: shape.opt for name, shape in map(parse_shape_option, options.shape)}
        return {path.stem: functools.partial(_model_work, path, shapes) for path in options.model}
    found: dict[str, Callable[[], Work]] = {key: functools.partial(_same, work) for key, work in BLOCKS.items()}
    for key, paths in native_works.find_exports(options.exports, "").items():
        found |= {path.stem: functools.partial(_export_work, native_works.WORKS[key], path) for path in paths}
    return {**found, **{key: functools.partial(_same, work) for key, work in WORKS.items()}}


def _same(work: Work) -> Work:
    return work


def _export_work(size: native_works.Work, path: Path) -> Work:
    """An export of the zoo, stripped or not, at the size that lowering `native` is measured at."""
    model = onnx.load(path)
    return Work(
        native_works.title(path.stem, size),
        torch.float16,
        functools.partial(restored_copy, path),
        functools.partial(native_works.example_inputs, model, size),
        size.sites,
        native_works.operations(model, size),
    )


def _model_work(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Work:
    """Any model, on inputs drawn as for verification. Inputs of variable size need a shape."""
    model = load_model(path)
    sites = match_model(model).sites
    kinds = input_kinds(model, sites)
    sizes = {spec.name: shapes.get(spec.name, spec.dims) for spec in kinds.specs}
    unknown = [name for name, dims in sizes.items() if not all(isinstance(size, int) for size in dims)]
    if unknown:
        raise SystemExit(f"{path}: input {unknown[0]} has no fixed shape; give it with --shape {unknown[0]}=8x384")
    _, case, *_ = draw_inputs(kinds, sizes, seed=0)  # the first has no padding
    dtype = torch.float32 if all(site.dtype == "float32" for site in sites) else torch.float16
    return Work(path.stem, dtype, lambda _: path, lambda: dict(case.feeds), len(sites), UNKNOWN_OPERATIONS)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_work_options(
        parser,
        check="make, rewrite and prove",
        shape=("NAME=DIMS", "shape of an input of --model that has variable sizes, as x=8x384"),
        timing_cache=("attention-in-tensorrt.timing", "one for each form, .FORM behind the name"),
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
