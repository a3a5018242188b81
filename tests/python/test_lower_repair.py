"""What stands beside the attention and keeps a model from loading or building: mended, reported, and nothing else."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from native_models import RTX, fused_kernels
from onnx import ModelProto

from attngraft.lower import repair_model

MIXED = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float16[B,S,8] x) => (float[B,S,8] y) { wide = Cast<to = 1>(x) y = LayerNormalization(wide, scale, bias) }
"""
ROTARY = """
    <ir_version: 11, opset_import: ["" : 23]>
    g (float16[B,2,S,64] x, float16[C,S,32] cos, float16[C,S,32] sin) => (float16[B,2,S,64] y)
    { y = RotaryEmbedding(x, cos, sin) }
"""


def normalization() -> ModelProto:
    model = onnx.parser.parse_model(MIXED)
    for name, value in (("scale", 2.0), ("bias", 0.5)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.full(8, value, np.float16), name))
    return model


def rotary(cache: str = "1") -> ModelProto:
    return onnx.parser.parse_model(ROTARY.replace("[C,", f"[{cache},"))


def builds(model: ModelProto) -> bool:
    return fused_kernels(model) is not None


def run(model: ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


def test_normalization_of_mixed_types_loads_and_builds() -> None:
    model = normalization()
    before = model.SerializeToString()
    repaired, (repair,) = repair_model(model, None)
    assert model.SerializeToString() == before
    assert str(repair).startswith("y: parameters cast to the input's type, since float16 parameters do not go with")
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.Fail):
        run(model, {})
    x = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float16)
    got = run(repaired, {"x": x})
    wide = x.astype(np.float32)
    normal = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(got, normal * 2 + 0.5, atol=1e-5)
    assert not builds(model)
    assert builds(repaired)


@pytest.mark.parametrize("cache", ["1", "C"])
def test_rotary_caches_that_all_sequences_share(cache: str) -> None:
    model = rotary(cache)
    repaired, (repair,) = repair_model(model, RTX)
    assert "cosine and sine caches" in str(repair)
    onnx.checker.check_model(repaired, full_check=True)
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.standard_normal((3, 2, 5, 64)).astype(np.float16),
        "cos": rng.standard_normal((1 if cache == "1" else 3, 5, 32)).astype(np.float16),
        "sin": rng.standard_normal((1 if cache == "1" else 3, 5, 32)).astype(np.float16),
    }
    if cache == "C":  # ONNX Runtime, too, takes caches of the input's batch size only
        np.testing.assert_array_equal(run(model, feeds), run(repaired, feeds))
    else:
        shared = {name: value if name == "x" else np.repeat(value, 3, axis=0) for name, value in feeds.items()}
        np.testing.assert_array_equal(run(rotary("C"), shared), run(repaired, feeds))
        assert not builds(model)
    assert builds(repaired)


def test_rotary_caches_of_the_batch_size_are_left_alone() -> None:
    model = rotary("B")
    assert repair_model(model, RTX) == (model, ())
    assert repair_model(model, RTX)[0] is model


def test_tables_of_positions_are_left_alone() -> None:
    text = ROTARY.replace("[C,S,32]", "[P,32]").replace("sin) =>", "sin, int64[B,S] ids) =>")
    model = onnx.parser.parse_model(text.replace("(x, cos, sin)", "(x, cos, sin, ids)"))
    assert repair_model(model, RTX)[0] is model


def test_without_a_target_only_what_breaks_onnx_is_mended() -> None:
    assert repair_model(rotary(), None)[0] is not None
    model = rotary()
    assert repair_model(model, None)[0] is model


def test_nodes_in_subgraphs_are_mended() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (bool flag, float[B,S,8] x) => (float[B,S,8] y)
        { y = If(flag) < then_branch = a () => (float[B,S,8] n) { n = LayerNormalization(x, scale) },
                         else_branch = b () => (float[B,S,8] m) { m = Identity(x) } > }
    """)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.full(8, 2, np.float16), "scale"))
    repaired, repairs = repair_model(model, None)
    assert [repair.node for repair in repairs] == ["n"]
    x = np.random.default_rng(0).standard_normal((1, 3, 8)).astype(np.float32)
    assert np.isfinite(run(repaired, {"flag": np.array(True), "x": x})).all()


@pytest.mark.parametrize("k", [0, 2, -1])
def test_a_diagonal_of_any_size(k: int) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[N,M] x) => (float[N,M] y) {{ e = EyeLike<k = {k}>(x) y = Add(x, e) }}
    """)
    repaired, (repair,) = repair_model(model, RTX)
    assert repair.node == "e"
    onnx.checker.check_model(repaired, full_check=True)
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    np.testing.assert_array_equal(run(model, {"x": x}), run(repaired, {"x": x}))
    assert not builds(model)
    assert builds(repaired)


@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("axis", [1, 2, -2])
@pytest.mark.parametrize("opset", [18, 20])
def test_a_fourier_transform_by_matrix_products(opset: int, axis: int, inverse: int) -> None:
    given = f"DFT<inverse = {inverse}, axis = {axis}>(x)" if opset < 20 else f"DFT<inverse = {inverse}>(x, , at)"
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : {opset}]>
        g (float[B,S,12,2] x) => (float[B,S,12,2] y) {{ at = Constant<value = int64 {{{axis}}}>() y = {given} }}
    """)
    repaired, (repair,) = repair_model(model, RTX)
    assert str(repair) == "y: transformed by matrix products, since TensorRT does not take DFT"
    onnx.checker.check_model(repaired, full_check=True)
    x = np.random.default_rng(0).standard_normal((2, 7, 12, 2)).astype(np.float32)
    wanted = (np.fft.ifft if inverse else np.fft.fft)(x[..., 0] + 1j * x[..., 1], axis=axis if axis > 0 else 2)
    np.testing.assert_allclose(run(repaired, {"x": x}), np.stack([wanted.real, wanted.imag], -1), atol=1e-5)
    assert not builds(model)
    assert builds(repaired)


def test_what_a_fourier_transform_is_not_mended_for() -> None:
    """One-sided, resized, of real numbers, or along an axis that the graph computes: left alone."""
    for transform, made in (
        ("DFT<onesided = 1>(x, , at)", ""),
        ("DFT(x, n, at)", "n = Constant<value = int64 {8}>()"),
        ("DFT(real, , at)", "real = Slice(x, first, second, last)"),
        ("DFT(x, , which)", ""),
    ):
        model = onnx.parser.parse_model(f"""
            <ir_version: 9, opset_import: ["" : 20]>
            g (float[B,S,12,2] x, int64 which, int64[1] first, int64[1] second, int64[1] last) => (float[B,N,M,2] y)
            {{ at = Constant<value = int64 {{1}}>() {made} y = {transform} }}
        """)
        assert repair_model(model, RTX)[0] is model


def test_a_diagonal_of_fixed_size_is_left_alone() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[4,6] x) => (float[4,6] y) { e = EyeLike(x) y = Add(x, e) }
    """)
    assert repair_model(model, RTX)[0] is model


def computed_axes(made: str) -> ModelProto:
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 18]>
        g (float[N,4] x) => (float[N,1] y) {{ {made} y = ReduceMean<keepdims = 1>(x, axes) }}
    """)


def test_axes_computed_from_constants() -> None:
    model = computed_axes("""
        number = Constant<value = int64[1] {-1}>() shape = Constant<value_ints = [-1]>()
        axes = Reshape(number, shape)
    """)
    repaired, (repair,) = repair_model(model, RTX)
    assert "axes" in str(repair)
    onnx.checker.check_model(repaired, full_check=True)
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    np.testing.assert_array_equal(run(model, {"x": x}), run(repaired, {"x": x}))
    assert not builds(model)
    assert builds(repaired)


def test_axes_that_depend_on_an_input_and_constant_ones_are_left_alone() -> None:
    depends = computed_axes("shape = Shape(x) axes = Gather(shape, place)".replace("place", "zero"))
    depends.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "zero"))
    constant = computed_axes("axes = Constant<value = int64[1] {-1}>()")
    assert repair_model(depends, RTX)[0] is depends
    assert repair_model(constant, RTX)[0] is constant


def boolean_fill(mask: str, number: str = "number", attributes: str = "", more: str = "") -> ModelProto:
    """What PyTorch makes of `x[mask] = number`."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 18]>
        g (float[B,S,4] x, bool[B,S,4] same, bool[B,S,1] narrow, float[N] many) => (float[B,S,4] y {more}) {{
            {mask}
            true = NonZero(mask) places = Transpose<perm = [1, 0]>(true)
            flat = Reshape(mask, whole) ones = Cast<to = 7>(flat) count = ReduceSum(ones)
            repeated = Expand({number}, count) updates = Reshape(repeated, whole)
            y = ScatterND{attributes}(x, places, updates) }}
    """)
    for name, value in (("number", np.float32(7)), ("whole", np.array([-1]))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    return model


EXPANDED = "shape = Shape(x) mask = Expand(narrow, shape)"


@pytest.mark.parametrize("mask", [EXPANDED, "mask = Not(same)"])
def test_a_number_at_a_mask_s_true_places_is_chosen(mask: str) -> None:
    model = boolean_fill(mask)
    repaired, (repair,) = repair_model(model, RTX)
    assert "chosen by the mask" in str(repair)
    onnx.checker.check_model(repaired, full_check=True)
    assert {node.op_type for node in repaired.graph.node} <= {"Shape", "Expand", "Not", "Where"}
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((2, 3, 4)).astype(np.float32), "same": rng.random((2, 3, 4)) < 0.5,
             "narrow": rng.random((2, 3, 1)) < 0.5, "many": np.zeros(2, np.float32)}  # fmt: skip
    np.testing.assert_array_equal(run(model, feeds), run(repaired, feeds))
    assert not builds(model)
    assert builds(repaired)


@pytest.mark.parametrize(
    "model",
    [
        boolean_fill(EXPANDED, attributes='<reduction = "add">'),
        boolean_fill(EXPANDED, number="many"),
        boolean_fill("mask = Identity(narrow)"),
        boolean_fill("wide = Shape<end = 2>(x) mask = Expand(narrow, wide)"),
    ],
    ids=["adds", "several numbers", "another shape", "shape of fewer dimensions"],
)
def test_other_scatters_are_left_alone(model: ModelProto) -> None:
    assert repair_model(model, RTX)[0] is model


def test_what_else_reads_the_true_places_keeps_them() -> None:
    model = boolean_fill(EXPANDED, more=", int64[3,M] true")
    repaired, _ = repair_model(model, RTX)
    onnx.checker.check_model(repaired, full_check=True)
    kept = [node.op_type for node in repaired.graph.node]
    assert "NonZero" in kept
    assert "Transpose" not in kept


def flip(end: int) -> ModelProto:
    """As HuBERT's export: a reversal along a computed size. The reshape wants the size to be what it was."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18]>
        g (float[B,S] x) => (int64[B,T] y) {
            batch = Shape<start = 0, end = 1>(x) length = Shape<start = 1, end = 2>(x) less = Add(length, last)
            sizes = Concat<axis = 0>(batch, less) z = Expand(one, sizes) c = CumSum(z, axis)
            r = Slice(c, last, end, last, last) shape = Shape(z) y = Reshape(r, shape) }
    """)
    for name, value in (("last", [-1]), ("end", [end]), ("one", [1]), ("axis", 1)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(value), name))
    return model


def test_a_reversal_down_to_the_first_element() -> None:
    least = np.iinfo(np.int64).min
    model = flip(least)
    repaired, (repair,) = repair_model(model, RTX)
    assert "the least integer" in str(repair)
    onnx.checker.check_model(repaired, full_check=True)
    x = np.zeros((2, 5), np.float32)
    np.testing.assert_array_equal(run(repaired, {"x": x}), [[4, 3, 2, 1]] * 2)
    np.testing.assert_array_equal(run(model, {"x": x}), run(repaired, {"x": x}))
    assert not builds(model)
    assert builds(repaired)
    others = flip(least + 1)
    assert repair_model(others, RTX)[0] is others


def einsum(equation: str) -> ModelProto:
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 18]>
        g (float[B,S,4] x, float[B,T,4] y) => (float[B,S,T] z) {{ z = Einsum<equation = "{equation}">(x, y) }}
    """)


@pytest.mark.parametrize("equation", ["BID,BJD->BIJ", "Bbd,BDd->BbD", "B I d, B i d -> B I i"])
def test_einsum_in_capital_letters(equation: str) -> None:
    """As torchvision's MaxViT writes it."""
    model = einsum(equation)
    repaired, (repair,) = repair_model(model, RTX)
    assert "small letters" in str(repair)
    onnx.checker.check_model(repaired, full_check=True)
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal((2, n, 4)).astype(np.float32) for name, n in (("x", 3), ("y", 5))}
    np.testing.assert_array_equal(run(model, feeds), run(repaired, feeds))
    assert not builds(model)
    assert builds(repaired)


def test_einsum_in_small_letters_is_left_alone() -> None:
    model = einsum("bid,bjd->bij")
    assert repair_model(model, RTX)[0] is model
