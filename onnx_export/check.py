"""An exported file against the module it came from, in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attngraft.errors import VerificationError
from attngraft.onnx_export.dependencies import import_for_export

if TYPE_CHECKING:
    import torch

__all__ = ["TOLERANCE", "compare_with_module", "require_equal"]

TOLERANCE = {"torch.float32": 1e-3, "torch.float16": 3e-2, "torch.bfloat16": 3e-1}
"""Largest absolute difference over max(1, |value|): a stack of layers that reorders its sums differs by some ten units
in the last place of the type (2^-24, 2^-11, 2^-8), a wrong graph by far more."""


def compare_with_module(path: str | Path, module: torch.nn.Module, args: Sequence[Any]) -> list[float]:
    """For each output the largest |file - module| / max(1, |module|) on the tensors `args`.

    An output whose shape differs, or that is NaN where the module's is not, gives infinity. Raises VerificationError
    when ONNX Runtime cannot run the file.
    """
    torch = import_for_export("torch")
    with torch.no_grad():
        expected = module(*args)
    expected = [expected] if torch.is_tensor(expected) else list(expected)
    return [_difference(e.float().numpy(), r) for e, r in zip(expected, _run(Path(path), args), strict=True)]


def require_equal(path: Path, module: torch.nn.Module, args: Sequence[Any]) -> None:
    """Raises VerificationError when an output differs by more than TOLERANCE of the module's type."""
    dtype = str(next(module.parameters()).dtype)
    tolerance = TOLERANCE[dtype]
    for index, difference in enumerate(compare_with_module(path, module, args)):
        if not difference <= tolerance:
            raise VerificationError(
                f"{path.name}: output {index} differs from the {dtype} module by {difference:.3g}, more than "
                f"{tolerance:g}; try the other exporter or another opset"
            )


def _run(path: Path, args: Sequence[Any]) -> list[np.ndarray]:
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        feeds = {node.name: tensor.numpy() for node, tensor in zip(session.get_inputs(), args, strict=True)}
        return [np.asarray(output, dtype=np.float32) for output in session.run(None, feeds)]
    except Exception as error:  # ONNX Runtime has no common base class for its errors
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise VerificationError(
            f"{path.name}: ONNX Runtime cannot run it ({first_line}); check it elsewhere"
        ) from error


def _difference(expected: np.ndarray, result: np.ndarray) -> float:
    if expected.shape != result.shape or (np.isnan(result) & ~np.isnan(expected)).any():
        return float("inf")
    both = np.isfinite(expected) & np.isfinite(result)
    if not np.array_equal(expected[~both], result[~both], equal_nan=True):
        return float("inf")
    gap = np.abs(expected[both] - result[both]) / np.maximum(1.0, np.abs(expected[both]))
    return float(gap.max(initial=0.0))
