"""GPU time of candidates in one interleaved run, and the device's measured limits. Needs PyTorch and a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import median

import torch

from attngraft.runtime.timing import warm_up

__all__ = ["graph_replay_us", "matrix_rate", "streaming_bandwidth"]

ROUNDS = 25
SHORTEST_SAMPLE_US = 500.0
"""Work is repeated inside a graph up to this length: an event's resolution (0.5 us) and the launch then do not show."""
WARM_UP_CALLS = 3

STREAM_ELEMENTS = 1 << 28
"""Of 4 bytes each: 1 GiB read and 1 GiB written, far beyond any cache."""
MATRIX_SIZE = 8192


def graph_replay_us(candidates: Mapping[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """Median microseconds a call, each candidate captured into a CUDA graph and replayed in turn, round by round.

    Taking turns spreads clock and temperature changes over all candidates. A candidate enqueues its work on PyTorch's
    current stream.
    """
    graphs = {name: _capture(call) for name, call in candidates.items()}
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    warm_up([*(graph.replay for graph, _ in graphs.values()), torch.cuda.synchronize])
    for _ in range(rounds):
        for name, (graph, repeats) in graphs.items():
            samples[name].append(_elapsed_us(graph.replay) / repeats)
    return {name: median(values) for name, values in samples.items()}


def _capture(call: Callable[[], object]) -> tuple[torch.cuda.CUDAGraph, int]:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_CALLS):
            call()
        stream.synchronize()
        repeats = max(1, math.ceil(SHORTEST_SAMPLE_US / _elapsed_us(call)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(repeats):
            call()
    graph.replay()
    torch.cuda.synchronize()
    return graph, repeats


def _elapsed_us(call: Callable[[], object]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


def streaming_bandwidth() -> float:
    """Bytes a microsecond that a kernel which reads one tensor and writes another reaches here."""
    source = torch.ones(STREAM_ELEMENTS, device="cuda")
    target = torch.empty_like(source)
    # torch.add, since torch.copy_ moves a third less on an H200.
    elapsed = graph_replay_us({"add": lambda: torch.add(source, 1.0, out=target)})["add"]
    return 2 * source.nbytes / elapsed


def matrix_rate(dtype: torch.dtype) -> float:
    """Floating-point operations a microsecond of a large matrix product (fp32: TF32, as TensorRT's default)."""
    torch.set_float32_matmul_precision("high")
    left = torch.randn(MATRIX_SIZE, MATRIX_SIZE, device="cuda", dtype=dtype)
    right, out = torch.randn_like(left), torch.empty_like(left)
    elapsed = graph_replay_us({"matmul": lambda: torch.matmul(left, right, out=out)})["matmul"]
    return 2 * MATRIX_SIZE**3 / elapsed
