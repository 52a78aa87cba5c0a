"""What is fused for CUDA: one iteration space, nothing from the host, what ONNX Runtime leaves, enough registers."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import onnxfuse
from onnxfuse.cuda.compile.resources import Resources
from onnxfuse.cuda.elementwise.access import classify, expected_access
from onnxfuse.cuda.elementwise.fitting import Fit
from onnxfuse.cuda.elementwise.parts import classify_parts, parts_of
from onnxfuse.cuda.elementwise.renderer import HEURISTIC, render
from onnxfuse.cuda.strided import Dim
from onnxfuse.cuda.tuned import Choice
from onnxfuse.fused.elementwise.fuse_elementwise import FuseElementwise
from onnxfuse.fused.kinds import ELEMENTWISE, kind_of
from onnxfuse.fused.target import CUDA, TARGETS
from onnxfuse.passes import PassContext
from onnxfuse.program import Program, ProgramError
from onnxfuse.run.sessions import Session
from onnxfuse.shapes.inference import infer
from tests.support import fusing
from tools.fuzz import check as fuzz_check
from tools.fuzz.models import random_model

RANDOM = np.random.default_rng(0)


def _model(text: str, **constants: np.ndarray) -> onnx.ModelProto:
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20, "com.microsoft" : 1]>\n{text}')
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    return model


def _plan(model: onnx.ModelProto, fitter: object = None) -> tuple[list[list[str]], dict[str, str], onnx.ModelProto]:
    """The operators of each fused region, why the others are left alone, and the model.

    Regions have launches of their own here; what shares one is in test_horizontal.py.
    """
    loaded = onnxfuse.Model.from_proto(model)
    infer(loaded)
    context = PassContext(target="cuda", fitter=fitter)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TARGETS, "cuda", replace(CUDA, shares_launches=False))
        FuseElementwise().run(loaded, context)
    fused = loaded.to_proto()
    onnx.checker.check_model(fused, full_check=True)
    left = {item.node: item.reason for item in context.report.left_alone}
    return sorted(region.ops for region in context.report.fused), left, fused


def _vector(size: int) -> np.ndarray:
    return RANDOM.normal(size=size).astype(np.float32)


def test_activations_are_fused_where_cuda_has_none_in_its_products() -> None:
    regions, _, _ = _plan(
        _model(
            "g (float[1, 4, h, w] x, float[1, 4, h, w] r, float[n, 4] a) => (float[1, 4, h, w] y, float[n, 8] b) {"
            " c = Conv <kernel_shape = [1, 1]> (x, weight) s = Add(c, r) y = Relu(s)"
            " m = Gemm(a, matrix) t = Tanh(m) b = Mul(t, t) }",
            weight=np.ones((4, 4, 1, 1), np.float32),
            matrix=np.ones((4, 8), np.float32),
        )
    )
    assert regions == [["Add", "Relu"], ["Tanh", "Mul"]]


def test_a_factor_that_ort_folds_into_a_convolution_is_left_to_it_and_an_offset_is_fused() -> None:
    """ORT makes a bias of the offset, which it adds in a kernel of its own."""
    regions, left, _ = _plan(
        _model(
            "g (float[1, 4, h, w] x) => (float[1, 4, h, w] y) {"
            " c = Conv <kernel_shape = [1, 1]> (x, weight) s = Mul(c, scale) t = Add(s, shift)"
            " u = Relu(t) y = Exp(u) }",
            weight=np.ones((4, 4, 1, 1), np.float32),
            scale=_vector(4).reshape(1, 4, 1, 1),
            shift=_vector(4).reshape(1, 4, 1, 1),
        )
    )
    assert regions == [["Add", "Relu", "Exp"]]
    assert {op: reason.split(" inside ")[1] for op, reason in left.items()} == {"s": "the convolution"}


GELU = "d = Div(x, root) e = Erf(d) f = Add(e, one) g = Mul(x, f) y = Mul(g, half)"
FAST_GELU = (
    "p = Pow(x, three) q = Mul(p, cubic) r = Add(x, q) s = Mul(r, tau) t = Tanh(s) u = Add(t, one)"
    " v = Mul(x, half) y = Mul(v, u)"
)
NUMBERS = {
    "root": np.float32(1.4142135),
    "one": np.float32(1),
    "half": np.float32(0.5),
    "three": np.float32(3),
    "cubic": np.float32(0.044715),
    "tau": np.float32(0.79788456),
}


@pytest.mark.parametrize("body", [GELU, FAST_GELU], ids=["gelu", "fast gelu"])
def test_one_kernel_of_ort_is_left_to_it_and_more_is_fused(body: str) -> None:
    text = f"g (float[n, 8] x) => (float[n, 8] y) {{ {body} }}"
    constants = {name: np.asarray(value) for name, value in NUMBERS.items() if name in body}
    assert _plan(_model(text, **constants))[0] == []
    longer = _model(text.replace("y = Mul(", "z = Mul(").replace("}", "y = Neg(z) }"), **constants)
    (region,) = _plan(longer)[0]
    assert region[-1] == "Neg"


def test_additions_before_a_normalization_are_left_to_it() -> None:
    regions, left, _ = _plan(
        _model(
            "g (float[n, 3, 8] x, float[n, 3, 8] skip) => (float[n, 3, 8] y) {"
            " m = MatMul(x, matrix) a = Add(m, bias) s = Add(a, skip) y = LayerNormalization(s, scale, shift) }",
            matrix=np.ones((8, 8), np.float32),
            bias=_vector(8),
            scale=_vector(8),
            shift=_vector(8),
        )
    )
    assert regions == []
    assert len(left) == 2


def test_results_that_need_not_broadcast_to_one_shape_are_not_fused() -> None:
    branches = "a = Abs(s) b = Mul(a, x) y = Neg(b) c = Mul(a, z) w = Exp(c)"
    for shapes, expected in (
        ("float[n] x, float[m] z) => (float[n] y, float[m] w", [["Mul", "Exp"], ["Mul", "Neg"]]),
        ("float[n] x, float[n] z) => (float[n] y, float[n] w", [["Abs", "Mul", "Neg", "Mul", "Exp"]]),
        ("float[2, n] x, float[n] z) => (float[2, n] y, float[n] w", [["Abs", "Mul", "Neg", "Mul", "Exp"]]),
        ("float[4] x, float[5] z) => (float[4] y, float[5] w", [["Mul", "Exp"], ["Mul", "Neg"]]),
    ):
        regions, _, _ = _plan(_model(f"g (float[1] s, {shapes}) {{ {branches} }}"))
        assert [sorted(region) for region in regions] == [sorted(region) for region in expected], shapes


def test_a_common_consumer_proves_that_shapes_broadcast() -> None:
    regions, _, _ = _plan(
        _model(
            "g (float[1] s, float[n] x, float[m] z) => (float[k] y, float[n] b) {"
            " a = Abs(s) b = Mul(a, x) c = Mul(a, z) y = Add(b, c) }"
        )
    )
    assert len(regions) == 1


def test_many_operands_are_split() -> None:
    inputs = ", ".join(f"float[n] x{index}" for index in range(30))
    body = " ".join(f"s{index} = Add(s{index - 1}, x{index})" for index in range(2, 30))
    model = _model(f"g ({inputs}) => (float[n] s29) {{ s1 = Add(x0, x1) {body} }}")
    regions, _, fused = _plan(model)
    assert len(regions) == 2
    assert all(len(node.input) + len(node.output) <= 24 for node in fusing.fused_nodes(fused))


def test_what_is_computed_on_the_host_stays_there() -> None:
    regions, left, _ = _plan(
        _model(
            "g (float[n] x) => (float[n] y, int64[k] z) {"
            " u, i = Unique <axis = 0> (x) a = Abs(i) z = Neg(a) f = Relu(x) y = Exp(f) }"
        )
    )
    assert regions == [["Relu", "Exp"]]
    assert set(left.values()) == {"ONNX Runtime computes it on the host, where its inputs are"}


def test_what_a_range_makes_is_on_the_gpu_as_its_kernel_reads_its_bounds_on_the_host() -> None:
    regions, left, _ = _plan(
        _model(
            "g (float[n] x) => (bool[n, n] y) { s = Shape(x) n = Squeeze(s) r = Range(zero, n, one)"
            " q = Unsqueeze(r, axis) l = LessOrEqual(r, q) g = Greater(r, zero) y = And(l, g) }",
            zero=np.array(0, np.int64),
            one=np.array(1, np.int64),
            axis=np.array([1], np.int64),
        )
    )
    assert (regions, left) == ([["LessOrEqual", "Greater", "And"]], {})


def test_counter_and_condition_of_a_loop_stay_on_the_host() -> None:
    regions, left, _ = _plan(
        _model(
            "g (int64 m, bool go, float[n] x) => (float[n] y) { y = Loop (m, go, x) <body = b"
            " (int64 i, bool c, float[n] v) => (bool d, float[n] w) {"
            " j = Add(i, one) k = Mul(j, one) e = Less(k, ten) d = And(e, c) p = Relu(v) w = Exp(p) }> }",
            one=np.array(1, np.int64),
            ten=np.array(10, np.int64),
        )
    )
    assert regions == [["Relu", "Exp"]]
    assert len(left) == 4


def test_nodes_without_a_cuda_kernel_move_to_the_gpu_where_that_copies_less() -> None:
    regions, left, _ = _plan(
        _model("g (float[n] x) => (float[n] y) { a = Softmax(x) b = Asin(a) c = Cosh(b) y = Softmax(c) }")
    )
    assert (regions, left) == ([["Asin", "Cosh"]], {})
    regions, _, _ = _plan(_model("g (float[n] x) => (float[n] y) { a = Softmax(x) b = Asin(a) y = Softmax(b) }"))
    assert regions == [["Asin"]]  # alone, but without two copies


@pytest.mark.parametrize(
    "body",
    [
        "u = Unique(x) b = Asin(u) c = Cosh(b) y = Softmax(c)",  # reads from the host
        "a = Softmax(x) b = Asin(a) c = Cosh(b) y = Det(c)",  # is read there
    ],
)
def test_nodes_without_a_cuda_kernel_stay_where_their_neighbours_are_on_the_host(body: str) -> None:
    shape = "[n, n]" if "Det" in body else "[n]"
    regions, left, _ = _plan(_model(f"g (float{shape} x) => (float{'' if 'Det' in body else '[k]'} y) {{ {body} }}"))
    assert regions == []
    assert {reason.split(",")[0] for reason in left.values()} == {"ONNX Runtime has no CUDA kernel for it"}


def test_types_without_a_cuda_kernel_are_known() -> None:
    regions, _, _ = _plan(
        _model("g (int8[n, m] x) => (int8[n, m] y) { a = Transpose(x) b = Max(a, a) c = Abs(b) y = Transpose(c) }")
    )
    assert regions == [["Transpose", "Max", "Abs", "Transpose"]]
    regions, _, _ = _plan(_model("g (int16[n, m] x) => (bool[m, n] y) { a = Transpose(x) y = Equal(a, a) }"))
    assert regions == [["Transpose", "Equal"]]


class _Registers:
    """A fitter whose kernels take so many registers for each instruction."""

    def __init__(self, each: int, spills: int = 0) -> None:
        self._each = each
        self._spills = spills
        self.programs: list[int] = []

    def prepare(self, cases: Sequence[tuple[Program, Sequence[Sequence[Dim] | None]]]) -> None:
        pass

    def fit(self, program: Program, shapes: Sequence[Sequence[Dim] | None]) -> Fit:
        access = expected_access(program, shapes)
        count = len(program.instructions)
        self.programs.append(count)
        used = Resources(count * self._each, spill_stores=self._spills if count > 4 else 0)
        return Fit(program, access, render(program, [access]), HEURISTIC, Choice.HEURISTIC, used, 8 / count)


def _chain(length: int) -> onnx.ModelProto:
    body = " ".join(f"x{index + 1} = Exp(x{index})" for index in range(length))
    return _model(f"g (float[n] x0) => (float[n] x{length}) {{ {body} }}")


def test_a_region_is_split_until_registers_suffice() -> None:
    regions, _, fused = _plan(_chain(32), _Registers(4))  # occupancy 50 % at 16 instructions
    assert [len(region) for region in regions] == [16, 16]
    x = RANDOM.normal(size=3).astype(np.float32)
    (expected,) = fusing.run(_chain(32), {"x0": x}, library=False)
    (actual,) = fusing.run(fused, {"x0": x}, library=True)
    np.testing.assert_allclose(actual, expected, 1e-5)


def test_a_region_is_split_where_it_spills() -> None:
    regions, _, _ = _plan(_chain(8), _Registers(1, spills=8))
    assert [len(region) for region in regions] == [4, 4]


def test_a_region_that_splitting_does_not_help_stays_whole() -> None:
    class Costly(_Registers):
        def fit(self, program: Program, shapes: Sequence[Sequence[Dim] | None]) -> Fit:
            fit = super().fit(program, shapes)
            return Fit(fit.program, fit.access, fit.source, fit.tuning, fit.choice, Resources(200), 0.25)

    assert [len(region) for region in _plan(_chain(8), Costly(1))[0]] == [8]


def test_slices_and_splits_are_read_where_they_lie() -> None:
    model = _model(
        "g (float[n, 16] x) => (float[n, 8] y) { a, b = Split <axis = 1> (x, parts)"
        " s = Sigmoid(a) m = Mul(s, b) h = Slice(x, four, twelve, one) y = Sub(m, h) }",
        parts=np.array([8, 8]),
        four=np.array([4]),
        twelve=np.array([12]),
        one=np.array([1]),
    )
    regions, _, fused = _plan(model)
    assert [sorted(region) for region in regions] == [["Mul", "Sigmoid", "Slice", "Split", "Sub"]]
    x = RANDOM.normal(size=(3, 16)).astype(np.float32)
    (actual,) = fusing.run(fused, {"x": x}, library=True)
    np.testing.assert_allclose(actual, x[:, 8:] / (1 + np.exp(-x[:, :8])) - x[:, 4:12], 1e-5)


def test_parts_that_need_not_broadcast_have_no_space_in_common() -> None:
    """A node that depends on all tensors need not depend on all that is read of them."""
    regions, _, _ = _plan(
        _model(
            "g (float[16] x, float[1] c) => (float[4] y, float[9] z) { e = Exp(c)"
            " p = Slice(x, zero, four) q = Slice(x, zero, nine)"
            " r = Mul(p, e) s = Mul(q, e) y = Sqrt(r) z = Neg(s) }",
            zero=np.array([0]),
            four=np.array([4]),
            nine=np.array([9]),
        )
    )
    assert sorted(sorted(region) for region in regions) == [["Mul", "Neg", "Slice"], ["Mul", "Slice", "Sqrt"]]


def test_conv_layout_is_for_the_cpu() -> None:
    text = (
        "g (float[1, 8, 16, 16] x) => (float[1, 8, 16, 16] y) { c = Conv <kernel_shape = [1, 1]> (x, w)"
        " h = HardSwish(c) y = Conv <kernel_shape = [1, 1]> (h, w) }"
    )
    model = _model(text, w=np.ones((8, 8, 1, 1), np.float32))
    result = onnxfuse.optimize(model, "cuda", embed=False, conv="none", check=False)
    assert [node.op_type for node in result.model.graph.node] == ["Conv", "HardSwish", "Conv"]


@pytest.mark.parametrize("seeds", [range(1, 31), range(31, 61)], ids=str)
def test_random_models_have_one_iteration_space_a_region_and_the_same_results(seeds: range) -> None:
    """One space for the shapes that reach a fused node in a run; a launch refuses what has none."""
    fused = 0
    for seed in seeds:
        made = random_model(Random(seed))
        verdict = fuzz_check.check(made.model, [made.feeds], "cuda")
        assert verdict.outcome != fuzz_check.FAILED, f"seed {seed}: {verdict.reason}"
        if verdict.outcome == fuzz_check.SAME:
            fused += _check_spaces(fuzz_check.optimize(made.model, "cuda"), made.feeds)
    assert fused > 20


def _check_spaces(model: onnx.ModelProto, feeds: dict[str, Any]) -> int:
    """Classify the operands of the main graph's fused nodes with the shapes that a run has; how many there were."""
    nodes = [node for node in fusing.fused_nodes(model) if kind_of(node.op_type) is ELEMENTWISE]
    known = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    known |= {name: list(np.shape(value)) for name, value in feeds.items()}
    outputs = {info.name for info in model.graph.output}
    for name in sorted({name for node in nodes for name in node.input} - outputs - set(known)):
        model.graph.output.add().name = name
    results = Session(model.SerializeToString(), threads=1, library=True).run(feeds)
    known |= {info.name: list(np.shape(value)) for info, value in zip(model.graph.output, results, strict=True)}
    for node in nodes:
        (program,) = (attribute.s.decode() for attribute in node.attribute if attribute.name == "program")
        try:
            parsed, shapes = Program.parse(program), [known[name] for name in node.input]
            if parts := parts_of(parsed, shapes):
                classify_parts(parsed, parts, shapes)
            else:
                classify(parsed, shapes)
        except ProgramError as error:
            assert "is empty and an output is not" in str(error)  # known to the library, which then uses the CPU
    return len(nodes)
