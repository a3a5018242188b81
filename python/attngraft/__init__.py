"""attngraft: attention in TensorRT, found, rewritten, proved, built and served.

The names below are loaded when they are first used: importing attngraft imports nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attngraft.contract import MaskedSoftmax
    from attngraft.errors import AttngraftError
    from attngraft.match import match_model
    from attngraft.onnx_graph import load_model, save_model
    from attngraft.rewrite import rewrite_model
    from attngraft.verify import verify_models

    __version__: str

__all__ = [
    "AttngraftError",
    "MaskedSoftmax",
    "__version__",
    "load_model",
    "match_model",
    "rewrite_model",
    "save_model",
    "verify_models",
]

_HOMES = {
    "AttngraftError": "attngraft.errors",
    "MaskedSoftmax": "attngraft.contract",
    "load_model": "attngraft.onnx_graph",
    "match_model": "attngraft.match",
    "rewrite_model": "attngraft.rewrite",
    "save_model": "attngraft.onnx_graph",
    "verify_models": "attngraft.verify",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = _version()
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'attngraft' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("attngraft")
    except PackageNotFoundError:
        return "0+source"  # run from the source tree, not installed
