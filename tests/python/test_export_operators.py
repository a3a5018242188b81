"""PyTorch models that call attngraft.torch become attngraft's nodes, in both exporters: ONNX Runtime runs their
functions, TensorRT-RTX builds them with the plugin."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from plugin_models import build
from torch_cases import to_numpy

from attngraft.contract import DOMAIN, FUSED_ATTENTION, MASKED_SOFTMAX, FusedAttention, MaskedSoftmax
from attngraft.errors import ModelError
from attngraft.lower.functions import strip_functions
from attngraft.onnx_export import EXPORTERS, export_module
from attngraft.torch import fused_attention, masked_softmax

TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3}
"""Absolute, of values around 1: a few roundings of the type."""

B, H, HK, SQ, SK, D = 2, 4, 2, 3, 5, 8

Function = Callable[..., torch.Tensor]


class Module(torch.nn.Module):
    """A function as a module; what it gives is scaled, so that the operator is not the whole graph."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(
        self,
        a: torch.Tensor,
        b: torch.Tensor | None = None,
        c: torch.Tensor | None = None,
        d: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return self.function(*(tensor for tensor in (a, b, c, d) if tensor is not None)) * 2


def make(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


PADDING = torch.tensor([[1, 1, 0, 1, 1], [0, 0, 0, 0, 0]]).bool()
LENGTHS, STARTS = torch.tensor([5, 3], dtype=torch.int32), torch.tensor([1, 0], dtype=torch.int32)
SCORES = make(B, H, SQ, SK)
Q, K, V = make(B, H, SQ, D), make(B, HK, SK, D), make(B, HK, SK, 6)

CASES: dict[str, tuple[Function, Sequence[torch.Tensor], MaskedSoftmax | FusedAttention]] = {
    "scores alone": (lambda s: masked_softmax(s, head_size=64), [SCORES], MaskedSoftmax(scale=0.125)),
    "boolean padding mask": (
        lambda s, m: masked_softmax(s, mask=m, empty_rows="uniform"),
        [SCORES, PADDING],
        MaskedSoftmax(("keep",), empty_rows="uniform"),
    ),
    "integer mask per query": (
        lambda s, m: masked_softmax(s, mask=m),
        [SCORES, make(B, SQ, SK).int()],
        MaskedSoftmax(("keep",)),
    ),
    "additive mask and lengths": (
        lambda s, m, n, f: masked_softmax(s, mask=m, kv_lengths=n, kv_starts=f, softcap=2.0),
        [SCORES, make(SQ, SK), LENGTHS, STARTS],
        MaskedSoftmax(("bias", "kv_lengths", "kv_starts"), softcap=2.0),
    ),
    "rank 3, causal, window": (
        lambda s, n: masked_softmax(s, kv_lengths=n, causal="top_left", window=(2, -1), scale=0.5),
        [make(B, SQ, SK), LENGTHS],
        MaskedSoftmax(("kv_lengths",), 0.5, "top_left", window_left=2),
    ),
    "half type, bias of another": (
        lambda s, b: masked_softmax(s, bias=b, causal="bottom_right"),
        [SCORES.half(), make(H, SQ, SK)],
        MaskedSoftmax(("bias",), causal="bottom_right"),
    ),
    "attention, grouped heads": (
        lambda q, k, v: fused_attention(q, k, v, causal="bottom_right", window=(-1, 0)),
        [Q, K, V],
        FusedAttention(scale=D**-0.5, causal="bottom_right", window_right=0, heads=H, kv_heads=HK),
    ),
    "attention, masks": (
        lambda q, k, v, b, m, n: fused_attention(
            q, k, v, bias=b, keep=m, kv_lengths=n, softcap=5.0, exact=True, scale=0.5
        ),
        [Q, K, V, make(H, SQ, SK), PADDING[:, None, None], LENGTHS],
        FusedAttention(("bias", "keep", "kv_lengths"), 0.5, softcap=5.0, heads=H, kv_heads=HK, exact=1),
    ),
}


def export(function: Function, tensors: Sequence[torch.Tensor], path: Path, exporter: str, **options: Any) -> Path:
    names = [f"input{i}" for i in range(len(tensors))]
    return export_module(
        Module(function), tensors, path, exporter=exporter, input_names=names, output_names=["output"], **options
    )


def run(path: Path, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    feeds = {node.name: to_numpy(tensor) for node, tensor in zip(session.get_inputs(), tensors, strict=True)}
    return [torch.from_numpy(output) for output in session.run(None, feeds)]


def own_nodes(path: Path) -> list[onnx.NodeProto]:
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    return [node for node in model.graph.node if node.domain == DOMAIN]


class Calls(torch.nn.Module):
    """All cases side by side, each with inputs and an output of its own; every output is scaled, so that an operator is
    not the whole graph."""

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        left = list(tensors)
        return tuple(function(*(left.pop(0) for _ in given)) * 2 for function, given, _ in CASES.values())


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_each_node_is_its_call_and_its_function_computes_the_same(exporter: str, tmp_path: Path) -> None:
    tensors = [tensor for _, given, _ in CASES.values() for tensor in given]
    names = [f"input{i}" for i in range(len(tensors))]
    path = export_module(
        Calls(), tensors, tmp_path / "model.onnx", exporter=exporter, input_names=names, output_names=list(CASES)
    )
    nodes = own_nodes(path)
    assert len({(node.op_type, node.overload) for node in nodes}) == len(CASES)
    outputs = zip(CASES.items(), nodes, Calls()(*tensors), run(path, tensors), strict=True)
    for (name, (_, _, config)), node, expected, output in outputs:
        attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        found = type(config).from_attributes(attributes)
        assert found.scale == pytest.approx(config.scale) and replace(found, scale=config.scale) == config, name
        assert node.op_type == (MASKED_SOFTMAX if isinstance(config, MaskedSoftmax) else FUSED_ATTENTION)
        torch.testing.assert_close(output, expected, rtol=0, atol=TOLERANCES[expected.dtype], msg=name)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_dimensions_that_may_change_do(exporter: str, tmp_path: Path) -> None:
    """A padding mask [B,Sk] and lengths in a model with both operators, exported once and run at other sizes."""

    def function(q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        weights = masked_softmax(q @ k.transpose(2, 3), mask=mask, kv_lengths=lengths, causal="bottom_right", scale=0.3)
        return weights @ k + fused_attention(q, k, k, keep=mask[:, None, None], window=(3, 3))

    keys = {0: "batch", 2: "keys"}
    axes = {
        "input0": {0: "batch", 2: "queries"},
        "input1": keys,
        "input2": {0: "batch", 1: "keys"},
        "input3": {0: "batch"},
    }
    tensors = [make(B, H, SQ, D), make(B, H, SK, D), PADDING, LENGTHS]
    path = export(function, tensors, tmp_path / "model.onnx", exporter, dynamic_axes=axes)
    assert [node.op_type for node in own_nodes(path)] == [MASKED_SOFTMAX, FUSED_ATTENTION]
    for batch, queries, length in ((5, 7, 11), (4, 4, 9)):
        lengths = torch.arange(batch, dtype=torch.int32) + 2
        tensors = [make(batch, H, queries, D), make(batch, H, length, D), make(batch, length) > -0.5, lengths]
        mask = tensors[2][:, None, None]  # of as many rows as there are queries it could be [Sq,Sk] when called anew
        q, k = tensors[:2]
        weights = masked_softmax(q @ k.transpose(2, 3), keep=mask, kv_lengths=lengths, causal="bottom_right", scale=0.3)
        expected = (weights @ k + fused_attention(q, k, k, keep=mask, window=(3, 3))) * 2
        torch.testing.assert_close(run(path, tensors)[0], expected, rtol=0, atol=TOLERANCES[torch.float32])


class Weighted(torch.nn.Module):
    """A projection and a position bias with weights of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(32, 64)
        self.bias = torch.nn.Parameter(make(1, 4, 6, 6))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k = self.project(x).unflatten(2, (2, 4, 8)).permute(2, 0, 3, 1, 4)
        return masked_softmax(q @ k.transpose(2, 3), mask=mask, bias=self.bias, head_size=8) @ k


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_weights_beside_the_file_stay_there(exporter: str, tmp_path: Path) -> None:
    path = export_module(
        Weighted(), [make(2, 6, 32), torch.ones(2, 6).bool()], tmp_path / "model.onnx", exporter=exporter,
        input_names=["x", "mask"], output_names=["context"], external_data=True, check=True,
    )  # fmt: skip
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data"]
    assert [node.op_type for node in own_nodes(path)] == [MASKED_SOFTMAX]


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_tensorrt_rtx_builds_the_exported_model_with_the_plugin(exporter: str, tmp_path: Path) -> None:
    def function(q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        weights = masked_softmax(q @ k.transpose(2, 3), mask=mask, head_size=64)
        return weights @ k + fused_attention(q, k, k, kv_lengths=lengths, causal="bottom_right")

    heads = {0: "batch", 2: "length"}
    axes = {"input0": heads, "input1": heads, "input2": {0: "batch", 1: "length"}, "input3": {0: "batch"}}
    tensors = [
        make(2, 4, 24, 64, dtype=torch.half),
        make(2, 4, 24, 64, dtype=torch.half),
        torch.ones(2, 24).bool(),
        LENGTHS,
    ]
    path = export(function, tensors, tmp_path / "model.onnx", exporter, dynamic_axes=axes)
    plain = tmp_path / "plain.onnx"
    onnx.save(strip_functions(onnx.load(path)), plain)
    built = build(plain)
    assert len(built["plugins"]) == 2 and built["bytes"] > 0, built["errors"]


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize(
    ("function", "tensors", "message"),
    [
        (
            lambda q, k: fused_attention(q, k, k, return_lse=True)[1],
            (Q, K),
            "fused_attention: its node has no log-sum-exp; export the module without return_lse",
        ),
        (
            masked_softmax,
            (SCORES.double(),),
            "float64 is not one of float32, float16, bfloat16; export the module in one",
        ),
        (lambda s: masked_softmax(s, causal="left"), (SCORES,), "causal: 'left' is not one of none, top_left"),
    ],
)
def test_what_has_no_node_is_refused_in_one_line(
    function: Function, tensors: Sequence[torch.Tensor], message: str, exporter: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=re.escape(message)) as raised:
        export(function, tensors, tmp_path / "model.onnx", exporter)
    assert "\n" not in str(raised.value) and "try the other exporter" not in str(raised.value)
    assert not list(tmp_path.iterdir())
