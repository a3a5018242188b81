"""attngraft.torch on a GPU: the kernel behind torch.ops.attngraft.fused_attention, and the ways around it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from attention_cases import LOGARITHM_TOLERANCE, TOLERANCES, assert_attention_matches, random_attention
from device_memory import allocations
from torch_cases import arguments_of, tensors_of, to_numpy

BUILT = Path(__file__).parents[2] / "build" / "lib" / "libattngraft_torch.so"
if BUILT.is_file():  # before attngraft.torch is imported, which loads it
    os.environ.setdefault("ATTNGRAFT_TORCH_LIBRARY", str(BUILT))

from attngraft.contract import CausalMode, EmptyRows, Role  # noqa: E402
from attngraft.errors import ContractError  # noqa: E402
from attngraft.torch import attention, eager, fused_attention, path_of  # noqa: E402
from attngraft.torch.call import attention_call  # noqa: E402
from attngraft.torch.library import kernel_is_missing  # noqa: E402
from attngraft.torch.sdpa import sdpa, sdpa_cannot  # noqa: E402

DEVICE = "cuda"
CASES = 60
WORK_LIMIT = 1_000_000

B, H, HK, S, D = 2, 8, 2, 200, 64

GRADIENT_TOLERANCES = {torch.float32: 2e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""As a share of a gradient's largest element: the tensors' own rounding, some times over."""

CLOSE = {"rtol": 2e-3, "atol": 2e-3}
"""For two versions of the kernel in float16."""

BUSY_CYCLES = 200_000_000
"""A tenth of a second, in which whatever runs on another stream is done."""


def make_qkv(dtype: torch.dtype = torch.float16, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((B, H, S, D), (B, HK, S, D), (B, HK, S, D))
    q, k, v = (torch.randn(shape, generator=generator).to(DEVICE, dtype) for shape in shapes)
    return q, k, v


def make_masks() -> dict[str, Any]:
    """Of every role, and a causal bound; the first rows of entry 1 have no key."""
    generator = torch.Generator().manual_seed(1)
    return {
        "bias": torch.randn(H, S, S, generator=generator).to(DEVICE),
        "keep": (torch.rand(B, 1, 1, S, generator=generator) > 0.2).to(DEVICE),
        "kv_lengths": torch.tensor([S, 150], dtype=torch.int32, device=DEVICE),
        "kv_starts": torch.tensor([0, 20], dtype=torch.int32, device=DEVICE),
        "causal": CausalMode.TOP_LEFT,
    }


def random_half(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(DEVICE, torch.float16)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """For comparisons in which NaN equals itself."""
    return tensor.contiguous().view(torch.int16 if tensor.element_size() == 2 else torch.int32)


def test_the_kernel_is_there() -> None:
    assert kernel_is_missing() is None
    assert path_of(*make_qkv()).name == "kernel", str(path_of(*make_qkv()))


@pytest.mark.parametrize("seed", range(CASES))
def test_the_kernel_is_attention_in_float64(seed: int) -> None:
    """Types, layouts with gaps, masks, sizes; twice the same bits, also without the log-sum-exp."""
    case = random_attention(seed, WORK_LIMIT)
    tensors, arguments = tensors_of(case, DEVICE), arguments_of(case, DEVICE)
    context, logarithms = fused_attention(*tensors, **arguments, return_lse=True)
    assert_attention_matches((to_numpy(context), to_numpy(logarithms)), case)
    again, same = fused_attention(*tensors, **arguments, return_lse=True)
    for other in (again, fused_attention(*tensors, **arguments), attention(*tensors, **arguments)):
        assert torch.equal(bits(other), bits(context))
    assert torch.equal(bits(same), bits(logarithms))


@pytest.mark.parametrize("seed", range(CASES))
def test_the_ways_around_the_kernel_are_attention_too(seed: int) -> None:
    case = random_attention(seed, WORK_LIMIT)
    case = replace(case, config=replace(case.config, exact=0))  # PyTorch's kernels promise no more
    tensors, arguments = tensors_of(case, DEVICE), arguments_of(case, DEVICE)
    _, logarithms = fused_attention(*tensors, **arguments, return_lse=True)
    call = attention_call(*tensors, **arguments)
    contexts = [attention(*tensors, **arguments, need_weights=True)[0]]
    if sdpa_cannot(call, 0.0) is None:
        contexts.append(sdpa(call))
    for context in contexts:
        assert_attention_matches((to_numpy(context), to_numpy(logarithms)), case)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_kernel_equals_the_operations_on_the_cpu(dtype: torch.dtype, masked: bool) -> None:
    tensors, masks = make_qkv(dtype), make_masks() if masked else {}
    context, logarithms = fused_attention(*tensors, **masks, return_lse=True)
    on_cpu = {name: mask.cpu() if isinstance(mask, torch.Tensor) else mask for name, mask in masks.items()}
    expected, wanted = fused_attention(*(tensor.cpu() for tensor in tensors), **on_cpu, return_lse=True)
    tolerance = TOLERANCES[str(dtype).removeprefix("torch.")]
    torch.testing.assert_close(context.cpu(), expected, rtol=tolerance, atol=tolerance)
    tolerance = LOGARITHM_TOLERANCE[str(dtype).removeprefix("torch.")]
    torch.testing.assert_close(logarithms.cpu(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(0, H, S, S), (B, 0, S, S), (B, H, 0, S), (B, H, S, 0)])
def test_empty_tensors(shape: tuple[int, int, int, int]) -> None:
    batch, heads, queries, keys = shape
    q, k = random_half(batch, heads, queries, D), random_half(batch, heads, keys, D)
    context, logarithms = fused_attention(q, k, k, return_lse=True)
    assert context.shape == q.shape and (context == 0).all() and (logarithms == -math.inf).all()


def packed_views(memory: torch.Tensor, axis: int) -> list[torch.Tensor]:
    """q, k and v [B,H,S,D] out of a projection that holds them along `axis`."""
    return [memory.select(axis, i).transpose(1, 2) for i in range(3)]


VIEWS: dict[str, Callable[[], list[torch.Tensor]]] = {
    "bshd": lambda: [random_half(B, S, H, D).transpose(1, 2) for _ in range(3)],
    "packed": lambda: packed_views(random_half(B, S, 3, H, D), 2),
    "packed by head": lambda: packed_views(random_half(B, S, H, 3, D), 3),
    "expanded": lambda: [random_half(1, 1, S, D).expand(B, H, S, D) for _ in range(3)],
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_read_in_place(name: str) -> None:
    """No memory is asked for beyond that of contiguous tensors; a tensor that cannot be read in place does ask for
    more. Another memory order may be another version of the kernel, so the bits may differ."""
    q, k, v = VIEWS[name]()
    close = [tensor.contiguous() for tensor in (q, k, v)]
    assert not q.is_contiguous()
    expected, context = fused_attention(*close), fused_attention(q, k, v)
    torch.testing.assert_close(context, expected, **CLOSE)
    assert context.transpose(1, 2).is_contiguous() and expected.is_contiguous()
    least = allocations(lambda: fused_attention(*close))
    assert allocations(lambda: fused_attention(q, k, v)) == least
    spread = q.transpose(2, 3).contiguous().transpose(2, 3)
    torch.testing.assert_close(fused_attention(spread, k, v), expected, **CLOSE)
    assert allocations(lambda: fused_attention(spread, k, v)) == least + 1


@pytest.mark.parametrize("role", [Role.BIAS, Role.KEEP])
def test_masks_are_read_in_place(role: str) -> None:
    """One that is broadcast by strides of 0, or a view of a larger one."""
    q, k, v = make_qkv()
    larger = torch.randn(S + 8, S + 8).to(DEVICE, q.dtype)
    larger = larger > -0.5 if role == Role.KEEP else larger
    least = allocations(lambda: fused_attention(q, k, v))
    for mask in (larger[:S, :S], larger[0, :S].expand(B, H, S, S), larger[:S, :1].expand(S, S)):
        expected = fused_attention(q, k, v, **{role: mask.contiguous()})
        torch.testing.assert_close(fused_attention(q, k, v, **{role: mask}), expected, **CLOSE)
        assert allocations(lambda mask=mask: fused_attention(q, k, v, **{role: mask})) == least


@pytest.mark.filterwarnings("ignore:.*prototype feature")  # PyTorch says so of the mode
def test_nothing_is_waited_for() -> None:
    tensors, masks = make_qkv(), make_masks()
    torch.cuda.set_sync_debug_mode("error")
    try:
        fused_attention(*tensors, **masks, return_lse=True)
        attention(*tensors, **masks)
        attention(*tensors, **masks, need_weights=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_it_runs_on_the_current_stream() -> None:
    """Queued behind a write that waits for a tenth of a second: elsewhere it would read what was there before."""
    q, k, v = make_qkv()
    late, _, _ = make_qkv(seed=7)
    expected, before = fused_attention(late, k, v), fused_attention(q, k, v)
    assert not torch.equal(expected, before)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(BUSY_CYCLES)
        q.copy_(late)
        context = fused_attention(q, k, v)
    torch.cuda.synchronize()
    assert torch.equal(context, expected)


@pytest.mark.parametrize("keys", [S, 4000])
def test_inside_a_cuda_graph_with_new_data(keys: int) -> None:
    """Many rows under masks; and one row over many keys, which takes scratch memory and a second launch."""
    masks = make_masks() if keys == S else {}
    shapes = [(B, H, S if keys == S else 1, D), (B, HK, keys, D), (B, HK, keys, D)]
    q, k, v = (random_half(*shape) for shape in shapes)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        fused_attention(q, k, v, **masks)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        context, logarithms = fused_attention(q, k, v, **masks, return_lse=True)
    for factor in (0.5, -1.0):
        for tensor in (q, k, v):
            tensor.mul_(factor)
        graph.replay()
        expected, wanted = fused_attention(q, k, v, **masks, return_lse=True)
        assert torch.equal(context, expected) and torch.equal(logarithms, wanted)


def test_every_device_has_its_own_tensors() -> None:
    """Tensors of each device in turn, while another one is current where there are several."""
    expected = fused_attention(*make_qkv())
    count = torch.cuda.device_count()
    for index in range(count):
        with torch.cuda.device((index + 1) % count):
            context = fused_attention(*(tensor.to(f"cuda:{index}") for tensor in make_qkv()))
            assert torch.cuda.current_device() == (index + 1) % count
        assert context.device.index == index and torch.equal(context.to(expected.device), expected)


@pytest.mark.parametrize("empty_rows", EmptyRows.ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_gradients_are_those_of_pytorch_operations(dtype: torch.dtype, empty_rows: str) -> None:
    results = []
    for with_weights in (False, True):
        inputs = [tensor.requires_grad_() for tensor in make_qkv(dtype)]
        masks = make_masks() | {"empty_rows": empty_rows, "softcap": 5.0}
        inputs.append(masks["bias"].requires_grad_())
        if with_weights:
            context, _ = attention(*inputs[:3], **masks, need_weights=True)
        else:
            context = fused_attention(*inputs[:3], **masks, exact=True)
        results.append(torch.autograd.grad(context.float().square().sum(), inputs))
    for ours, theirs in zip(*results, strict=True):
        assert ours.dtype == theirs.dtype and ours.isfinite().all() and theirs.abs().max() > 0
        tolerance = GRADIENT_TOLERANCES[dtype] * theirs.abs().max().item()
        torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


def test_gradients_of_the_log_sum_exp() -> None:
    q, k, v = (tensor.requires_grad_() for tensor in make_qkv(torch.float32))
    _, logarithms = fused_attention(q, k, v, exact=True, return_lse=True)
    scores = eager._scores(q, k) / math.sqrt(D)
    expected = torch.autograd.grad(torch.logsumexp(scores, -1).sin().sum(), (q, k))
    gradients = torch.autograd.grad(logarithms.sin().sum(), (q, k))
    torch.testing.assert_close(gradients, expected, rtol=1e-3, atol=1e-4)


def front(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The kernel, and the way with weights."""
    return attention(q, k, v, causal="top_left") + attention(q, k, v, causal="top_left", need_weights=True)[0]


def fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return fused_attention(q, k, v, causal="top_left", window=(50, -1))


@pytest.mark.filterwarnings("ignore")  # PyTorch's own: deprecations, and advice on TF32
@pytest.mark.parametrize(("function", "backend"), [(front, "aot_eager"), (fused, "aot_eager"), (fused, "inductor")])
def test_compiles_to_one_graph(function: Callable[..., torch.Tensor], backend: str) -> None:
    inputs = [tensor.requires_grad_() for tensor in make_qkv()]
    ours = torch.compile(function, fullgraph=True, backend=backend)(*inputs)
    theirs = function(*inputs)
    torch.testing.assert_close(ours, theirs)
    assert ours.stride() == theirs.stride()
    gradients = [torch.autograd.grad(result.float().square().sum(), inputs) for result in (ours, theirs)]
    torch.testing.assert_close(*gradients)


def test_opcheck() -> None:
    q, k, v = (tensor[:, :, :20].detach().requires_grad_() for tensor in make_qkv())
    masks = (None, None, torch.tensor([20, 7], dtype=torch.int32, device=DEVICE), None)
    torch.library.opcheck(
        torch.ops.attngraft.fused_attention.default, (q, k, v, *masks, 0.125, 2, -1, -1, 0.0, 0, False, True)
    )


def test_vmap_is_a_loop() -> None:
    q, k, v = make_qkv()
    many = torch.stack([q, q + 1, q - 1])
    bias = torch.randn(3, 1, S).to(DEVICE)
    together = torch.vmap(lambda q, bias: fused_attention(q, k, v, bias=bias))(many, bias)
    alone = torch.stack([fused_attention(many[i], k, v, bias=bias[i]) for i in range(3)])
    torch.testing.assert_close(together, alone, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_takes_the_kernel_of_its_type(dtype: torch.dtype) -> None:
    q, k, v = make_qkv(torch.float32)
    with torch.autocast("cuda", dtype=dtype):
        assert path_of(q, k, v).name == "kernel"
        results = [fused_attention(q, k, v), attention(q, k, v), attention(q, k, v, need_weights=True)[0]]
    expected = fused_attention(q.to(dtype), k.to(dtype), v.to(dtype))
    assert all(torch.equal(result, expected) for result in results[:2])
    torch.testing.assert_close(results[2], expected, rtol=2e-2, atol=2e-2)


def test_paths_where_the_kernel_does_not_apply() -> None:
    """float64 and large heads go to PyTorch; asking for the kernel there is refused."""
    q, k, v = make_qkv(torch.float32)
    wide = [tensor.to(torch.float16).repeat(1, 1, 1, 9) for tensor in (q, k, v)]
    for tensors, words in (((q.double(), k.double(), v.double()), "float64"), (wide, "head sizes 576 and 576")):
        path = path_of(*tensors)
        assert path.name == "sdpa" and words in path.reason
        assert path_of(*tensors, softcap=1.0).name == "eager"
        with pytest.raises(ContractError, match=words):
            fused_attention(*tensors)
        expected, _ = eager.with_weights(*tensors, dict.fromkeys(Role.ALL), attention_call(*tensors).config)
        torch.testing.assert_close(attention(*tensors), expected, rtol=1e-2, atol=1e-2)
    assert path_of(q, k, v, dropout_p=0.1).name == "sdpa"
    assert path_of(q, k, v, need_weights=True).name == "eager"


def test_the_operator_itself_refuses_what_it_cannot_do() -> None:
    q, k, v = make_qkv()
    scalars = (0.125, 0, -1, -1, 0.0, 0, False, False)

    def call(q: torch.Tensor, *rest: torch.Tensor | None) -> None:
        torch.ops.attngraft.fused_attention(q, *rest, *scalars)

    for arguments, words in (
        ((q, k.cpu(), v, None, None, None, None), "k: expected the device of q"),
        ((q, k[..., :32], v, None, None, None, None), "k: expected shape"),
        ((q, k, v, torch.zeros(3, device=DEVICE, dtype=q.dtype), None, None, None), "bias: expected a shape"),
        ((q, k, v, None, None, torch.ones(B, device=DEVICE), None), "kv_lengths: expected int32"),
        ((q.repeat(1, 1, 1, 9), k.repeat(1, 1, 1, 9), v, None, None, None, None), "launchFusedAttention: invalid"),
    ):
        with pytest.raises(RuntimeError, match=words):
            call(*arguments)
