"""`inspect --json`: the documented fields, strict JSON, and every reason of every form of attention."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from chain_models import FORMS
from report_models import SITE, inspection_of

from attngraft.contract import Role
from attngraft.engine.fusion import FusionReport, SiteFusion
from attngraft.lower import parse_target
from attngraft.match.records import MaskPart, OtherSoftmax, WholeSite
from attngraft.report.inspect_model import inspect_model
from attngraft.report.inspection import inspection_lines
from attngraft.report.schema import inspection_json

Write = Callable[..., Path]

DOCUMENT = Path(__file__).parents[2] / "docs" / "inspect.md"


def test_the_documented_fields_are_there_and_no_others() -> None:
    fusion = FusionReport("TensorRT 10.6", (SiteFusion(SITE.name, True, "mha"),), 1, 0)
    (site,) = inspection_json(inspection_of(SITE, fusion=fusion))["sites"]
    rows = re.findall(
        r"^\| (`[^|]+) \|", DOCUMENT.read_text().split("field of a site")[1].split("\n\n")[0], re.MULTILINE
    )
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(site)


def test_what_design_promises() -> None:
    document = inspection_json(
        inspection_of(
            SITE, others=(OtherSoftmax("gate", "If_0/then_branch", "no product"),), target=parse_target("10.6")
        )
    )
    assert document["model"] == "model.onnx" and document["target"] == "TensorRT 10.6"
    assert document["others"] == [{"name": "gate", "graph": "If_0/then_branch", "reason": "no product"}]
    (site,) = document["sites"]
    expected = {
        "name": "/layer.0/Softmax",
        "graph": "",
        "scale": 0.125,
        "operands": [],
        "causal": "none",
        "window": [-1, -1],
        "softcap": 0.0,
        "heads": 12,
        "head_size": 64,
        "layout": "bshd",
        "lowerings": {"keep": None, "softmax": None, "native": None, "attention": None},
        "chosen": "keep",
    }
    assert {field: site[field] for field in expected} == expected


def test_a_site_that_no_plugin_takes_is_told_from_the_whole() -> None:
    whole = WholeSite("q", "k", "v", "context", 0.5, heads=8, kv_heads=2, softcap=30.0, causal="top_left")
    (site,) = inspection_json(inspection_of(replace(SITE, config=None, whole=whole)))["sites"]
    assert (site["scale"], site["softcap"], site["causal"], site["kv_heads"]) == (0.5, 30.0, "top_left", 2)
    assert site["empty_rows"] is None


def test_infinities_are_words() -> None:
    mask = MaskPart("where", Role.KEEP, ("c",), fill=-math.inf)
    text = json.dumps(inspection_json(inspection_of(replace(SITE, source_masks=(mask,)))), allow_nan=False)
    assert json.loads(text)["sites"][0]["masks"][0]["fill"] == "-inf"


@pytest.mark.parametrize("target", [None, "10.6", "rtx-1.7"])
def test_every_reason_of_every_form_is_reported(written: Write, target: str | None) -> None:
    for form in FORMS.values():
        _, inspection = inspect_model(written(form.model()), target=parse_target(target) if target else None)
        document = json.loads(json.dumps(inspection_json(inspection), allow_nan=False))
        printed = "\n".join(inspection_lines(inspection))
        reasons = [reason for site in document["sites"] for reason in site["lowerings"].values() if reason]
        reasons += [site["reason"] for site in document["sites"] if site["reason"]]
        reasons += [other["reason"] for other in document["others"]]
        assert document["sites"] or document["others"]
        assert all(reason in printed and "\n" not in reason for reason in reasons)
        assert all(site["chosen"] == "keep" or site["lowerings"][site["chosen"]] is None for site in document["sites"])
