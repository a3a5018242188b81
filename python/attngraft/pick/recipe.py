"""What is to be built, however it is lowered: the model, where the engine goes, and everything that decides on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnx import ModelProto

from attngraft.engine.backends import Backend, find_backend
from attngraft.engine.builder import check_target
from attngraft.engine.device import on_this_device
from attngraft.engine.digest import model_digest
from attngraft.engine.flags import check_flags
from attngraft.engine.shapes import ShapeRange, resolve_profile
from attngraft.lower import Target
from attngraft.onnx_graph import load_model

__all__ = ["Recipe", "make_recipe"]

Profile = Mapping[str, ShapeRange]


@dataclass(frozen=True)
class Recipe:
    """One build, its arguments checked.

    model, digest    the model without large weights, and SHA-256 of its files.
    target           the TensorRT that it is lowered for.
    profiles         a range for every input, one set for each optimization profile.
    verify           whether a rewritten model is compared with the original in ONNX Runtime before it is built.
    timing_cache     a file that builds share and leave behind; None: none, or one of `pick`'s own.
    """

    source: Path
    engine: Path
    model: ModelProto = field(repr=False)
    digest: str
    backend: Backend
    target: Target
    profiles: tuple[Profile, ...]
    embed_plugins: bool = True
    flags: tuple[str, ...] = ()
    verify: bool = True
    timing_cache: Path | None = None
    tf32: bool = True
    optimization_level: int | None = None

    @property
    def usual_shapes(self) -> dict[str, tuple[int, ...]]:
        """The first profile's usual shape of each input."""
        return {name: shapes.opt for name, shapes in self.profiles[0].items()}

    @property
    def build_options(self) -> dict[str, Any]:
        """Those of build_engine's arguments that are the same whatever the model is lowered to."""
        return {
            "backend": self.backend.name,
            "shapes": self.profiles,
            "embed_plugins": self.embed_plugins,
            "flags": self.flags,
            "tf32": self.tf32,
            "optimization_level": self.optimization_level,
        }


def make_recipe(
    source: str | Path,
    engine: str | Path,
    *,
    profiles: tuple[Profile, ...] = ({},),
    backend: str = "auto",
    target: Target | None = None,
    flags: tuple[str, ...] = (),
    **options: Any,
) -> Recipe:
    """Reads the model and checks what is asked of it. `target`: None for the TensorRT that builds; on the first GPU
    here, unless it names one. `options`: further fields of Recipe.

    Raises ModelError for the model, BuildError for shapes, flags and the engine's place, MissingDependency without a
    TensorRT.
    """
    source, engine = Path(source), Path(engine)
    model = load_model(source)
    check_target(source, engine)
    chosen = find_backend(backend)
    return Recipe(
        source=source,
        engine=engine,
        model=model,
        digest=model_digest(source, model),
        backend=chosen,
        target=on_this_device(target or Target(chosen.name, chosen.version_pair)),
        profiles=tuple(resolve_profile(model, ranges) for ranges in profiles),
        flags=check_flags(chosen, flags),
        **options,
    )
