"""attngraft.torch.masked_softmax on a GPU: the kernel behind torch.ops.attngraft.masked_softmax, and the ways to it."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from build_support import REPOSITORY, run_python
from device_memory import allocations

BUILT = REPOSITORY / "build" / "lib" / "libattngraft_torch.so"
if BUILT.is_file():  # before attngraft.torch is imported, which loads it
    os.environ.setdefault("ATTNGRAFT_TORCH_LIBRARY", str(BUILT))

from torch_softmax_cases import (  # noqa: E402
    TOLERANCES,
    arguments_of_mask,
    check,
    gradient_tolerance,
    random_case,
    scores_of,
)
from torch_training import LOSS_TOLERANCE, loss_curve  # noqa: E402

from attngraft.contract import CausalMode, EmptyRows, Role  # noqa: E402
from attngraft.errors import ContractError  # noqa: E402
from attngraft.torch import attention, masked_softmax, path_of  # noqa: E402
from attngraft.torch.library import kernel_is_missing  # noqa: E402

DEVICE = "cuda"
CASES = 100

B, H, SQ, SK = 2, 8, 100, 200

DTYPES = [torch.float32, torch.float16, torch.bfloat16]

BUSY_CYCLES = 200_000_000
"""A tenth of a second, in which whatever runs on another stream is done."""

OPERATOR = torch.ops.attngraft.masked_softmax.default
BACKWARD = torch.ops.attngraft.masked_softmax_backward.default


def make(*shape: int, dtype: torch.dtype = torch.float16, seed: int = 0) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2).to(DEVICE, dtype)


def make_masks(dtype: torch.dtype = torch.float16) -> dict[str, Any]:
    """Of every role, and a causal bound; the first rows of entry 1 have no key."""
    return {
        "mask": make(B, SK, seed=1) > -1,
        "bias": make(H, SQ, SK, dtype=dtype, seed=2),
        "kv_lengths": torch.tensor([SK, 150], dtype=torch.int32, device=DEVICE),
        "kv_starts": torch.tensor([0, 110], dtype=torch.int32, device=DEVICE),
        "causal": CausalMode.BOTTOM_RIGHT,
        "head_size": 64,
    }


def on_cpu(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}


def assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Probabilities of one type, each rounded in its own way."""
    relative, absolute = TOLERANCES[str(theirs.dtype).removeprefix("torch.")]
    assert ours.dtype == theirs.dtype
    torch.testing.assert_close(ours.cpu().double(), theirs.cpu().double(), rtol=2 * relative, atol=2 * absolute)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """For comparisons in which NaN equals itself."""
    return tensor.contiguous().view(torch.int16 if tensor.element_size() == 2 else torch.int32)


def test_the_kernel_is_there() -> None:
    assert kernel_is_missing() is None
    for name in ("masked_softmax", "masked_softmax_backward"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"attngraft::{name}", "CUDA")


@pytest.mark.parametrize("seed", range(CASES))
def test_random_cases_are_the_contract_in_float64(seed: int) -> None:
    """Ranks, types, masks and row lengths; twice the same bits; the scores stay as they are."""
    case = random_case(seed)
    scores, arguments = scores_of(case, DEVICE), arguments_of_mask(case, DEVICE)
    before = scores.clone()
    probabilities = masked_softmax(scores, **arguments)
    check(probabilities, case)
    assert torch.equal(bits(masked_softmax(scores, **arguments)), bits(probabilities))
    assert torch.equal(bits(scores), bits(before))


MASK_SHAPES = [(SQ, SK), (B, SK), (B, SQ, SK), (B, 1, SQ, SK), (B, H, SQ, SK)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", MASK_SHAPES)
def test_every_shape_and_kind_of_a_mask(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    scores, values = make(B, H, SQ, SK, dtype=dtype), make(*shape, dtype=torch.float32, seed=1)
    for mask in (values > -1, (values > -1).int() * 3, values.to(dtype), values):
        ours = masked_softmax(scores, mask=mask, scale=0.5)
        assert_close(ours, masked_softmax(scores.cpu(), mask=mask.cpu(), scale=0.5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernel_equals_the_operations_on_the_cpu(dtype: torch.dtype) -> None:
    scores = make(B, H, SQ, SK, dtype=dtype)
    for empty_rows in EmptyRows.ALL:
        arguments = make_masks(dtype) | {"empty_rows": empty_rows, "softcap": 5.0}
        assert_close(masked_softmax(scores, **arguments), masked_softmax(scores.cpu(), **on_cpu(arguments)))


@pytest.mark.parametrize("shape", [(0, H, SQ, SK), (B, H, 0, SK), (B, H, SQ, 0), (0, 0)])
def test_empty_tensors(shape: tuple[int, ...]) -> None:
    assert masked_softmax(make(*shape)).shape == shape


@pytest.mark.parametrize("shape", [(2, 64, 4096, 4100), (2_097_153, 1024)])
def test_more_elements_than_32_bits_count(shape: tuple[int, ...]) -> None:
    """The first rows, those around 2^31 elements, and the last ones."""
    scores = torch.randn(shape, device=DEVICE, dtype=torch.float16)
    probabilities = masked_softmax(scores, scale=2.0).flatten(0, -2)
    rows = scores.flatten(0, -2)
    middle = 2**31 // shape[-1]
    for chosen in (slice(0, 3), slice(middle - 2, middle + 3), slice(-3, None)):
        expected = torch.softmax(rows[chosen].double() * 2, -1).half()
        assert_close(probabilities[chosen], expected)
    del scores, probabilities, rows
    torch.cuda.empty_cache()


def test_scores_and_masks_of_any_strides() -> None:
    scores = make(SQ, B, SK, H).permute(1, 3, 0, 2)
    assert_close(masked_softmax(scores), masked_softmax(scores.contiguous()))
    larger = make(SQ + 8, SK + 8, seed=1)
    for mask in (
        larger[:SQ, :SK],
        larger[0, :SK].expand(B, H, SQ, SK),
        larger[:SQ, :1].expand(SQ, SK),
        make(SK, SQ, seed=2).T,
    ):
        for given in (mask, mask > -1):
            assert_close(masked_softmax(scores, mask=given), masked_softmax(scores, mask=given.contiguous()))


def test_masks_are_read_in_place() -> None:
    scores, larger = make(B, H, SQ, SK), make(SQ + 8, SK + 8, seed=1)
    least = allocations(lambda: masked_softmax(scores))
    for mask in (larger[:SQ, :SK], larger[0, :SK].expand(B, H, SQ, SK), larger[:SQ, :1].expand(SQ, SK)):
        assert allocations(lambda mask=mask: masked_softmax(scores, bias=mask)) == least


@pytest.mark.filterwarnings("ignore:.*prototype feature")  # PyTorch says so of the mode
def test_nothing_is_waited_for() -> None:
    scores, masks = make(B, H, SQ, SK).requires_grad_(), make_masks()
    torch.cuda.set_sync_debug_mode("error")
    try:
        masked_softmax(scores, **masks, softcap=2.0, empty_rows="uniform").sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_it_runs_on_the_current_stream() -> None:
    """Queued behind a write that waits for a tenth of a second: elsewhere it would read what was there before."""
    scores, late = make(B, H, SQ, SK), make(B, H, SQ, SK, seed=7)
    expected, before = masked_softmax(late), masked_softmax(scores)
    assert not torch.equal(expected, before)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(BUSY_CYCLES)
        scores.copy_(late)
        probabilities = masked_softmax(scores)
    torch.cuda.synchronize()
    assert torch.equal(probabilities, expected)


@pytest.mark.parametrize("keys", [SK, 100_000])
def test_inside_a_cuda_graph_with_new_data(keys: int) -> None:
    masks = make_masks() if keys == SK else {}
    scores = make(B, H, SQ, SK) if keys == SK else make(1, keys)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        masked_softmax(scores, **masks)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        probabilities = masked_softmax(scores, **masks)
    for factor in (0.5, -1.0):
        scores.mul_(factor)
        graph.replay()
        assert torch.equal(probabilities, masked_softmax(scores, **masks))


def test_every_device_has_its_own_tensors() -> None:
    """Tensors of each device in turn, while another one is current where there are several."""
    expected = masked_softmax(make(B, H, SQ, SK))
    count = torch.cuda.device_count()
    for index in range(count):
        with torch.cuda.device((index + 1) % count):
            probabilities = masked_softmax(make(B, H, SQ, SK).to(f"cuda:{index}"))
            assert torch.cuda.current_device() == (index + 1) % count
        assert probabilities.device.index == index and torch.equal(probabilities.to(expected.device), expected)


@pytest.mark.parametrize("seed", range(30))
def test_gradients_are_those_on_the_cpu(seed: int) -> None:
    case = random_case(seed)
    results = []
    for device in (DEVICE, "cpu"):
        arguments = arguments_of_mask(case, device)
        scores, bias = scores_of(case, device), arguments.get(Role.BIAS)
        inputs = [tensor.requires_grad_() for tensor in (scores, bias) if tensor is not None]
        probabilities = masked_softmax(scores, **arguments)
        pull = torch.linspace(-1, 1, probabilities.numel()).reshape(probabilities.shape).to(probabilities)
        results.append(torch.autograd.grad(probabilities, inputs, pull))
    for ours, theirs in zip(*results, strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.isfinite().all()
        tolerance = 2 * gradient_tolerance(case, theirs, case.scores.size / theirs.numel())
        torch.testing.assert_close(
            ours.cpu(), theirs, rtol=0, atol=tolerance, msg=lambda text: f"{text}\n{case.describe()}"
        )


def test_what_a_masked_key_holds_changes_no_gradient() -> None:
    """And the incoming gradient stays as it is."""
    scores, keep = make(B, H, SQ, SK, dtype=torch.float32), make(B, SK, seed=1) > 0
    keep[:, 0] = True
    spoilt = torch.where(keep[:, None, None], scores, math.nan)
    pull = torch.randn_like(scores)
    spoilt_pull = torch.where(keep[:, None, None], pull, math.inf)
    before = spoilt_pull.clone()
    results = []
    for tensor, gradient in ((scores, pull), (spoilt, spoilt_pull)):
        probabilities = masked_softmax(tensor.requires_grad_(), mask=keep, softcap=3.0)
        results.append(torch.autograd.grad(probabilities, tensor, gradient)[0])
    torch.testing.assert_close(*results)
    assert (results[1][~keep[:, None, None].expand_as(spoilt)] == 0).all() and results[0].abs().max() > 0
    assert torch.equal(spoilt_pull, before)


BIAS_SHAPES = [(H, SQ, SK), (1, 1, SQ, SK), (B, 1, 1, SK), (SK,), (B, H, SQ, SK), (SQ, 1), (1, H, 1, 1), (B, 1, SQ, SK)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", BIAS_SHAPES)
def test_gradients_of_a_bias_of_every_shape(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Those of PyTorch in float64 through the formula."""
    scores, pull = make(B, H, SQ, SK, dtype=dtype), make(B, H, SQ, SK, dtype=dtype, seed=2)
    for bias_dtype in {dtype, torch.float32}:
        inputs = [scores.requires_grad_(), make(*shape, dtype=bias_dtype, seed=1).requires_grad_()]
        ours = torch.autograd.grad(masked_softmax(inputs[0], bias=inputs[1], softcap=9.0, scale=0.5), inputs, pull)
        wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
        expected = torch.softmax(torch.tanh(wide[0] * (0.5 / 9.0)) * 9.0 + wide[1], -1)
        theirs = torch.autograd.grad(expected, wide, pull.double())
        tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
        for found, gradient, tensor in zip(ours, theirs, inputs, strict=True):
            summands = scores.numel() / tensor.numel()
            assert found.dtype == tensor.dtype and found.shape == tensor.shape and found.is_contiguous()
            bound = tolerance * max(1.0, gradient.abs().max().item()) * math.sqrt(summands)
            torch.testing.assert_close(found.double(), gradient, rtol=0, atol=bound)


def gradients(scores: torch.Tensor, pull: torch.Tensor, **arguments: Any) -> tuple[torch.Tensor, ...]:
    bias = arguments.get(Role.BIAS)
    inputs = [tensor.detach().requires_grad_() for tensor in (scores, bias) if tensor is not None]
    given = arguments if bias is None else arguments | {Role.BIAS: inputs[1]}
    return torch.autograd.grad(masked_softmax(inputs[0], **given), inputs, pull)


def test_the_backward_pass_gives_the_same_bits_twice() -> None:
    scores, pull, masks = make(B, H, SQ, SK), make(B, H, SQ, SK, seed=3), make_masks()
    for first, second in zip(gradients(scores, pull, **masks), gradients(scores, pull, **masks), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("shape", [(2, 64, 4096, 4100), (2_097_153, 1024)])
def test_gradients_of_more_elements_than_32_bits_count(shape: tuple[int, ...]) -> None:
    """The first rows, those around 2^31 elements, and the last ones."""
    scores, pull = (torch.randn(shape, device=DEVICE, dtype=torch.float16) for _ in range(2))
    probabilities = torch.softmax(scores, -1)
    del scores
    found, _ = BACKWARD(pull, probabilities, None, None, None, None, None, 2.0, 0, -1, -1, 0.0, 0, False)
    found, p, g = (tensor.flatten(0, -2) for tensor in (found, probabilities, pull))
    middle = 2**31 // shape[-1]
    for chosen in (slice(0, 3), slice(middle - 2, middle + 3), slice(-3, None)):
        weights, grad = p[chosen].double(), g[chosen].double()
        expected = 2.0 * weights * (grad - (weights * grad).sum(-1, keepdim=True))
        torch.testing.assert_close(found[chosen].double(), expected, rtol=1e-3, atol=1e-6)
    del found, p, g, pull, probabilities
    torch.cuda.empty_cache()


def test_the_backward_pass_runs_on_the_current_stream() -> None:
    """Queued behind a write that waits for a tenth of a second: elsewhere it would read what was there before."""
    probabilities, pull, late = masked_softmax(make(B, H, SQ, SK)), make(B, H, SQ, SK), make(B, H, SQ, SK, seed=7)
    scalars = (1.0, 0, -1, -1, 0.0, 0)
    differentiate = lambda pull: BACKWARD(pull, probabilities, *(None,) * 5, *scalars, False)[0]  # noqa: E731
    expected, before = differentiate(late), differentiate(pull)
    assert not torch.equal(expected, before)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(BUSY_CYCLES)
        pull.copy_(late)
        found = differentiate(pull)
    torch.cuda.synchronize()
    assert torch.equal(found, expected)


@pytest.mark.parametrize("keys", [SK, 100_000])
def test_forward_and_backward_inside_a_cuda_graph_with_new_data(keys: int) -> None:
    shape = (B, H, SQ, SK) if keys == SK else (3, keys)
    scores, pull, bias = make(*shape), make(*shape, seed=1), make(keys, seed=2)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        gradients(scores, pull, bias=bias)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = gradients(scores, pull, bias=bias)
    for factor in (0.5, -1.0):
        scores.mul_(factor)
        pull.mul_(-1)
        graph.replay()
        for ours, theirs in zip(found, gradients(scores, pull, bias=bias), strict=True):
            assert torch.equal(ours, theirs)


def test_what_the_backward_kernel_does_not_take_is_refused() -> None:
    probabilities = masked_softmax(make(SQ, SK))
    rest = (None, None, None, None, 1.0, 0, -1, -1, 0.0, 0, False)
    for arguments, words in (
        ((probabilities.double(), probabilities.double(), None), "probabilities: expected float32, float16 or"),
        ((probabilities.cpu(), probabilities, None), "grad_probabilities: expected the device of probabilities"),
        ((probabilities.float(), probabilities, None), "grad_probabilities: expected the type of probabilities"),
    ):
        with pytest.raises(RuntimeError, match=f"attngraft::masked_softmax_backward: {words}"):
            BACKWARD(*arguments, *rest)


def test_second_derivatives_are_refused() -> None:
    scores = make(SQ, SK).requires_grad_()
    (first,) = torch.autograd.grad(masked_softmax(scores).square().sum(), scores, create_graph=True)
    with pytest.raises(ContractError, match="masked_softmax: no second derivatives"):
        first.sum().backward()


def whole(scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return masked_softmax(scores, bias=bias, causal="top_left", window=(50, -1), softcap=3.0, scale=0.5)


@pytest.mark.filterwarnings("ignore")  # PyTorch's own: deprecations, and advice on TF32
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_to_one_graph(backend: str) -> None:
    inputs = [make(B, H, SQ, SK).requires_grad_(), make(H, SQ, SK, seed=1).requires_grad_()]
    ours, theirs = torch.compile(whole, fullgraph=True, backend=backend)(*inputs), whole(*inputs)
    assert torch.equal(ours, theirs) and ours.stride() == theirs.stride()
    gradients = [torch.autograd.grad(result.float().square().sum(), inputs) for result in (ours, theirs)]
    torch.testing.assert_close(*gradients)


def test_opcheck() -> None:
    scores, bias = make(B, H, 10, 20).requires_grad_(), make(1, H, 10, 20).requires_grad_()
    lengths = torch.tensor([20, 7], dtype=torch.int32, device=DEVICE)
    scalars = (0.125, 2, -1, -1, 0.0, 0)
    torch.library.opcheck(OPERATOR, (scores, bias, None, lengths, None, *scalars))
    probabilities = OPERATOR(scores.detach(), bias.detach(), None, lengths, None, *scalars)
    for with_bias in (True, False):
        torch.library.opcheck(
            BACKWARD,
            (make(B, H, 10, 20, seed=2), probabilities, None, bias.detach(), None, lengths, None, *scalars, with_bias),
        )


def test_vmap_is_a_loop() -> None:
    scores, bias = make(3, B, H, SQ, SK), make(3, 1, SK, seed=1)
    together = torch.vmap(lambda scores, bias: masked_softmax(scores, bias=bias))(scores, bias)
    assert_close(together, torch.stack([masked_softmax(scores[i], bias=bias[i]) for i in range(3)]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_autocast_leaves_the_scores_their_type(dtype: torch.dtype) -> None:
    scores = make(B, H, SQ, SK, dtype=dtype)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.equal(masked_softmax(scores), masked_softmax(scores, scale=1.0))
        assert masked_softmax(scores, mask=make(SQ, SK, dtype=torch.bfloat16)).dtype == dtype


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_with_weights_takes_the_kernel(dtype: torch.dtype) -> None:
    q, k, v = (make(B, H, length, 64, dtype=dtype) / 2 for length in (SQ, SK, SK))
    arguments = {"causal": CausalMode.BOTTOM_RIGHT, "keep": make(B, 1, 1, SK, seed=1) > -1}
    assert "is the kernel of masked_softmax" in path_of(q, k, v, **arguments, need_weights=True).reason
    ours = attention(q, k, v, **arguments, need_weights=True)
    theirs = attention(q.double(), k.double(), v.double(), **arguments, need_weights=True)
    tolerance = {torch.float32: 1e-3, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    for found, expected in zip(ours, theirs, strict=True):
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


def test_what_the_kernel_does_not_take_is_refused() -> None:
    scores = make(B, H, SQ, SK)
    with pytest.raises(ContractError, match="masked_softmax: float64 scores are not float32, float16, bfloat16; cast"):
        masked_softmax(scores.double())
    with pytest.raises(ContractError, match="keep: is on cpu, scores on cuda:0; move it there"):
        masked_softmax(scores, mask=torch.ones(B, SK).bool())
    scalars = (1.0, 0, -1, -1, 0.0, 0)
    for masks, words in (
        ((make(SQ, 3), None, None, None), "bias: expected a shape that broadcasts to the scores"),
        ((None, torch.ones(SK).bool(), None, None), "keep: expected the device of scores"),
        ((None, None, torch.ones(B, device=DEVICE), None), "kv_lengths: expected int32"),
    ):
        with pytest.raises(RuntimeError, match=f"attngraft::masked_softmax: {words}"):
            OPERATOR(scores, *masks, *scalars)
    with pytest.raises(RuntimeError, match="attngraft::masked_softmax: launchMaskedSoftmax: invalid argument"):
        OPERATOR(scores, None, None, None, None, math.nan, *scalars[1:])


def test_training_two_layers_gives_the_losses_of_eager_attention() -> None:
    ours, theirs = loss_curve(with_operator=True, device=DEVICE), loss_curve(with_operator=False, device=DEVICE)
    assert theirs[-20:].mean() < 0.5 * theirs[0]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=LOSS_TOLERANCE)


FROM_SOURCE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from torch_extension import build
build(sys.argv[2], fast=True)
import torch
import attngraft.torch
from attngraft.torch.library import kernel_is_missing
torch.manual_seed(0)
scores = torch.randn(2, 3, 40, 300, device="cuda")
q = torch.randn(2, 4, 40, 64, device="cuda").half()
print(json.dumps({
    "missing": kernel_is_missing(),
    "softmax": (attngraft.torch.masked_softmax(scores) - torch.softmax(scores, -1)).abs().max().item(),
    "attention": (attngraft.torch.fused_attention(q, q, q).cpu().float()
                  - attngraft.torch.fused_attention(*[q.cpu().float()] * 3)).abs().max().item(),
}))
"""


def test_the_library_builds_from_source_by_pytorchs_own_means(tmp_path: Path) -> None:
    """torch.utils.cpp_extension over the list in tools/torch_extension.py, for kernels that need not be fast."""
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    found = run_python(FROM_SOURCE, REPOSITORY / "tools", tmp_path / "built", ATTNGRAFT_TORCH_LIBRARY="", PATH=paths)
    assert found["missing"] is None
    assert found["softmax"] < 1e-5 and found["attention"] < 4e-3, found
