"""A configuration and its operands as the operators of torch.ops.attngraft take them, and back.

The scalars are scale, causal, window_left, window_right, softcap and empty_rows; `causal` and `empty_rows` are
positions in the contract's lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from torch import Tensor

from attngraft.contract import CausalMode, EmptyRows, MaskConfig, Role
from attngraft.errors import ContractError
from attngraft.torch.checks import Operands

__all__ = ["OPERAND_COUNT", "SCALAR_COUNT", "Scalars", "config_of", "mask_fields", "operands_of", "scalars_of"]

OPERAND_COUNT = len(Role.ALL)
SCALAR_COUNT = 6

Scalars = tuple[float, int, int, int, float, int]

_Config = TypeVar("_Config", bound=MaskConfig)


def operands_of(tensors: Sequence[Tensor | None]) -> Operands:
    """The tensors, given in the roles' order, by their roles."""
    return dict(zip(Role.ALL, tensors, strict=True))


def scalars_of(config: MaskConfig) -> Scalars:
    return (
        config.scale,
        CausalMode.ALL.index(config.causal),
        config.window_left,
        config.window_right,
        config.softcap,
        EmptyRows.ALL.index(config.empty_rows),
    )


def config_of(kind: type[_Config], operands: Operands, scalars: Sequence[Any], **fields: Any) -> _Config:
    """The configuration with these scalars and roles; `fields` are those that `kind` has beyond a mask's."""
    scale, causal, left, right, softcap, empty_rows = scalars
    return kind(
        operands=tuple(role for role in Role.ALL if operands[role] is not None),
        scale=scale,
        causal=CausalMode.ALL[causal],
        window_left=left,
        window_right=right,
        softcap=softcap,
        empty_rows=EmptyRows.ALL[empty_rows],
        **fields,
    )


def mask_fields(
    operands: Operands, causal: str, window: tuple[int, int], scale: float, softcap: float, empty_rows: str
) -> dict[str, Any]:
    """The fields of a MaskConfig from the public functions' arguments. Raises ContractError for what is no window."""
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise ContractError(f"window: {window!r} is not a pair (left, right); -1 leaves a side unbounded")
    return {
        "operands": tuple(role for role in Role.ALL if operands[role] is not None),
        "scale": _constant(scale),
        "causal": causal,
        "window_left": window[0],
        "window_right": window[1],
        "softcap": _constant(softcap),
        "empty_rows": empty_rows,
    }


def _constant(number: float) -> float:
    """The same number. torch.compile makes a symbol of a float that changes between calls, which the checks of a
    configuration do not take; writing it out and reading it again makes it a constant of the graph."""
    return float.fromhex(float(number).hex())
