"""What TensorRT-RTX needs beyond the common road: a library name that its ONNX parser looks for.

The parser opens `libtensorrt_rtx.so` when it meets a plugin node, and aborts the process when there is none; the
package holds `libtensorrt_rtx.so.1` only. attngraft brings a shim of that name, which leads to the loaded library:
once it is in the process, the loader gives it to the parser.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from attngraft.errors import EngineError

__all__ = ["prepare_parser"]

SHIM = "libtensorrt_rtx.so"


def prepare_parser(library: Path) -> None:
    """Loads the shim beside the plugin library. `tensorrt_rtx` must be imported already.

    Raises EngineError when there is no shim: going on would end the process.
    """
    shim = library.with_name(SHIM)
    try:
        ctypes.CDLL(str(shim))
    except OSError as error:
        raise EngineError(
            f"{shim}: the shim that TensorRT-RTX needs cannot be loaded ({error}); install attngraft again"
        ) from None
