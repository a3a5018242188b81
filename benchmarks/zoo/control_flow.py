"""Attention inside bodies of If, Loop and Scan and inside local functions, and graphs that another optimiser fused."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import ModelProto
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.zoo.building import TOKENS, Call
from benchmarks.zoo.entry import NO_CHOICE, Entry, GraphEntry, Model, Size, Variant
from benchmarks.zoo.exporting import export_model
from benchmarks.zoo.text_encoders import ENTRIES as TEXT_ENCODERS
from benchmarks.zoo.truth import count_softmaxes

__all__ = ["ENTRIES", "GRAPH_ENTRIES"]

FAMILY = "control flow"
ONNX_TYPES = {"fp32": "float", "fp16": "float16", "bf16": "bfloat16"}
ITERATIONS = 2

DYNAMO = (Variant("dynamo", 18, "fp32"), Variant("dynamo", 18, "fp16"), Variant("dynamo", 23, "fp32"))
TORCHSCRIPT = (Variant("torchscript", 17, "fp32"), Variant("torchscript", 17, "fp16"))
GRAPHS = (Variant("graph", 17, "fp32"), Variant("graph", 17, "fp16"), Variant("graph", 21, "fp32"))


class _Heads(nn.Module):
    """Packed projection and SDPA in `forward`; what subclasses put around `attend` ends in a subgraph."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads: int = size.heads
        self.head_size: int = size.head_size
        self.projection = nn.Linear(size.hidden, 3 * size.hidden)

    def split(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, tokens = states.shape[0], states.shape[1]
        packed = self.projection(states).reshape(batch, tokens, 3, self.heads, self.head_size).permute(2, 0, 3, 1, 4)
        return packed[0], packed[1], packed[2]

    def join(self, context: Tensor) -> Tensor:
        return context.transpose(1, 2).flatten(2)


class _Conditional(_Heads):
    """torch.cond: attention where the first state is positive, the values alone elsewhere."""

    def forward(self, states: Tensor) -> Tensor:
        query, key, value = (part.clone() for part in self.split(states))  # operands of cond may share no memory

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(q, k, v)

        def pass_on(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return v + 0 * q

        return self.join(torch.cond(states[0, 0, 0] > 0, attend, pass_on, (query, key, value)))


class _Branch(_Heads):
    """The same as TorchScript's own `if`."""

    def forward(self, states: Tensor) -> Tensor:
        query, key, value = self.split(states)
        if bool(states.sum() > 0):
            scores = query @ key.transpose(-2, -1) * 0.25
            context = scores.softmax(-1) @ value
        else:
            context = value
        return self.join(context)


class _Repeated(_Heads):
    """TorchScript's `for` with a number of rounds that the input decides: one softmax in the body of a Loop."""

    def forward(self, states: Tensor) -> Tensor:
        for _ in range(states.size(1)):
            query, key, value = self.split(states)
            states = self.join((query @ key.transpose(-2, -1) * 0.25).softmax(-1) @ value)
        return states


def _entry(name: str, module: type[_Heads], variants: tuple[Variant, ...], scripted: bool) -> Entry:
    def build(size: Size, attention: str) -> Model:
        inputs = {"states": torch.randn(2, size.tokens, size.hidden)}
        plain = module(size).eval()
        return Model(torch.jit.script(plain) if scripted else Call(plain), inputs, {"states": TOKENS}, sites=1)

    return Entry(name, FAMILY, build, NO_CHOICE, variants)


ATTENTION = """
    factor = Constant <value_float = 0.25> ()
    scale = CastLike (factor, {q})
    turned = Transpose <perm = [0, 1, 3, 2]> ({k})
    products = MatMul ({q}, turned)
    scores = Mul (products, scale)
    probabilities = Softmax <axis = -1> (scores)
    {out} = MatMul (probabilities, {v})
"""

LOCAL_FUNCTION = (
    """<ir_version: 8, opset_import: ["" : OPSET, "blocks" : 1]>
graph (TYPE[batch,HEADS,sequence,D] q, TYPE[batch,HEADS,keys,D] k, TYPE[batch,HEADS,keys,D] v)
  => (TYPE[batch,HEADS,sequence,D] context) {
    first = blocks.attention (q, k, v)
    context = blocks.attention (first, k, v)
}
<domain: "blocks", opset_import: ["" : OPSET]>
attention (q, k, v) => (result) {"""
    + ATTENTION.format(q="q", k="k", v="v", out="result")
    + "}"
)

SCAN = (
    """<ir_version: 8, opset_import: ["" : OPSET]>
graph (TYPE[batch,HEADS,sequence,D] q, TYPE[rounds,batch,HEADS,keys,D] k, TYPE[batch,HEADS,keys,D] v)
  => (TYPE[batch,HEADS,sequence,D] context, TYPE[rounds,batch,HEADS,sequence,D] contexts) {
    context, contexts = Scan <num_scan_inputs = 1, body = round
      (TYPE[batch,HEADS,sequence,D] query, TYPE[batch,HEADS,keys,D] key)
      => (TYPE[batch,HEADS,sequence,D] next, TYPE[batch,HEADS,sequence,D] seen) {"""
    + ATTENTION.format(q="query", k="key", v="v", out="next")
    + """    seen = Identity (next)
    }> (q, k)
}"""
)

LOOP = (
    """<ir_version: 8, opset_import: ["" : OPSET]>
graph (TYPE[batch,HEADS,sequence,D] q, TYPE[batch,HEADS,keys,D] k, TYPE[batch,HEADS,keys,D] v)
  => (TYPE[batch,HEADS,sequence,D] context) {
    rounds = Constant <value_int = ROUNDS> ()
    condition = Constant <value = bool {1}> ()
    context = Loop <body = round (int64 round, bool going, TYPE[batch,HEADS,sequence,D] query)
      => (bool on, TYPE[batch,HEADS,sequence,D] next) {
    on = Identity (going)"""
    + ATTENTION.format(q="query", k="k", v="v", out="next")
    + """    }> (rounds, condition, q)
}"""
)


def _from_text(text: str, sites: int) -> Any:
    def make(size: Size, variant: Variant) -> tuple[ModelProto, int, int]:
        values = {
            "OPSET": variant.opset,
            "TYPE": ONNX_TYPES[variant.dtype],
            "ROUNDS": ITERATIONS,
            "HEADS": size.heads,
            ",D]": f",{size.head_size}]",
        }
        filled = text
        for word, value in values.items():
            filled = filled.replace(word, str(value))
        return onnx.parser.parse_model(filled), sites, 0

    return make


def _optimised_bert(size: Size, variant: Variant) -> tuple[ModelProto, int, int]:
    """BERT after ONNX Runtime's transformer optimiser: com.microsoft's fused attention."""
    from onnxruntime.transformers.optimizer import optimize_model

    (entry,) = (entry for entry in TEXT_ENCODERS if entry.name == "bert")
    model = entry.build(size, "eager")
    sites, others = count_softmaxes(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bert.onnx"
        export_model(model, Variant("torchscript", variant.opset, variant.dtype), path)
        optimised = optimize_model(
            str(path), model_type="bert", num_heads=size.heads, hidden_size=size.hidden, opt_level=0
        )
    return optimised.model, sites, others


ENTRIES = (
    _entry("if_dynamo", _Conditional, DYNAMO, scripted=False),
    _entry("if_torchscript", _Branch, TORCHSCRIPT, scripted=True),
    _entry("loop_torchscript", _Repeated, TORCHSCRIPT, scripted=True),
)

GRAPH_ENTRIES = (
    # Called twice, and written once: it counts once, as the body of a loop does.
    GraphEntry("local_function", FAMILY, _from_text(LOCAL_FUNCTION, 1), GRAPHS),
    GraphEntry("scan_body", FAMILY, _from_text(SCAN, 1), GRAPHS),
    GraphEntry("loop_body", FAMILY, _from_text(LOOP, 1), GRAPHS),
    GraphEntry("bert_onnxruntime", FAMILY, _optimised_bert, GRAPHS[:2]),
)
