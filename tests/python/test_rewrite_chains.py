"""Scales and masks in random order and number: whatever is recognised, the rewritten model equals the original."""

from __future__ import annotations

import pytest
from chain_models import LOWEST, MINUS_INFINITY, attention
from hypothesis import given, settings
from hypothesis import strategies as st

from attngraft.lower import lower_model
from attngraft.match import match_model
from attngraft.verify import verify_models

STEPS = {
    "mul": "{o} = Mul({i}, half)",
    "div": "{o} = Div({i}, four)",
    "add": "{o} = Add({i}, added)",
    "add, reversed": "{o} = Add(full_added, {i})",
    "position bias": "{o} = Add({i}, position)",
    "where -inf": "{o} = Where(condition, {i}, minus_infinity)",
    "where finite": "{o} = Where(padded, large, {i})",
    "added where, lowest": "a{n} = Where(condition, zero, lowest) {o} = Add({i}, a{n})",
    "added where, -inf": "a{n} = Where(padded, minus_infinity, zero) {o} = Add(a{n}, {i})",
    "identity": "{o} = Identity({i})",
    "tanh": "{o} = Tanh({i})",
}
"""One node of a chain, from tensor `i` to tensor `o`; `n` is its number."""

ENDS = {
    "softmax": "p = Softmax<axis = -1>({i})",
    "guard": "w = Softmax<axis = -1>({i}) isnan = IsNaN(w) p = Where(isnan, zero, w)",
    "casts": "x = Cast<to = 1>({i}) w = Softmax<axis = -1>(x) p = Cast<to = {dtype}>(w)",
}

STARTS = {
    "product": "s0 = MatMul(q, kt)",
    "scaled": "qs = Mul(q, half) ks = Mul(kt, half) s0 = MatMul(qs, ks)",
}

TYPES = {"float": (1, -1e9, LOWEST), "float16": (10, -6e4, -65504.0)}
"""ONNX's number of the type, a large negative number in it, its lowest value."""


def chain(start: str, steps: list[str], end: str, dtype: int) -> str:
    parts = [STARTS[start]]
    for number, step in enumerate(steps, start=1):
        parts.append(STEPS[step].format(i=f"s{number - 1}", o=f"s{number}", n=number))
    parts.append(ENDS[end].format(i=f"s{len(steps)}", dtype=dtype))
    return " ".join(parts)


@settings(max_examples=60)
@given(
    start=st.sampled_from(sorted(STARTS)),
    steps=st.lists(st.sampled_from(sorted(STEPS)), max_size=4),
    end=st.sampled_from(sorted(ENDS)),
    dtype=st.sampled_from(sorted(TYPES)),
)
def test_any_chain_is_rewritten_to_the_same_function(start: str, steps: list[str], end: str, dtype: str) -> None:
    number, large, lowest = TYPES[dtype]
    constants = {
        "half": 0.5,
        "four": 4.0,
        "position": 0.25,
        "minus_infinity": MINUS_INFINITY,
        "large": large,
        "zero": 0.0,
        "lowest": lowest,
    }
    inputs = ("added", "full_added", "condition", "padded")
    model = attention(chain(start, steps, end, number), inputs=inputs, constants=constants, dtype=dtype)
    sites = match_model(model)
    (site,) = sites.sites
    assert site.lowerings["softmax"] is None
    report = verify_models(model, lower_model(model, sites, {site.name: "softmax"}))
    assert report.passed, f"{site.config}\n{report}"


@pytest.mark.parametrize("steps", [["add", "added where, -inf"], ["added where, lowest"] * 2, ["add"] * 3])
def test_chains_with_several_masks_are_one_node(steps: list[str]) -> None:
    constants = {"zero": 0.0, "minus_infinity": MINUS_INFINITY, "lowest": LOWEST}
    inputs = ("added", "condition", "padded")
    model = attention(chain("product", steps, "softmax", 1), inputs=inputs, constants=constants)
    (site,) = match_model(model).sites
    assert site.scores == "s0"
