"""Running a model in ONNX Runtime on the CPU, as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from onnx import ModelProto

from attngraft.errors import MissingDependency, VerificationError
from attngraft.onnx_graph import load_model
from attngraft.verify.definition import by_definition
from attngraft.verify.inside import with_outputs

__all__ = ["LoadFailure", "Model", "ReferenceSession", "load_description", "model_folder"]

Model = ModelProto | str | Path

MAX_REASON = 160
"""Characters of ONNX Runtime's message that are shown: the reason comes first, paths into its source after it."""


EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"
"""ONNX Runtime's option that says where the external data of a model in memory is."""


class LoadFailure(VerificationError):
    """ONNX Runtime does not load a model. `note` says so where another form of the same model is there to compare."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(
            f"the {what} model does not load in ONNX Runtime, so it cannot be verified: {reason}; "
            "export it again, or use --no-verify"
        )
        self.note = f"ONNX Runtime does not load the {what}: {reason}"


class ReferenceSession:
    """A model in ONNX Runtime. Give a path for models above 2 GB."""

    def __init__(self, model: Model, what: str, *, defined: bool = False, inside: Sequence[str] = ()) -> None:
        """`what` names the model in errors: "original" or "rewritten". `defined`: Attention nodes are computed as ONNX
        defines them, not by ONNX Runtime's kernel. `inside`: tensors that are to be outputs too."""
        try:
            import onnxruntime
        except ImportError:
            raise MissingDependency(
                "onnxruntime is not installed; pip install onnxruntime, or use --no-verify"
            ) from None
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # failures arrive as exceptions
        # Its attention fusions change the result for left-padded and holed masks, so that it would not be the model
        # any more.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        self._what = what
        folder = model_folder(model)
        if folder is not None and (defined or inside):
            options.add_session_config_entry(EXTERNAL_FOLDER, str(folder))
        if defined:
            model = by_definition(load_description(model))
        if inside:
            model = with_outputs(load_description(model), inside)
        source = model.SerializeToString() if isinstance(model, ModelProto) else str(model)
        try:
            self._session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime raises a dozen unrelated classes
            raise LoadFailure(what, _one_line(error)) from None
        self.outputs = [output.name for output in self._session.get_outputs()]

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name. Raises VerificationError when ONNX Runtime refuses the inputs."""
        try:
            values = self._session.run(self.outputs, dict(feeds))
        except Exception as error:  # as above
            shapes = ", ".join(f"{name}={'x'.join(map(str, array.shape))}" for name, array in feeds.items())
            raise VerificationError(f"the {self._what} model does not run with {shapes}: {_one_line(error)}") from None
        outputs = dict(zip(self.outputs, values, strict=True))
        for name, value in outputs.items():
            if not isinstance(value, np.ndarray):
                raise VerificationError(
                    f"output {name!r} is no tensor; such models cannot be verified, use --no-verify"
                )
        return outputs


def load_description(model: Model) -> ModelProto:
    """The proto of a model, which is read without external weights if it is a path."""
    return model if isinstance(model, ModelProto) else load_model(model)


def model_folder(model: Model) -> Path | None:
    """Where the external data of a model is; None for one in memory."""
    return None if isinstance(model, ModelProto) else Path(model).parent


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:MAX_REASON]
