"""What the masked softmax kernel is compared with. In: scores and their mask. Out: by name, what to call.

Every peer takes the same scores; what it leaves out is said in its name's comment below. Those that are not installed
are left out: Triton comes with PyTorch on a GPU, `pip install liger-kernel quack-kernels` brings the others.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

import torch

__all__ = ["softmax_peers"]

Peer = tuple[str, Callable[[], object]]

TRITON_MASKS = ("plain", "few-rows", "padding", "additive")
"""What the one-row kernel does: no mask, or one over the keys of a batch."""
MOST_TRITON_KEYS = 1 << 17
"""A row is one block of a Triton program: longer ones it does not compile."""


def softmax_peers(
    scores: torch.Tensor,
    operand: torch.Tensor | None,
    mask: str,
    reference: Callable[[torch.Tensor, torch.Tensor | None, str], torch.Tensor],
    scale: float,
) -> dict[str, Callable[[], object]]:
    """reference: scale, mask and softmax in PyTorch operations, which `torch-eager` and `torch-compile` run."""
    torch.compiler.reset()
    compiled = torch.compile(reference, dynamic=False)
    return {
        "torch-eager": lambda: reference(scores, operand, mask),
        "torch-compile": lambda: compiled(scores, operand, mask),
        "torch-softmax": lambda: torch.softmax(scores, dim=-1),  # neither scales nor masks
        **dict(_triton(scores, operand, mask, scale)),
        **dict(_installed(scores)),
    }


def _triton(scores: torch.Tensor, operand: torch.Tensor | None, mask: str, scale: float) -> Iterator[Peer]:
    """A row a program, held whole, as Triton's tutorial has it, with scale and mask."""
    if mask not in TRITON_MASKS or scores.shape[-1] > MOST_TRITON_KEYS:
        return
    with contextlib.suppress(ImportError):
        from benchmarks.softmax_triton import one_row_softmax

        out = torch.empty_like(scores)
        yield "triton-one-row", lambda: one_row_softmax(scores, operand, out, scale)


def _installed(scores: torch.Tensor) -> Iterator[Peer]:
    """Softmax kernels of other libraries, which neither scale nor mask. One that refuses the work is left out."""
    rows = scores.reshape(-1, scores.shape[-1])
    with contextlib.suppress(ImportError):
        from liger_kernel.ops.softmax import LigerSoftmaxFunction

        yield from _willing("liger-softmax", lambda: LigerSoftmaxFunction.apply(rows))
    with contextlib.suppress(ImportError):
        from quack.softmax import softmax

        yield from _willing("quack-softmax", lambda: softmax(rows))


def _willing(name: str, call: Callable[[], object]) -> Iterator[Peer]:
    try:
        call()
        torch.cuda.synchronize()
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        print(f"{name} is left out: {type(error).__name__}: {str(error)[:120]}", file=sys.stderr)
    else:
        yield name, call
