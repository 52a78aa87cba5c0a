"""The gate of squeeze-and-excitation blocks in one node, against NumPy in float64 and ONNX Runtime's own nodes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from onnxfuse.program import Program, ProgramBuilder, reference
from tests.custom_ops.fused import (
    NODE_NAME,
    assert_refused,
    check_in_threads,
    make_model,
    new_session,
    run,
    run_nodes,
    session_options,
)

NODE = f"onnxfuse::FusedSqueezeExcite node '{NODE_NAME}': "
Sizes = Sequence[int]
Tail = tuple[Program, list[np.ndarray]]


def tail(kind: str, channels: int, rank: int, seed: int = 0) -> Tail:
    """What follows a product, and its operands."""
    rng = np.random.default_rng([seed, channels])
    b = ProgramBuilder()
    x = b.input("f32")
    vector = rng.standard_normal(channels).astype(np.float32)
    per_channel = vector.reshape(channels, *[1] * (rank - 2))
    match kind:
        case "bias, relu":
            return b.build([b.emit("relu", "f32", b.emit("add", "f32", x, b.input("f32", 1)))]), [vector]
        case "add, hard sigmoid":
            added = b.emit("add", "f32", x, b.input("f32"))
            alpha, beta = b.const("f32", 0.2), b.const("f32", 0.5)
            return b.build([b.emit("hard_sigmoid", "f32", added, alpha, beta)]), [per_channel[None]]
        case "swish":
            return b.build([b.emit("mul", "f32", x, b.emit("sigmoid", "f32", x))]), []
        case "hard sigmoid of scalars":  # as exporters write it with Add, Clip and Div
            three, six = np.float32(3), np.array([6], np.float32)
            sum_, high = b.input("f32"), b.input("f32")
            clipped = b.emit("min", "f32", b.emit("max", "f32", b.emit("add", "f32", x, sum_), b.const("f32", 0)), high)
            return b.build([b.emit("div", "f32", clipped, high)]), [np.asarray(three), six]
        case "normalization":  # computes values of another shape than the result's
            scale, variance = b.input("f32", 1), b.input("f32", 1)
            root = b.emit("sqrt", "f32", b.emit("add", "f32", variance, b.const("f32", 1e-5)))
            result = b.emit("tanh", "f32", b.emit("mul", "f32", x, b.emit("div", "f32", scale, root)))
            return b.build([result]), [vector, np.abs(vector) + np.float32(0.5)]
        case "choice":
            mask = rng.random((channels, *[1] * (rank - 2))) < 0.5
            return b.build([b.emit("where", "f32", b.input("bool"), x, b.const("f32", -1))]), [mask]
        case _:
            return b.build([x]), []


KINDS = ("bias, relu", "add, hard sigmoid", "swish", "hard sigmoid of scalars", "normalization", "choice", "")


@dataclass
class Gate:
    """A node: the shape of X, the results of each product, and what follows them."""

    x_shape: Sizes
    squeezed: int
    excited: int
    tails: tuple[str, str] = ("bias, relu", "add, hard sigmoid")

    def made_tails(self) -> tuple[Tail, Tail]:
        rank = len(self.x_shape)
        return tail(self.tails[0], self.squeezed, rank), tail(self.tails[1], self.excited, rank, 1)

    def arrays(self, seed: int = 0) -> list[np.ndarray]:
        """The inputs of the node."""
        rng = np.random.default_rng([seed, *self.x_shape])
        ones = [1] * (len(self.x_shape) - 2)
        channels = self.x_shape[1]
        x = (rng.standard_normal(self.x_shape) + 0.5).astype(np.float32)
        first = rng.standard_normal((self.squeezed, channels, *ones)) / np.sqrt(channels)
        second = rng.standard_normal((self.excited, self.squeezed, *ones)) / np.sqrt(self.squeezed)
        (_, squeeze), (_, excite) = self.made_tails()
        return [x, first.astype(np.float32), *squeeze, second.astype(np.float32), *excite]


def gate_model(gate: Gate, static: bool = False, **more: Any) -> onnx.ModelProto:
    """A model of the node on graph inputs x0, x1, … with output y0; ``more`` are other attributes, None for none."""
    (squeeze, _), (excite, _) = gate.made_tails()
    arrays = gate.arrays()
    shapes = [array.shape if static else [f"d{i}_{k}" for k in range(array.ndim)] for i, array in enumerate(arrays)]
    inputs = {
        f"x{i}": (str("bool" if a.dtype == bool else "f32"), s)
        for i, (a, s) in enumerate(zip(arrays, shapes, strict=True))
    }
    node = helper.make_node("FusedSqueezeExcite", list(inputs), ["y0"], domain="onnxfuse", name=NODE_NAME)
    known = {"squeeze_program": str(squeeze), "program": str(excite), **more}
    node.attribute.extend(helper.make_attribute(name, value) for name, value in known.items() if value is not None)
    return make_model([node], inputs, {"y0": ("f32", None)})


def expected(gate: Gate, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Means and products in float64, rounded to float32 only where a Program reads them."""
    (squeeze, first), (excite, _) = gate.made_tails()
    x, w1, *rest = arrays
    ones = [1] * (x.ndim - 2)
    with np.errstate(all="ignore"):
        means = x.astype(np.float64).mean(axis=tuple(range(2, x.ndim)))
        products = (means @ w1.reshape(len(w1), -1).T.astype(np.float64)).astype(np.float32)
        (squeezed,) = reference.run(squeeze, [products.reshape(*products.shape, *ones), *rest[: len(first)]])
        w2, *rest = rest[len(first) :]
        flat = squeezed.reshape(squeezed.shape[:2]).astype(np.float64)
        products = (flat @ w2.reshape(len(w2), -1).T.astype(np.float64)).astype(np.float32)
        (result,) = reference.run(excite, [products.reshape(*products.shape, *ones), *rest])
    return result


def check(gate: Gate, threads: Sequence[int] = (1, 2)) -> None:
    """The results are those of float64 up to float32's rounding, and the same bits whatever the threads."""
    arrays = gate.arrays()
    results = [run(new_session(gate_model(gate), session_options(count)), arrays)[0] for count in threads]
    np.testing.assert_allclose(results[0], expected(gate, arrays), rtol=2e-6, atol=2e-6, strict=True)
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


@pytest.mark.parametrize("second", KINDS)
@pytest.mark.parametrize("first", KINDS)
def test_tails(first: str, second: str) -> None:
    check(Gate((2, 13, 5, 7), 6, 13, (first, second)), (1,))


SHAPES = {
    "one image": Gate((1, 88, 3, 96), 24, 88),
    "an odd batch": Gate((3, 21, 9, 5), 5, 21),
    "no image": Gate((0, 8, 4, 4), 2, 8),
    "one dimension": Gate((2, 19, 37), 7, 19),
    "three dimensions": Gate((2, 17, 3, 4, 5), 9, 17),
    "one channel": Gate((2, 1, 6, 6), 1, 1),
    "one element": Gate((2, 40, 1, 1), 10, 40),
    "a vector": Gate((1, 33, 4, 4), 17, 33),
    "other channels": Gate((2, 30, 7, 7), 8, 50),
    "threads": Gate((2, 70, 64, 64), 40, 70),
    "large products": Gate((2, 700, 7, 7), 300, 700),
    "one long row": Gate((1, 2, 700, 701), 3, 2),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape: str) -> None:
    check(SHAPES[shape])


def channels_last(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The inputs of a node whose X is [N, spatial…, C]."""
    return [np.ascontiguousarray(np.moveaxis(arrays[0], 1, -1)), *arrays[1:]]


def check_channels_last(gate: Gate) -> None:
    """The results are those of X in ONNX's order, and the same bits whatever the threads."""
    arrays = gate.arrays()
    model, last = gate_model(gate, nhwc=1), channels_last(arrays)
    result, together = (run(new_session(model, session_options(threads)), last)[0] for threads in (1, 2))
    np.testing.assert_array_equal(together, result)
    np.testing.assert_allclose(result, expected(gate, arrays), rtol=2e-6, atol=2e-6, strict=True)
    (first,) = run(new_session(gate_model(gate, nhwc=0), session_options()), arrays)
    np.testing.assert_allclose(result, first, rtol=4e-6, atol=4e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_with_the_channels_last(shape: str) -> None:
    check_channels_last(SHAPES[shape])


@pytest.mark.parametrize("channels", range(1, 70))
def test_channels_that_end_anywhere_in_a_vector(channels: int) -> None:
    """In parts of 256 pixels."""
    check_channels_last(Gate((2, channels, 3, 100), 1 + channels % 19, channels, ("", "")))


@pytest.mark.parametrize("size", range(1, 70))
def test_rows_that_end_anywhere_in_a_vector(size: int) -> None:
    check(Gate((1, 1 + size % 35, size), 1 + size % 19, size, ("", "")), (1,))


@pytest.mark.parametrize("last", (False, True))
def test_means_are_as_exact_as_onnx_runtimes(last: bool) -> None:
    """Of values far from zero, so that the rounding of sums shows."""
    x = (np.random.default_rng(1).random((1, 16, 300, 300)) + 3).astype(np.float32)
    one = np.eye(16, dtype=np.float32).reshape(16, 16, 1, 1)
    model = gate_model(Gate(x.shape, 16, 16, ("", "")), nhwc=int(last))
    arrays = channels_last([x, one, one]) if last else [x, one, one]
    own = run(new_session(model, session_options()), arrays)[0]
    (theirs,) = run_nodes([helper.make_node("GlobalAveragePool", ["x0"], ["y0"])], [x], ["f32"])
    wanted = x.astype(np.float64).mean(axis=(2, 3), keepdims=True)
    assert np.abs(own - wanted).max() <= max(np.abs(theirs - wanted).max(), 4e-7)


@pytest.mark.parametrize("opset", (12, 20))
def test_against_onnx_runtimes_nodes(opset: int) -> None:
    gate = Gate((3, 36, 10, 11), 9, 36, ("bias, relu", "add, hard sigmoid"))
    arrays = gate.arrays()
    nodes = [
        helper.make_node("GlobalAveragePool", ["x0"], ["a"]),
        helper.make_node("Conv", ["a", "x1", "x2"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("Conv", ["c", "x3"], ["d"]),
        helper.make_node("Add", ["d", "x4"], ["e"]),
        helper.make_node("HardSigmoid", ["e"], ["y0"], alpha=0.2),
    ]
    (wanted,) = run_nodes(nodes, arrays, ["f32"], opset)
    (result,) = run(new_session(gate_model(gate), session_options()), arrays)
    np.testing.assert_allclose(result, wanted, rtol=2e-6, atol=2e-6, strict=True)


@pytest.mark.parametrize("value", (np.nan, np.inf, -np.inf))
@pytest.mark.parametrize("place", (0, 17, 36))
def test_what_is_not_finite_reaches_the_results_of_its_image_alone(value: float, place: int) -> None:
    gate = Gate((3, 18, 37), 18, 18, ("", ""))
    arrays = gate.arrays()
    clean = expected(gate, arrays)
    arrays[0][1, 4, place] = value
    (result,) = run(new_session(gate_model(gate), session_options()), arrays)
    assert not np.isfinite(result[1]).any()
    np.testing.assert_allclose(result[[0, 2]], clean[[0, 2]], rtol=2e-6, atol=2e-6)


def test_what_is_not_finite_stays_in_its_row_of_the_weights() -> None:
    gate = Gate((1, 19, 8), 21, 23, ("", ""))
    arrays = gate.arrays()
    arrays[2][5, 20], arrays[2][22, 0] = np.inf, np.nan
    (result,) = run(new_session(gate_model(gate), session_options()), arrays)
    assert np.isinf(result[0, 5, 0]) and np.isnan(result[0, 22, 0])
    assert np.isfinite(np.delete(result, [5, 22], axis=1)).all()


def test_one_session_takes_any_shapes_and_threads() -> None:
    gates = [Gate((batch, 24, *size), 6, 24) for batch in (1, 2, 5) for size in ((3, 5), (16, 16), (100, 90))]
    session = new_session(gate_model(gates[0]), session_options())
    own = gates[0].arrays()[1:]
    cases = [[gate.arrays()[0], *own] for gate in gates]
    wanted = [expected(gate, arrays) for gate, arrays in zip(gates, cases, strict=True)]
    check_in_threads(session, cases, wanted, 2e-6)


GOOD = Gate((1, 6, 5, 5), 3, 6)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"program": None}, "it has no attribute program"),
        ({"squeeze_program": None}, "it has no attribute squeeze_program"),
        ({"squeeze_program": "nonsense"}, "the squeeze_program attribute is not valid"),
        ({"program": "onnxfuse 1\ninput f64 broadcast\noutput 0\n"}, "does not make one tensor of float32"),
        ({"program": "onnxfuse 1\ninput f32 axis 1\noutput 0\n"}, "is not a whole tensor"),
        ({"program": "onnxfuse 1\ninput f32 broadcast\noutput 0\n"}, "has 6 inputs|has 5 inputs"),
        ({"program": "onnxfuse 1\ninput f32 broadcast\ninput f32 broadcast\nless f32 0 1\noutput 2\n"}, "float32"),
    ],
)
def test_attributes_that_are_refused(more: dict[str, Any], reason: str) -> None:
    with pytest.raises(Exception, match=reason) as caught:
        new_session(gate_model(GOOD, **more), session_options())
    assert NODE in str(caught.value) or "FusedSqueezeExcite" in str(caught.value)


@pytest.mark.parametrize(
    ("place", "shape", "reason"),
    [
        (0, (1, 7, 5, 5), "is no matrix for 7 channels"),
        (0, (1, 6), "has no spatial dimensions"),
        (0, (1, 6, 0, 5), "has channels without elements"),
        (0, (1, 6, 5), "is no matrix for 6 channels of rank 3"),
        (1, (3, 6, 1, 2), "is no matrix"),
        (1, (0, 6, 1, 1), "is no matrix"),
        (3, (6, 4, 1, 1), "is no matrix for 3 channels"),
        (2, (4,), "squeeze_program"),
        (4, (1, 6, 2, 1), "does not broadcast"),
        (4, (2, 6, 1, 1), "does not broadcast"),
    ],
)
def test_shapes_that_are_refused(place: int, shape: Sizes, reason: str) -> None:
    arrays = GOOD.arrays()
    arrays[place] = np.zeros(shape, np.float32)
    assert_refused(gate_model(GOOD), arrays, reason, NODE)


def test_types_that_are_refused() -> None:
    model = gate_model(GOOD)
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    arrays = GOOD.arrays()
    arrays[0] = arrays[0].astype(np.float64)
    with pytest.raises(Exception, match="input 0 has the ONNX element type 11, not 1") as caught:
        run(new_session(model, session_options()), arrays)
    assert NODE in str(caught.value)


def test_the_shape_of_the_output_is_known_before_it_runs() -> None:
    session = new_session(gate_model(GOOD, static=True), session_options())
    assert session.get_outputs()[0].shape == [1, 6, 1, 1]
    assert new_session(gate_model(GOOD), session_options()).get_outputs()[0].shape[2:] == [1, 1]
    session = new_session(gate_model(GOOD, static=True, nhwc=1), session_options())
    assert session.get_outputs()[0].shape == [1, 6, 1, 1]
