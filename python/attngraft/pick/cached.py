"""Which engine a recipe makes: everything that decides on it, as the key of a cache."""

from __future__ import annotations

from typing import Any

import attngraft
from attngraft.engine.device import describe_device
from attngraft.engine.digest import file_digest
from attngraft.engine.sidecar import CARD_FORMAT
from attngraft.errors import AttngraftError
from attngraft.pick.recipe import Recipe
from attngraft.plugin_library import plugin_library

__all__ = ["recipe_facts"]


def recipe_facts(recipe: Recipe, choice: str) -> dict[str, Any]:
    """Values of JSON. `choice`: how lowerings are chosen, a word of --lower or `pick fastest`.

    The timing cache is not among them: it saves time, and is not what anybody asks for.
    """
    device = describe_device()
    return {
        "attngraft": attngraft.__version__,
        "card": CARD_FORMAT,
        "model": recipe.digest,
        "name": recipe.source.name,
        "choice": choice,
        "verify": recipe.verify,
        "backend": recipe.backend.name,
        "tensorrt": recipe.backend.version,
        "target": str(recipe.target),
        "gpu": device.name if device else None,
        "compute_capability": device.compute_capability if device else None,
        "plugin_library": _library_digest(),
        "profiles": [{name: str(shapes) for name, shapes in profile.items()} for profile in recipe.profiles],
        "embed_plugins": recipe.embed_plugins,
        "flags": list(recipe.flags),
        "tf32": recipe.tf32,
        "optimization_level": recipe.optimization_level,
    }


def _library_digest() -> str | None:
    try:
        return file_digest(plugin_library())
    except AttngraftError:  # a model that needs none builds without it
        return None
