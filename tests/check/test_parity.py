"""The parity check: what counts as equal, what is caught, which inputs it makes."""

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import onnxfuse
from onnxfuse.check import parity, rounding_noise
from onnxfuse.check.comparison import Numbers, compare_values, ulp_distance
from onnxfuse.check.numerics import coarsest_type, probabilities
from onnxfuse.check.parity import compare
from onnxfuse.check.rounding_noise import (
    inputs_rounded_otherwise,
    round_quantized,
    round_weights,
)
from onnxfuse.errors import OnnxfuseError, ParityError
from onnxfuse.report.report import describe_parity
from onnxfuse.run.sessions import Session, SessionError, one_line
from tests.support.parity_models import CHAIN, chain, model_file, save

F32 = onnx.TensorProto.FLOAT
I64 = onnx.TensorProto.INT64


def floats(*values: float, dtype: object = np.float32) -> np.ndarray:
    return np.array(values, dtype)


@pytest.mark.parametrize(
    ("expected", "actual", "reason"),
    [
        (floats(1, 2), floats(1, 2 + 2e-5), ""),
        (floats(1, 2), floats(1, 2.001), "1 of 2 elements differ by more than allowed"),
        (floats(1, 1e-6), floats(1, 9e-6), ""),  # small against the tensor's magnitude
        (floats(0, 0), floats(0, 1e-3), "1 of 2 elements"),
        (floats(-0.0), floats(0.0), ""),
        (floats(1, np.nan), floats(1, np.nan), ""),
        (floats(1, np.nan), floats(1, 2), "NaN in 1 other places"),
        (floats(np.inf, 1), floats(np.inf, 1), ""),
        (floats(np.inf, 1), floats(-np.inf, 1), "infinities in 1"),
        (floats(3e38, 1), floats(np.inf, 1), "infinities in 1"),
        (floats(), floats(), ""),
        (floats(1, 2), floats(1), r"shape \[1\] instead of \[2\]"),
        (floats(1), floats(1, dtype=np.float64), "type float64 instead of float32"),
        (floats(1, dtype=np.float64), floats(1 + 1e-9, dtype=np.float64), "1 of 1 elements"),
        (floats(1, dtype=np.float16), floats(1.004, dtype=np.float16), ""),
        (floats(1, dtype=ml_dtypes.bfloat16), floats(1.01, dtype=ml_dtypes.bfloat16), ""),
        (floats(1, dtype=ml_dtypes.bfloat16), floats(1.5, dtype=ml_dtypes.bfloat16), "1 of 1 elements"),
        (np.array([1, 2]), np.array([1, 3]), "1 of 2 elements differ"),
        (np.array([True]), np.array([False]), "1 of 1 elements differ"),
        (np.array(["a"], object), np.array(["b"], object), "1 of 1 elements differ"),
        ([floats(1), floats(2)], [floats(1)], "differ in length"),
        ([floats(1), floats(2)], [floats(1), floats(3)], "element 1: 1 of 1"),
        ({"a": 1.0}, {"a": 1.00001}, ""),
        ({"a": 1.0}, {"b": 1.0}, "keys"),
        (None, None, ""),
        (None, floats(1), "only one of the models"),
    ],
)
def test_what_is_equal(expected: object, actual: object, reason: str) -> None:
    found = compare_values("y", expected, actual).reason
    assert re.search(reason, found) if reason else found == ""


def test_zeros_for_denormal_numbers_are_no_error() -> None:
    tiny = np.full(3, 1e-39, np.float32)
    assert compare_values("y", tiny, np.zeros(3, np.float32)).ok
    assert not compare_values("y", tiny, np.full(3, 3e-38, np.float32)).ok
    assert not compare_values("y", tiny.astype(np.float64), np.zeros(3)).ok


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_ulp_distance(dtype: type) -> None:
    one = np.array([1.0, -1.0, 0.0, 0.0], dtype)
    bits = one.view(f"u{one.dtype.itemsize}").copy()
    bits[:3] += 3
    there = bits.view(dtype)
    there[3] = -there[2]  # three steps below zero
    assert ulp_distance(one, there).tolist() == [3, 3, 3, 3]
    assert ulp_distance(there[2:3], there[3:]).tolist() == [6]
    assert ulp_distance(np.array([-0.0], dtype), np.array([0.0], dtype)).tolist() == [0]


def test_extremes_are_far_apart() -> None:
    far = ulp_distance(floats(np.finfo(np.float64).min, dtype=np.float64), floats(1e308, dtype=np.float64))
    assert far[0] > 2**62


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("expected", "actual", "largest"),
    [((1e308,), (-1e308,), 1e308), ((5e-324, 1), (1e308, 1), 1), ((5e-324, 0), (1e-3, 1), 5e-324)],
)
def test_what_overflows_in_the_comparison_differs_without_a_warning(
    expected: tuple[float, ...], actual: tuple[float, ...], largest: float
) -> None:
    found = compare_values("y", floats(*expected, dtype=np.float64), floats(*actual, dtype=np.float64))
    assert "differ by more than allowed" in found.reason and found.largest == largest


def test_half_precision_inside_widens_the_tolerance_and_half_precision_storage_does_not(
    tmp_path: Path,
) -> None:
    inside = model_file(
        tmp_path / "a.onnx",
        "(float[2] x) => (float[2] y)",
        "h = Cast<to=10>(x) t = Tanh(h) y = Cast<to=1>(t)",
    )
    assert coarsest_type(onnx.load(inside)) == np.float16
    stored = model_file(tmp_path / "b.onnx", "(float[2] x) => (float[2] y)", "s = Cast<to=1>(w) y = Mul(x, s)")
    proto = onnx.load(stored)
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float16), "w"))
    assert coarsest_type(proto) == np.float32


def test_probabilities_are_found_through_what_keeps_values() -> None:
    branches = "then_branch = t () => (float[2] o) { o = Softmax(x) }, else_branch = e () => (float[2] q)"
    body = (
        "s = Sigmoid(x) p = Transpose(s) h = HardSigmoid(x) c = Concat<axis=0>(s, h) m = Concat<axis=0>(s, x) "
        f"n = Mul(s, s) b = If(f) <{branches} {{ q = Identity(s) }}> w = If(f) <{branches} {{ q = Abs(s) }}>"
    )
    outputs = ", ".join(f"float[d{name}] {name}" for name in ("s", "p", "h", "c", "m", "n", "b", "w"))
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 20]>\nm (bool f, float[2] x) => ({outputs}) {{ {body} }}'
    )
    assert probabilities(model) == {"s", "p", "h", "c", "b"}


def test_another_domain_may_use_the_names_of_what_makes_probabilities_and_halves() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20, "acme" : 1]>\nm (float[2] x) => (float[2] y, float[2] z) {'
        " a = acme.Softmax(x) y = Identity(a) s = Sigmoid(x) b = acme.Transpose(s) z = acme.Cast<to = 10>(b) }"
    )
    assert probabilities(model) == set()
    assert coarsest_type(model) == np.float32


def test_a_probability_near_zero_is_compared_on_the_scale_of_one() -> None:
    expected, actual = floats(1e-7, 3e-8), floats(2e-7, 1e-8)
    assert compare_values("y", expected, actual).reason
    assert not compare_values("y", expected, actual, Numbers(scale=1.0)).reason
    assert compare_values("y", expected, floats(2e-5, 0), Numbers(scale=1.0)).reason


def test_messages_of_onnxruntime_lose_their_source_files() -> None:
    text = (
        "[ONNXRuntimeError] : 1 : FAIL : Load model from a b.onnx failed:/onnxruntime_src/core/graph/model.cc:256 "
        "onnxruntime::Model::Model(onnx::ModelProto&&, const onnxruntime::ModelOptions&) Unsupported\n IR version: 99"
    )
    assert one_line(RuntimeError(text)) == "Unsupported IR version: 99"
    assert one_line(RuntimeError("")) == "RuntimeError"


def test_equal_models_pass_with_dynamic_shapes_and_two_batches(tmp_path: Path) -> None:
    path = save(chain(), tmp_path / "chain.onnx")
    result = compare(path, path)
    assert result.ok and result.failure() == ""
    batches = [found.shapes["x"][0] for found in result.sets]
    assert batches == [1, 2, 1]
    assert result.worst().max_abs == 0


def test_a_wrong_model_fails_and_names_the_output(tmp_path: Path) -> None:
    right = save(chain(), tmp_path / "right.onnx")
    wrong = save(chain(CHAIN.replace("half = {0.5}", "half = {0.501}")), tmp_path / "wrong.onnx")
    result = compare(right, wrong)
    assert not result.ok
    assert "output 'y' differs from the original" in result.failure()


def test_fused_nodes_run_with_and_without_the_library_and_alone(tmp_path: Path) -> None:
    original = save(chain(), tmp_path / "a.onnx")
    onnxfuse.optimize(original, check=False, output=tmp_path / "b.onnx")
    result = compare(original, tmp_path / "b.onnx", regions=True)
    assert result.ok, result.failure()
    assert [found.library for found in result.sets] == [True] * 3 + [False] * 3
    assert len(result.regions) == 1 and result.regions[0].comparison.max_abs < 1e-5


def test_a_wrong_program_is_caught_and_its_node_named(tmp_path: Path) -> None:
    original = save(chain(), tmp_path / "a.onnx")
    fused = onnxfuse.optimize(original, check=False).model
    node = next(node for node in fused.graph.node if node.domain == "onnxfuse")
    program = next(attribute for attribute in node.attribute if attribute.name == "program")
    assert b"\nadd " in program.s
    program.s = program.s.replace(b"\nadd ", b"\nsub ")
    result = compare(original, save(fused, tmp_path / "b.onnx"))
    assert not result.ok
    assert [found.library for found in result.sets if not all(output.ok for output in found.outputs)] == [True] * 3
    assert f"fused node {node.name!r} differs" in result.failure()


def test_an_output_is_unstable_where_onnx_runtime_itself_differs_as_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Unoptimized, ONNX Runtime adds 1 and takes it away again, which loses digits; the scale shows that.
    lossy = "(float[64] x) => (float[64] y) <float[1] c = {4096}, float[1] s = {1000}>"
    original = model_file(tmp_path / "a.onnx", lossy, "a = Add(x, c) b = Sub(a, c) d = Sub(b, x) y = Mul(d, s)")
    optimized = model_file(tmp_path / "b.onnx", lossy, "a = Add(x, c) b = Sub(a, c) d = Sub(x, b) y = Mul(d, s)")
    monkeypatch.setattr(parity.Float64Model, "outputs", lambda self, feeds: None)  # both are as far from that
    assert not compare(original, optimized).ok

    class Noisy(Session):
        """ONNX Runtime whose optimizations matter: unoptimized, it runs the other model."""

        def __init__(self, model: Path, *, optimized: bool = True, **options: object) -> None:
            super().__init__(model if optimized else tmp_path / "b.onnx", optimized=optimized, **options)

    monkeypatch.setattr(rounding_noise, "Session", Noisy)
    result = compare(original, optimized)
    assert result.ok and all(output.unstable for output in result.outputs())
    assert "output 'y' is unstable" in result.warnings[0] and "--inputs" in result.warnings[-1]
    said = describe_parity(result)
    assert "not the same, off by" in said and "but unstable" in said and "within" not in said


@pytest.mark.parametrize(
    ("body", "untold"),
    [
        ("e = Exp(x) n = Neg(e) y = Log(n)", True),
        ("y = Log(x)", False),
        ("d = Concat<axis = 0>(x, x) y = Slice(d, two, one)", True),
        ("y = Identity(x)", False),
    ],
)
def test_outputs_that_cannot_tell_a_wrong_model_are_named(tmp_path: Path, body: str, untold: bool) -> None:
    signature = "(float[4] x) => (float[n] y) <int64[1] one = {1}, int64[1] two = {2}>"
    path = model_file(tmp_path / "m.onnx", signature, body)
    warning = "output 'y' has nothing to compare on these inputs: it is empty, or NaN throughout"
    assert compare(path, path).warnings == ([warning] if untold else [])


def test_an_output_that_stands_twice_is_compared_once(tmp_path: Path) -> None:
    path = model_file(tmp_path / "m.onnx", "(float[4] x) => (float[4] y, float[4] y)", "y = Neg(x)")
    result = compare(path, path)
    assert result.ok and not result.warnings
    assert [len(found.outputs) for found in result.sets] == [1] * 3


def test_an_output_of_another_shape_is_never_unstable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(name: str, body: str, result: str = "64") -> Path:
        return model_file(tmp_path / name, f"(float[64] x) => (int64[{result}] y) <int64[1] first = {{0}}>", body)

    original = made("a.onnx", "a = Floor(x) y = Cast<to = 7>(a)")
    noisy = made("b.onnx", "a = Ceil(x) y = Cast<to = 7>(a)")

    class Noisy(Session):
        """ONNX Runtime that gives other integers without its optimizations."""

        def __init__(self, model: Path, *, optimized: bool = True, **options: object) -> None:
            super().__init__(model if optimized else noisy, optimized=optimized, **options)

    monkeypatch.setattr(rounding_noise, "Session", Noisy)
    assert compare(original, noisy).ok
    other = made("c.onnx", "a = Floor(x) b = Cast<to = 7>(a) y = Unsqueeze(b, first)", "1, 64")
    assert "shape [1, 64] instead of [64]" in compare(original, other).failure()


@pytest.mark.parametrize(
    ("large", "seconds", "why"),
    [
        (1 << 26, 60.0, "its weights rounded otherwise change it as much"),
        (0, -1.0, "its weights rounded otherwise change it as much"),
        (0, 60.0, "against float64 it is off by "),
    ],
)
def test_an_output_is_unstable_where_other_roundings_of_its_weights_change_it_as_much(
    large: int, seconds: float, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two products that cancel leave rounding alone, which is another one with the first two merged; but no tenth.

    A large model is not rounded otherwise where the result in float64 tells.
    """
    monkeypatch.setattr(parity, "_LARGE", large)
    monkeypatch.setattr(parity, "_SECONDS", seconds)
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((64, 64)).astype(np.float32) for _ in range(2))
    merged, tenth = (a.astype(np.float64) @ b).astype(np.float32), np.full(1, 0.1, np.float32)
    weights = {"a": a, "b": b, "ab": merged, "tenth": tenth}

    def made(name: str, body: str) -> Path:
        proto = onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["" : 17]> g (float[8, 64] x) => (float[8, 64] y) {{ {body} }}'
        )
        proto.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
        return save(proto, tmp_path / name)

    original = made("a.onnx", "d = MatMul(x, a) e = MatMul(d, b) f = MatMul(x, ab) y = Sub(e, f)")
    result = compare(original, made("b.onnx", "e = MatMul(x, ab) f = MatMul(x, ab) y = Sub(e, f)"))
    assert result.ok and all(output.unstable for output in result.outputs())
    assert f"output 'y' is unstable: {why}" in result.warnings[0]
    wrong = made("c.onnx", "d = MatMul(x, a) e = MatMul(d, b) f = MatMul(x, ab) g = Sub(e, f) y = Add(g, tenth)")
    assert not compare(original, wrong).ok


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_weights_and_inputs_of_few_digits_are_rounded_otherwise_too(dtype: np.dtype) -> None:
    weights = np.linspace(1, 2, 256).astype(dtype).reshape(16, 16)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [1, 16])],
        [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [1, 16])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph)
    round_weights(model, 0)
    (tensor,) = model.graph.initializer
    for moved in (numpy_helper.to_array(tensor), inputs_rounded_otherwise({"x": weights}, 0)["x"]):
        distance = ulp_distance(moved, weights)
        assert moved.dtype == dtype and set(np.unique(distance)) == {0, 1}


@pytest.mark.parametrize("level", [0, 4])
def test_products_that_quantize_their_other_factor(level: int) -> None:
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=16, N=4, bits=4, block_size=16,
        accuracy_level=level,
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 16])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 4])],
        [
            numpy_helper.from_array(np.full((4, 1, 8), 0x5A, np.uint8), "w"),
            numpy_helper.from_array(np.ones((4, 1), np.float32), "s"),
        ],
    )
    proto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    )
    assert round_quantized(proto, 0) == (level == 4)


@pytest.mark.parametrize("opset", [11, 17])
def test_an_output_is_unstable_where_what_it_quantizes_rounded_otherwise_changes_it_as_much(
    opset: int, tmp_path: Path
) -> None:
    """A digit that the last bits decide, as quantize_dynamic makes it of each activation; but no tenth more.

    Inputs and weights are integers.
    """
    silu = "g{0} = Sigmoid(x{0}) a{0} = Mul(x{0}, g{0})"
    layer = """ q{0}, s{0}, z{0} = DynamicQuantizeLinear(a{0}) p{0} = MatMulInteger(q{0}, w, z{0})
        f{0} = Cast <to = 1> (p{0}) m{0} = Mul(s{0}, scale) x{1} = Mul(f{0}, m{0})"""
    constants = {
        "w": np.random.default_rng(0).normal(0, 40, (256, 256)).clip(-127, 127).astype(np.int8),
        **{name: np.array(value, np.float32) for name, value in {"scale": 3e-3, "one": 1, "tenth": 0.1}.items()},
    }

    def made(name: str, activation: str) -> Path:
        body = " ".join((activation + layer).format(number, number + 1) for number in range(8))
        body = f"c = Cast <to = 1> (x) x0 = Mul(c, scale) {body}"
        text = f"g (int32[1024, 256] x) => (float[1024, 256] x8) {{ {body} }}"
        proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')
        proto.graph.initializer.extend(numpy_helper.from_array(value, key) for key, value in constants.items())
        return save(proto, tmp_path / name)

    original = made("a.onnx", silu)
    other = "n{0} = Neg(x{0}) e{0} = Exp(n{0}) d{0} = Add(e{0}, one) a{0} = Div(x{0}, d{0})"
    result = compare(original, made("b.onnx", other))
    assert result.ok and "what it quantizes, rounded otherwise, changes it as much" in result.warnings[0]
    wrong = "g{0} = Sigmoid(x{0}) b{0} = Mul(x{0}, g{0}) a{0} = Add(b{0}, tenth)"
    assert not compare(original, made("c.onnx", wrong)).ok


QUANTIZED = "q = QuantizeLinear(a, one, zero) y = DequantizeLinear(q, one, zero)"


@pytest.mark.parametrize("quantized", [QUANTIZED, f"one = Constant <value_float = 1.0> () {QUANTIZED}", "y = Round(a)"])
@pytest.mark.parametrize(("distance", "is_ok"), [(2**-22, True), (2**-16, False)])
def test_what_is_quantized_may_be_off_by_a_few_units_in_the_last_place(
    quantized: str, distance: float, is_ok: bool, tmp_path: Path
) -> None:
    """As what several roundings make may be, where the nearest level changes."""
    one = ", float one = {1}"

    def made(name: str, half: float) -> Path:
        constants = f"<float half = {{{half:.9g}}}, uint8 zero = {{0}}{'' if 'one =' in quantized else one}>"
        body = f"c = Cast <to = 1> (x) a = Mul(c, half) {quantized}"
        return model_file(tmp_path / name, f"(int32[300] x) => (float[300] y) {constants}", body)

    original, other = made("a.onnx", 0.5 * (1 - distance)), made("b.onnx", 0.5 * (1 + distance))
    result = compare(original, other, inputs={"x": np.arange(300, dtype=np.int32)})
    assert result.ok == is_ok
    assert not is_ok or "what it quantizes, rounded otherwise, changes it as much" in result.warnings[0]


def test_an_output_is_unstable_where_other_roundings_of_its_inputs_change_it_as_much(tmp_path: Path) -> None:
    """A sine of a million times the input is one of its last digits; but no cosine."""
    values = {"million": 1e6, "part": 0.3, "rest": 1e6 / 0.3, "quarter": np.pi / 2}

    def made(name: str, body: str) -> Path:
        proto = onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["" : 17]> g (float[256] x) => (float[256] y) {{ {body} }}'
        )
        proto.graph.initializer.extend(
            numpy_helper.from_array(np.full(1, value, np.float32), name) for name, value in values.items()
        )
        return save(proto, tmp_path / name)

    original = made("a.onnx", "a = Mul(x, million) y = Sin(a)")
    result = compare(original, made("b.onnx", "a = Mul(x, part) b = Mul(a, rest) y = Sin(b)"))
    assert result.ok and "its inputs rounded otherwise change it as much" in result.warnings[0]
    small = made("c.onnx", "y = Sin(x)")
    assert not compare(small, made("d.onnx", "a = Add(x, quarter) y = Sin(a)")).ok


@pytest.mark.parametrize(
    ("problem", "error"),
    [("Exception during initialization: std::bad_alloc", MemoryError), ("the node x is not known", ParityError)],
)
def test_too_little_memory_says_nothing_of_the_result(
    problem: str, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session of the result may be the first for which there is not enough."""
    original, result = (model_file(tmp_path / name, "(float[2] x) => (float[2] y)", "y = Abs(x)") for name in "ab")
    start = Session.__init__

    def short(self: Session, model: Path, *more: object, **options: object) -> None:
        if model == result:
            raise SessionError(problem)
        start(self, model, *more, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Session, "__init__", short)
    with pytest.raises(error, match=problem):
        compare(original, result)


def test_other_signatures_are_refused(tmp_path: Path) -> None:
    one = model_file(tmp_path / "a.onnx", "(float[2] x) => (float[2] y)", "y = Abs(x)")
    other = model_file(tmp_path / "b.onnx", "(float[2] x) => (float[2] z)", "z = Abs(x)")
    typed = model_file(tmp_path / "c.onnx", "(double[2] x) => (double[2] y)", "y = Abs(x)")
    with pytest.raises(ParityError, match="different outputs: y and z"):
        compare(one, other)
    with pytest.raises(ParityError, match="different inputs"):
        compare(one, typed)


def test_integer_indices_shrink_until_the_model_takes_them(tmp_path: Path) -> None:
    path = model_file(
        tmp_path / "a.onnx",
        "(int64[n] i) => (float[n, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}>",
        "y = Gather(w, i)",
    )
    assert compare(path, path).ok


def test_probabilities_of_a_fused_convolution_are_seen_against_1(tmp_path: Path) -> None:
    """Its sums have an order of their own: the error of a logit, however small the probability that comes of it."""
    body = "a = Conv (x, w) b = Add(a, low) s = Sigmoid(b) y = Identity(s)"
    made = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 20]> g (float[1, 64, 9, 9] x) => (float[1, 8, 9, 9] y) {{ {body} }}'
    )
    random = np.random.default_rng(0)
    weights = random.normal(size=(8, 64, 1, 1)).astype(np.float32) * 1000
    made.graph.initializer.append(onnx.numpy_helper.from_array(weights - weights.mean(1, keepdims=True), "w"))
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.float32([-10]), "low"))
    fused = onnxfuse.optimize(made, "cpu", ["fuse-conv"], conv="all", check=False).model
    original, path = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(made, original)
    onnx.save(fused, path)
    x = (1 + random.normal(size=(1, 64, 9, 9)) * 1e-3).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    result = compare(original, path, inputs=tmp_path / "x.npz", regions=True)
    (region,) = result.regions
    assert region.comparison.ok, region.comparison.reason
    assert 0 < region.comparison.max_abs < 1e-6


def test_external_data_is_found_for_whole_models_and_for_regions(tmp_path: Path) -> None:
    original = tmp_path / "original"
    original.mkdir()
    onnx.save(chain(), original / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
    optimized = tmp_path / "optimized" / "m.onnx"
    optimized.parent.mkdir()
    onnxfuse.optimize(original / "m.onnx", output=optimized, check=False)
    assert compare(original / "m.onnx", optimized, regions=True).ok


def test_a_model_that_takes_no_made_up_input_says_what_to_do(tmp_path: Path) -> None:
    path = model_file(
        tmp_path / "a.onnx", "(float[n, m] x) => (float[7, 11] y) <int64[2] s = {7, 11}>", "y = Reshape(x, s)"
    )
    with pytest.raises(OnnxfuseError, match="give others where the command has --shape or --inputs"):
        compare(path, path)
    assert compare(path, path, shapes={"x": (7, 11)}).ok
