"""The probe: one-site models that are what they say, and TensorRT-RTX's answers about them."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from attngraft.engine import probe as probe_module
from attngraft.engine.probe import ProbeReport, probe
from attngraft.engine.probe_models import (
    DTYPES,
    FEATURES,
    HEAD_SIZES,
    MASKS,
    ProbeCase,
    all_cases,
    one_site_model,
    usual_cases,
)
from attngraft.match import match_model
from attngraft.report.probe import probe_json, probe_lines

FP16 = ProbeCase("matmul")
CASES = (FP16, ProbeCase("matmul", head_size=320), ProbeCase("attention", dtype="float32"))


@pytest.fixture(scope="module")
def report() -> ProbeReport:
    """Three cases, one for each answer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe_module, "usual_cases", lambda: iter(CASES))
        return probe(backend="rtx")


def test_answers(report: ProbeReport) -> None:
    assert report.made_by.startswith("TensorRT-RTX 1.")
    assert [answer.fused for answer in report.answers] == [True, False, None]
    assert "not supported by a dedicated kernel" in report.answers[2].reason
    assert not report.answers[2].reason.startswith("one-site model")


def test_table(report: ProbeReport) -> None:
    lines = probe_lines(report)
    assert [line.split("  ")[-1].strip() for line in lines[2:5]] == ["fused", "not fused", "not built [1]"]
    assert lines[5].startswith("[1] ")
    assert lines[-1].endswith("1 fused, 1 not fused, 1 not built, of 3 one-site models")


def test_json(report: ProbeReport) -> None:
    document = probe_json(report)
    assert document["made_by"] == report.made_by
    first, _, last = document["answers"]
    assert (first["form"], first["dtype"], first["head_size"], first["built"], first["fused"]) == (
        "matmul", "float16", 64, True, True,
    )  # fmt: skip
    assert (last["built"], last["fused"]) == (False, False) and last["reason"]


def test_progress_names_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_module, "all_cases", lambda: iter(CASES[:1]))
    said: list[str] = []
    probe(backend="rtx", everything=True, progress=said.append)
    assert said == ["probe: 1 of 1, matmul float16 64 additive"]


def test_the_cases_cover_every_property() -> None:
    for cases in (list(usual_cases()), list(all_cases())):
        assert len(set(cases)) == len(cases)
        for form in ("matmul", "attention"):
            of_form = [case for case in cases if case.form == form]
            assert {case.dtype for case in of_form} == set(DTYPES)
            assert {case.head_size for case in of_form} == set(HEAD_SIZES)
            assert {case.mask for case in of_form} == set(MASKS)
            assert {case.feature for case in of_form} == {"", *FEATURES[form]}
            assert {case.rank for case in of_form} == {3, 4}
    assert len(list(usual_cases())) < 60 < len(list(all_cases()))


@pytest.mark.parametrize("case", sorted(set(usual_cases()), key=str), ids=str)
def test_every_model_is_valid_and_one_site(case: ProbeCase) -> None:
    model = one_site_model(case)
    onnx.checker.check_model(model, full_check=True)
    sites = match_model(model)
    assert len(sites.sites) == 1 and not sites.others
    assert sites.sites[0].head_size in (case.head_size, None)


def reference(case: ProbeCase, q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """Attention in float64; q, k and v are [B, heads, S, D]."""
    k, v = (np.repeat(a, q.shape[1] // a.shape[1], axis=1) for a in (k, v))
    scores = q @ k.swapaxes(-1, -2) * case.head_size**-0.5
    if case.feature == "softcap":
        scores = 30.0 * np.tanh(scores / 30.0)
    if case.mask == "additive":
        scores = scores + mask
    if case.mask == "bool":
        scores = np.where(mask, scores, -np.inf)
    if case.mask == "causal":
        scores = np.where(np.tri(q.shape[2], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("form", ["matmul", "attention"])
@pytest.mark.parametrize(
    ("mask", "feature"),
    [
        ("none", ""),
        ("bool", ""),
        ("additive", ""),
        ("causal", ""),
        ("additive", "softcap"),
        ("additive", "grouped heads"),
    ],
)
def test_models_compute_attention(form: str, mask: str, feature: str) -> None:
    case = ProbeCase(form, "float32", 16, mask, feature)
    rng = np.random.default_rng(0)
    heads = 2 if feature == "grouped heads" else 4
    q, k, v = (rng.standard_normal((2, n, 5, 16)).astype(np.float32) for n in (4, heads, heads))
    masks = {
        "bool": np.arange(5) < np.array([5, 3]).reshape(2, 1, 1, 1),
        "additive": rng.standard_normal((2, 1, 1, 5)).astype(np.float32),
    }
    feed = {"q": q, "k": k, "v": v}
    if mask in masks:
        feed["mask"] = np.repeat(masks[mask], 5, axis=2) if form == "attention" else masks[mask]
    session = onnxruntime.InferenceSession(one_site_model(case).SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, feed)
    expected = reference(case, *(a.astype(np.float64) for a in (q, k, v)), masks.get(mask))
    np.testing.assert_allclose(found, expected, atol=1e-5)
