"""The command `build`: one lowering, or the fastest of all; with profiles, builder flags and a cache of engines."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngraft.cli.options import (
    Commands,
    add_backend,
    add_command,
    add_lower,
    add_shape,
    add_target,
    progress_of,
)
from attngraft.errors import BuildError

if TYPE_CHECKING:
    from attngraft.engine.sidecar import EngineCard
    from attngraft.pick import Recipe

__all__ = ["add_build"]

CACHE_VARIABLE = "ATTNGRAFT_CACHE"
"""Environment variable with the folder of --cache."""

FLAG_HELP = {
    "version-compatible": "the engine also runs in later TensorRTs",
    "hardware-compatible": "the engine also runs on other GPUs of compute capability 8.0 and later",
    "weight-streaming": "weights may stay in host memory while the engine runs",
    "refit": "weights of the engine can be replaced",
}
"""Options that set a flag of engine/flags.py, whose names have underscores."""


def _build(arguments: argparse.Namespace) -> int:
    from attngraft.engine.cache import EngineCache, cache_key
    from attngraft.pick.cached import recipe_facts

    _check_options(arguments)
    recipe = _recipe(arguments)
    choice = f"pick {arguments.pick}" if arguments.pick else arguments.lower
    cache = None if arguments.cache is None else EngineCache(arguments.cache, progress_of(arguments))
    key = "" if cache is None else cache_key(recipe_facts(recipe, choice))
    cached = None if cache is None else cache.fetch(key, recipe.engine)
    if cached is not None:
        if arguments.pick:
            _show_pick(arguments, {**cached.found, "engine": str(recipe.engine)})
        print(_cached_line(recipe, cached.card))
        return 0
    found = _pick(arguments, recipe) if arguments.pick else _build_one(arguments, recipe)
    if cache is not None:
        cache.store(key, recipe.engine, found)
    return 0


def _check_options(arguments: argparse.Namespace) -> None:
    if arguments.pick and arguments.lower != "auto":
        raise BuildError(
            f"--lower {arguments.lower}: --pick {arguments.pick} tries all lowerings; leave one of them out"
        )
    if arguments.json is not None and not arguments.pick:
        raise BuildError("--json: writes what --pick fastest found; give both")
    if arguments.profiles is not None and arguments.shape:
        raise BuildError("--profiles: holds the shapes already; leave --shape out")


def _recipe(arguments: argparse.Namespace) -> Recipe:
    from attngraft.engine import profiles_of_options, read_profiles
    from attngraft.lower import parse_target
    from attngraft.pick import make_recipe

    profiles = profiles_of_options(arguments.shape) if arguments.profiles is None else read_profiles(arguments.profiles)
    return make_recipe(
        arguments.model,
        arguments.output,
        profiles=profiles,
        backend=arguments.backend,
        target=None if arguments.target is None else parse_target(arguments.target),
        flags=tuple(option.replace("-", "_") for option in FLAG_HELP if getattr(arguments, option.replace("-", "_"))),
        embed_plugins=not arguments.no_embed,
        verify=not arguments.no_verify,
        timing_cache=arguments.timing_cache,
    )


def _build_one(arguments: argparse.Namespace, recipe: Recipe) -> None:
    """Rewrites and builds with one word of --lower."""
    from attngraft.engine import Origin, build_engine
    from attngraft.pick.trial import site_cards, worst_difference
    from attngraft.report.rewriting import change_lines
    from attngraft.rewrite import plan_model, write_rewrite

    progress = progress_of(arguments)
    plan, worst = plan_model(recipe.model, recipe.source, arguments.lower, recipe.target), None
    with tempfile.TemporaryDirectory(prefix=".attngraft-", dir=recipe.engine.absolute().parent) as folder:
        model, sites = recipe.source, site_cards(plan.sites, plan.choices)
        if plan.changes:
            model = Path(folder) / recipe.source.name
            rewritten = write_rewrite(plan, model, verify=recipe.verify, shapes=recipe.usual_shapes, progress=progress)
            sites = site_cards(rewritten.sites, rewritten.choices)
            if rewritten.report is not None:
                worst = worst_difference(rewritten.report, "rewritten model", "ONNX Runtime")
            for line in change_lines(rewritten):
                print(line)
        result = build_engine(
            model,
            recipe.engine,
            progress=progress,
            log_path=arguments.log,
            timing_cache=recipe.timing_cache,
            origin=Origin(recipe.source, recipe.digest, sites, worst),
            **recipe.build_options,
        )
    print(
        f"wrote {result.engine_path}: {result.backend} {result.tensorrt_version}, "
        f"{result.plugin_layers} plugin layers, {result.size_bytes / 1e6:.1f} MB, {result.seconds:.1f} s"
    )


def _pick(arguments: argparse.Namespace, recipe: Recipe) -> dict[str, Any]:
    from attngraft.pick import pick_fastest
    from attngraft.report.pick import pick_json

    result = pick_fastest(recipe, progress=progress_of(arguments), log_path=arguments.log)
    found = pick_json(result)
    _show_pick(arguments, found)
    print(f"wrote {recipe.engine}, {result.seconds:.1f} s")
    return found


def _show_pick(arguments: argparse.Namespace, found: dict[str, Any]) -> None:
    from attngraft.engine.files import write_atomically
    from attngraft.report.pick import pick_lines

    print("\n".join(pick_lines(found)))
    if arguments.json is not None:
        write_atomically({arguments.json: (json.dumps(found, indent=2) + "\n").encode()})
        print(f"wrote {arguments.json}")


def _cached_line(recipe: Recipe, card: EngineCard) -> str:
    return (
        f"wrote {recipe.engine}, a copy from the cache: {card.backend} {card.tensorrt_version}, "
        f"{card.plugin_layers} plugin layers, {card.size_bytes / 1e6:.1f} MB"
    )


def add_build(commands: Commands) -> None:
    build = add_command(commands, "build", _build, "build a TensorRT engine")
    build.add_argument("model", type=Path, metavar="MODEL")
    build.add_argument("-o", "--output", type=Path, required=True, metavar="ENGINE", help="where the engine goes")
    add_backend(build, "that builds")
    add_target(build)
    add_lower(build)
    build.add_argument(
        "--pick", choices=("fastest",), help="build with every lowering and keep the fastest that is right"
    )
    build.add_argument("--json", type=Path, metavar="FILE", help="write what --pick found there")
    add_shape(
        build,
        "NAME=MIN:OPT:MAX",
        "shapes of an input, such as x=1x128:8x384:32x512, or one shape; given again, those of a further profile",
    )
    build.add_argument("--profiles", type=Path, metavar="FILE", help='profiles as JSON: [{"NAME": "MIN:OPT:MAX"}, ...]')
    for option, text in FLAG_HELP.items():
        build.add_argument(f"--{option}", action="store_true", help=text)
    build.add_argument("--no-embed", action="store_true", help="list the plugin library instead of embedding it")
    build.add_argument(
        "--cache",
        type=Path,
        metavar="DIR",
        default=Path(os.environ[CACHE_VARIABLE]) if os.environ.get(CACHE_VARIABLE) else None,
        help=f"take the engine from there, or keep it there (default ${CACHE_VARIABLE}, or none)",
    )
    build.add_argument("--timing-cache", type=Path, metavar="FILE", help="TensorRT's timings, read and written")
    build.add_argument("--log", type=Path, metavar="FILE", help="write all of TensorRT's messages there")
