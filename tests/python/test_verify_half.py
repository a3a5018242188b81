"""float16 models are held against their float32 form: fewer roundings pass, wrong arithmetic fails."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from chain_models import attention
from onnx import ModelProto, TensorProto

from attngraft.errors import VerificationError
from attngraft.lower import lower_model
from attngraft.match import match_model
from attngraft.onnx_graph import load_model
from attngraft.verify import OriginalRun, verify_models
from attngraft.verify.inputs import InputCase
from attngraft.verify.original import OriginalCase
from attngraft.verify.widen import narrowest_type, widened

CHAIN = "s = MatMul(q, kt) t = Mul(s, c) m = Where(condition, t, f) p = Softmax<axis = -1>(m)"


def half_model(scale: float = 0.5, chain: str = CHAIN, fill: float = -6e4) -> ModelProto:
    return attention(chain, inputs=("condition",), constants={"c": scale, "f": fill}, dtype="float16")


def mixed_types() -> ModelProto:
    """LayerNormalization of a float32 input with a float16 scale, as TorchScript exports of SDPA have it; ONNX Runtime
    refuses it."""
    return onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float16[B,S,4] q, float16[B,T,4] k, float16[4] weight, float16[4] bias) => (float[B,S,4] out) {
            kt = Transpose<perm = [0, 2, 1]>(k)
            s = MatMul(q, kt)
            p = Softmax<axis = -1>(s)
            o = MatMul(p, k)
            wide = Cast<to = 1>(o)
            out = LayerNormalization<axis = -1>(wide, weight, bias)
        }
    """)


def test_the_same_arithmetic_passes() -> None:
    model = half_model()
    report = verify_models(model, lower_model(model, match_model(model), {"p": "softmax"}))
    assert report.passed
    assert not report.notes
    assert 0 < report.outputs[0].tolerance < 1e-2


def test_a_model_without_the_roundings_passes() -> None:
    """The same function computed in float32 between the inputs and the output: nearer to the reference."""
    wide = attention(
        """
        qw = Cast<to = 1>(q) kw = Cast<to = 1>(kt) s = MatMul(qw, kw) t = Mul(s, cw) m = Where(condition, t, fw)
        pw = Softmax<axis = -1>(m) vw = Cast<to = 1>(v) p = Cast<to = 10>(pw)
        """,
        values="ow = MatMul(pw, vw) out = Cast<to = 10>(ow)",
        inputs=("condition",),
        constants={"cw": np.float32(0.5), "fw": np.float32(-6e4)},
        dtype="float16",
    )
    assert verify_models(half_model(), wide).passed


@pytest.mark.parametrize("scale", [0.47, 0.53])
def test_a_scale_that_is_slightly_off_fails(scale: float) -> None:
    report = verify_models(half_model(), half_model(scale))
    assert not report.passed
    with pytest.raises(VerificationError, match="output 'out' differs by"):
        report.raise_if_failed()


def test_the_usual_rounding_is_a_median_that_strange_cases_do_not_move() -> None:
    errors = (0.001, 0.002, 0.003, 50.0, np.inf)
    cases = tuple(
        OriginalCase(
            InputCase("case", {}),
            {"out": np.array([1 + error, 1, np.nan], np.float32)},
            {"out": np.array([1, 1, 1], np.float32)},
        )
        for error in errors
    )
    run = OriginalRun(half_model(), TensorProto.FLOAT16, cases, ())
    # The infinite element is not counted, so that case's largest difference is 0.
    assert run.rounding("out") == pytest.approx(0.002, rel=1e-3)


def test_a_scale_rounded_to_the_half_type_passes_where_only_float32_runs() -> None:
    """sqrt(scale) on query and key, each rounded to float16, against their product, rounded once."""
    root = np.float16(0.5946)
    both = "qs = Mul(q, r) ks = Mul(kt, r) s = MatMul(qs, ks) p = Softmax<axis = -1>(s)"
    after = "s = MatMul(q, kt) t = Mul(s, r) p = Softmax<axis = -1>(t)"
    for dtype in ("float16", "bfloat16"):
        factors = [attention(both, constants={"r": float(root)}, dtype=dtype)]
        factors.append(attention(after, constants={"r": float(root) ** 2}, dtype=dtype))
        assert verify_models(*factors).passed


def test_overflow_in_float16_is_told_apart_from_a_fault() -> None:
    """Scores of about 1e5 are infinite in float16 and finite in the reference: rows that are NaN are not compared."""
    model = half_model(scale=4e4, fill=-np.inf)
    (row,) = verify_models(model, model).outputs
    assert row.nan_in_original > 0
    assert row.new_nan == 0
    assert row.passed


def test_models_with_mixed_types_are_compared_in_float32() -> None:
    model = mixed_types()
    sites = match_model(model)
    lowered = lower_model(model, sites, {site.name: "softmax" for site in sites.sites})
    report = verify_models(model, lowered)
    assert report.passed
    assert report.worst < 1e-5
    assert [note.partition(":")[0] for note in report.notes][:2] == [
        "ONNX Runtime does not load the original",
        "both models were computed as float32",
    ]
    wrong = mixed_types()
    wrong.graph.node[2].op_type = "Identity"
    wrong.graph.node[2].ClearField("attribute")
    assert not verify_models(model, wrong).passed


def test_a_repair_of_mixed_types_is_compared_as_it_is() -> None:
    repaired = mixed_types()
    for name in ("weight", "bias"):
        cast = onnx.helper.make_node("Cast", [name], [f"{name}_wide"], to=TensorProto.FLOAT)
        repaired.graph.node.insert(0, cast)
    repaired.graph.node[-1].input[1:] = ["weight_wide", "bias_wide"]
    report = verify_models(mixed_types(), repaired)
    assert report.passed
    assert any("the original was computed as float32" in note for note in report.notes)


def test_widening_leaves_no_half_type(data_folder: Path) -> None:
    model = load_model(data_folder / "llama_eager_fp16_torchscript.onnx")
    assert narrowest_type(model) == TensorProto.FLOAT16
    before = model.SerializeToString()
    wide = widened(model, None)
    assert narrowest_type(wide) == TensorProto.FLOAT
    assert model.SerializeToString() == before
    onnx.checker.check_model(wide)


def test_widening_reaches_subgraphs_and_functions() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (bool flag, float[N] x) => (float[N] out) {
            y = If(flag) <
                then_branch = yes () => (float16[N] a) { a = Cast<to = 10>(x) },
                else_branch = no () => (float16[N] b) { b = local.half(x) }
            >
            out = Cast<to = 1>(y)
        }
        <domain: "local", opset_import: ["" : 17]> half (x) => (y) { y = Cast<to = 10>(x) }
    """)
    wide = widened(model, None)
    assert narrowest_type(wide) == TensorProto.FLOAT
    assert verify_models(model, wide).passed


def test_above_two_gigabytes_nothing_is_widened() -> None:
    """The size is known from shapes: nothing is read or copied to find out."""
    model = half_model()
    tensor = model.graph.initializer.add(name="huge", data_type=TensorProto.FLOAT16, dims=[2**29, 1])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="nowhere.bin")
    with pytest.raises(VerificationError, match="exceeds 2 GB in float32"):
        widened(model, Path("."))
