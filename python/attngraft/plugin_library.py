"""Where the compiled plugin library is, after its contract version was checked."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from attngraft.contract import CONTRACT_VERSION
from attngraft.errors import EngineError, MissingDependency

__all__ = ["LIBRARY_VARIABLE", "plugin_library"]

LIBRARY_VARIABLE = "ATTNGRAFT_PLUGIN_LIBRARY"
"""Environment variable with the path of a library to use in place of the installed one."""

_INSTALLED = Path(__file__).resolve().parent / "lib" / "libattngraft.so"


def plugin_library() -> Path:
    """Absolute path of libattngraft.so: `$ATTNGRAFT_PLUGIN_LIBRARY`, else the one installed with the package.

    Raises MissingDependency when there is none, EngineError when it cannot be loaded or was built for another contract.
    """
    library = Path(os.environ.get(LIBRARY_VARIABLE) or _INSTALLED).resolve()
    if not library.is_file():
        raise MissingDependency(
            f"the plugin library {library} does not exist; install attngraft with pip, which compiles it, "
            f"or set {LIBRARY_VARIABLE} to a library that you built"
        )
    version = _contract_version(library)
    if version != CONTRACT_VERSION:
        raise EngineError(
            f"the plugin library {library} was built for contract version {version}, "
            f"this attngraft needs {CONTRACT_VERSION}; install attngraft again with pip"
        )
    return library


def _contract_version(library: Path) -> int:
    try:
        version = ctypes.CDLL(str(library)).attngraftContractVersion
    except OSError as error:
        raise EngineError(
            f"the plugin library {library} cannot be loaded: {error}; install attngraft again on this machine"
        ) from error
    except AttributeError as error:
        raise EngineError(
            f"{library} is no attngraft plugin library: it has no attngraftContractVersion; "
            f"set {LIBRARY_VARIABLE} to libattngraft.so"
        ) from error
    version.restype = ctypes.c_int32
    return int(version())
