"""The pass that fuses reductions with what is around them."""

import sys
from types import FrameType

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import onnxfuse
from onnxfuse.fused.kinds import DOMAIN, kind_of
from onnxfuse.fused.reduction.fuse_reductions import (
    ALONE,
    FEW_ELEMENTS,
    KEPT_SOFTMAX,
    ODD_SOFTMAX,
    WAITS,
    FuseReductions,
)
from onnxfuse.passes import PassContext
from onnxfuse.program import Program, reference
from onnxfuse.program.figures import MAX_OPERANDS
from onnxfuse.program.ops import REDUCTIONS
from tests.fused.reduction.models import CHAINS, Chain, model
from tests.support import fusing

UNKNOWN_TO_REFERENCE = {"Gelu", "GlobalLpPool", "GroupNormalization"}
"""Operators that onnx's reference evaluator has not, or for which it wants the types of a function's values."""


def fused(proto: onnx.ModelProto, everything: bool = False, target: str = "cpu") -> tuple[onnx.ModelProto, PassContext]:
    """The model after the pass alone."""
    loaded = onnxfuse.Model.from_proto(proto)
    context = PassContext(target=target, everything=everything)
    FuseReductions().run(loaded, context)
    result = loaded.to_proto()
    onnx.checker.check_model(result, full_check=True)
    return result, context


def operators(proto: onnx.ModelProto) -> list[str]:
    """The operators of a model's main graph, fused ones by their kinds."""
    kinds = [kind_of(node.op_type) if node.domain == DOMAIN else None for node in proto.graph.node]
    return [node.op_type if kind is None else kind.name for node, kind in zip(proto.graph.node, kinds, strict=True)]


def program_of(proto: onnx.ModelProto, place: int = 0) -> Program:
    """The Program of a fused node."""
    nodes = [node for node in proto.graph.node if node.domain == DOMAIN]
    return Program.parse(helper.get_node_attr_value(nodes[place], "program").decode())


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_a_chain_is_one_node(chain: Chain) -> None:
    result, context = fused(chain.model, everything=True)
    assert operators(result) == ["FusedReduction"]
    (region,) = context.report.fused
    assert len(region.ops) == len(chain.model.graph.node)
    feeds = chain.feeds()
    expected = fusing.run(chain.model, feeds, library=False)
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in result.graph.initializer}
    arrays = [feeds.get(name, constants.get(name)) for name in result.graph.node[0].input]
    by_reference = reference.run(program_of(result), arrays)
    for found in (by_reference, fusing.run(result, feeds, library=True)):
        for own, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(own, wanted, rtol=1e-5, atol=2e-6, strict=True)
    without = [fusing.run(result, feeds, library=False)]
    if not UNKNOWN_TO_REFERENCE & {node.op_type for node in chain.model.graph.node}:
        without.append(ReferenceEvaluator(result).run(None, dict(feeds)))
    for found in without:
        for own, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(own, wanted, rtol=1e-5, atol=1e-5, strict=True)


def test_reductions_along_other_axes_are_other_nodes() -> None:
    text = (
        "g (float[b, 8, 16] x) => (float[b, 8, 16] y) {"
        " a = Mul(x, x) s = ReduceSum(a, last) c = Div(x, s) t = ReduceMax(c, middle) y = Sub(c, t) }"
    )
    result, _ = fused(model(text, last=np.array([-1]), middle=np.array([1])))
    assert operators(result) == ["FusedReduction", "FusedReduction"]
    assert [program_of(result, place).axes for place in (0, 1)] == [(-1,), (-2,)]


def test_what_other_nodes_read_is_an_output_too() -> None:
    text = (
        "g (float[b, 8, 48] x, float[b, 8, 48] r) => (float[b, 8, 48] y, float[b, 8, 48] z) {"
        " a = Add(x, r) n = LayerNormalization(a, w) y = Relu(n) m = MatMul(a, k) z = Add(m, a) }"
    )
    random = np.random.default_rng(0)
    k = random.random((48, 48), np.float32)
    result, _ = fused(model(text, w=random.random(48, np.float32), k=k))
    assert operators(result) == ["FusedReduction", "MatMul", "Add"]
    assert list(result.graph.node[0].output) == ["a", "y"]


def test_a_value_that_others_wait_for_does_not_wait_for_them() -> None:
    """The second Add needs a product of the first: one node of both would wait for itself."""
    text = (
        "g (float[b, 48] x) => (float[b, 48] y) {"
        " n = LayerNormalization(x, w) a = Mul(n, x) m = MatMul(a, k) s = Add(a, m) y = Softmax(s) }"
    )
    random = np.random.default_rng(0)
    proto = model(text, w=random.random(48, np.float32), k=random.random((48, 48), np.float32))
    result, _ = fused(proto, everything=True)
    assert operators(result) == ["FusedReduction", "MatMul", "FusedReduction"]
    fusing.assert_same_everywhere(result, proto, {"x": random.standard_normal((5, 48)).astype(np.float32)})


def test_two_nodes_do_not_wait_for_each_other() -> None:
    """Rows need the sums of columns and columns those of rows: each region is convex, and both would be a cycle."""
    text = (
        "g (float[8, 16] x) => (float[8, 16] y, float[8, 16] z) { r = ReduceSum(x, last) c = ReduceSum(x, first)"
        " a = Sub(x, r) y = Mul(a, c) b = Sub(x, c) z = Mul(b, r) }"
    )
    proto = model(text, last=np.array([-1]), first=np.array([0]))
    result, context = fused(proto)
    assert operators(result).count("FusedReduction") == 1
    assert WAITS in [refusal.reason for refusal in context.report.refusals]
    x = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    fusing.assert_same_everywhere(result, proto, {"x": x})


def test_planning_takes_time_in_proportion_to_the_number_of_regions() -> None:
    """Calls of functions, of chains one twice as long as the other, in which rows and columns take turns."""
    counts = []

    def counted(_frame: FrameType, event: str, _argument: object) -> None:
        counts[-1] += event == "call"

    for length in (60, 120):
        chain = " ".join(
            f"m{place} = ReduceMean(x{place}, {('first', 'last')[place % 2]}) x{place + 1} = Sub(x{place}, m{place})"
            for place in range(length)
        )
        text = f"g (float[8, 16] x0) => (float[8, 16] x{length}) {{ {chain} }}"
        loaded = onnxfuse.Model.from_proto(model(text, last=np.array([-1]), first=np.array([0])))
        context = PassContext()
        counts.append(0)
        before = sys.getprofile()
        sys.setprofile(counted)
        try:
            FuseReductions().run(loaded, context)
        finally:
            sys.setprofile(before)
        assert len(context.report.fused) == length
    assert counts[1] <= 2.2 * counts[0]


def test_sizes_that_may_differ_are_not_taken_for_one() -> None:
    text = "g (float[b, s] x, float[b, t] z) => (float[b, u] y) { m = ReduceMax(x, axes) a = Sub(x, m) y = Mul(a, z) }"
    result, _ = fused(model(text, axes=np.array([-1])))
    assert operators(result) == ["FusedReduction", "Mul"]


def test_sizes_that_may_differ_meet_before_what_is_reduced() -> None:
    """Positions and words of a dynamic length: whatever meets, the rows are those of the sum."""
    text = "g (float[b, s, 8] x, float[c, t, 8] z) => (float[d, u, 8] y) { a = Add(x, z) y = LayerNormalization(a, w) }"
    proto = model(text, w=np.linspace(0.5, 1.5, 8, dtype=np.float32))
    result, _ = fused(proto, everything=True)
    assert operators(result) == ["FusedReduction"]
    random = np.random.default_rng(0)
    for x, z in (((2, 3, 8), (1, 3, 8)), ((2, 1, 8), (2, 3, 8)), ((2, 3, 8), (2, 3, 8)), ((1, 3, 8), (2, 1, 8))):
        feeds = {name: random.standard_normal(shape).astype(np.float32) for name, shape in (("x", x), ("z", z))}
        fusing.assert_same_everywhere(result, proto, feeds)


def test_what_is_the_same_for_many_rows_is_not_computed_for_each() -> None:
    """The mask of all heads, which another node reads too, is computed once."""
    text = (
        "g (float[b, 12, s, t] x, float[b, 1, s, t] m) => (float[b, 12, s, t] y, float[b, 1, s, t] z) {"
        " n = Mul(m, scale) a = Add(x, n) y = Softmax(a) z = Neg(n) }"
    )
    result, _ = fused(model(text, scale=np.float32(-10000)), everything=True)
    assert sorted(operators(result)) == ["FusedReduction", "Mul", "Neg"]


@pytest.mark.parametrize("kind", ["float16", "float", "double"])
def test_statistics_have_the_type_that_onnx_says(kind: str) -> None:
    proto = model(
        f"g ({kind}[b, 8] x, {kind}[8] s) => ({kind}[b, 8] y, float[b, 1] m, float[b, 1] d)"
        " { y, m, d = LayerNormalization(x, s) }"
    )
    result, _ = fused(proto, everything=True)
    assert operators(result) == ["FusedReduction"]
    random = np.random.default_rng(0)
    dtype = {"float16": np.float16, "float": np.float32, "double": np.float64}[kind]
    feeds = {name: random.standard_normal(shape).astype(dtype) for name, shape in (("x", (3, 8)), ("s", (8,)))}
    for made, wanted in zip(fusing.run(result, feeds, True), fusing.run(proto, feeds, False), strict=True):
        np.testing.assert_allclose(made, wanted, rtol=2e-3 if kind == "float16" else 1e-6, atol=1e-6, strict=True)


@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize(("last", "axis"), [(0, 1), (1, 1), (0, 0), (1, 0)])
def test_the_greatest_among_what_is_no_number_is_that_of_onnx_runtime(operator: str, last: int, axis: int) -> None:
    """It compares each element with the best before it: only a NaN in the first place is in the way of others."""
    attributes = f"axis={axis}, keepdims=0, select_last_index={last}"
    proto = model(f"g (float[b, s] x) => (int64[r] y) {{ a = Neg(x) y = {operator}<{attributes}>(a) }}")
    result, _ = fused(proto, everything=True)
    assert operators(result) == ["FusedReduction"]
    random = np.random.default_rng(0)
    numbers = np.array([-np.inf, np.inf, np.nan, -1, 0, 1, 2], np.float32)
    for size in (1, 2, 3, 7, 40):
        feeds = {"x": random.choice(numbers, (size, 30) if axis == 0 else (30, size))}
        (expected,) = fusing.run(proto, feeds, library=False)
        np.testing.assert_array_equal(fusing.run(result, feeds, library=True)[0], expected)


def test_quantization_to_what_the_elements_need_is_fused_where_onnx_runtime_has_no_kernel() -> None:
    text = "g (float[b, 48] x) => (uint8[b, 48] y, float s, uint8 z) { a = Relu(x) y, s, z = DynamicQuantizeLinear(a) }"
    counts = []
    for target in ("cpu", "cuda"):
        report = onnxfuse.optimize(model(text), target, embed=target == "cpu", check=False).report
        counts.append(len(report.fused))
    assert counts == [0, 1]


def test_a_lone_reduction_is_left_to_onnx_runtime() -> None:
    proto = model("g (float[b, s] x) => (float[b, 1] y) { y = ReduceMax(x, axes) }", axes=np.array([-1]))
    result, context = fused(proto)
    assert operators(result) == ["ReduceMax"]
    assert [refusal.reason for refusal in context.report.refusals] == [ALONE]
    assert operators(fused(proto, everything=True)[0]) == ["FusedReduction"]


@pytest.mark.parametrize(
    ("rows", "operator", "left"),
    [
        ("float[b, 64]", "Softmax", None),
        ("float[b, 64]", "LogSoftmax", None),
        ("float[b, 197]", "Softmax", ODD_SOFTMAX),
        ("float[b, s]", "LogSoftmax", ODD_SOFTMAX),
        ("double[b, 64]", "Softmax", KEPT_SOFTMAX),
        ("float16[b, 64]", "LogSoftmax", KEPT_SOFTMAX),
    ],
)
def test_a_softmax_with_one_neighbour_is_fused_where_its_rows_are_whole_vectors(
    rows: str, operator: str, left: str | None
) -> None:
    proto = model(f"g ({rows} x, {rows} m) => ({rows} y) {{ a = Add(x, m) y = {operator}(a) }}")
    result, context = fused(proto)
    assert operators(result) == (["FusedReduction"] if left is None else operators(proto))
    assert [refusal.reason for refusal in context.report.refusals] == ([] if left is None else [left])


def test_a_softmax_of_a_scaled_and_masked_tensor_is_one_node_whatever_its_rows() -> None:
    proto = model(
        "g (float[b, s] x, float[s] m, float k) => (float[b, s] y) { a = Mul(x, k) c = Add(a, m) y = Softmax(c) }"
    )
    assert operators(fused(proto)[0]) == ["FusedReduction"]


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
def test_a_lone_softmax_is_left_to_onnx_runtime(operator: str) -> None:
    proto = model(f"g (float[b, s] x) => (float[b, s] y) {{ y = {operator}(x) }}")
    result, context = fused(proto)
    assert operators(result) == [operator]
    assert [refusal.reason for refusal in context.report.refusals] == [ALONE]


@pytest.mark.parametrize(
    ("text", "opset", "reason"),
    [
        ("g (float[b, s] x, int64[n] a) => (float[b, s] y) { y = ReduceSum(x, a) }", 21, "axes of ReduceSum are not"),
        ("g (int32[b, s] x) => (int32[b, t] y) { y = ReduceMean<axes = [1]>(x) }", 13, "ReduceMean of int32 has no"),
        ("g (int32[b, s] x) => (int32[b, 1] y) { y = ReduceSum<axes = [1]>(x) }", 11, "that overflows"),
        ("g (int64[b, s] x) => (int64[b, 1] y) { y = ReduceProd<axes = [1]>(x) }", 13, "that overflows"),
        ("g (float[b, s] x) => (float[b, s] y) { y = LpNormalization<p = 3>(x) }", 21, "p=3"),
        ("g (float[b, s] x) => (float[b, s] y) { y = ReduceSum<noop_with_empty_axes = 1>(x) }", 21, "along no axis"),
        (
            "g (double[2, 4, 6] x, double[4] s) => (double[2, 4, 6] y)"
            " { y = GroupNormalization<num_groups = 2>(x, s, s) }",
            21,
            "computed in float32",
        ),
    ],
)
def test_what_cannot_be_lowered_says_why(text: str, opset: int, reason: str) -> None:
    proto = model(text, opset)
    result, context = fused(proto, everything=True)
    assert operators(result) == operators(proto)
    assert any(reason in refusal.reason for refusal in context.report.refusals)


def test_what_is_true_is_counted() -> None:
    proto = model(
        "g (float[b, s] x) => (int64[b, 1] y) {"
        " p = Greater(x, zero) i = Cast<to = 7>(p) n = ReduceSum<axes = [1]>(i) y = Add(n, n) }",
        11,
        zero=np.array(0, np.float32),
    )
    result, _ = fused(proto)
    assert operators(result) == ["FusedReduction"]


def test_a_view_at_the_end_is_left_out_where_what_it_views_is_written() -> None:
    text = (
        "g (float[b, 8, 16] x) => (float[b, 8, 16] y, float[b, 128] z) {"
        " n = Softmax(x) y = Neg(n) z = Reshape(y, flat) }"
    )
    result, _ = fused(model(text, flat=np.array([0, -1])), everything=True)
    assert operators(result) == ["FusedReduction", "Reshape"]
    joined = "g (float[b, 8, 16] x) => (float[b, 128] z) { n = Softmax(x) y = Neg(n) z = Reshape(y, flat) }"
    result, _ = fused(model(joined, flat=np.array([0, -1])), everything=True)
    assert operators(result) == ["FusedReduction"]


@pytest.mark.parametrize("opset", [9, 11, 13, 17, 18])
def test_softmax_before_opset_13_is_along_all_later_axes(opset: int) -> None:
    proto = model("g (float[2, 3, 4] x) => (float[2, 3, 4] y) { a = Abs(x) y = Softmax<axis = 1>(a) }", opset)
    result, _ = fused(proto, everything=True)
    assert program_of(result).axes == ((-2, -1) if opset < 13 else (-2,))
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 3, 4), np.float32)}
    (expected,) = fusing.run(proto, feeds, library=False)
    for library in (False, True):  # onnx's reference evaluator has the newer meaning for all
        np.testing.assert_allclose(fusing.run(result, feeds, library)[0], expected, rtol=1e-5, strict=True)


@pytest.mark.parametrize("name", [*(one.onnx for one in REDUCTIONS.values()), "ReduceL2", "ReduceLogSumExp"])
@pytest.mark.parametrize(("shape", "axes"), [((3, 0), [1]), ((0, 2), [0]), ((2, 0, 3), [1, 2]), ((4, 0), [0, 1])])
def test_nothing_is_reduced_to_what_onnx_runtime_has(name: str, shape: tuple[int, ...], axes: list[int]) -> None:
    sizes, left = (", ".join(f"{letter}{axis}" for axis in range(len(shape))) for letter in "dr")
    text = f"g (float[{sizes}] x) => (float[{left}] y)"
    proto = model(f"{text} {{ a = Abs(x) r = {name}(a, axes) y = Add(r, r) }}", axes=np.array(axes))
    result, _ = fused(proto, everything=True)
    assert "FusedReduction" in operators(result)
    feeds = {"x": np.zeros(shape, np.float32)}
    np.testing.assert_array_equal(fusing.run(result, feeds, True)[0], fusing.run(proto, feeds, False)[0], strict=True)


def test_a_region_has_no_more_operands_than_a_kernel_takes() -> None:
    """What is beyond them stays outside, and the rest is fused."""
    names = [f"x{place}" for place in range(40)]
    steps = " ".join(f"s{place + 1} = Add(s{place}, {name})" for place, name in enumerate(names))
    inputs = ", ".join(f"float[b, 16] {name}" for name in ("s0", *names))
    text = f"g ({inputs}) => (float[b, 16] y) {{ {steps} m = ReduceMax(s40, axes) y = Sub(s40, m) }}"
    result, context = fused(model(text, axes=np.array([-1])))
    (node,) = [node for node in result.graph.node if node.domain == DOMAIN]
    assert 10 < len(node.input) + len(node.output) <= MAX_OPERANDS
    assert len(context.report.fused[0].ops) + len(result.graph.node) - 1 == 42


def test_each_part_of_a_tensor_is_an_operand() -> None:
    names = [f"x{place}" for place in range(40)]
    steps = " ".join(f"s{place + 1} = Add(s{place}, {name})" for place, name in enumerate(names))
    text = f"g (float[b, 16] s0, float[40, 16] x) => (float[b, 16] y) {{ {', '.join(names)} = Split(x, ones) {steps}"
    for target in ("cpu", "cuda"):
        proto = model(f"{text} m = ReduceMax(s40, axes) y = Sub(s40, m) }}", axes=np.array([-1]), ones=np.ones(40, int))
        result, _ = fused(proto, target=target)
        (node,) = [node for node in result.graph.node if node.domain == DOMAIN]
        assert len(node.input) + len(node.output) <= MAX_OPERANDS


@pytest.mark.parametrize(
    ("view", "cpu", "cuda"),
    [
        ("t = Slice(x, one, end, zero)", True, True),  # one block of memory
        ("t = Slice(x, one, end, last)", False, True),  # parts of rows
        ("t = Gather <axis = 1> (x, place)", False, True),
        ("t = Transpose <perm = [1, 0, 2]> (x)", False, True),  # rows in another order
        ("t = Transpose <perm = [0, 2, 1]> (x)", False, True),  # what lies side by side is in other rows
    ],
)
def test_views_before_what_reduces(view: str, cpu: bool, cuda: bool) -> None:
    proto = model(
        f"g (float[4, 6, 8] x) => (float[a, b, c] y) {{ {view} q = Mul(t, t) m = ReduceMax(q, last) y = Sub(t, m) }}"
        if "Gather" not in view
        else f"g (float[4, 6, 8] x) => (float[a, b] y) {{ {view} q = Mul(t, t) m = ReduceMax(q, last) y = Sub(t, m) }}",
        one=np.array([1]),
        end=np.array([4]),
        zero=np.array([0]),
        last=np.array([-1]),
        place=np.array(2),
    )
    feeds = {"x": np.random.default_rng(0).normal(size=(4, 6, 8)).astype(np.float32)}
    (expected,) = fusing.run(proto, feeds, library=False)
    for target, taken in (("cpu", cpu), ("cuda", cuda)):
        result, _ = fused(proto, target=target)
        assert operators(result) == ["FusedReduction"] if taken else len(result.graph.node) == 2
        for library in (False, True):
            np.testing.assert_array_equal(fusing.run(result, feeds, library)[0], expected)


@pytest.mark.parametrize("numbers", ["int64[n, 5]", "int32[n, 5]"])
def test_words_and_their_places_are_looked_up_in_one_launch(numbers: str) -> None:
    """As BERT adds them up, and a sum that what follows reads too; the CPU, where a word that there is not is an
    error, is left as it is."""
    random = np.random.default_rng(0)
    proto = model(
        f"g ({numbers} words, {numbers} kinds) => (float[n, 5, 24] y, float[n, 5, 24] t) {{ w = Gather (table, words)"
        " k = Gather <axis = -2> (few, kinds) s = Add (w, k) t = Add (s, places)"
        " y = LayerNormalization (t, scale) }",
        table=random.standard_normal((9, 24)).astype(np.float32),
        few=random.standard_normal((2, 24)).astype(np.float32),
        places=random.standard_normal((5, 24)).astype(np.float32),
        scale=np.ones(24, np.float32),
    )
    words = random.integers(-9, 9, (3, 5)).astype(numbers[: numbers.index("[")])
    feeds = {"words": words, "kinds": words % 2}
    expected = fusing.run(proto, feeds, library=False)
    for target, taken in (("cpu", False), ("cuda", True)):
        result, _ = fused(proto, target=target)
        assert operators(result) == ["FusedReduction"] if taken else "Gather" in operators(result)
        for library in (False, True):
            for one, wanted in zip(fusing.run(result, feeds, library), expected, strict=True):
                np.testing.assert_allclose(one, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "text",
    [
        "t = Gather (x, words) y = ReduceSum (t, first)",  # words of a sentence are added up
        "i = Cast <to = 7> (x) j = Gather (i, words) t = Gather (x, j) q = Mul (t, t) m = ReduceMax (q, last)"
        " d = Sub (t, m) y = ReduceSum <keepdims = 0> (d, last)",  # by numbers that are rows themselves
        "t = Gather <axis = 1> (x, words) q = Mul (t, t) m = ReduceMax (q, last) y = Sub (t, m)",  # other than rows
    ],
)
def test_rows_that_are_gathered_otherwise_are_left_to_onnx_runtime(text: str) -> None:
    proto = model(
        f"g (float[v, 8] x, int64[5] words) => (float[a, b] y) {{ {text} }}", first=np.array([0]), last=np.array([-1])
    )
    result, _ = fused(proto, target="cuda", everything=True)
    assert "Gather" in operators(result)


@pytest.mark.parametrize(("shape", "taken"), [("1, 64, 512", True), ("1, 640, 2048", False), ("n, 64, 512", False)])
def test_what_lies_side_by_side_is_in_other_rows(shape: str, taken: bool) -> None:
    """Before a normalization alone; of many elements, or of who knows how many, ONNX Runtime transposes."""
    proto = model(
        f"g (float[{shape}] x) => (float[a, b, c] y)"
        " { t = Transpose <perm = [0, 2, 1]> (x) y = LayerNormalization (t, s) }",
        s=np.ones(int(shape.split(", ")[1]), np.float32),
    )
    assert operators(fused(proto, target="cuda")[0]) == (
        ["FusedReduction"] if taken else ["Transpose", "LayerNormalization"]
    )


def test_a_region_that_is_left_alone_is_judged_once() -> None:
    """A normalization written out, of so few elements that ONNX Runtime's kernel is as fast."""
    body = CHAINS["written_out_layer_norm"].model
    proto = onnx.ModelProto.FromString(body.SerializeToString())
    for dim, size in zip(proto.graph.input[0].type.tensor_type.shape.dim, (1, 4, 96), strict=True):
        dim.dim_value = size
    _, context = fused(proto)
    assert [refusal.reason for refusal in context.report.refusals] == [FEW_ELEMENTS]
