"""Every way to write attention: recognised as what it is, lowered, and equal in ONNX Runtime on hurting masks."""

from __future__ import annotations

import onnx
import pytest
from attngraft.lower import lower_model
from attngraft.match import match_model
from attngraft.verify import verify_models
from chain_models import FORMS, Form
from rare_forms import RARE_FORMS
from whole_models import rebuilt

ALL_FORMS = {**FORMS, **RARE_FORMS}


@pytest.mark.parametrize("form", ALL_FORMS.values(), ids=ALL_FORMS)
def test_is_recognised(form: Form) -> None:
    found = match_model(form.model())
    assert not found.others
    (site,) = found.sites
    assert site.lowerings["softmax"] is None
    assert site.config.operands == form.operands
    assert site.config.scale == pytest.approx(form.scale)
    assert site.config.empty_rows == form.empty_rows
    assert site.config.softcap == form.softcap
    assert site.guard == form.guard
    assert site.lowerings["native"] == form.native
    assert (site.whole is None) == (form.native is not None)
    assert (site.dtype, site.rank, site.heads) == ("float32", 4, 2)


@pytest.mark.parametrize("form", ALL_FORMS.values(), ids=ALL_FORMS)
def test_lowered_model_is_valid_and_equal(form: Form) -> None:
    model = form.model()
    sites = match_model(model)
    lowered = lower_model(model, sites, {site.name: "softmax" for site in sites.sites})
    onnx.checker.check_model(lowered)
    operators = [node.op_type for node in lowered.graph.node]
    assert operators.count("MaskedSoftmax") == 1
    assert not {"Softmax", "IsNaN"} & set(operators)
    report = verify_models(model, lowered)
    assert report.passed, str(report)
    if form.inputs:
        assert any("one row masked" in case for case in report.cases)


@pytest.mark.parametrize(
    "form",
    [form for form in ALL_FORMS.values() if form.native is None],
    ids=[n for n, f in ALL_FORMS.items() if not f.native],
)
def test_whole_site_repeats_the_arithmetic(form: Form) -> None:
    model = form.model()
    (site,) = match_model(model).sites
    assert (site.whole.dtype, site.whole.context_dtype, site.whole.heads, site.whole.kv_heads) == (
        *("float32", "float32"),
        *(2, 2),
    )
    again = rebuilt(model)
    assert len(again.graph.node) > len(model.graph.node)
    report = verify_models(model, again)
    assert report.passed, str(report)
