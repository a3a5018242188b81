"""Importing what the extra `export` brings, with an error that names it."""

from __future__ import annotations

import importlib
from types import ModuleType

from attngraft.errors import MissingDependency

__all__ = ["import_for_export"]


def import_for_export(package: str) -> ModuleType:
    """The imported package; MissingDependency, naming the extra to install, when it is absent."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise MissingDependency(
            f"{package}: not installed (no module named {error.name}), needed to export PyTorch modules; "
            "pip install 'attngraft[export]'"
        ) from error
