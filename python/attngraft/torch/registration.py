"""What makes an operator of torch.ops.attngraft whole: its parts by PyTorch operations, registered in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from attngraft.contract import DOMAIN
from attngraft.errors import ContractError
from attngraft.torch.library import LIBRARY

__all__ = ["OperatorParts", "register_operator"]

Part = Callable[..., Any]


@dataclass(frozen=True)
class OperatorParts:
    """Functions of an operator NAME and of NAME_backward, each with the arguments that torch.library asks for.

    `forward` is for the CPU, `backward` for every device that has no kernel of its own.
    """

    forward: Part
    forward_shapes: Part
    forward_vmap: Part
    backward: Part
    backward_shapes: Part
    backward_vmap: Part
    setup_context: Part
    gradients: Part
    autocast: Part


def register_operator(name: str, parts: OperatorParts) -> None:
    """Registers all parts with LIBRARY, and that there are no second derivatives."""

    def refuse_second(_ctx: Any, *_grads: Any) -> Any:
        raise ContractError(
            f"{name}: no second derivatives; attngraft.torch.attention(..., need_weights=True) has them on the CPU "
            "and in float64"
        )

    forward, backward = f"{DOMAIN}::{name}", f"{DOMAIN}::{name}_backward"
    LIBRARY.impl(name, parts.forward, "CPU")
    LIBRARY.impl(f"{name}_backward", parts.backward, "CompositeExplicitAutograd")
    torch.library.register_fake(forward, parts.forward_shapes, lib=LIBRARY)
    torch.library.register_fake(backward, parts.backward_shapes, lib=LIBRARY)
    torch.library.register_autograd(forward, parts.gradients, setup_context=parts.setup_context, lib=LIBRARY)
    torch.library.register_autograd(backward, refuse_second, lib=LIBRARY)
    torch.library.register_vmap(forward, parts.forward_vmap, lib=LIBRARY)
    torch.library.register_vmap(backward, parts.backward_vmap, lib=LIBRARY)
    for key in ("AutocastCPU", "AutocastCUDA"):
        LIBRARY.impl(name, parts.autocast, key)
