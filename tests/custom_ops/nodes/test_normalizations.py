"""Normalizations of rows as FusedReduction computes them, against NumPy in float64 and ONNX Runtime's own nodes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfuse.fused.reduction.fuse_reductions import FuseReductions
from tests.custom_ops.fused import check_in_threads, new_session, run, session_options
from tests.support import fusing

Sizes = Sequence[int]


@dataclass
class Normalization:
    """The normalization of what lies in ``shape``, or with ``before`` of a sum with a bias and a residual."""

    shape: Sizes
    before: bool = False
    centered: bool = True
    bias: bool = True
    keeps: bool = False
    epsilon: float = 1e-5
    mean: float = 0.5

    def arrays(self, seed: int = 0) -> list[np.ndarray]:
        """The inputs: what is normalized, or what it is a sum of."""
        rng = np.random.default_rng([seed, *self.shape])
        x = (rng.standard_normal(self.shape) * 2 + self.mean).astype(np.float32)
        return [x, rng.standard_normal(self.shape).astype(np.float32)] if self.before else [x]

    def vectors(self) -> list[np.ndarray]:
        """Scale, bias, and what is added before."""
        rng = np.random.default_rng(self.shape[-1])
        return [rng.standard_normal(self.shape[-1]).astype(np.float32) for _ in range(3)]

    def original(self) -> onnx.ModelProto:
        """The nodes of ONNX, of any sizes but the last."""
        sizes = ", ".join([*(f"d{axis}" for axis in range(len(self.shape) - 1)), str(self.shape[-1])])
        inputs = ", ".join(f"float[{sizes}] x{index}" for index in range(1 + self.before))
        outputs = ", ".join(f"float[{sizes}] {name}" for name in ("s", "y")[1 - self.keeps :])
        before = "b = Add (x0, first) s = Add (x1, b)" if self.before else ""
        x = "s" if self.before else "x0"
        operands = f"{x}, scale, bias" if self.bias else f"{x}, scale"
        operator = f"y = LayerNormalization <axis = -1, epsilon = {self.epsilon:.1e}> ({operands})"
        if not self.centered:  # as before RMSNormalization was an operator
            mean = f"q = Mul ({x}, {x}) m = ReduceMean <axes = [-1]> (q) e = Add (m, epsilon)"
            operator = f"{mean} d = Sqrt (e) n = Div ({x}, d) y = Mul (n, scale)"
        model: onnx.ModelProto = onnx.parser.parse_model(
            f"""<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => ({outputs}) {{ {before} {operator} }}"""
        )
        constants = (*self.vectors(), np.float32(self.epsilon))
        names = ("scale", "bias", "first", "epsilon")
        model.graph.initializer.extend(map(numpy_helper.from_array, map(np.asarray, constants), names))
        return model

    def model(self) -> onnx.ModelProto:
        """The same as one node."""
        model, _ = fusing.rewritten_by(FuseReductions(), self.original())
        assert [node.op_type for node in model.graph.node] == ["FusedReduction"]
        return model

    def expected(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Rows in float32, if they are kept, and the result of these in float64."""
        scale, bias, first = self.vectors()
        x = arrays[1] + (arrays[0] + first) if self.before else arrays[0]
        rows = x.astype(np.float64)
        with np.errstate(all="ignore"):
            if self.centered:
                rows = rows - rows.mean(axis=-1, keepdims=True)
            result = rows / np.sqrt((rows**2).mean(axis=-1, keepdims=True) + self.epsilon) * scale
        return [x, result + bias if self.bias and self.centered else result][1 - self.keeps :]


def check(node: Normalization, threads: Sequence[int] = (1, 2)) -> None:
    """The results are those of float64 up to float32's rounding, and the same bits whatever the threads."""
    arrays = node.arrays()
    model = node.model()
    results = [run(new_session(model, session_options(count)), arrays) for count in threads]
    wanted = node.expected(arrays)
    np.testing.assert_allclose(results[0][-1], wanted[-1], rtol=4e-6, atol=4e-6)
    assert results[0][-1].dtype == np.float32 and results[0][-1].shape == wanted[-1].shape
    for kept, exact in zip(results[0][:-1], wanted[:-1], strict=True):
        np.testing.assert_array_equal(kept, exact)
    for other in results[1:]:
        for one, same in zip(other, results[0], strict=True):
            np.testing.assert_array_equal(one, same)


@pytest.mark.parametrize("keeps", (False, True))
@pytest.mark.parametrize("bias", (False, True))
@pytest.mark.parametrize("centered", (False, True))
@pytest.mark.parametrize("before", (False, True))
@pytest.mark.parametrize("size", (16, 37, 96))
def test_forms(size: int, before: bool, centered: bool, bias: bool, keeps: bool) -> None:
    if before or not keeps:
        check(Normalization((3, 5, size), before, centered, bias, keeps), (1,))


@pytest.mark.parametrize("before", (False, True))
@pytest.mark.parametrize("size", (*range(2, 70), 95, 112, 128, 192, 255, 256, 257))
def test_rows_that_end_anywhere_in_a_vector(size: int, before: bool) -> None:
    check(Normalization((1 + size % 19, size), before, size % 2 == 0), (1,))


SHAPES = {
    "a vector": (700,),
    "no row": (0, 5, 9),
    "seven dimensions": (1, 2, 3, 1, 2, 1, 24),
    "many rows": (700, 96),
    "more threads than rows": (3, 9000),
    "one long row": (1, 70001),
    "rows longer than a block": (5, 20000),
}


@pytest.mark.parametrize("before", (False, True))
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape: str, before: bool) -> None:
    check(Normalization(SHAPES[shape], before, keeps=before))


@pytest.mark.parametrize("size", (40, 100, 5000))
@pytest.mark.parametrize("value", (1e20, 1e30))
def test_squares_beyond_float32_leave_the_bias(size: int, value: float) -> None:
    """As in ONNX Runtime; a row of infinities has no mean."""
    node = Normalization((3, size))
    (x,) = arrays = node.arrays()
    x[:2] *= np.float32(value)
    x[1, 7] = np.inf
    (result,) = run(new_session(node.model(), session_options()), arrays)
    np.testing.assert_array_equal(result[0], node.vectors()[1])
    assert np.isnan(result[1]).all() and np.isfinite(result[2]).all()


@pytest.mark.parametrize("centered", (False, True))
def test_means_far_from_zero(centered: bool) -> None:
    """The variance is that of the distances from the mean, not a difference of large squares."""
    node = Normalization((4, 1000), centered=centered, mean=3000, epsilon=0)
    arrays = node.arrays()
    (result,) = run(new_session(node.model(), session_options()), arrays)
    np.testing.assert_allclose(result, node.expected(arrays)[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("value", (1 / 3, 33.3, 3333.3))
@pytest.mark.parametrize("size", (40, 100, 768, 4099))
def test_rows_that_hardly_vary(size: int, value: float) -> None:
    """What is left of a constant row is the rounding of its mean, which a small epsilon would make large."""
    node = Normalization((3, size))
    arrays = node.arrays()
    arrays[0][:] = np.float32(value)
    arrays[0][1, ::2] *= np.float32(1 + 1e-5)
    (result,) = run(new_session(node.model(), session_options()), arrays)
    np.testing.assert_allclose(result, node.expected(arrays)[0], rtol=1e-5, atol=1e-3 if value > 3000 else 2e-5)


@pytest.mark.parametrize("value", (np.nan, np.inf, -np.inf))
@pytest.mark.parametrize("place", (0, 17, 36))
@pytest.mark.parametrize("size", (37, 64, 100))
def test_what_is_not_finite_stays_in_its_row(size: int, place: int, value: float) -> None:
    node = Normalization((4, size))
    arrays = node.arrays()
    clean = node.expected(arrays)[0]
    arrays[0][1, place] = value
    (result,) = run(new_session(node.model(), session_options()), arrays)
    assert np.isnan(result[1]).all()
    np.testing.assert_allclose(result[[0, 2, 3]], clean[[0, 2, 3]], rtol=4e-6, atol=4e-6)


@pytest.mark.parametrize("size", (9, 64, 100, 5000))
def test_the_mean_of_what_is_not_finite_is_that_of_onnx_runtime(size: int) -> None:
    """An infinite mean is infinitely far from all elements, and they have no mean distance that would correct it."""
    original = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[n, {size}] x0, float[{size}] x1) => (float[n, {size}] y, float[n, 1] mean, float[n, 1] factor)
        {{ a = Neg (x0) y, mean, factor = LayerNormalization (a, x1) }}"""
    )
    x = np.random.default_rng(size).standard_normal((5, size)).astype(np.float32)
    x[0, 3], x[1, 7], x[2, 3], x[3, 5] = -np.inf, 3e37, np.nan, np.inf
    arrays = [x, np.ones(size, np.float32)]
    wanted = run(new_session(original, session_options()), arrays)
    model, _ = fusing.rewritten_by(FuseReductions(), original)
    assert [node.op_type for node in model.graph.node] == ["FusedReduction"]
    results = run(new_session(model, session_options()), arrays)
    assert np.isposinf(wanted[1][0]) and np.isneginf(wanted[1][3])
    for result, value in zip(results, wanted, strict=True):
        np.testing.assert_allclose(result, value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("epsilon", (0.0, 1e-12, 0.1))
@pytest.mark.parametrize("shape", ((9, 64), (2, 3, 100), (1, 5)))
def test_against_onnx_runtimes_node(shape: Sizes, epsilon: float) -> None:
    node = Normalization(shape, epsilon=epsilon)
    arrays = node.arrays()
    (wanted,) = run(new_session(node.original(), session_options()), arrays)
    (result,) = run(new_session(node.model(), session_options()), arrays)
    np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", (24, 33, 512))
def test_one_session_takes_any_number_of_rows_and_threads(size: int) -> None:
    nodes = [Normalization((rows, size), before=True) for rows in (1, 7, 300)]
    session = new_session(nodes[0].model(), session_options())
    cases = [node.arrays() for node in nodes]
    wanted = [node.expected(arrays)[0] for node, arrays in zip(nodes, cases, strict=True)]
    check_in_threads(session, cases, wanted, 4e-6)
