"""The operators of torch.ops.attngraft: their schemas, and the compiled library that has their kernels for CUDA.

In: libattngraft_torch.so, if it is there. Out: `fused_attention`, `masked_softmax` and the backward pass of each are
defined; who registers kernels for them does it through LIBRARY.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from attngraft.contract import DOMAIN
from attngraft.errors import EngineError, MissingDependency

__all__ = ["LIBRARY", "LIBRARY_VARIABLE", "SCHEMAS", "kernel_is_missing"]

LIBRARY_VARIABLE = "ATTNGRAFT_TORCH_LIBRARY"
"""Environment variable with the path of a library to use in place of the installed one."""

_INSTALLED = Path(__file__).resolve().parents[1] / "lib" / "libattngraft_torch.so"

_OPERANDS = "Tensor? bias, Tensor? keep, Tensor? kv_lengths, Tensor? kv_starts"
_SCALARS = "float scale, int causal, int window_left, int window_right, float softcap, int empty_rows"
"""`causal` and `empty_rows` are positions in the contract's lists."""

SCHEMAS = {
    "fused_attention": f"(Tensor q, Tensor k, Tensor v, {_OPERANDS}, {_SCALARS}, bool exact, bool with_log_sum_exp) "
    "-> (Tensor context, Tensor log_sum_exp)",
    "masked_softmax": f"(Tensor scores, {_OPERANDS}, {_SCALARS}) -> Tensor",
    "masked_softmax_backward": "(Tensor grad_probabilities, Tensor probabilities, Tensor? scores, "
    f"{_OPERANDS}, {_SCALARS}, bool with_bias) -> (Tensor grad_scores, Tensor grad_bias)",
}
"""Of the operators that libattngraft_torch.so defines too (plugin/torch/*_operator.h). Without `with_log_sum_exp` or
`with_bias` the last result is [0]."""

_BACKWARD_SCHEMAS = {
    "fused_attention_backward": "(Tensor grad_context, Tensor grad_log_sum_exp, Tensor q, Tensor k, Tensor v, "
    f"{_OPERANDS}, {_SCALARS}, bool with_bias) -> (Tensor grad_q, Tensor grad_k, Tensor grad_v, Tensor grad_bias)",
}
"""Without `with_bias` the last result is [0]."""


def kernel_is_missing() -> str | None:
    """Why there is no kernel for CUDA, with what to do about it; None where there is one."""
    return _REASON


def _load() -> str | None:
    """Loads the library if the process has not; why there is none. Raises for a library that the user named."""
    if _is_defined():
        return None  # loaded by torch.ops.load_library before this package was imported
    named = os.environ.get(LIBRARY_VARIABLE)
    path = Path(named).resolve() if named else _INSTALLED
    if not path.is_file():
        if named:
            raise MissingDependency(f"{LIBRARY_VARIABLE} is {named}, where no file is; correct or unset it")
        return (
            f"{path} was not built; install attngraft with `pip install --no-build-isolation` beside PyTorch 2.10 or "
            f"newer, or set {LIBRARY_VARIABLE}"
        )
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        reason = " ".join(str(error).split())
        if named:
            raise EngineError(f"{LIBRARY_VARIABLE}: {path} cannot be loaded: {reason}; build it again here") from error
        return f"{path} cannot be loaded by PyTorch {torch.__version__}: {reason}; install attngraft again beside it"
    if not _is_defined():
        raise EngineError(
            f"{path} is no attngraft library for PyTorch; set {LIBRARY_VARIABLE} to libattngraft_torch.so"
        )
    return None


def _is_defined() -> bool:
    return _found_schema("fused_attention") is not None


def _found_schema(name: str) -> str | None:
    operator = getattr(getattr(torch.ops, DOMAIN), name, None)
    return None if operator is None else str(operator.default._schema)


def _define() -> torch.library.Library:
    library = torch.library.Library(DOMAIN, "FRAGMENT")
    is_loaded = _is_defined()
    for name, schema in SCHEMAS.items():
        if not is_loaded:
            library.define(name + schema)
        elif (found := _found_schema(name)) != f"{DOMAIN}::{name}{schema}":
            raise EngineError(
                f"libattngraft_torch.so was built from another attngraft, its {name} is {found}; build it again"
            )
    for name, schema in _BACKWARD_SCHEMAS.items():
        library.define(name + schema)
    return library


_REASON = _load()

LIBRARY = _define()
"""Kernels that are registered through it live as long as the process."""
