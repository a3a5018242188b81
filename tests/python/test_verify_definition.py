"""The standard Attention operator: ONNX's definition and ONNX Runtime's kernel both give the original's result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto

from attngraft.verify import verify_models
from attngraft.verify.definition import by_definition, has_attention
from attngraft.verify.session import ReferenceSession

Write = Callable[..., Path]

LOWEST = float(np.finfo(np.float32).min)


def attention_node(attributes: str = "", mask: str = "float[B,1,S,T]", dtype: str = "float") -> ModelProto:
    return onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 23]>
        g ({dtype}[B,2,S,4] q, {dtype}[B,2,T,4] k, {dtype}[B,2,T,4] v, {mask} mask) => ({dtype}[B,2,S,4] out)
        {{ out = Attention {attributes} (q, k, v, mask) }}
    """)


def by_hand(chain: str, mask: str = "float[B,1,S,T]", dtype: str = "float") -> ModelProto:
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 23]>
        g ({dtype}[B,2,S,4] q, {dtype}[B,2,T,4] k, {dtype}[B,2,T,4] v, {mask} mask) => ({dtype}[B,2,S,4] out)
        {{
            kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt) t = Mul(s, half)
            {chain}
            out = MatMul(p, v)
        }}
    """)
    kind = {"float": np.float32, "float16": np.float16}[dtype]
    for name, value in (("half", 0.5), ("zero", 0.0), ("minus_infinity", -np.inf), ("one", 1.0)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(kind(value), name))
    return model


ADDED = "m = Add(t, mask) p = Softmax<axis = -1>(m)"
GUARDED = "m = Where(mask, t, minus_infinity) w = Softmax<axis = -1>(m) n = IsNaN(w) p = Where(n, zero, w)"


def feeds(fill: float) -> dict[str, np.ndarray]:
    """Two rows of three keys; the second row has `fill` at every key."""
    generator = np.random.default_rng(0)
    arrays = {name: generator.standard_normal((1, 2, n, 4)).astype(np.float32) for name, n in zip("qkv", (2, 3, 3))}
    return arrays | {"mask": np.array([[[[0, 0, 0], [fill] * 3]]], np.float32)}


@pytest.mark.parametrize("fill", [0.0, -3.0, LOWEST])
def test_the_definition_is_softmax_of_scores_and_mask(fill: float) -> None:
    inputs = feeds(fill)
    defined = ReferenceSession(attention_node(), "original", defined=True).run(inputs)["out"]
    expected = ReferenceSession(by_hand(ADDED), "rewritten").run(inputs)["out"]
    np.testing.assert_allclose(defined, expected, rtol=1e-5, atol=1e-6)


def test_the_kernel_differs_from_it_where_every_key_has_the_lowest_value() -> None:
    kernel = ReferenceSession(attention_node(), "original").run(feeds(LOWEST))["out"]
    assert not kernel[0, :, 1].any()
    assert kernel[0, :, 0].any()


@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_either_result_of_a_boolean_mask_passes(dtype: str) -> None:
    original = attention_node(mask="bool[B,1,S,T]", dtype=dtype)
    assert verify_models(original, by_hand(GUARDED, "bool[B,1,S,T]", dtype)).passed
    assert verify_models(original, original).passed
    inverted = GUARDED.replace("Where(mask, t, minus_infinity)", "Where(mask, minus_infinity, t)")
    assert not verify_models(original, by_hand(inverted, "bool[B,1,S,T]", dtype)).passed


def test_a_rewrite_into_attention_is_held_to_the_definition() -> None:
    """The original gives a wholly masked row the mean of the values, as the definition does and the kernel does not."""
    chain = """
        kept = Cast<to = 1>(mask) gap = Sub(one, kept) far = Mul(gap, lowest) m = Add(t, far) p = Softmax<axis = -1>(m)
    """
    original = by_hand(chain, "bool[B,1,S,T]")
    rewritten = by_hand(chain, "bool[B,1,S,T]")
    for model in (original, rewritten):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(LOWEST), "lowest"))
    del rewritten.graph.node[-3:]
    rewritten.graph.node.append(onnx.helper.make_node("Attention", ["q", "k", "v", "far"], ["out"], scale=0.5))
    report = verify_models(original, rewritten)
    assert report.passed
    assert "as ONNX defines them" in report.notes[-1]


@pytest.mark.parametrize(
    "attributes", ["<is_causal = 1>", "<scale = 0.25>", "<softcap = 2.0>", "<softmax_precision = 1>"]
)
def test_attributes_are_in_the_definition(attributes: str) -> None:
    model = attention_node(attributes)
    defined = by_definition(model)
    assert has_attention(model)
    assert not has_attention(defined)
    onnx.checker.check_model(defined)
    assert verify_models(model, defined).passed
    assert not verify_models(attention_node("<scale = 0.4>"), defined).passed


def test_external_data_is_found(written: Write, tmp_path: Path) -> None:
    model = attention_node()
    model.graph.node[0].input[0] = "shifted"
    model.graph.node.insert(0, onnx.helper.make_node("Add", ["q", "weight"], ["shifted"]))
    weight = np.arange(2 * 1 * 4, dtype=np.float32).reshape(2, 1, 4)
    tensor = model.graph.initializer.add(name="weight", data_type=TensorProto.FLOAT, dims=weight.shape)
    tensor.data_location = TensorProto.EXTERNAL
    (tmp_path / "w.bin").write_bytes(bytes(4096) + weight.tobytes())
    for key, value in (("location", "w.bin"), ("offset", "4096"), ("length", str(weight.nbytes))):
        tensor.external_data.add(key=key, value=value)
    path = written(model)
    assert verify_models(path, path).passed


def test_attention_in_a_subgraph() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 23]>
        g (bool flag, float[B,2,S,4] q) => (float[B,2,S,4] out) {
            out = If(flag) <
                then_branch = yes () => (float[B,2,S,4] y) { y = Attention(q, q, q) },
                else_branch = no () => (float[B,2,S,4] n) { n = Identity(q) }
            >
        }
    """)
    assert has_attention(model)
    assert not has_attention(by_definition(model))
    assert verify_models(model, by_definition(model)).passed


def test_masks_that_the_kernel_refuses_are_compared_by_the_definition() -> None:
    """ONNX Runtime's kernel wants masks with as many rows as there are queries; ONNX lets them be broadcast."""
    mask = "bool[B,1,1,T]"
    model = attention_node(mask=mask)
    report = verify_models(model, by_hand(GUARDED, mask))
    assert report.passed
    assert any("3x2x7x4" in case or "3x2x9x4" in case for case in report.cases)
    assert any("the original model does not run with" in note for note in report.notes)
    assert not verify_models(model, by_hand(GUARDED.replace("t, minus", "s, minus"), mask)).passed
