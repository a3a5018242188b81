"""Lowering `native` on every form that matching knows, opsets old and new: the results stay the same."""

from __future__ import annotations

import onnx
import pytest
from chain_models import FORMS, MINUS_INFINITY, attention

from attngraft.contract import CausalMode
from attngraft.lower import lower_model
from attngraft.match import match_model
from attngraft.verify import verify_models


def native(model: onnx.ModelProto) -> onnx.ModelProto:
    sites = match_model(model)
    choices = {site.name: "native" for site in sites.sites if site.lowerings["native"] is None}
    assert choices
    return lower_model(model, sites, choices)


def takes_native(name: str) -> bool:
    return any(site.lowerings["native"] is None for site in match_model(FORMS[name].model()).sites)


@pytest.mark.parametrize("name", [name for name in FORMS if takes_native(name)])
def test_every_form(name: str) -> None:
    model = FORMS[name].model()
    lowered = native(model)
    onnx.checker.check_model(lowered, full_check=True)
    report = verify_models(model, lowered)
    assert report.passed, report.failure


def test_most_forms_take_it() -> None:
    assert sum(map(takes_native, FORMS)) > 0.8 * len(FORMS)


@pytest.mark.parametrize("opset", [11, 12, 13, 17, 18, 21])
def test_old_and_new_opsets(opset: int) -> None:
    chain = "s = MatMul(q, kt) t = Mul(s, c) m = Where(padded, f, t) p = Softmax<axis = 3>(m)"
    model = attention(chain, inputs=("padded",), constants={"c": 0.5, "f": MINUS_INFINITY}, opset=opset)
    lowered = native(model)
    onnx.checker.check_model(lowered, full_check=True)
    assert verify_models(model, lowered).passed


@pytest.mark.parametrize("opset", [11, 17])
def test_runtime_attention_nodes_are_taken_apart(opset: int) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>
        g (float[B,S,8] q, float[B,S,8] k, float[B,S,8] v, float[B,2,S,S] bias) => (float[B,S,8] y)
        {{ y = com.microsoft.MultiHeadAttention <num_heads = 2, unidirectional = 1> (q, k, v, , , bias) }}
    """)
    (site,) = match_model(model).sites
    assert site.whole.causal == CausalMode.TOP_LEFT
    lowered = native(model)
    assert all(node.domain == "" for node in lowered.graph.node)
    report = verify_models(model, lowered)
    assert report.passed, report.failure


def test_the_context_keeps_its_name() -> None:
    model = FORMS["mul"].model()
    lowered = native(model)
    assert lowered.graph.output == model.graph.output
    assert list(lowered.graph.node[-1].output) == list(model.graph.node[-1].output)


def test_what_others_read_stays() -> None:
    """The scores are an output too: their nodes stay beside the new ones."""
    model = attention(
        "s = MatMul(q, kt) t = Mul(s, c) p = Softmax<axis = -1>(t)",
        constants={"c": 0.5},
        outputs="float[B,2,S,4] out, float[B,2,S,T] t",
    )
    lowered = native(model)
    assert [node.op_type for node in lowered.graph.node].count("Softmax") == 1
    assert verify_models(model, lowered).passed
