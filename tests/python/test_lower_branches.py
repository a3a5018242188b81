"""An If that sizes or constants decide becomes its branch; every other one stays."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from native_models import RTX, fused_kernels
from onnx import ModelProto

from attngraft.lower import lower_model, repair_model
from attngraft.match import match_model
from attngraft.onnx_graph import walk_graphs

ONE, FOUR = "one = Constant<value_ints = [1]>()", "four = Constant<value_ints = [4]>()"
BRANCHES = """
    y = If(c) < then_branch = taken () => (float[N,4] t) { t = Mul(x, two) },
                else_branch = other () => (float[N,4] e) { e = Neg(x) } >
"""
NUMBERS = """
    y = If(c) < then_branch = taken () => (int64[1] t) { t = Constant<value_ints = [1]>() },
                else_branch = other () => (int64[1] e) { e = Constant<value_ints = [0]>() } >
"""
X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def parse(nodes: str, inputs: str = "", output: str = "float[M,4] y", opset: int = 18) -> ModelProto:
    """A graph of x [S, 4], two, and whatever else."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : {opset}]>
        g (float[S,4] x {inputs}) => ({output}) {{ {nodes} }}
    """)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(2), "two"))
    return model


def run(model: ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def operators(model: ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def taken(model: ModelProto, feeds: dict[str, np.ndarray] | None = None, ifs: int = 0) -> ModelProto:
    """The repaired model, which has so many Ifs left in its main graph, and the outputs that it had."""
    before = model.SerializeToString()
    repaired, repairs = repair_model(model, RTX)
    assert model.SerializeToString() == before
    assert repairs
    assert operators(repaired).count("If") == ifs
    onnx.checker.check_model(repaired, full_check=True)
    feeds = {"x": X} if feeds is None else feeds
    for expected, actual in zip(run(model, feeds), run(repaired, feeds), strict=True):
        np.testing.assert_array_equal(expected, actual)
    return repaired


DECIDED = {
    "a constant": ("c = Constant<value = bool {1}>()", True),
    "a vector of one": ("c = Constant<value = bool[1] {0}>()", False),
    "constants compared": (f"{ONE} {FOUR} c = Less(four, one)", False),
    "a rank": (f"{ONE} s = Shape(x) n = Size(s) c = Greater(n, one)", True),
    "a fixed size": (f"{FOUR} n = Shape<start = 1>(x) c = Equal(n, four)", True),
    "one size, two tensors": (
        "t0 = Transpose(x) q = Shape<start = 1>(t0) k = Shape<end = 1>(x) same = Equal(q, k) c = Not(same)",
        False,
    ),
    "one size less than another": (
        f"{ONE} z = Concat<axis = 0>(x, x) l = Shape<end = 1>(z) n = Shape<end = 1>(x) "
        "twice = Add(l, one) c = Less(n, twice)",
        True,
    ),
    "sizes that differ by one": (
        f"{ONE} n = Shape<end = 1>(x) n1 = Add(n, one) c = Equal(n, n1)",
        False,
    ),
    "a product of sizes": (
        f"{FOUR} flat = Constant<value_ints = [-1]>() r = Reshape(x, flat) l = Shape(r) n = Shape<end = 1>(x) "
        "all = Mul(n, four) c = Equal(l, all)",
        True,
    ),
    "a size in double": ("n = Shape<end = 1>(x) d = Cast<to = 11>(n) c = GreaterOrEqual(d, d)", True),
}


@pytest.mark.parametrize(("condition", "truth"), DECIDED.values(), ids=DECIDED)
def test_a_decided_condition(condition: str, truth: bool) -> None:
    repaired = taken(parse(f"{condition} {BRANCHES}"))
    assert operators(repaired) == (["Mul"] if truth else ["Neg"])
    assert repaired.graph.node[0].output[0] == "y"
    assert [tensor.name for tensor in repaired.graph.initializer] == (["two"] if truth else [])


def test_a_stored_condition() -> None:
    for truth in (True, False):
        model = parse(BRANCHES)
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(truth), "c"))
        repaired = taken(model)
        assert operators(repaired) == (["Mul"] if truth else ["Neg"])
        assert "c" not in {tensor.name for tensor in repaired.graph.initializer}


ROW = np.zeros((1, 4), np.float32)
UNDECIDED = {
    "two sizes": ("n = Shape<end = 1>(x) m = Shape(v) c = Equal(n, m)", {"v": np.zeros(3, np.float32)}, {}),
    "a size and a number": (f"{FOUR} n = Shape<end = 1>(x) c = Less(n, four)", {"x": np.zeros((5, 4), "f")}, {}),
    "an element": ("zero = Constant<value_floats = [0.0]>() c = Equal(v, zero)", {"v": np.ones(1, np.float32)}, {}),
    "a number and itself": ("c = Equal(v, v)", {"v": np.full(1, np.nan, np.float32)}, {}),
    "a number minus itself": (
        "zero = Constant<value_floats = [0.0]>() d = Sub(v, v) c = Equal(d, zero)",
        {"v": np.full(1, np.inf, np.float32)},
        {},
    ),
    "sizes that broadcast": (
        "col = Transpose(x) z = Add(col, v) l = Shape<start = 1>(z) n = Shape<end = 1>(x) c = Equal(l, n)",
        {"x": ROW, "v": np.zeros(3, np.float32)},
        {},
    ),
    "parts of a size that may be odd": (
        "a, b = Split<num_outputs = 2>(x) k = Shape<end = 1>(a) l = Shape<end = 1>(b) c = Equal(k, l)",
        {},
        {"x": np.zeros((2, 4), np.float32)},
    ),
    "sizes in float": (
        f"{ONE} n = Shape(v) m = Add(n, one) f = Cast<to = 1>(n) g = Cast<to = 1>(m) c = Less(f, g)",
        {"v": np.zeros(2**24, np.float32)},  # 2**24 + 1 is no float
        {},
    ),
    "sizes in int32": (
        "many = Constant<value_ints = [2147483646]>() n = Shape(v) m = Add(n, many) f = Cast<to = 6>(n) "
        "g = Cast<to = 6>(m) c = Less(f, g)",
        {"v": np.zeros(2, np.float32)},
        {},
    ),
}


@pytest.mark.parametrize(("condition", "feeds", "other"), UNDECIDED.values(), ids=UNDECIDED)
def test_an_undecided_condition(condition: str, feeds: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    """Both branches are taken, by one input or another."""
    model = parse(f"{condition} {NUMBERS}", ", float[V] v", "int64[1] y")
    repaired, repairs = repair_model(model, RTX)
    assert repaired is model
    assert repairs == ()
    default = {"x": X, "v": np.zeros(1, np.float32)}
    outcomes = {int(run(model, default | given)[0][0]) for given in (feeds, other)}
    assert outcomes == {0, 1}


def test_an_initializer_that_is_an_input_decides_nothing() -> None:
    model = parse(NUMBERS, ", bool c", "int64[1] y")
    del model.graph.initializer[:]
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "c"))
    assert repair_model(model, RTX)[0] is model
    assert run(model, {"x": X})[0] != run(model, {"x": X, "c": np.array(False)})[0]


def test_numbers_that_wrap_round_decide_nothing() -> None:
    model = parse(
        f"""
        a = Constant<value = uint8[1] {{200}}>() b = Constant<value = uint8[1] {{100}}>()
        sum = Add(a, b) c = Less(sum, b) {NUMBERS}
    """,
        output="int64[1] y",
    )
    assert repair_model(model, RTX)[0] is model
    assert run(model, {"x": X})[0] == 1


def test_only_for_tensorrt() -> None:
    model = parse(f"{DECIDED['a constant'][0]} {BRANCHES}")
    assert repair_model(model, None)[0] is model
    _, (repair,) = repair_model(model, RTX)
    assert str(repair) == (
        "y: replaced by its then branch, since sizes or constants make its condition true for every input, and "
        "TensorRT builds both branches"
    )


TRUE, FALSE = "true = Constant<value = bool {1}>()", "false = Constant<value = bool {0}>()"


def test_decided_inside_undecided() -> None:
    """The condition is made outside, where nothing else reads it."""
    nodes = f"""
        {DECIDED["one size, two tensors"][0]}
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
        {DECIDED["one size, two tensors"][0]}
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
    condition, _ = DECIDED["one size, two tensors"]
    repaired = taken(parse(f"{condition} {BRANCHES}", output="float[M,4] y, bool[1] same"))
    assert operators(repaired) == ["Transpose", "Shape", "Shape", "Equal", "Neg"]


def test_dead_nodes_of_the_model_s_own_stay() -> None:
    repaired = taken(parse(f"unread = Exp(x) {DECIDED['a constant'][0]} {BRANCHES}"))
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
