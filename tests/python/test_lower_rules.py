"""`auto`: each rule decides about a form that it was made for, for the TensorRT that it was measured in."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib import metadata

import pytest
from chain_models import attention
from native_models import BLOCKS, HEADS, RTX

from attngraft.errors import RewriteError
from attngraft.lower import Target, choose_lowerings, default_target, parse_target
from attngraft.lower.rules import FUSED, NATIVE, NEVER, PLUGIN_GAINS, RULES, judge, plugin_gain
from attngraft.match import match_model

OLD = parse_target("10.6")
NEW = parse_target("10.14")

DECISIONS = {
    "no mask": ("fused-as-given", "fused-as-given"),
    "no mask, opset 23": ("fused-as-given", "fused-as-given"),
    "roots, added -inf, guard": ("nan-guard", "infinite-fill"),
    "roots, added lowest, guard": ("nan-guard", "fused-as-given"),
    "filled -inf": ("fused-as-given", "infinite-fill"),
    "added input": ("fused-as-given", "fused-as-given"),
    "maximum subtracted": ("softmax-detour", "softmax-detour"),
    "axis of the queries": ("softmax-detour", "softmax-detour"),
    "stored bias, moved about": ("fused-as-given", "stored-bias"),
    "causal": ("nan-guard", "infinite-fill"),
    "causal, scale after": ("causal-added", "infinite-fill"),
    "added before the scale, in fp32 products": ("float32-product", "float32-product"),
    "softmax in fp32": ("fused-as-given", "fused-as-given"),
    "torchscript": ("float32-product", "float32-product"),
    "guard between casts": ("guard-behind-casts", "guard-behind-casts"),
    "one head of keys": ("heads-broadcast", "heads-broadcast"),
    "softcap": ("softcap", "softcap"),
    "head size 8": ("head-size", "head-size"),
    "head size 320": ("head-size", "head-size"),
    "fp32": ("float32", "float32"),
    "bf16": ("fused-as-given", "fused-as-given"),
    "Attention, boolean mask": ("node-refused", "node-boolean-mask"),
    "Attention, added mask": ("node-refused", "fused-as-given"),
    "Attention, causal": ("node-refused", "fused-as-given"),
    "Attention, fp32": ("node-refused", "node-refused"),
    "Attention, softcap": ("node-refused", "node-refused"),
    "Attention, causal with mask": ("node-refused", "node-refused"),
}
"""The deciding rule for TensorRT 10.6 and for TensorRT-RTX."""


@pytest.mark.parametrize("name", DECISIONS)
def test_the_rule_that_decides(name: str) -> None:
    (site,) = match_model(BLOCKS[name].model()).sites
    assert (judge(site, OLD).rule.name, judge(site, RTX).rule.name) == DECISIONS[name]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("softcap", "softcap"),
        ("Attention, softcap", "softcap"),
        ("head size 320", "heads beyond 256"),
        ("fp32", "fp32"),
        ("Attention, fp32", "fp32"),
        ("causal", "causality"),
        ("causal, scale after", "causality"),
        ("Attention, causal", "causality"),
    ],
)
def test_what_goes_into_the_attention_plugin_where_that_was_measured(name: str, why: str) -> None:
    sites = match_model(BLOCKS[name].model())
    (site,) = sites.sites
    choices, reasons = choose_lowerings(sites, "auto", OLD)
    assert choices == {site.name: "attention"}
    assert why in reasons[site.name] and "H200" in reasons[site.name]
    assert choose_lowerings(sites, "auto", OLD.on("9.0"))[0] == choices
    for target in (RTX, None, OLD.on("8.0")):  # nothing was measured there
        assert "attention" not in choose_lowerings(sites, "auto", target)[0].values()


def test_every_gain_of_the_plugin_decides_somewhere() -> None:
    sites = [site for block in BLOCKS.values() for site in match_model(block.model()).sites]
    assert {plugin_gain(site, OLD) for site in sites} == {gain.phrase for gain in PLUGIN_GAINS} | {None}


def test_every_rule_states_its_evidence_and_decides_somewhere() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert all(rule.measured and rule.phrase and rule.verdict in (FUSED, NATIVE, NEVER) for rule in RULES)
    elsewhere = {"probabilities-used", "scores-reshaped"}  # tests of their own below
    assert {name for pair in DECISIONS.values() for name in pair} | elsewhere == set(names)


@pytest.mark.parametrize("name", [name for name in BLOCKS if name in DECISIONS])
def test_rules_agree_with_what_tensorrt_rtx_did(name: str) -> None:
    """The blocks hold what TensorRT-RTX answered (test_native_forms asks it)."""
    block = BLOCKS[name]
    (site,) = match_model(block.model()).sites
    verdict = judge(site, RTX).kind
    if not block.fused:
        assert verdict != FUSED
    if block.fused is False and block.fused_native:
        assert verdict == NATIVE
    if block.fused is False and not block.fused_native:
        assert verdict == NEVER


def test_an_attention_node_is_kept_where_the_target_takes_it() -> None:
    sites = match_model(BLOCKS["Attention, causal"].model())
    (name,) = (site.name for site in sites.sites)
    for target, choice in ((NEW, "keep"), (RTX, "keep"), (None, "keep")):
        choices, reasons = choose_lowerings(sites, "auto", target)
        assert choices[name] == choice, target
        assert "rule" in reasons[name]
    assert choose_lowerings(sites, "native", OLD)[0] == {name: "native"}


def test_probabilities_that_are_an_output_become_the_softmax_plugin() -> None:
    model = attention(
        "s = MatMul(q, kt) p = Softmax<axis = -1>(s)",
        outputs="float[B,2,S,4] out, float[B,2,S,T] p",
        dtype="float16",
    )
    choices, reasons = choose_lowerings(match_model(model), "auto", RTX)
    assert choices == {"p": "softmax"}
    assert "output" in reasons["p"]
    (site,) = match_model(model).sites
    assert judge(site, RTX).rule.name == "probabilities-used"


def test_a_position_bias_on_scores_of_heads_merged_with_the_batch() -> None:
    (site,) = match_model(BLOCKS["added input"].model()).sites
    merged = replace(site, source_masks=tuple(replace(mask, split_heads=HEADS) for mask in site.source_masks))
    assert judge(merged, RTX).rule.name == judge(merged, OLD).rule.name == "scores-reshaped"


def test_a_guard_inside_an_attention_node_is_no_guard_of_the_graph() -> None:
    (site,) = match_model(BLOCKS["Attention, added mask"].model()).sites
    assert site.guard
    assert judge(site, NEW).kind == FUSED


def test_fp32_behind_a_leaking_site_is_lowered_with_it() -> None:
    """TorchScript's fp16 exports are fp32 from the first attention on; the second site is so by accident."""
    model = BLOCKS["torchscript, two layers"].model()
    sites = match_model(model)
    assert [site.whole.dtype for site in sites.sites] == ["float16", "float32"]
    choices, reasons = choose_lowerings(sites, "auto", RTX)
    assert set(choices.values()) == {"native"}
    assert "fp32 only because" in list(reasons.values())[1]


def test_choices_that_are_refused() -> None:
    sites = match_model(BLOCKS["no mask"].model())
    with pytest.raises(RewriteError, match="unknown"):
        choose_lowerings(sites, "best")
    chain = "s = MatMul(q, kt) t = Mul(s, c) d = Add(t, added) e = Mul(d, c) p = Softmax<axis = -1>(e)"
    added = attention(chain, inputs=("added",), constants={"c": 0.5}, dtype="float16")
    with pytest.raises(RewriteError, match="before the scale; no attention site of this model .* --lower attention"):
        choose_lowerings(match_model(added), "attention")
    capped = attention("s = MatMul(q, kt) t = Add(s, added) e = Tanh(t) p = Softmax<axis = -1>(e)", inputs=("added",))
    with pytest.raises(RewriteError, match="before the softcap; no attention site of this model .* --lower native"):
        choose_lowerings(match_model(capped), "native")


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("10.6", Target("tensorrt", (10, 6))),
        ("11", Target("tensorrt", (11,))),
        ("tensorrt-10.14.1", Target("tensorrt", (10, 14, 1))),
        ("10.6@9.0", Target("tensorrt", (10, 6), (9, 0))),
        ("rtx-1.7@8.9", Target("rtx", (1, 7), (8, 9))),
        ("rtx", Target("rtx")),
        ("RTX-1.7", Target("rtx", (1, 7))),
        ("tensorrt-rtx-1.7", Target("rtx", (1, 7))),
    ],
)
def test_targets(text: str, target: Target) -> None:
    assert parse_target(text) == target
    assert parse_target(str(target).lower()) == target


@pytest.mark.parametrize("text", ["", "best", "10.x", "rtx-", "-1", "10.6@", "10.6@90", "@9.0"])
def test_targets_that_are_not_understood(text: str) -> None:
    with pytest.raises(RewriteError, match="not understood; give a TensorRT version"):
        parse_target(text)


def test_which_targets_take_the_attention_node() -> None:
    assert not OLD.has_attention
    assert NEW.has_attention and parse_target("11").has_attention and RTX.has_attention


def test_default_target_is_what_is_installed_and_imports_nothing() -> None:
    code = "import sys; from attngraft.lower import default_target; print(default_target()); print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, modules = ran.stdout.splitlines()
    assert first == str(default_target())
    assert not any(name.startswith("tensorrt") for name in modules.split())


def test_default_target_without_any_tensorrt(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    assert default_target() is None
