"""attngraft.torch inside PyTorch: opcheck, torch.compile, vmap, autocast. On the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from attngraft.contract import CausalMode, EmptyRows
from attngraft.torch import attention, fused_attention, path_of
from attngraft.torch.device import device_cannot

B, H, HK, SQ, SK, D = 2, 4, 2, 3, 5, 8

OPERATORS = torch.ops.attngraft
LENGTHS = torch.tensor([3, 5], dtype=torch.int32)


def make_inputs() -> list[torch.Tensor]:
    """q in [B,S,H,D] order, k, v, a bias that want gradients, and a mask over the keys."""
    torch.manual_seed(0)
    tensors = (
        torch.randn(B, SQ, H, D).transpose(1, 2),
        torch.randn(B, HK, SK, D),
        torch.randn(B, HK, SK, D),
        torch.randn(1, H, SQ, SK),
    )
    return [*(tensor.requires_grad_() for tensor in tensors), torch.tensor([1, 1, 0, 1, 1]).bool()]


def operator_arguments(with_log_sum_exp: bool) -> tuple[Any, ...]:
    causal, empty_rows = CausalMode.ALL.index("bottom_right"), EmptyRows.ALL.index("uniform")
    return (*make_inputs(), LENGTHS, None, 0.5, causal, 3, -1, 0.0, empty_rows, False, with_log_sum_exp)


@pytest.mark.parametrize("with_log_sum_exp", [False, True])
def test_opcheck(with_log_sum_exp: bool) -> None:
    arguments = operator_arguments(with_log_sum_exp)
    torch.library.opcheck(OPERATORS.fused_attention.default, arguments)
    detached = [a.detach() if isinstance(a, torch.Tensor) else a for a in arguments]
    context, logarithms = OPERATORS.fused_attention(*detached)
    gradients = (torch.randn_like(context), torch.randn_like(logarithms))
    torch.library.opcheck(
        OPERATORS.fused_attention_backward.default, (*gradients, *detached[:-2], with_log_sum_exp)
    )  # fmt: skip


def assert_compiles(function: Callable[..., torch.Tensor], **options: Any) -> None:
    """The same results, strides and gradients from one graph as without it."""
    inputs = make_inputs()
    compiled = torch.compile(function, fullgraph=True, **options)
    ours, theirs = compiled(*inputs), function(*inputs)
    torch.testing.assert_close(ours, theirs)
    assert ours.stride() == theirs.stride() and ours.dtype == theirs.dtype
    gradients = [torch.autograd.grad(result.float().square().sum(), inputs[:4]) for result in (ours, theirs)]
    torch.testing.assert_close(*gradients)


def fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    context, logarithms = fused_attention(q, k, v, bias=bias, keep=keep, window=(3, -1), return_lse=True)
    return context + logarithms[..., None].to(context.dtype)


def front(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """By scaled_dot_product_attention, and with the weights."""
    context, weights = attention(q, k, v, bias=bias, keep=keep, need_weights=True)
    return attention(q, k, v, bias=bias, keep=keep) + context + weights.sum(-1, keepdim=True)


def scaled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return fused_attention(q, k, v, bias=bias, keep=keep, scale=0.3, softcap=2.0, causal="bottom_right")


@pytest.mark.parametrize(
    ("function", "dynamic"), [(fused, False), (fused, True), (scaled, False), (scaled, True), (front, False)]
)
def test_compiles_to_one_graph(function: Callable[..., torch.Tensor], dynamic: bool) -> None:
    assert_compiles(function, backend="aot_eager", dynamic=dynamic)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # PyTorch's own
def test_compiles_with_inductor() -> None:
    assert_compiles(scaled)


def test_compiles_inside_autocast() -> None:
    def inside(*inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return fused(*inputs) + front(*inputs)

    assert_compiles(inside, backend="aot_eager")


def test_the_choice_of_a_path_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph asks for the device's capability once, when it is compiled."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, index))

    def function(tensor: torch.Tensor, place: torch.device) -> torch.Tensor:
        return tensor + 1 if device_cannot(place) is None else tensor

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert compiled(torch.zeros(2), torch.device("cuda", 1)).tolist() == [1, 1]
    assert compiled(torch.zeros(2), torch.device("cpu")).tolist() == [0, 0]


@pytest.mark.parametrize("function", [fused, front])
def test_shapes_without_data(function: Callable[..., torch.Tensor]) -> None:
    """On the meta device, gradients included."""
    q, k, v, bias, keep = (tensor.detach().to("meta").requires_grad_(i < 4) for i, tensor in enumerate(make_inputs()))
    context = function(q, k, v, bias, keep)
    assert context.shape == (B, H, SQ, D) and context.device.type == "meta"
    gradients = torch.autograd.grad(context.sum(), (q, k, v, bias))
    assert [gradient.shape for gradient in gradients] == [tensor.shape for tensor in (q, k, v, bias)]


def test_exports() -> None:
    """Into one graph of torch.export, with a sequence length that may change."""

    class Model(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return fused_attention(q, k, v, causal="bottom_right")

    q, k, v, *_ = (tensor.detach() for tensor in make_inputs())
    length = torch.export.Dim("length")
    exported = torch.export.export(Model(), (q, k, v), dynamic_shapes=({}, {2: length}, {2: length}))
    assert OPERATORS.fused_attention.default in [node.target for node in exported.graph.nodes]
    longer = torch.randn(B, HK, 11, D)
    torch.testing.assert_close(
        exported.module()(q, longer, longer), fused_attention(q, longer, longer, causal="bottom_right")
    )


COUNT = 3

MASKS = [
    ((COUNT, 1, 1, SQ, SK), 0),
    ((SQ, SK), None),
    ((B, 1, SQ, COUNT, SK), 3),
    ((SK, COUNT), 1),
    ((B, 1, 1, SK), None),
]
"""Shapes of masks and where their new dimension is: with it and without, of every batch entry and of one."""


@pytest.mark.parametrize("role", ["bias", "keep"])
@pytest.mark.parametrize(("shape", "dim"), MASKS)
def test_vmap_is_a_loop(shape: tuple[int, ...], dim: int | None, role: str) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(COUNT, B, H, SQ, D), torch.randn(B, HK, SK, D), torch.randn(B, HK, COUNT, SK, D)
    mask = torch.randn(shape) if role == "bias" else torch.randn(shape) > -0.5
    inputs = [tensor.requires_grad_(tensor.is_floating_point()) for tensor in (q, k, v, mask)]

    def one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        context, logarithms = fused_attention(q, k, v, **{role: mask}, return_lse=True)
        return context, torch.where(logarithms.isinf(), 0.0, logarithms)

    together = torch.vmap(one, in_dims=(0, None, 2, dim))(q, k, v, mask)
    masks = [mask if dim is None else mask.select(dim, i) for i in range(COUNT)]
    alone = [one(q[i], k, v[:, :, i], masks[i]) for i in range(COUNT)]
    wanted = tuple(torch.stack(results) for results in zip(*alone, strict=True))
    torch.testing.assert_close(together, wanted)
    inputs = [tensor for tensor in inputs if tensor.requires_grad]
    gradients = [torch.autograd.grad(c.square().sum() + m.sin().sum(), inputs) for c, m in (together, wanted)]
    torch.testing.assert_close(*gradients)


def test_vmap_over_lengths() -> None:
    q, k, v, *_ = make_inputs()
    lengths = torch.tensor([[1, 2, 3], [5, 4, 0]], dtype=torch.int32)

    def one(lengths: torch.Tensor) -> torch.Tensor:
        return fused_attention(q, k, v, kv_lengths=lengths, kv_starts=torch.zeros(B, dtype=torch.int32))

    together = torch.vmap(one, in_dims=1)(lengths)
    torch.testing.assert_close(together, torch.stack([one(lengths[:, i].contiguous()) for i in range(COUNT)]))


@pytest.mark.parametrize("bias_shape", [(1, H, SQ, SK), (SK,)])
def test_vmap_of_the_backward_pass(bias_shape: tuple[int, ...]) -> None:
    """Several incoming gradients at once, as Jacobians take them."""
    q, k, v, *_ = make_inputs()
    bias = torch.randn(bias_shape, requires_grad=True)
    context, logarithms = fused_attention(q, k, v, bias=bias, return_lse=True)
    pulls = torch.randn(COUNT, *context.shape), torch.randn(COUNT, *logarithms.shape)

    def gradients(*pulls: torch.Tensor, batched: bool = False) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(
            (context, logarithms), (q, k, v, bias), pulls, retain_graph=True, is_grads_batched=batched
        )

    alone = [gradients(*(pull[i] for pull in pulls)) for i in range(COUNT)]
    torch.testing.assert_close(gradients(*pulls, batched=True), tuple(map(torch.stack, zip(*alone, strict=True))))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_casts_as_it_does_for_pytorchs_attention(dtype: torch.dtype) -> None:
    q, k, v, bias, keep = make_inputs()
    arguments = {"bias": bias, "keep": keep}
    raw = (q, k, v, bias, keep, None, None, D**-0.5, 0, -1, -1, 0.0, 0, False, False)
    with torch.autocast("cpu", dtype=dtype):
        results = [
            fused_attention(q, k.to(dtype), v, **arguments),
            attention(q, k, v, **arguments),
            attention(q, k, v, keep=keep, bias=bias.to(dtype)),
            *attention(q, k, v, **arguments, need_weights=True)[:1],
            OPERATORS.fused_attention(*raw)[0],
        ]
        with torch.no_grad():
            assert path_of(q, k, v, bias=bias.to(dtype)).name == "sdpa"
        gradients = torch.autograd.grad(results[0].sum(), (q, k, v, bias))
        assert fused_attention(q.double(), k.double(), v.double()).dtype == torch.float64
    wanted = fused_attention(*(tensor.to(dtype) for tensor in (q, k, v)), **arguments)
    for result in results:
        torch.testing.assert_close(result, wanted, rtol=2e-2, atol=2e-2)
    assert all(gradient.dtype == torch.float32 for gradient in gradients)
    (outside,) = torch.autograd.grad(wanted.sum(), (bias,))
    torch.testing.assert_close(gradients[3], outside)
