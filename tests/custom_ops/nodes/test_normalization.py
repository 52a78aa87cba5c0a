"""Normalizations of rows in one node, against NumPy in float64 and ONNX Runtime's own nodes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from onnxfuse.program import Program, ProgramBuilder, reference
from tests.custom_ops.fused import NODE_NAME, check_in_threads, make_model, new_session, run, run_nodes, session_options

NODE = f"onnxfuse::FusedNormalization node '{NODE_NAME}': "
Sizes = Sequence[int]


def residual() -> Program:
    """x + bias + residual, as a transformer has it."""
    b = ProgramBuilder()
    x, bias, other = (b.input("f32") for _ in range(3))
    return b.build([b.emit("add", "f32", other, b.emit("add", "f32", x, bias))])


def of_integers() -> Program:
    """A scale times what is cast from int32, which is of another shape until then."""
    b = ProgramBuilder()
    scale, x = b.input("f32"), b.input("i32")
    root = b.emit("sqrt", "f32", b.emit("abs", "f32", scale))
    return b.build([b.emit("mul", "f32", root, b.emit("cast", "f32", x))])


PROGRAMS = {"": None, "residual": residual, "integers": of_integers}


@dataclass
class Normalization:
    """A node: the shape of what is normalized, and what makes it."""

    shape: Sizes
    program: str = ""
    centered: bool = True
    bias: bool = True
    keeps: bool = False
    epsilon: float = 1e-5
    mean: float = 0.5

    def arrays(self, seed: int = 0) -> list[np.ndarray]:
        """The inputs of the node."""
        rng = np.random.default_rng([seed, *self.shape])
        size = self.shape[-1]
        x = (rng.standard_normal(self.shape) * 2 + self.mean).astype(np.float32)
        vectors = [rng.standard_normal(size).astype(np.float32) for _ in range(3)]
        made = {
            "": [x],
            "residual": [x, vectors[2], rng.standard_normal(self.shape).astype(np.float32)],
            "integers": [vectors[2], rng.integers(-99, 99, self.shape, np.int32)],
        }[self.program]
        return [*made, *vectors[: 1 + self.bias]]

    def model(self, **more: Any) -> onnx.ModelProto:
        """The node on graph inputs x0, x1, … with outputs y0 and y1; ``more`` are other attributes, None for none."""
        arrays = self.arrays()
        inputs = {
            f"x{i}": ("i32" if a.dtype == np.int32 else "f32", [f"d{i}_{k}" for k in range(a.ndim)])
            for i, a in enumerate(arrays)
        }
        outputs = ["y0", "y1"] if self.keeps else ["y0"]
        node = helper.make_node("FusedNormalization", list(inputs), outputs, domain="onnxfuse", name=NODE_NAME)
        made = PROGRAMS[self.program]
        bits = int(np.float32(self.epsilon).view(np.uint32))
        known = {"program": None if made is None else str(made()), "centered": int(self.centered)}
        known |= {"keeps": int(self.keeps), "epsilon_bits": bits, **more}
        node.attribute.extend(helper.make_attribute(name, value) for name, value in known.items() if value is not None)
        return make_model([node], inputs, dict.fromkeys(outputs, ("f32", None)))

    def expected(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The result in float64, of rows in float32, and these."""
        made, vectors = PROGRAMS[self.program], arrays[-1 - self.bias :]
        x = arrays[0] if made is None else reference.run(made(), list(arrays[: -1 - self.bias]))[0]
        rows = x.astype(np.float64)
        with np.errstate(all="ignore"):
            if self.centered:
                rows = rows - rows.mean(axis=-1, keepdims=True)
            result = rows / np.sqrt((rows**2).mean(axis=-1, keepdims=True) + self.epsilon) * vectors[0]
        return [result + vectors[1] if self.bias else result, x][: 1 + self.keeps]


def check(node: Normalization, threads: Sequence[int] = (1, 2)) -> None:
    """The results are those of float64 up to float32's rounding, and the same bits whatever the threads."""
    arrays = node.arrays()
    results = [run(new_session(node.model(), session_options(count)), arrays) for count in threads]
    wanted = node.expected(arrays)
    np.testing.assert_allclose(results[0][0], wanted[0], rtol=4e-6, atol=4e-6)
    assert results[0][0].dtype == np.float32 and results[0][0].shape == wanted[0].shape
    for kept, exact in zip(results[0][1:], wanted[1:], strict=True):
        np.testing.assert_array_equal(kept, exact)
    for other in results[1:]:
        for one, same in zip(other, results[0], strict=True):
            np.testing.assert_array_equal(one, same)


@pytest.mark.parametrize("keeps", (False, True))
@pytest.mark.parametrize("bias", (False, True))
@pytest.mark.parametrize("centered", (False, True))
@pytest.mark.parametrize("program", PROGRAMS)
def test_forms(program: str, centered: bool, bias: bool, keeps: bool) -> None:
    if program or not keeps:
        check(Normalization((3, 5, 37), program, centered, bias, keeps), (1,))


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("size", (*range(1, 70), 255, 256, 257))
def test_rows_that_end_anywhere_in_a_vector(size: int, program: str) -> None:
    check(Normalization((1 + size % 19, size), program, size % 2 == 0), (1,))


SHAPES = {
    "a vector": (17,),
    "no row": (0, 5, 9),
    "eight dimensions": (1, 2, 1, 3, 1, 2, 1, 24),
    "many rows": (700, 96),
    "more threads than rows": (3, 9000),
    "one long row": (1, 70001),
    "rows longer than a block": (5, 20000),
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape: str, program: str) -> None:
    check(Normalization(SHAPES[shape], program, keeps=bool(program)))


def test_rows_without_elements() -> None:
    for program in PROGRAMS:
        node = Normalization((3, 0), program)
        (result,) = run(new_session(node.model(), session_options()), node.arrays())
        assert result.shape == (3, 0)


def test_a_mean_of_numbers_whose_sum_is_none() -> None:
    node = Normalization((3, 40), centered=True)
    arrays = node.arrays()
    arrays[0][:] = 3e38
    arrays[0][1] = np.linspace(1e38, 1.00001e38, 40)
    arrays[0][2, 7] = np.inf
    (result,) = run(new_session(node.model(), session_options()), arrays)
    np.testing.assert_array_equal(result[:2], np.broadcast_to(arrays[-1], (2, 40)))
    assert np.isnan(result[2]).all()


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
def test_what_is_not_finite_stays_in_its_row(value: float, place: int) -> None:
    node = Normalization((4, 37))
    arrays = node.arrays()
    clean = node.expected(arrays)[0]
    arrays[0][1, place] = value
    (result,) = run(new_session(node.model(), session_options()), arrays)
    assert np.isnan(result[1]).all()
    np.testing.assert_allclose(result[[0, 2, 3]], clean[[0, 2, 3]], rtol=4e-6, atol=4e-6)


@pytest.mark.parametrize("epsilon", (0.0, 1e-12, 0.1))
@pytest.mark.parametrize("shape", ((9, 64), (2, 3, 100), (1, 5)))
def test_against_onnx_runtimes_node(shape: Sizes, epsilon: float) -> None:
    node = Normalization(shape, epsilon=epsilon)
    arrays = node.arrays()
    own = helper.make_node("LayerNormalization", ["x0", "x1", "x2"], ["y0"], epsilon=epsilon)
    (wanted,) = run_nodes([own], arrays, ["f32"])
    (result,) = run(new_session(node.model(), session_options()), arrays)
    np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)


def test_one_session_takes_any_shapes_and_threads() -> None:
    nodes = [Normalization((rows, size), "residual") for rows in (1, 7, 300) for size in (24, 33, 512)]
    session = new_session(nodes[0].model(), session_options())
    cases = [node.arrays() for node in nodes]
    wanted = [node.expected(arrays)[0] for node, arrays in zip(nodes, cases, strict=True)]
    check_in_threads(session, cases, wanted, 4e-6)


def test_inputs_of_the_program_may_broadcast_to_each_other() -> None:
    node = Normalization((2, 3, 24), "residual")
    x, bias, _, *vectors = node.arrays()
    other = node.arrays(1)[2][:, :1]
    for arrays in ([x, bias, other, *vectors], [other, bias, x, *vectors]):
        (result,) = run(new_session(node.model(), session_options()), arrays)
        np.testing.assert_allclose(result, node.expected(arrays)[0], rtol=4e-6, atol=4e-6)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"centered": None}, "the centered attribute is not 0 or 1"),
        ({"centered": 2}, "the centered attribute is not 0 or 1"),
        ({"keeps": None}, "the keeps attribute is not 0 or 1"),
        ({"keeps": 1}, "1 outputs, not 2|keeps"),
        ({"program": None, "keeps": 1}, "keeps what is normalized without a program"),
        ({"program": None}, "the node has 5 inputs, not 1 and the scale"),
        ({"epsilon_bits": None}, "the epsilon_bits attribute is not the bits"),
        ({"epsilon_bits": 0x7F800000}, "the epsilon_bits attribute is not the bits"),
        ({"epsilon_bits": -1}, "the epsilon_bits attribute is not the bits"),
        ({"program": "nonsense"}, "the program attribute is not valid"),
        ({"program": "onnxfuse 1\ninput f64 broadcast\noutput 0\n"}, "does not make one tensor of float32"),
        ({"program": "onnxfuse 1\ninput f32 broadcast\noutput 0 0\n"}, "not valid|does not make one tensor"),
        ({"program": "onnxfuse 1\ninput f32 broadcast\noutput 0\n"}, "the node has 5 inputs, not 1 and the scale"),
    ],
)
def test_attributes_that_are_refused(more: dict[str, Any], reason: str) -> None:
    if more == {"keeps": 1} and ort.__version__.startswith("1.20."):
        pytest.skip("ONNX Runtime 1.20 aborts when a custom operator infers an output that the node does not have")
    with pytest.raises(Exception, match=reason) as caught:
        new_session(Normalization((2, 6), "residual").model(**more), session_options())
    assert NODE in str(caught.value) or "FusedNormalization" in str(caught.value)


@pytest.mark.parametrize(
    ("place", "shape", "reason"),
    [
        (0, (), "has no rows"),
        (1, (5,), "input 1 of shape \\[5\\] is not as long as a row"),
        (1, (1,), "input 1 of shape \\[1\\] is not as long as a row"),
        (2, (1, 6), "input 2 of shape \\[1,6\\] is not as long as a row"),
    ],
)
def test_shapes_that_do_not_fit(place: int, shape: Sizes, reason: str) -> None:
    node = Normalization((2, 6))
    model = node.model()
    del model.graph.input[place].type.tensor_type.shape.dim[:]
    model.graph.input[place].type.tensor_type.ClearField("shape")
    arrays = node.arrays()
    arrays[place] = np.zeros(shape, np.float32)
    with pytest.raises(Exception, match=reason) as caught:
        run(new_session(model, session_options()), arrays)
    assert NODE in str(caught.value)


@pytest.mark.parametrize("shape", [(2, 6), (700, 96)])
def test_an_integer_divided_by_zero_fails_the_run(shape: Sizes) -> None:
    """With that message, in whatever thread's rows it is."""
    b = ProgramBuilder()
    scale, x = b.input("f32"), b.input("i32")
    program = b.build([b.emit("mul", "f32", scale, b.emit("cast", "f32", b.emit("div", "i32", x, x)))])
    node = Normalization(shape, "integers")
    session = new_session(node.model(program=str(program)), session_options(2))
    arrays = node.arrays()
    arrays[1] = np.maximum(arrays[1], 1)
    run(session, arrays)
    for row in (0, -1):
        zero = [arrays[0], arrays[1].copy(), *arrays[2:]]
        zero[1][row, -1] = 0
        with pytest.raises(Exception, match="divided by zero") as caught:
            run(session, zero)
        assert NODE in str(caught.value)
