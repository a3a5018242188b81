"""Which sites TensorRT fuses as they are, which after `native`, and which never: measured rules, one table.

In: a site's record and the target. Out: a verdict with the rule that decided. Rules are tried from first to last; each
states where it was measured. `DEVICE` evidence is TensorRT 10.6 on an H200, compute capability 9.0; `BUILD` evidence is
TensorRT-RTX 1.7, asked for its kernels by building one-layer models. Both are laid out in docs/what_tensorrt_fuses.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from attngraft.contract import CausalMode
from attngraft.lower.attention_form import MAX_HEAD_SIZE, MIN_HEAD_SIZE
from attngraft.lower.target import RTX, TENSORRT, Target
from attngraft.match.records import Site
from attngraft.onnx_graph import HALF_NAMES

__all__ = ["FUSED", "NATIVE", "NEVER", "PLUGIN_GAINS", "RULES", "Gain", "Rule", "Verdict", "judge", "plugin_gain"]

FUSED, NATIVE, NEVER = "fused", "native", "never"
"""As given · after lowering `native`, which may also mean that it builds at all · not by any plain form."""

DEVICE = "TensorRT 10.6, H200"
MEASURED_CAPABILITY = (9, 0)
"""Of the DEVICE."""
BUILD = "TensorRT-RTX 1.7"


@dataclass(frozen=True)
class Rule:
    """name: what reasons cite. verdict: FUSED, NATIVE or NEVER. phrase: why. measured: where, the evidence.
    holds: whether it decides about a site for a target (None: any TensorRT)."""

    name: str
    verdict: str
    phrase: str
    measured: str
    holds: Callable[[Site, Target | None], bool]


@dataclass(frozen=True)
class Verdict:
    """What became of the question, and the rule that answered it."""

    kind: str
    rule: Rule

    @property
    def reason(self) -> str:
        return f"{self.rule.phrase} (rule {self.rule.name}: {self.rule.measured})"


def judge(site: Site, target: Target | None) -> Verdict:
    """The verdict of the first rule that holds. The last one always does."""
    rule = next(rule for rule in RULES if rule.holds(site, target))
    return Verdict(rule.verdict, rule)


def _is_node(site: Site) -> bool:
    """Whether the site is one fused node: nothing enters a softmax."""
    return not site.scores


def _dtype(site: Site) -> str | None:
    return site.whole.dtype if site.whole is not None else site.dtype


def _head_size_is_out(site: Site) -> bool:
    return site.head_size is not None and not MIN_HEAD_SIZE <= site.head_size <= MAX_HEAD_SIZE


def _softcap(site: Site) -> bool:
    return bool(site.whole.softcap if site.whole is not None else site.config is not None and site.config.softcap)


def _node_is_refused(site: Site, target: Target | None) -> bool:
    """A node that the target's parser or builder does not take."""
    if not _is_node(site):
        return False
    causal_and_masked = site.whole is not None and site.whole.causal != CausalMode.NONE and bool(site.source_masks)
    return (
        (target is not None and not target.has_attention)
        or _dtype(site) not in HALF_NAMES
        or _head_size_is_out(site)
        or _softcap(site)
        or causal_and_masked
        or site.widened
    )


def _has_condition(site: Site) -> bool:
    return any(mask.form == "where" for mask in site.source_masks)


def _shows_probabilities(site: Site) -> bool:
    """Whether more than the product with the values reads the probabilities."""
    return not _is_node(site) and (site.is_output or len(site.consumers) > 1)


def _mixes_types(site: Site) -> bool:
    """Whether half-type operands meet fp32 probabilities in the second product."""
    whole = site.whole
    if whole is None or _is_node(site) or whole.dtype not in HALF_NAMES:
        return False
    return site.dtype == "float32" or bool(whole.wide) or whole.context_dtype not in (None, whole.dtype)


def _broadcasts_heads(site: Site) -> bool:
    whole = site.whole
    return bool(whole and not _is_node(site) and whole.heads and whole.kv_heads and whole.kv_heads < whole.heads)


def _has_guard(site: Site) -> bool:
    """Whether nodes of the graph make zeros of NaN; an Attention node does so inside."""
    return site.guard and not _is_node(site)


def _is_for_tensorrt(target: Target | None) -> bool:
    """Whether what was measured in TensorRT counts: TensorRT-RTX was asked for itself."""
    return target is None or target.kind == TENSORRT


def _is_for_rtx(target: Target | None) -> bool:
    """Whether what TensorRT-RTX alone was asked counts."""
    return target is None or target.kind == RTX


def _adds_causality(site: Site) -> bool:
    config = site.config
    causal_alone = config is not None and config.causal != CausalMode.NONE and not config.operands
    return causal_alone and any(mask.form == "add-where" for mask in site.source_masks)


def _fills_with_infinity(site: Site) -> bool:
    return any(mask.fill == -math.inf for mask in site.source_masks)


def _is_causal_alone(site: Site) -> bool:
    """Causality, and no other mask."""
    config = site.config
    return config is not None and config.causal != CausalMode.NONE and not config.operands


@dataclass(frozen=True)
class Gain:
    """What the fused-attention plugin was measured to be faster at than every plain form. dtypes: of the sites."""

    phrase: str
    dtypes: frozenset[str]
    holds: Callable[[Site, Target], bool]


FLOAT32 = frozenset({"float32"})

PLUGIN_GAINS: tuple[Gain, ...] = (
    Gain(
        f"a tanh softcap is fused by the attention plugin alone ({DEVICE}: a block of S4096 172 us, native 685)",
        HALF_NAMES,
        lambda site, target: _softcap(site),
    ),
    Gain(
        f"heads beyond {MAX_HEAD_SIZE} are fused by the attention plugin alone ({DEVICE}: a block of S512 d320 218 us, "
        "native 255)",
        HALF_NAMES,
        lambda site, target: site.head_size is not None and site.head_size > MAX_HEAD_SIZE,
    ),
    Gain(
        f"fp32 attention is fused by the plugin alone, in TF32 as TensorRT's own products ({DEVICE}: a block of S4096 "
        "211 us, native 632)",
        FLOAT32,
        lambda site, target: True,
    ),
    Gain(
        f"the attention plugin leaves out what causality excludes ({DEVICE}: a block of S384 61 us, native 88)",
        HALF_NAMES,
        lambda site, target: _is_causal_alone(site) and not target.has_attention,  # whose kernel was not measured
    ),
)


def plugin_gain(site: Site, target: Target | None) -> str | None:
    """Why the fused-attention plugin is faster than every plain form, with the evidence; None where that was not
    measured: for masks of other kinds TensorRT's own fused attention stays, and `--lower attention` asks for the
    plugin. A target whose GPU is not known may be the one that was measured."""
    if target is None or target.kind != TENSORRT or target.compute_capability not in (None, MEASURED_CAPABILITY):
        return None
    return next(
        (gain.phrase for gain in PLUGIN_GAINS if gain.holds(site, target) and _dtype(site) in gain.dtypes), None
    )


RULES: tuple[Rule, ...] = (
    Rule(
        "node-refused",
        NATIVE,
        "this TensorRT has no kernel for the Attention node, and its build fails",
        BUILD,
        lambda site, target: _node_is_refused(site, target),
    ),
    Rule(
        "node-boolean-mask",
        NATIVE,
        "a boolean mask in the Attention node costs 9 kernels that the same mask in plain form does not",
        BUILD,
        lambda site, target: _is_node(site) and _has_condition(site),
    ),
    Rule(
        "probabilities-used",
        NEVER,
        "the probabilities are needed outside the product with the values",
        f"{DEVICE}; {BUILD}",
        lambda site, target: _shows_probabilities(site),
    ),
    Rule(
        "float32-product",
        NATIVE,
        "casts to fp32 reach into the product with the values, which defeats the fusion and makes what follows fp32",
        BUILD,
        lambda site, target: _mixes_types(site),
    ),
    Rule(
        "float32",
        NEVER,
        "TensorRT has no fused attention for this element type",
        f"{DEVICE}; {BUILD}",
        lambda site, target: _dtype(site) not in HALF_NAMES,
    ),
    Rule(
        "head-size",
        NEVER,
        f"TensorRT fuses head sizes from {MIN_HEAD_SIZE} to {MAX_HEAD_SIZE}",
        f"{DEVICE}; {BUILD}",
        lambda site, target: _head_size_is_out(site),
    ),
    Rule(
        "softcap",
        NEVER,
        "a tanh softcap defeats the fusion",
        f"{DEVICE}; {BUILD}",
        lambda site, target: _softcap(site),
    ),
    Rule(
        "guard-behind-casts",
        NATIVE,
        "a NaN guard between fp32 casts defeats the fusion",
        BUILD,
        lambda site, target: site.widened and site.guard,
    ),
    Rule(
        "heads-broadcast",
        NATIVE,
        "key and values with fewer heads are broadcast by the product, which defeats the fusion",
        BUILD,
        lambda site, target: _broadcasts_heads(site),
    ),
    Rule(
        "scores-reshaped",
        NATIVE,
        "a position bias is added to 3-D scores that are scaled at the key, which defeats the fusion",
        BUILD,
        lambda site, target: any(mask.split_heads for mask in site.source_masks),
    ),
    Rule(
        "nan-guard",
        NATIVE,
        "a NaN guard behind the softmax gets the slower of two fused kernels",
        f"{DEVICE}: 1.08x on a whole two-layer BERT or GPT-2, SDPA against eager",
        lambda site, target: _has_guard(site) and _is_for_tensorrt(target),
    ),
    Rule(
        "causal-added",
        NATIVE,
        "causality that is added as a mask, as is_causal exports have it, was not fused",
        f"{DEVICE}: such a block took 144 us where fused ones took 71 to 83",
        lambda site, target: _adds_causality(site) and _is_for_tensorrt(target),
    ),
    Rule(
        "infinite-fill",
        NATIVE,
        "a mask that fills with -inf costs 8 kernels that a finite fill does not",
        BUILD,
        lambda site, target: _fills_with_infinity(site) and _is_for_rtx(target),
    ),
    Rule(
        "softmax-detour",
        NATIVE,
        "a softmax over another axis than the last, or of scores less their maximum, is not fused",
        BUILD,
        lambda site, target: site.detour is not None,
    ),
    Rule(
        "stored-bias",
        NATIVE,
        "a stored position bias that nodes only move about defeats the fusion; behind an Identity it does not",
        BUILD,
        lambda site, target: any(mask.stored for mask in site.source_masks) and _is_for_rtx(target),
    ),
    Rule("fused-as-given", FUSED, "TensorRT fuses it as it is", f"{DEVICE}; {BUILD}", lambda site, target: True),
)
