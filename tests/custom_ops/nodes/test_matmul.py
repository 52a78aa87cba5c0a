"""Products with constant matrices in one node with the Program behind them, against NumPy in float64."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from onnxfuse.program import Program, ProgramBuilder, reference
from tests.custom_ops.fused import NODE_NAME, check_in_threads, make_model, new_session, run, session_options

NODE = f"onnxfuse::FusedMatMul node '{NODE_NAME}': "


def plain() -> Program:
    """Nothing behind the product."""
    b = ProgramBuilder()
    return b.build([b.input("f32")])


def bias() -> Program:
    b = ProgramBuilder()
    product, vector = b.input("f32"), b.input("f32", -1)
    return b.build([b.emit("add", "f32", product, vector)])


def bounded() -> Program:
    """A bias and a Relu, which the kernel does itself."""
    b = ProgramBuilder()
    product, vector = b.input("f32"), b.input("f32", -1)
    return b.build([b.emit("relu", "f32", b.emit("add", "f32", product, vector))])


def gated() -> Program:
    """SiLU of the biased product, times another tensor: a chain that runs on tiles."""
    b = ProgramBuilder()
    product, vector, other = b.input("f32"), b.input("f32", -1), b.input("f32")
    biased = b.emit("add", "f32", product, vector)
    return b.build([b.emit("mul", "f32", other, b.emit("mul", "f32", biased, b.emit("sigmoid", "f32", biased)))])


def both() -> Program:
    """The product and its square are outputs, and a vector in the middle of the chain ends at no tile."""
    b = ProgramBuilder()
    product, vector = b.input("f32"), b.input("f32")
    return b.build([product, b.emit("add", "f32", b.emit("mul", "f32", product, product), vector)])


PROGRAMS = {"plain": plain, "bias": bias, "bounded": bounded, "gated": gated, "both": both}


def pack(weights: np.ndarray) -> np.ndarray:
    """[K, N] as [N / 16, K, 16]."""
    inner, columns = weights.shape
    whole = np.zeros((inner, -(-columns // 16) * 16), np.float32)
    whole[:, :columns] = weights
    return np.ascontiguousarray(whole.reshape(inner, -1, 16).transpose(1, 0, 2))


@dataclass
class Product:
    """A node: the shape of what is multiplied, and the columns of the weights."""

    shape: Sequence[int]
    columns: int
    program: str = "plain"

    def arrays(self, seed: int = 0) -> list[np.ndarray]:
        """A, the weights as the node reads them, and the operands."""
        rng = np.random.default_rng([seed, *self.shape, self.columns])
        self.weights = rng.standard_normal((self.shape[-1], self.columns)).astype(np.float32)
        a = rng.standard_normal(self.shape).astype(np.float32)
        vector = rng.standard_normal(self.columns).astype(np.float32)
        whole = rng.standard_normal((*self.shape[:-1], self.columns)).astype(np.float32)
        return [a, pack(self.weights), *[vector, whole][: len(PROGRAMS[self.program]().inputs) - 1]]

    def model(self, **more: Any) -> onnx.ModelProto:
        """The node on graph inputs x0, x1, …; ``more`` are other attributes, None for none."""
        inputs = {f"x{i}": ("f32", [f"d{i}_{k}" for k in range(a.ndim)]) for i, a in enumerate(self.arrays())}
        program = PROGRAMS[self.program]()
        outputs = [f"y{i}" for i in range(len(program.outputs))]
        node = helper.make_node("FusedMatMul", list(inputs), outputs, domain="onnxfuse", name=NODE_NAME)
        known = {"program": str(program), "columns": self.columns, **more}
        node.attribute.extend(helper.make_attribute(name, value) for name, value in known.items() if value is not None)
        return make_model([node], inputs, dict.fromkeys(outputs, ("f32", None)))

    def expected(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The results in float64, of which the Program's instructions are in float32."""
        product = arrays[0].astype(np.float64) @ self.weights.astype(np.float64)
        return reference.run(PROGRAMS[self.program](), [product.astype(np.float32), *arrays[2:]])


def check(node: Product) -> None:
    arrays = node.arrays()
    expected = node.expected(arrays)
    for threads in (1, 2):
        found = run(new_session(node.model(), session_options(threads)), arrays)
        for own, wanted in zip(found, expected, strict=True):
            assert own.shape == wanted.shape
            np.testing.assert_allclose(own, wanted, rtol=2e-5, atol=2e-5 * np.sqrt(node.shape[-1]))


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("rows", (*range(1, 27), 50, 197))
def test_rows_that_end_anywhere_in_a_tile(rows: int, program: str) -> None:
    check(Product((rows, 40), 96, program))


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("columns", (1, 2, 7, 15, 16, 17, 31, 33, 48, 63, 65, 80, 130, 1000))
def test_columns_that_end_anywhere_in_a_vector(columns: int, program: str) -> None:
    check(Product((13, 24), columns, program))


@pytest.mark.parametrize("inner", (1, 2, 3, 63, 255, 257, 512, 513, 1030))
def test_sums_of_any_length(inner: int) -> None:
    check(Product((2, 9, inner), 40, "gated"))


@pytest.mark.parametrize("shape", ((1, 1, 7), (2, 3, 4, 7), (1, 300, 7), (5, 1, 1, 1, 7)), ids=str)
def test_dimensions_before_the_last(shape: tuple[int, ...]) -> None:
    check(Product(shape, 33, "gated"))


@pytest.mark.parametrize("shape", ((0, 7), (2, 0, 7)), ids=str)
def test_no_rows(shape: tuple[int, ...]) -> None:
    node = Product(shape, 20, "gated")
    (found,) = run(new_session(node.model(), session_options()), node.arrays())
    assert found.shape == (*shape[:-1], 20)


def test_weights_that_several_threads_share() -> None:
    check(Product((200, 300), 700, "gated"))


def test_runs_in_several_threads() -> None:
    node = Product((100, 700), 200, "gated")
    arrays = node.arrays()
    (alone,) = run(new_session(node.model(), session_options(1)), arrays)
    check_in_threads(new_session(node.model(), session_options()), [arrays], [alone], 0.0)


def test_values_that_are_no_numbers() -> None:
    """What is no number stays in its row, and zeros behind the columns make none."""
    node = Product((5, 6), 17)
    arrays = node.arrays()
    arrays[0][2, 3], arrays[0][4, 0] = np.nan, np.inf
    (found,) = run(new_session(node.model(), session_options()), arrays)
    wanted = arrays[0] @ node.weights
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    (
        ({"columns": None}, "it has no attribute columns that is a number of columns"),
        ({"columns": 0}, "it has no attribute columns that is a number of columns"),
        ({"columns": 1 << 40}, "it has no attribute columns that is a number of columns"),
        ({"program": None}, "it has no attribute program"),
        ({"program": "onnxfuse 1\ninput f64 broadcast\noutput 0\n"}, "the program is not for a product of f32"),
        ({"program": str(gated())}, "the node has 2 inputs, but its program takes 4"),
    ),
    ids=str,
)
def test_attributes_that_are_refused(attributes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Exception, match=re.escape(NODE + reason)):
        new_session(Product((3, 4), 20).model(**attributes), session_options())


def test_shapes_that_are_refused() -> None:
    node = Product((3, 4), 20, "bias")
    a, weights, vector = node.arrays()
    session = new_session(node.model(), session_options())
    for arrays, reason in (
        ([a[:, :3], weights, vector], r"input 1 is of shape \[2,4,16\], not \[2,3,16\]"),
        ([a[:, :0], weights[:, :0], vector], "has rows of no elements"),
        ([a, weights, vector[:5]], "does not lie along axis"),
    ):
        with pytest.raises(Exception, match=reason):
            run(session, arrays)
