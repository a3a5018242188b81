"""Every error that attngraft raises on purpose.

A message says what was found, where (node or file), and what to do, on one line. The command line prints it and
exits with status 1.
"""

__all__ = [
    "AttngraftError",
    "BuildError",
    "CaptureError",
    "ContractError",
    "EngineError",
    "MissingDependency",
    "ModelError",
    "RewriteError",
    "VerificationError",
    "WriteError",
]


class AttngraftError(Exception):
    """The root: catch this to catch them all."""


class ContractError(AttngraftError):
    """An operator is used outside its contract: an unknown attribute value, a role given twice, shapes that do not
    broadcast."""


class ModelError(AttngraftError):
    """The ONNX file cannot be used: not ONNX, truncated, cyclic, external data missing, opset or type unsupported."""


class RewriteError(AttngraftError):
    """The requested lowering cannot be applied."""


class VerificationError(AttngraftError):
    """The rewritten model does not compute what the original computes, or it could not be compared."""


class BuildError(AttngraftError):
    """TensorRT refused the model, the shapes or the plugin."""


class WriteError(BuildError, ModelError):
    """A file, engine or model, cannot be written: a full disk, no permission. What was there is as it was."""


class EngineError(AttngraftError):
    """An engine cannot be loaded or run here: other version, other GPU, missing plugin, shape outside the profile."""


class CaptureError(EngineError):
    """A CUDA graph could not be captured, or its replay differs from the plain run."""


class MissingDependency(AttngraftError):
    """An optional package or the GPU is absent; the message names the extra to install."""
