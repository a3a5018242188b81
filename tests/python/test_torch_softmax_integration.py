"""attngraft.torch.masked_softmax inside PyTorch: opcheck, torch.compile, vmap, autocast, export. On the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attngraft.contract import CausalMode, EmptyRows
from attngraft.torch import masked_softmax

B, H, SQ, SK = 2, 3, 4, 5
COUNT = 3

OPERATORS = torch.ops.attngraft
LENGTHS = torch.tensor([3, 5], dtype=torch.int32)
KEEP = torch.tensor([[1, 1, 0, 1, 1], [0, 1, 1, 1, 1]]).bool()


def make_inputs() -> list[torch.Tensor]:
    """Scores and a bias that want gradients."""
    torch.manual_seed(0)
    return [torch.randn(B, H, SQ, SK).requires_grad_(), torch.randn(1, H, SQ, SK).requires_grad_()]


@pytest.mark.parametrize(("empty_rows", "softcap"), [("zeros", 0.0), ("uniform", 2.0)])
def test_opcheck(empty_rows: str, softcap: float) -> None:
    scores, bias = make_inputs()
    scalars = (0.5, CausalMode.ALL.index("bottom_right"), 3, -1, softcap, EmptyRows.ALL.index(empty_rows))
    masks = (bias, KEEP[:, None, None], LENGTHS, None)
    torch.library.opcheck(OPERATORS.masked_softmax.default, (scores, *masks, *scalars))
    detached = tuple(None if mask is None else mask.detach() for mask in masks)
    probabilities = OPERATORS.masked_softmax(scores.detach(), *detached, *scalars)
    saved = (torch.randn_like(probabilities), probabilities, scores.detach())
    for with_bias in (False, True):
        arguments = (*saved, *detached, *scalars, with_bias)
        torch.library.opcheck(OPERATORS.masked_softmax_backward.default, arguments)


def whole(scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return masked_softmax(scores, mask=KEEP, bias=bias, kv_lengths=LENGTHS, window=(3, -1), softcap=2.0, head_size=64)


def unmasked(scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return masked_softmax(scores + bias, causal="top_left", empty_rows="uniform", scale=0.3)


def assert_compiles(function: Any, **options: Any) -> None:
    """The same results, strides and gradients from one graph as without it."""
    inputs = make_inputs()
    ours, theirs = torch.compile(function, fullgraph=True, **options)(*inputs), function(*inputs)
    torch.testing.assert_close(ours, theirs)
    assert ours.stride() == theirs.stride() and ours.dtype == theirs.dtype
    gradients = [torch.autograd.grad(result.float().square().sum(), inputs) for result in (ours, theirs)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(("function", "dynamic"), [(whole, False), (whole, True), (unmasked, True)])
def test_compiles_to_one_graph(function: Any, dynamic: bool) -> None:
    assert_compiles(function, backend="aot_eager", dynamic=dynamic)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # PyTorch's own
def test_compiles_with_inductor() -> None:
    assert_compiles(whole)


def test_compiles_inside_autocast() -> None:
    def inside(scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return whole(scores @ torch.eye(SK), bias)

    assert_compiles(inside, backend="aot_eager")


def test_shapes_without_data() -> None:
    """On the meta device, gradients included."""
    scores, bias = (tensor.detach().to("meta").requires_grad_() for tensor in make_inputs())
    probabilities = masked_softmax(scores, bias=bias, causal="top_left")
    assert probabilities.shape == scores.shape and probabilities.device.type == "meta"
    gradients = torch.autograd.grad(probabilities.sum(), (scores, bias))
    assert [gradient.shape for gradient in gradients] == [scores.shape, bias.shape]


def test_exports_with_dimensions_that_may_change() -> None:
    """Into one graph of torch.export: a padding mask [B,Sk] stays one for every batch and every length."""

    class Model(torch.nn.Module):
        def forward(self, scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return masked_softmax(scores, mask=mask, head_size=64)

    batch, rows, keys = (torch.export.Dim(name) for name in ("batch", "rows", "keys"))
    shapes = ({0: batch, 2: rows, 3: keys}, {0: batch, 1: keys})
    exported = torch.export.export(Model(), (make_inputs()[0].detach(), KEEP), dynamic_shapes=shapes)
    assert OPERATORS.masked_softmax.default in [node.target for node in exported.graph.nodes]
    for queries in (7, 6):  # as many queries as batch entries: what the mask is was settled when it was exported
        scores, mask = torch.randn(6, H, queries, 9), torch.rand(6, 9) > 0.3
        expected = masked_softmax(scores, mask=mask[:, None, None], head_size=64)
        torch.testing.assert_close(exported.module()(scores, mask), expected)


SCORES = [((COUNT, B, H, SQ, SK), 0), ((B, H, SQ, COUNT, SK), 3), ((COUNT, SQ, SK), 0), ((SQ, SK, COUNT), 2)]
"""Shapes of scores of rank 4 and 2, and where their new dimension is."""


@pytest.mark.parametrize(
    ("bias_shape", "dim"), [((COUNT, 1, SK), 0), ((SQ, SK), None), ((SQ, COUNT, SK), 1), ((COUNT,), 0)]
)
@pytest.mark.parametrize(("shape", "scores_dim"), SCORES)
def test_vmap_is_a_loop(shape: tuple[int, ...], scores_dim: int, bias_shape: tuple[int, ...], dim: int | None) -> None:
    torch.manual_seed(0)
    scores, bias = torch.randn(shape, requires_grad=True), torch.randn(bias_shape, requires_grad=True)
    keep = torch.rand(SQ, SK) > 0.3

    def one(scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return masked_softmax(scores, keep=keep, bias=bias, softcap=3.0, empty_rows="uniform")

    together = torch.vmap(one, in_dims=(scores_dim, dim))(scores, bias)
    alone = [one(scores.select(scores_dim, i), bias if dim is None else bias.select(dim, i)) for i in range(COUNT)]
    wanted = torch.stack(alone)
    torch.testing.assert_close(together, wanted)
    gradients = [torch.autograd.grad(found.square().sum(), (scores, bias)) for found in (together, wanted)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("shape", [(B, H, SQ, SK), (SQ, SK)])
def test_vmap_over_masks_and_lengths(shape: tuple[int, ...]) -> None:
    scores = torch.randn(shape)
    lengths = torch.tensor([[1, 3], [5, 4], [2, 0]], dtype=torch.int32)[:, : 1 if len(shape) == 2 else B]
    keep = torch.rand(COUNT, *shape) > 0.3

    def one(keep: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return masked_softmax(scores, mask=keep, kv_lengths=lengths)

    together = torch.vmap(one)(keep, lengths)
    torch.testing.assert_close(together, torch.stack([one(keep[i], lengths[i]) for i in range(COUNT)]))


@pytest.mark.parametrize("bias_shape", [(1, H, SQ, SK), (SK,)])
def test_vmap_of_the_backward_pass(bias_shape: tuple[int, ...]) -> None:
    """Several incoming gradients at once, as Jacobians take them."""
    scores, _ = make_inputs()
    bias = torch.randn(bias_shape, requires_grad=True)
    probabilities = masked_softmax(scores, bias=bias, mask=KEEP, softcap=2.0)
    pulls = torch.randn(COUNT, *probabilities.shape)

    def gradients(pull: torch.Tensor, batched: bool = False) -> tuple[torch.Tensor, ...]:
        inputs = (scores, bias)
        return torch.autograd.grad(probabilities, inputs, pull, retain_graph=True, is_grads_batched=batched)

    alone = [gradients(pull) for pull in pulls]
    torch.testing.assert_close(gradients(pulls, batched=True), tuple(map(torch.stack, zip(*alone, strict=True))))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_leaves_the_scores_their_type(dtype: torch.dtype) -> None:
    """PyTorch's own softmax widens them, since there is no other way to compute in float32. A bias of the region's type
    goes with float32 scores there, and a mask too."""
    scores, bias = make_inputs()
    half, raw = scores.detach().to(dtype), (None, None, None, 1.0, 0, -1, -1, 0.0, 0)
    with torch.autocast("cpu", dtype=dtype):
        results = [
            masked_softmax(scores, bias=bias.to(dtype)),
            masked_softmax(scores, mask=bias.to(dtype)),
            OPERATORS.masked_softmax(scores, bias.to(dtype), *raw),
        ]
        assert masked_softmax(half, bias=bias).dtype == dtype
        (inside,) = torch.autograd.grad(results[0].square().sum(), scores)
    wanted = masked_softmax(scores, bias=bias.to(dtype).float())
    assert all(torch.equal(result, wanted) for result in results)
    torch.testing.assert_close(inside, torch.autograd.grad(wanted.square().sum(), scores)[0])
    assert torch.equal(masked_softmax(half, bias=bias), masked_softmax(half.float(), bias=bias).to(dtype))
