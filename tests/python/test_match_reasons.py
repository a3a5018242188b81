"""Every reason that matching can give is given by some model here, and reads as one phrase."""

from __future__ import annotations

import ast
from pathlib import Path

import attngraft.match
import numpy as np
import onnx
import pytest
from attngraft.match import MaskPart, ModelSites, OtherSoftmax, Scale, Site, WholeSite, inline_attention, match_model
from attngraft.match.records import LOWERINGS
from attention_models import MOVED
from chain_models import FORMS, attention
from onnx import ModelProto
from projected_models import PROJECTED_FORMS
from rare_forms import RARE_FORMS
from test_lower_attention import REFUSED as NO_ATTENTION
from test_local_functions import function_of_another_opset, spread, twice
from test_match_attention_or_not import FORMS as UNUSUAL
from test_match_fused import EXACT, REFUSED
from test_match_whole import graph

MAX_LENGTH = 200
"""Characters of a reason: what a line of a report holds, tensor names included."""


def classifier(body: str) -> ModelProto:
    return graph("float[B,8] x", body, "float[B,4] out", {"w": np.ones((8, 4), np.float32)})


def scores_of_rank_one() -> ModelProto:
    return graph(
        "float[4] q, float[T,4] k, float[T,4] v",
        "kt = Transpose<perm = [1, 0]>(k) s = MatMul(q, kt) p = Softmax<axis = 0>(s) out = MatMul(p, v)",
        "float[4] out",
    )


def untyped(axis: int) -> ModelProto:
    """Behind an operator that inference does not know, neither type nor rank is left."""
    return graph(
        "float[B,2,S,4] q, float[B,2,4,T] kt, float[B,2,T,4] v",
        f"u = com.microsoft.Unknown(q) s = MatMul(u, kt) p = Softmax<axis = {axis}>(s) out = MatMul(p, v)",
        "float[B,2,S,4] out",
    )


MERGED = """
    qm = Reshape(q, merged) s = MatMul(qm, kt) {between} u = Reshape(m, apart) p = Softmax<axis = -1>(u) {after}
"""


def merged(between: str, after: str = "out = MatMul(p, v)") -> ModelProto:
    constants = {"merged": np.array([6, 5, 4], np.int64), "apart": np.array([3, 2, 5, 5], np.int64)}
    inputs = "float[3,2,5,4] q, float[6,4,5] kt, float[3,2,5,4] v, bool[6,5,5] condition, float[6,5,5] added"
    body = MERGED.format(between=between, after=after)
    return graph(inputs, body, "float[3,2,5,4] out", {**constants, "f": -1e9, "zero": 0.0})


OTHERS: dict[str, ModelProto] = {
    "classifier": classifier("s = MatMul(x, w) out = Softmax<axis = -1>(s)"),
    "logarithms": classifier("s = MatMul(x, w) out = LogSoftmax<axis = -1>(s)"),
    "no values": attention("s = MatMul(q, kt) p = Softmax<axis = -1>(s)", values="out = Identity(q)"),
    "mask that does not broadcast": attention(
        "s = MatMul(q, kt) m = Add(s, b) p = Softmax<axis = -1>(m)", constants={"b": np.zeros((3, 1, 1), np.float32)}
    ),
    "computed scale of the query": attention(
        """
        shape = Shape(q) axis = Constant<value = int64 {2}>() rows = Gather(shape, axis) wide = Cast<to = 1>(rows)
        c = Sqrt(wide) qs = Mul(q, c) s = MatMul(qs, kt) p = Softmax<axis = -1>(s)
        """
    ),
    "scale of half-precision operands": attention(
        "qs = Mul(q, c) s = MatMul(qs, kt) p = Softmax<axis = -1>(s)", constants={"c": 0.5}, dtype="float16"
    ),
    "transposed values": graph(
        "float[S,4] q, float[T,4] k, float[4,T] vt",
        "s = Gemm<transB = 1>(q, k) p = Softmax<axis = -1>(s) out = Gemm<transB = 1>(p, vt)",
        "float[S,4] out",
    ),
    "Gemm that adds": graph(
        "float[S,4] q, float[T,4] k, float[T,4] v, float[S,T] c",
        "s = Gemm<transB = 1>(q, k, c) p = Softmax<axis = -1>(s) out = MatMul(p, v)",
        "float[S,4] out",
    ),
    "transposed query": graph(
        "float[B,4,S] qt, float[B,T,4] k, float[B,T,4] v",
        """
        s = MatMul(k, qt) w = Softmax<axis = -2>(s) p = Transpose<perm = [0, 2, 1]>(w) out = MatMul(p, v)
        """,
        "float[B,S,4] out",
    ),
    "transposed probabilities": graph(
        "float[B,S,4] q, float[B,T,4] k, float[B,4,T] vt",
        "qt = Transpose<perm = [0, 2, 1]>(q) s = MatMul(k, qt) w = Softmax<axis = -2>(s) out = MatMul(vt, w)",
        "float[B,4,S] out",
    ),
    "local function": onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[B,2,S,4] q, float[B,2,T,4] k, float[B,2,T,4] v) => (float[B,2,S,4] out) { out = local.attend(q, k, v) }
        <opset_import: ["" : 17], domain: "local">
        attend (q, k, v) => (out)
        { kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt) p = Softmax<axis = -1>(s) out = MatMul(p, v) }
    """),
    "doubles": attention("s = MatMul(q, kt) p = Softmax<axis = -1>(s)", dtype="double"),
    "rank 1": scores_of_rank_one(),
    "unknown type": untyped(-1),
    "unknown rank": untyped(3),
    "scores from outside": graph(
        "bool flag, float[B,2,S,4] q, float[B,2,4,T] kt, float[B,2,T,4] v",
        """
        s = MatMul(q, kt) out = If(flag) <
            then_branch = a () => (float[B,2,S,4] x) { p = Softmax<axis = -1>(s) x = MatMul(p, v) },
            else_branch = b () => (float[B,2,S,4] y) { y = Identity(q) }
        >
        """,
        "float[B,2,S,4] out",
    ),
    "heads merged for good": merged("m = Identity(s)"),
    "mask of merged heads whose rank is lost": merged("a = com.microsoft.Unknown(added) m = Add(s, a)"),
}


def records() -> dict[str, ModelSites]:
    models = {
        **{f"form: {name}": form.model() for name, form in {**FORMS, **RARE_FORMS}.items()},
        **{f"unusual: {name}": model for name, (model, _) in UNUSUAL.items()},
        **{f"fused: {name}": model for name, model in {**EXACT, **REFUSED}.items()},
        **OTHERS,
        **{f"moved: {name}": form.model() for name, form in {**MOVED, **PROJECTED_FORMS}.items()},
        **{f"no attention: {name}": model for name, (model, _) in NO_ATTENTION.items()},
        "function of another opset": function_of_another_opset(),
    }
    return {name: match_model(model) for name, model in models.items()}


@pytest.fixture(scope="module")
def found() -> dict[str, ModelSites]:
    return records()


def reasons(found: dict[str, ModelSites]) -> set[str]:
    sites = [site for sites in found.values() for site in sites.sites]
    given = {reason for site in sites for reason in site.lowerings.values() if reason is not None}
    given |= {site.scale.note for site in sites if site.scale.note is not None}
    given |= {phrase for site in sites if site.attention is not None for phrase in site.attention.outside}
    given |= {site.detour for site in sites if site.detour is not None}
    return given | {other.reason for sites in found.values() for other in sites.others}


def phrases_in_source() -> set[str]:
    """The texts of three words and more in matching's code, docstrings aside: its reasons."""
    texts: set[str] = set()
    folder = Path(attngraft.match.__file__).parent
    for file in (*folder.glob("*.py"), *folder.glob("attention/*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docstrings]
        texts |= {node.value for node in constants if isinstance(node.value, str) and len(node.value.split()) >= 3}
    return texts


def test_every_reason_is_given_by_a_model(found: dict[str, ModelSites]) -> None:
    given = reasons(found)
    given |= {inlined.reason for model in (twice(), spread()) for inlined in inline_attention(model)[1]}
    missing = {text for text in phrases_in_source() if not any(text in reason for reason in given)}
    assert not missing


def test_every_reason_is_one_phrase(found: dict[str, ModelSites]) -> None:
    for reason in reasons(found):
        assert reason == " ".join(reason.split())
        assert not reason.endswith((".", ":", ";"))
        assert len(reason) <= MAX_LENGTH


def test_every_record_says_the_same_in_all_its_fields(found: dict[str, ModelSites]) -> None:
    for name, model_sites in found.items():
        for site in model_sites.sites:
            check_site(name, site)
        for other in model_sites.others:
            assert isinstance(other, OtherSoftmax)
            assert other.name, name


def check_site(name: str, site: Site) -> None:
    assert set(site.lowerings) == set(LOWERINGS), name
    assert site.lowerings["keep"] is None
    assert (site.whole is None) == (site.lowerings["native"] is not None), name
    assert (site.attention is None) == (site.lowerings["attention"] is not None), name
    assert isinstance(site.scale, Scale)
    if site.lowerings["softmax"] is None:
        assert site.config is not None
        assert site.config.operands == tuple(mask.role for mask in site.masks), name
        assert site.scores and site.probabilities
    if site.whole is not None:
        assert isinstance(site.whole, WholeSite)
        assert all((site.whole.query, site.whole.key, site.whole.values, site.whole.context)), name
        assert site.rank is not None, name
    if site.attention is not None:
        form = site.attention
        read = 3 if form.merged is not None else len(form.config.tensor_names)
        assert len(form.tensors) == read and all(form.tensors) and form.context, name
        if form.merged is not None:
            merged = form.merged
            assert (form.config.layout, len(merged.weights), len(merged.widths)) == ("qkv", 3, 3), name
            assert merged.source and len(merged.biases) in (0, 3), name
        assert form.config.operands == tuple(dict.fromkeys(mask.role for mask in form.masks)), name
    for mask in (*site.masks, *site.source_masks):
        assert isinstance(mask, MaskPart)
        assert mask.form in ("add", "add-where", "where"), name
        assert mask.tensors and mask.role in ("bias", "keep"), name
