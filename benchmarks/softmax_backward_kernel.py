"""The masked softmax's backward kernel alone against PyTorch, over row lengths and types:
results/softmax-backward-kernel.json.

Work: from probabilities and their gradient [B, H, Sq, Sk] that of the scores, `B8 H32 1024x2048` and about as many
bytes for every other row length. `plain`: nothing else. `softcap`: the scores are read too. `bias`: the gradient of a
bias [H, Sq, Sk] too, which takes both tensors a second time. The limit is what the tensors' bytes take, read once and
written once.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from attngraft.contract import MaskedSoftmax
from benchmarks.results_file import Row, write_results
from benchmarks.timing import graph_replay_us, streaming_bandwidth

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS / "gpu"), str(TESTS / "python")]
from mask_abi import MAX_RANK, TYPE_CODES  # noqa: E402 - found through the line above
from softmax_abi import broadcast_strides, full_dims  # noqa: E402
from softmax_backward_abi import MaskedSoftmaxBackwardParams  # noqa: E402
from softmax_backward_device import launch_backward, workspace_bytes  # noqa: E402

BATCH, HEADS = 8, 32
SCALE = 0.125
SOFTCAP = 30.0
ELEMENTS = 1 << 29
"""Of every tensor: 1 GiB in fp16, far beyond any cache."""

ROW_LENGTHS = (128, 197, 256, 384, 512, 577, 1024, 1500, 2048, 4096, 4097, 8192, 16384, 32768, 131072)
OTHER_FORMS_ROW_LENGTHS = (384, 2048)
OTHER_TYPES_ROW_LENGTHS = (384, 1024, 2048, 4096, 8192, 16384)

TORCH_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Work:
    """One work's tensors, [B, H, Sq, Sk]; scores under a softcap alone."""

    dtype: str
    form: str
    probabilities: torch.Tensor
    gradient: torch.Tensor
    scores: torch.Tensor | None
    grad_scores: torch.Tensor
    grad_bias: torch.Tensor | None

    @property
    def config(self) -> MaskedSoftmax:
        return MaskedSoftmax(scale=SCALE, softcap=SOFTCAP if self.scores is not None else 0.0)

    @property
    def nbytes(self) -> int:
        tensors = (self.probabilities, self.gradient, self.scores, self.grad_scores, self.grad_bias)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--row-length", type=int, action="append", help="measure only these, in fp16 (repeatable)")
    parser.add_argument("--ours-alone", action="store_true", help="without peers, for trying out tables")
    parser.add_argument("--time-limit", type=float, default=float("inf"), metavar="SECONDS",
                        help="start no further work after so long")  # fmt: skip
    options = parser.parse_args()
    deadline = time.monotonic() + options.time_limit
    works = [("float16", keys, "plain") for keys in options.row_length or ROW_LENGTHS]
    if not options.row_length:
        works += [("float16", keys, form) for form in ("softcap", "bias") for keys in OTHER_FORMS_ROW_LENGTHS]
        works += [(dtype, keys, "plain") for dtype in ("float32", "bfloat16") for keys in OTHER_TYPES_ROW_LENGTHS]
    bandwidth = streaming_bandwidth()
    print(f"streaming bandwidth {bandwidth / 1e3:.0f} GB/s", flush=True)
    rows = []
    for dtype, keys, form in works:
        if time.monotonic() > deadline:
            print(f"time is up; {len(works) - len(rows)} works are left", file=sys.stderr)
            break
        rows.append(measure(make_work(dtype, keys, form), bandwidth, options.ours_alone))
        print(describe(rows[-1]), flush=True)
    if not options.ours_alone:
        print(write_results("softmax-backward-kernel", rows))
    return 0


def make_work(dtype: str, keys: int, form: str) -> Work:
    queries = max(1, ELEMENTS // (BATCH * HEADS * keys))
    torch.manual_seed(keys)
    kind = TORCH_DTYPES[dtype]
    shape = (BATCH, HEADS, queries, keys)
    scores, gradient = (torch.randn(shape, device="cuda", dtype=kind) for _ in range(2))
    return Work(
        dtype,
        form,
        torch.softmax(scores, dim=-1),
        gradient,
        scores if form == "softcap" else None,
        torch.empty_like(scores),
        torch.empty(shape[1:], device="cuda", dtype=kind) if form == "bias" else None,
    )


def measure(work: Work, bandwidth: float, ours_alone: bool) -> Row:
    """One work: our kernel and its peers in turn, on the same tensors."""
    candidates: dict[str, Callable[[], object]] = {"ours": our_kernel(work), **({} if ours_alone else peers(work))}
    candidates["ours"]()
    expected = formula(work.probabilities[:1], work.gradient[:1], None if work.scores is None else work.scores[:1])
    difference = (work.grad_scores[:1] - expected).abs().max().item()
    elapsed = graph_replay_us(candidates)
    queries, keys = work.probabilities.shape[2:]
    return Row(
        work=f"B{BATCH} H{HEADS} {queries}x{keys} {work.form}",
        dtype=work.dtype,
        ours_us=elapsed.pop("ours"),
        peers_us=elapsed,
        bound_us=work.nbytes / bandwidth,
        notes={"largest_difference_from_torch": difference},
    )


def our_kernel(work: Work) -> Callable[[], None]:
    shape = tuple(work.probabilities.shape)
    params = MaskedSoftmaxBackwardParams(
        probabilities=work.probabilities.data_ptr(),
        gradient=work.gradient.data_ptr(),
        scores=None if work.scores is None else work.scores.data_ptr(),
        scores_gradient=work.grad_scores.data_ptr(),
        type=TYPE_CODES[work.dtype],
        scale=work.config.scale,
        softcap=work.config.softcap,
        window_left=-1,
        window_right=-1,
    )
    params.dims[:] = full_dims(shape)
    assert len(params.dims) == MAX_RANK
    if work.grad_bias is not None:
        params.bias_gradient = work.grad_bias.data_ptr()
        params.bias_gradient_strides[:] = broadcast_strides(tuple(work.grad_bias.shape), shape)
        params.bias_is_float32 = work.dtype == "float32"
    workspace = torch.empty(workspace_bytes(params), device="cuda", dtype=torch.uint8)
    params.workspace = workspace.data_ptr()
    kept_alive = (work, workspace)

    def run() -> None:
        status = launch_backward(params, torch.cuda.current_stream().cuda_stream)
        assert status == 0 and kept_alive, f"CUDA error {status}"

    return run


def formula(probabilities: torch.Tensor, gradient: torch.Tensor, scores: torch.Tensor | None) -> torch.Tensor:
    """What the kernel computes, without the gradient of a bias."""
    p, g = probabilities.float(), gradient.float()
    grad = p * (g - (p * g).sum(-1, keepdim=True)) * SCALE
    if scores is not None:
        grad = grad * (1 - torch.tanh(scores.float() * (SCALE / SOFTCAP)).square())
    return grad.to(probabilities.dtype)


def formula_with_bias(probabilities: torch.Tensor, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    p, g = probabilities.float(), gradient.float()
    ds = p * (g - (p * g).sum(-1, keepdim=True))
    return (ds * SCALE).to(probabilities.dtype), ds.sum(0).to(probabilities.dtype)


def peers(work: Work) -> dict[str, Callable[[], object]]:
    """`torch-softmax-backward` is PyTorch's own kernel, which neither scales nor caps nor sums."""
    torch.compiler.reset()
    p, g, x = work.probabilities, work.gradient, work.scores
    compiled = torch.compile(formula_with_bias if work.form == "bias" else formula, dynamic=False)
    arguments = (p, g) if work.form == "bias" else (p, g, x)
    return {
        "torch-compile": lambda: compiled(*arguments),
        "torch-softmax-backward": lambda: torch._softmax_backward_data(g, p, -1, p.dtype),
    }


def describe(row: Row) -> str:
    peers_text = ", ".join(f"{name} {us:.0f}" for name, us in row.peers_us.items())
    share = row.bound_us / row.ours_us
    return f"{row.work} {row.dtype}: {row.ours_us:.0f} us, {share:.0%} of streaming bandwidth; {peers_text}"


if __name__ == "__main__":
    sys.exit(main())
