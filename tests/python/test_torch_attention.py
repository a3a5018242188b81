"""attngraft.torch on the CPU: every path against attention in float64, memory order, and what is refused."""

from __future__ import annotations

import math
import re
from typing import Any


import pytest
import torch
from attention_cases import assert_attention_matches, random_attention
from torch_cases import arguments_of, tensors_of, to_numpy

from attngraft import torch as attngraft_torch
from attngraft.contract import CausalMode, EmptyRows
from attngraft.errors import ContractError, MissingDependency
from attngraft.torch import attention, checks, device, eager, fused_attention, masked_softmax, path_of
from attngraft.torch.front_door import EAGER, KERNEL, SDPA

CASES = 40
WORK_LIMIT = 200_000

B, H, HK, SQ, SK, D, DV = 2, 4, 2, 3, 5, 8, 6


def make(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


def make_qkv(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return make(B, H, SQ, D, dtype=dtype), make(B, HK, SK, D, dtype=dtype), make(B, HK, SK, DV, dtype=dtype)


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, allowed: torch.Tensor, bias: torch.Tensor | float = 0.0
) -> torch.Tensor:
    """Attention of rows that all have an allowed key, written down in float64."""
    q, k, v = (t.double() for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = (q @ k.transpose(2, 3) / math.sqrt(q.shape[3]) + bias).masked_fill(~allowed, -math.inf)
    return torch.softmax(scores, -1) @ v


@pytest.mark.parametrize("seed", range(CASES))
def test_every_path_is_attention_in_float64(seed: int) -> None:
    case = random_attention(seed, WORK_LIMIT)
    tensors, arguments = tensors_of(case), arguments_of(case)
    context, logarithms = fused_attention(*tensors, **arguments, return_lse=True)
    assert_attention_matches((to_numpy(context), to_numpy(logarithms)), case)
    alone = fused_attention(*tensors, **arguments)
    torch.testing.assert_close(alone, context, rtol=0, atol=0, equal_nan=True)
    front = attention(*tensors, **arguments)
    assert_attention_matches((to_numpy(front), to_numpy(logarithms)), case)
    weighed, weights = attention(*tensors, **arguments, need_weights=True)
    assert_attention_matches((to_numpy(weighed), to_numpy(logarithms)), case)
    assert weights.shape == case.scores_shape() and weights.dtype == tensors[0].dtype


def test_the_cases_take_both_ways_around_the_kernel() -> None:
    cases = [random_attention(seed, WORK_LIMIT) for seed in range(CASES)]
    taken = [path_of(*tensors_of(case), **arguments_of(case)).name for case in cases]
    assert min(taken.count(SDPA), taken.count(EAGER)) > CASES / 10 and KERNEL not in taken


def test_rows_in_blocks_are_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long sequences go through in blocks of rows; masks with and without rows of their own are cut along."""
    q, k, v = make_qkv()
    arguments: dict[str, Any] = {
        "bias": make(H, SQ, SK),
        "keep": make(B, 1, 1, SK) > -1,
        "causal": CausalMode.BOTTOM_RIGHT,
        "window": (3, -1),
        "return_lse": True,
    }

    def results() -> list[torch.Tensor]:
        inputs = [tensor.clone().requires_grad_() for tensor in (q, k, v, arguments["bias"])]
        context, logarithms = fused_attention(*inputs[:3], **{**arguments, "bias": inputs[3]})
        return [context, logarithms, *torch.autograd.grad(context.square().sum() + logarithms.sum(), inputs)]

    at_once = results()
    monkeypatch.setattr(eager, "BLOCK_SCORES", 2 * B * H * SK)
    for ours, theirs in zip(results(), at_once, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("empty_rows", EmptyRows.ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_rows_without_keys(dtype: torch.dtype, empty_rows: str) -> None:
    """Batch entry 1 has no key; all ways say the same of it."""
    q, k, v = make_qkv(dtype)
    lengths = torch.tensor([SK, 0], dtype=torch.int32)
    whole = v.double().repeat_interleave(H // HK, 1)[1]
    expected = {
        EmptyRows.ZEROS: torch.zeros(H, SQ, DV, dtype=torch.float64),
        EmptyRows.UNIFORM: whole.mean(1, keepdim=True).expand(H, SQ, DV),
        EmptyRows.UNMASKED: reference(q, k, v, torch.ones(SQ, SK, dtype=torch.bool))[1],
    }[empty_rows]
    context, logarithms = fused_attention(q, k, v, kv_lengths=lengths, empty_rows=empty_rows, return_lse=True)
    assert (logarithms[1] == -math.inf).all() and logarithms[0].isfinite().all()
    weighed, weights = attention(q, k, v, kv_lengths=lengths, empty_rows=empty_rows, need_weights=True)
    for result in (context, weighed, attention(q, k, v, kv_lengths=lengths, empty_rows=empty_rows)):
        torch.testing.assert_close(result[1].double(), expected, rtol=1e-2, atol=1e-2)
    total = 0.0 if empty_rows == EmptyRows.ZEROS else 1.0
    torch.testing.assert_close(weights[1].double().sum(-1), torch.full((H, SQ), total).double(), rtol=1e-2, atol=1e-2)


def test_nan_and_infinity_in_scores() -> None:
    """In an allowed place they make the row NaN; in a disallowed one they change nothing."""
    q, k, v = make_qkv()
    k[0, 0, 4] = math.nan
    allowed = torch.arange(SK) < 4
    context = fused_attention(q, k, v, keep=allowed)
    torch.testing.assert_close(context.double(), reference(q, k.nan_to_num(), v, allowed), rtol=1e-5, atol=1e-5)
    poisoned, logarithms = fused_attention(q, k, v, return_lse=True)
    assert poisoned[0, :2].isnan().all() and poisoned[0, 2:].isfinite().all() and poisoned[1].isfinite().all()
    assert logarithms[0, :2].isnan().all() and logarithms[1].isfinite().all()
    bias = torch.zeros(SQ, SK)
    bias[0, 0] = math.inf
    poisoned, logarithms = fused_attention(q, k.nan_to_num(), v, bias=bias, return_lse=True)
    assert poisoned[:, :, 0].isnan().all() and poisoned[:, :, 1:].isfinite().all()
    assert logarithms[:, :, 0].isnan().all()


@pytest.mark.parametrize("name", ["bhsd", "bshd", "packed", "size not innermost"])
def test_the_context_has_the_memory_order_of_q(name: str) -> None:
    packed = make(B, SQ, 3 * H * DV)
    q = {
        "bhsd": make(B, H, SQ, DV),
        "bshd": make(B, SQ, H, DV).transpose(1, 2),
        "packed": packed[..., : H * DV].unflatten(2, (H, DV)).transpose(1, 2),
        "size not innermost": make(B, H, DV, SQ).transpose(2, 3),
    }[name]
    _, k, v = make_qkv()
    context = fused_attention(q, k[..., :DV], v)
    order = context.transpose(1, 2) if name in ("bshd", "packed") else context
    assert order.is_contiguous()
    expected = reference(q, k[..., :DV], v, torch.ones(SQ, SK, dtype=torch.bool))
    torch.testing.assert_close(context.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(0, H, SQ, SK), (B, 0, SQ, SK), (B, H, 0, SK), (B, H, SQ, 0)])
def test_empty_tensors(shape: tuple[int, int, int, int]) -> None:
    batch, heads, queries, keys = shape
    q, k, v = make(batch, heads, queries, D), make(batch, heads, keys, D), make(batch, heads, keys, DV)
    for empty_rows in EmptyRows.ALL:
        context, logarithms = fused_attention(q, k, v, empty_rows=empty_rows, return_lse=True)
        assert context.shape == (batch, heads, queries, DV) and (context == 0).all()
        assert (logarithms == -math.inf).all()
        torch.testing.assert_close(attention(q, k, v, empty_rows=empty_rows), context)


@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_dropout_drops_a_share_of_the_weights(softcap: float) -> None:
    torch.manual_seed(0)
    q, k, v = make(2, 4, 64, D), make(2, 4, 64, D), torch.ones(2, 4, 64, 1)
    context = attention(q, k, v, dropout_p=0.5, softcap=softcap)
    assert path_of(q, k, v, dropout_p=0.5, softcap=softcap).name == (EAGER if softcap else SDPA)
    assert context.std() > 0.05 and abs(context.mean() - 1) < 0.1
    _, weights = attention(q, k, v, dropout_p=0.5, need_weights=True, softcap=softcap)
    assert abs((weights == 0).float().mean() - 0.5) < 0.05


@pytest.mark.parametrize(
    ("arguments", "name", "words"),
    [
        ({}, SDPA, "the tensors are on cpu"),
        ({"softcap": 2.0}, EAGER, "has no softcap"),
        ({"scale": -1.0}, EAGER, "takes no scale of -1.0"),
        ({"bias": torch.zeros(SK), "dtype": torch.float16}, EAGER, "no bias of another type"),
        ({"bias": torch.zeros(SK, requires_grad=True)}, EAGER, "wrong gradients"),
        ({"dropout_p": 0.1, "empty_rows": EmptyRows.UNIFORM}, EAGER, "its dropout would not reach"),
        ({"need_weights": True}, EAGER, "the weights are asked for; the tensors are on cpu"),
    ],
)
def test_path_of_says_which_and_why(arguments: dict[str, Any], name: str, words: str) -> None:
    arguments = dict(arguments)
    path = path_of(*make_qkv(arguments.pop("dtype", torch.float32)), **arguments)
    assert path.name == name and words in path.reason and str(path) == f"{name}: {path.reason}"


def test_the_kernel_is_for_capability_8_and_its_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 5))
    assert "cuda:1 has compute capability 7.5" in (device.device_cannot(torch.device("cuda", 1)) or "")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (8, 0))
    assert device.device_cannot(torch.device("cuda", 1)) is None
    assert "the tensors are on mps" in (device.device_cannot(torch.device("mps")) or "")
    q, k, v = make_qkv(torch.float64)
    assert "float64 is not one of" in (checks.attention_kernel_cannot(q, v) or "")
    assert "head sizes 513 and 6" in (checks.attention_kernel_cannot(make(1, 1, 1, 513), v.float()) or "")
    assert checks.attention_kernel_cannot(make(1, 1, 1, 512), v.float()) is None


def test_without_the_kernel_a_cuda_tensor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [tensor.to("meta") for tensor in make_qkv()]
    monkeypatch.setattr(device, "device_cannot", lambda device: None)
    monkeypatch.setattr(device, "kernel_is_missing", lambda: "libattngraft_torch.so was not built; build it")
    monkeypatch.setattr(device, "_HAVE_OPERATIONS", ())
    with pytest.raises(
        MissingDependency, match="fused_attention: .* was not built; build it; attngraft.torch.attention"
    ):
        fused_attention(*tensors)
    with pytest.raises(MissingDependency, match="masked_softmax: .* was not built; build it; cast the scores, or take"):
        masked_softmax(tensors[0])
    monkeypatch.setattr(device, "device_cannot", lambda device: "cuda:0 is too old")
    with pytest.raises(ContractError, match="cuda:0 is too old; attngraft.torch.attention takes"):
        fused_attention(*tensors)


INT32 = torch.ones(B, dtype=torch.int32)

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"q": make(H, SQ, D)}, "q: shape [4, 3, 8] is not [B, H, Sq, D]; give four dimensions"),
    ({"q": torch.ones(B, H, SQ, D, dtype=torch.int32)}, "q: int32 is not one of float32, float16, bfloat16, float64"),
    ({"k": make(B, HK, SK, D).half()}, "k: float16 is not q's type, float32; cast it"),
    ({"v": make(B, HK, SK, DV).to("meta")}, "v: is on meta, q on cpu; move it there"),
    ({"k": make(B, HK, SK, 7)}, "k: shape [2, 2, 5, 7] is not [B, Hk, Sk, D] with B 2 and D 8, as q has"),
    ({"k": make(HK, SK, D)}, "k: shape [2, 5, 8] is not [B, Hk, Sk, D]"),
    ({"v": make(B, HK, 4, DV)}, "v: shape [2, 2, 4, 6] is not [B, Hk, Sk, Dv] with [2, 2, 5] first, as k has"),
    ({"k": make(B, 3, SK, D), "v": make(B, 3, SK, D)}, "q: 4 heads are no multiple of k's 3"),
    ({"bias": make(SQ, 4)}, "bias: shape [3, 4] does not broadcast to the scores [2, 4, 3, 5]"),
    ({"bias": make(1, 1, 1, 1, SK)}, "bias: shape [1, 1, 1, 1, 5] does not broadcast"),
    ({"bias": make(SK).half()}, "bias: float16 is not one of float32"),
    ({"keep": make(SK)}, "keep: float32 is not one of bool, int8, uint8, int32, int64"),
    ({"keep": torch.ones(SK, dtype=torch.bool, device="meta")}, "keep: is on meta, q on cpu"),
    ({"kv_lengths": INT32.long()}, "kv_lengths: int64 is not int32; cast it"),
    ({"kv_starts": INT32[:1]}, "kv_starts: shape [1] is not [2], one value a batch entry"),
    ({"kv_starts": INT32.to("meta")}, "kv_starts: is on meta"),
    ({"causal": "left"}, "causal: 'left' is not one of none, top_left, bottom_right"),
    ({"empty_rows": "nan"}, "empty_rows: 'nan' is not one of zeros, uniform, unmasked"),
    ({"window": 3}, "window: 3 is not a pair (left, right); -1 leaves a side unbounded"),
    ({"window": (-2, 0)}, "window_left and window_right are -1 (unbounded), 0 or more"),
    ({"scale": math.inf}, "scale: inf is not finite"),
    ({"softcap": -1.0}, "softcap: -1.0 is negative or not finite; 0 turns it off"),
]


@pytest.mark.parametrize(("changed", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_what_is_outside_the_contract_is_refused_in_one_line(changed: dict[str, Any], message: str) -> None:
    arguments = dict(zip("qkv", make_qkv(), strict=True)) | changed
    for function in (fused_attention, attention, path_of):
        with pytest.raises(ContractError, match=re.escape(message)) as raised:
            function(**arguments)
        assert "\n" not in str(raised.value)


def test_a_wrong_dropout_is_refused() -> None:
    with pytest.raises(ContractError, match="dropout_p: 1.0 is not in 0 to 1"):
        attention(*make_qkv(), dropout_p=1.0)


def test_public_names() -> None:
    functions = {"attention", "fused_attention", "masked_softmax", "patch", "path_of", "register_attention", "unpatch"}
    assert set(attngraft_torch.__all__) == {"Path", *functions}
