"""A branch that takes the place of its If: what moves, which names it gets, what stays."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from branch_models import BRANCHES, SAME_SIZES_DIFFER, TRUE_CONDITION, X, operators, parse, run, taken
from native_models import RTX, fused_kernels

from attngraft.lower import lower_model, repair_model
from attngraft.match import match_model
from attngraft.onnx_graph import walk_graphs

TRUE, FALSE = "true = Constant<value = bool {1}>()", "false = Constant<value = bool {0}>()"


def test_decided_inside_undecided() -> None:
    """The condition is made outside, where nothing else reads it."""
    nodes = f"""
        {SAME_SIZES_DIFFER}
        y = If(flag) < then_branch = a () => (float[N,4] t) {{
                h = Mul(x, two)
                t = If(c) < then_branch = b () => (float[N,4] n) {{ n = Neg(h) }},
                            else_branch = d () => (float[N,4] m) {{ m = Abs(h) }} > }},
            else_branch = other () => (float[N,4] e) {{ e = Neg(x) }} >
    """
    model = parse(nodes, ", bool flag")
    for flag in (True, False):
        repaired = taken(model, {"x": X, "flag": np.array(flag)}, ifs=1)
        assert operators(repaired) == ["If"]
        assert [node.op_type for node in repaired.graph.node[0].attribute[0].g.node] == ["Mul", "Abs"]


def test_decided_inside_decided() -> None:
    nodes = f"""
        {TRUE} {FALSE}
        y = If(true) < then_branch = a () => (float[N,4] t) {{
                h = Mul(x, two)
                t = If(false) < then_branch = b () => (float[N,4] n) {{ n = Neg(h) }},
                                else_branch = d () => (float[N,4] m) {{ k = Add(h, x) m = Abs(k) }} > }},
            else_branch = other () => (float[N,4] e) {{
                e = If(false) < then_branch = f () => (float[N,4] p) {{ p = Neg(x) }},
                                else_branch = i () => (float[N,4] q) {{ q = Abs(x) }} > }} >
    """
    repaired = taken(parse(nodes))
    assert operators(repaired) == ["Mul", "Add", "Abs"]
    assert len(repair_model(parse(nodes), RTX)[1]) == 2  # the third is in a branch that is gone


def test_undecided_inside_decided() -> None:
    nodes = f"""
        {FALSE}
        y = If(false) < then_branch = a () => (float[N,4] t) {{ t = Neg(x) }},
            else_branch = other () => (float[N,4] e) {{
                h = Mul(x, two)
                e = If(flag) < then_branch = b () => (float[N,4] n) {{ n = Neg(h) }},
                               else_branch = d () => (float[N,4] m) {{ m = Abs(h) }} > }} >
    """
    for flag in (True, False):
        repaired = taken(parse(nodes, ", bool flag"), {"x": X, "flag": np.array(flag)}, ifs=1)
        assert operators(repaired) == ["Mul", "If"]


def test_inside_a_loop() -> None:
    nodes = f"""
        {TRUE}
        times = Constant<value = int64 {{3}}>()
        y = Loop(times, true, x) < body = b (int64 i, bool on, float[N,4] h) => (bool go, float[N,4] next) {{
            go = Identity(on)
            k = Shape<end = 1>(h) one = Constant<value_ints = [1]>() more = Add(k, one) c = Less(more, k)
            next = If(c) < then_branch = a () => (float[N,4] n) {{ n = Neg(h) }},
                               else_branch = d () => (float[N,4] m) {{ m = Mul(h, two) }} > }} >
    """
    repaired = taken(parse(nodes))
    body = repaired.graph.node[-1].attribute[0].g
    assert [node.op_type for node in body.node] == ["Identity", "Mul"]
    assert operators(repaired) == ["Constant", "Constant", "Loop"]


def test_sizes_behind_an_if_decide_the_next_one() -> None:
    nodes = f"""
        {TRUE}
        h = If(true) < then_branch = a () => (float[N,4] t) {{ t = Mul(x, two) }},
                       else_branch = b () => (float[P,4] e) {{ e = Concat<axis = 0>(x, x) }} >
        k = Shape<end = 1>(h) l = Shape<end = 1>(x) c = Equal(k, l)
        y = If(c) < then_branch = d () => (float[Q,4] n) {{ n = Neg(h) }},
                    else_branch = f () => (float[R,4] m) {{ m = Abs(h) }} >
    """
    assert operators(taken(parse(nodes))) == ["Mul", "Neg"]


def test_names_that_others_have() -> None:
    """Branches share names, one has that of the If's result, and a graph inside it has it too."""
    nodes = f"""
        {TRUE} {FALSE}
        h = If(true) < then_branch = a () => (float[N,4] t) {{ k = Neg(x) t = Mul(k, two) }},
                       else_branch = b () => (float[N,4] t) {{ t = Neg(x) }} >
        y = If(false) < then_branch = a () => (float[N,4] t) {{ k = Neg(h) t = Mul(k, two) }},
            else_branch = b () => (float[N,4] t) {{
                k = Abs(h)
                t = If(flag) < then_branch = d () => (float[N,4] y) {{ y = Add(k, x) }},
                               else_branch = f () => (float[N,4] n) {{ y = Mul(k, k) n = Neg(y) }} > }} >
    """
    model = onnx.shape_inference.infer_shapes(parse(nodes, ", bool flag"))
    for _, graph in walk_graphs(model.graph):
        for place, node in enumerate(graph.node):
            node.name = f"node {place}"
        graph.value_info.extend(value for value in graph.output)  # as some exporters do
    for flag in (True, False):
        repaired = taken(model, {"x": X, "flag": np.array(flag)}, ifs=1)
        made = [name for _, graph in walk_graphs(repaired.graph) for node in graph.node for name in node.output]
        names = [node.name for node in repaired.graph.node]
        assert len(set(made)) == len(made)
        assert len(set(names)) == len(names)
        described = [value.name for value in repaired.graph.value_info]
        assert len(set(described)) == len(described)
        assert {"h", "y"} <= set(made)


def test_results_of_every_kind() -> None:
    """One that is stored, one that nothing reads, and graph outputs."""
    nodes = f"""
        {SAME_SIZES_DIFFER}
        a, s, unread, y = If(c) <
            then_branch = f () => (float[N,4] t, float[1] w, float[N,4] n, float[N,4] z)
                <float[1] w = {{3.0}}> {{ t = Mul(x, two) n = Neg(t) z = Abs(x) }},
            else_branch = g () => (float[N,4] h, float[1] j, float[N,4] l, float[N,4] m)
                <float[1] j = {{4.0}}> {{ h = Neg(x) l = Neg(h) m = Neg(h) }} >
        d = Sub(a, x)
    """
    repaired = taken(parse(nodes, output="float[M,4] y, float[1] s, float[M,4] d"))
    assert sorted(operators(repaired)) == ["Identity", "Neg", "Neg", "Sub"]


def test_results_that_are_one_tensor_or_not_asked_for() -> None:
    """ONNX Runtime does not take such an If itself."""
    nodes = f"""
        {TRUE}
        , y, z = If(true) <
            then_branch = a () => (float[N,4] t, float[N,4] n, float[N,4] n) {{ t = Mul(x, two) n = Neg(x) }},
            else_branch = b () => (float[N,4] e, float[N,4] f, float[N,4] f) {{ e = Neg(x) f = Abs(x) }} >
    """
    repaired, _ = repair_model(parse(nodes, output="float[M,4] y, float[M,4] z"), RTX)
    assert operators(repaired) == ["Neg", "Identity"]
    for result in run(repaired, {"x": X}):
        np.testing.assert_array_equal(result, -X)


def test_a_captured_tensor_that_a_branch_returns_as_it_is() -> None:
    """ONNX Runtime does not take such a branch itself."""
    nodes = f"""
        {TRUE}
        y = If(true) < then_branch = a () => (float[N,4] x) {{ }},
                       else_branch = b () => (float[N,4] e) {{ e = Neg(x) }} >
    """
    repaired, _ = repair_model(parse(nodes), RTX)
    np.testing.assert_array_equal(run(repaired, {"x": X})[0], X)


def test_what_the_branches_stored() -> None:
    """The taken one's constants move, the other's go, and so do outer ones that only the other read."""
    nodes = f"""
        {TRUE}
        y = If(true) < then_branch = a () => (float[N,4] t) <float[4] w = {{1.0, 2.0, 3.0, 4.0}}> {{ t = Add(x, w) }},
                       else_branch = b () => (float[N,4] e) <float[4] w = {{5.0, 6.0, 7.0, 8.0}}> {{
                           f = Mul(x, w) e = Mul(f, two) }} >
    """
    repaired = taken(parse(nodes))
    (stored,) = repaired.graph.initializer
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(stored), [1, 2, 3, 4])


def test_sparse_constants_and_quantization_move_too() -> None:
    nodes = f"""
        {TRUE}
        y = If(true) < then_branch = a () => (float[N,4] t) {{ t = Add(x, w) }},
                       else_branch = b () => (float[N,4] e) {{ w = Abs(x) e = Mul(x, w) }} >
    """
    model = parse(nodes)
    branch = model.graph.node[-1].attribute[0].g
    values = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [1], [5.0])
    branch.sparse_initializer.append(
        onnx.helper.make_sparse_tensor(values, onnx.helper.make_tensor("", onnx.TensorProto.INT64, [1], [2]), [4])
    )
    annotation = branch.quantization_annotation.add(tensor_name="t")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w")
    repaired, _ = repair_model(model, RTX)
    np.testing.assert_array_equal(run(model, {"x": X})[0], run(repaired, {"x": X})[0])
    (sparse,) = repaired.graph.sparse_initializer
    (moved,) = repaired.graph.quantization_annotation
    (parameter,) = moved.quant_parameter_tensor_names
    assert sparse.values.name == parameter.value == repaired.graph.node[0].input[1] != "w"
    assert moved.tensor_name == "y"


def test_what_else_reads_the_condition_keeps_it() -> None:
    repaired = taken(parse(f"{SAME_SIZES_DIFFER} {BRANCHES}", output="float[M,4] y, bool[1] same"))
    assert operators(repaired) == ["Transpose", "Shape", "Shape", "Equal", "Neg"]


def test_dead_nodes_of_the_model_s_own_stay() -> None:
    repaired = taken(parse(f"unread = Exp(x) {TRUE_CONDITION} {BRANCHES}"))
    assert operators(repaired) == ["Exp", "Mul"]


ATTENTION = """
    split = Constant<value_ints = [0, -1, 2, 64]>() merge = Constant<value_ints = [0, -1, 128]>()
    eighth = Constant<value_float = 0.125>() scale = Cast<to = 10>(eighth)
    rq = Reshape(x, split) q = Transpose<perm = [0, 2, 1, 3]>(rq)
    kt = Transpose<perm = [0, 2, 3, 1]>(rq)
    keys = Shape<start = 3>(kt) queries = Shape<start = 2, end = 3>(q)
    differ = Equal(keys, queries) c = Not(differ)
    y = If(c) < then_branch = a () => (float16[B,S,128] t) { t = Neg(x) },
        else_branch = b () => (float16[B,S,128] e) {
            s = MatMul(q, kt) m = Mul(s, scale) p = Softmax<axis = -1>(m) o = MatMul(p, q)
            r = Transpose<perm = [0, 2, 1, 3]>(o) e = Reshape(r, merge) } >
"""


@pytest.mark.parametrize("lowering", ["native", "attention", "softmax"])
def test_attention_in_a_taken_branch_is_lowered(lowering: str) -> None:
    """The lengths are compared as DeBERTa's TorchScript export compares them: of keys and of queries."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 18]>
        g (float16[B,S,128] x) => (float16[B,S,128] y) {{ {ATTENTION} }}
    """)
    repaired, _ = repair_model(model, RTX)
    sites = match_model(repaired)
    (site,) = sites.sites
    assert site.graph == ""
    assert site.lowerings[lowering] is None
    lowered = lower_model(repaired, sites, {site.name: lowering}, RTX)
    x = np.random.default_rng(0).standard_normal((2, 5, 128)).astype(np.float16)
    np.testing.assert_allclose(run(model, {"x": x})[0], run(lowered, {"x": x})[0], atol=2e-3)
    if lowering == "native":
        assert fused_kernels(lowered) == 1
