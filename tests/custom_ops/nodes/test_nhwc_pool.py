"""MaxPool and AveragePool with the channels last, against ONNX Runtime's own nodes."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from tests.custom_ops.fused import (
    NODE_NAME,
    check_in_threads,
    make_model,
    new_session,
    run,
    run_nodes,
    session_options,
)

NODE = f"onnxfuse::FusedNhwcPool node '{NODE_NAME}': "
CEIL_MODES = (0,) if ort.__version__.startswith("1.20.") else (0, 1)
"""ONNX Runtime 1.20 has windows that begin in the padding at the end, unlike ONNX."""

Sizes = Sequence[int]


@dataclass(frozen=True)
class Pool:
    """A node, with the shape of its input in ONNX's order."""

    operator: str
    x_shape: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...] = (1, 1)
    pads: tuple[int, ...] = (0, 0, 0, 0)
    dilations: tuple[int, ...] = (1, 1)
    ceil_mode: int = 0
    count_include_pad: int = 0

    def attributes(self) -> dict[str, Any]:
        rank = len(self.kernel)
        return {
            "kernel_shape": list(self.kernel),
            "strides": list(self.strides[:rank]),
            "dilations": list(self.dilations[:rank]),
            "pads": list(self.pads[: 2 * rank]),
            "ceil_mode": self.ceil_mode,
            "count_include_pad": self.count_include_pad,
        }

    def x(self, seed: int = 0) -> np.ndarray:
        """Its input, in ONNX's order."""
        return np.random.default_rng([seed, *self.x_shape]).standard_normal(self.x_shape).astype(np.float32)

    def model(self, shape: Sequence[int | str] | None = None, **more: Any) -> onnx.ModelProto:
        """The node from x0 to y0; ``shape`` is x0's, which else is dynamic, and ``more`` other attributes, None for
        none."""
        known = {"operator": self.operator, **self.attributes(), **more}
        node = helper.make_node("FusedNhwcPool", ["x0"], ["y0"], domain="onnxfuse", name=NODE_NAME)
        node.attribute.extend(helper.make_attribute(name, value) for name, value in known.items() if value is not None)
        dynamic = [f"d{axis}" for axis in range(len(self.x_shape))]
        return make_model([node], {"x0": ("f32", shape or dynamic)}, {"y0": ("f32", None)})

    def expected(self, x: np.ndarray) -> np.ndarray:
        """What ONNX Runtime makes of the input in ONNX's order, with the channels last."""
        attributes = self.attributes()
        if self.operator == "MaxPool":
            del attributes["count_include_pad"]
        (found,) = run_nodes([helper.make_node(self.operator, ["x0"], ["y0"], **attributes)], [x], ["f32"])
        return last(found)


def last(array: np.ndarray) -> np.ndarray:
    """[N, C, spatial…] as [N, spatial…, C]."""
    return np.ascontiguousarray(np.moveaxis(array, 1, -1))


def results(pool: Pool, x: np.ndarray, threads: int = 1) -> np.ndarray:
    """What the node makes of the input in ONNX's order."""
    return run(new_session(pool.model(), session_options(threads)), [last(x)])[0]


def check(pool: Pool, threads: Sequence[int] = (1, 2)) -> None:
    """The greatest elements to the bit and means up to rounding; the same bits whatever the threads."""
    x = pool.x()
    found = [results(pool, x, count) for count in threads]
    wanted = pool.expected(x)
    if pool.operator == "MaxPool":
        np.testing.assert_array_equal(found[0], wanted, strict=True)
    else:
        np.testing.assert_allclose(found[0], wanted, rtol=2e-6, atol=2e-6, strict=True)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


OPERATORS = ("MaxPool", "AveragePool")


@pytest.mark.parametrize("ceil_mode", CEIL_MODES)
@pytest.mark.parametrize("pads", ((0, 0, 0, 0), (1, 1, 1, 1), (0, 1, 1, 0), (1, 0, 0, 1)))
@pytest.mark.parametrize("operator", OPERATORS)
def test_windows(operator: str, pads: tuple[int, ...], ceil_mode: int) -> None:
    kernels = ((2, 2), (3, 3), (2, 3), (5, 2))
    for kernel, strides, count in itertools.product(kernels, ((1, 1), (2, 2), (3, 1)), (0, 1)):
        if operator == "AveragePool" or count == 0:
            check(Pool(operator, (2, 17, 9, 8), kernel, strides, pads, (1, 1), ceil_mode, count), (1,))


@pytest.mark.parametrize("ceil_mode", CEIL_MODES)
@pytest.mark.parametrize("operator", OPERATORS)
def test_one_dimension(operator: str, ceil_mode: int) -> None:
    for kernel, stride, pads in itertools.product((1, 2, 3, 7), (1, 2, 3), ((0, 0), (1, 0), (0, 1), (1, 1))):
        if max(pads) < kernel:
            check(Pool(operator, (2, 19, 23), (kernel,), (stride,), pads, (1,), ceil_mode, 1), (1,))


@pytest.mark.parametrize("channels", (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65))
@pytest.mark.parametrize("operator", OPERATORS)
def test_channels_that_end_anywhere_in_a_vector(operator: str, channels: int) -> None:
    check(Pool(operator, (2, channels, 7, 11), (3, 2), (2, 1), (1, 0, 1, 1)), (1,))


@pytest.mark.parametrize("width", range(2, 12))
def test_rows_that_end_anywhere(width: int) -> None:
    """Pixels are computed four at once between those that some taps miss."""
    check(Pool("MaxPool", (1, 20, 3, width), (2, 2), (1, 1), (1, 1, 1, 1)), (1,))


@pytest.mark.parametrize("dilations", ((2, 1), (1, 3), (2, 2)))
@pytest.mark.parametrize("operator", OPERATORS)
def test_dilations(operator: str, dilations: tuple[int, ...]) -> None:
    check(Pool(operator, (1, 18, 12, 13), (3, 3), (2, 1), (0, 0, 0, 0), dilations), (1,))
    check(Pool(operator, (1, 18, 12, 13), (3, 3), (1, 2), (2, 2, 2, 2), dilations), (1,))


SHAPES = {
    "one pixel": Pool("MaxPool", (1, 40, 1, 1), (1, 1)),
    "a window larger than the image": Pool("MaxPool", (2, 21, 2, 2), (3, 3), (2, 2), (1, 1, 1, 1)),
    "the whole image": Pool("AveragePool", (3, 50, 7, 7), (7, 7), (7, 7)),
    "strides beyond the window": Pool("AveragePool", (1, 17, 20, 20), (2, 2), (5, 5)),
    "threads": Pool("MaxPool", (2, 70, 64, 65), (3, 3), (2, 2), (1, 1, 1, 1)),
    "threads and means": Pool("AveragePool", (3, 33, 63, 64), (3, 3), (1, 1), (1, 1, 1, 1), count_include_pad=1),
    "threads in one row": Pool("MaxPool", (1, 31, 1, 9000), (1, 3), (1, 2)),
    "threads in one dimension": Pool("MaxPool", (2, 9, 40000), (3,), (2,)),
    "few channels": Pool("MaxPool", (1, 3, 200, 210), (2, 2), (2, 2)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape: str) -> None:
    check(SHAPES[shape])


@pytest.mark.parametrize("seed", range(10))
def test_random_windows(seed: int) -> None:
    """ONNX Runtime and ONNX agree on the output's size; windows that begin in the padding at the end are left out."""
    choose = random.Random(seed)
    for _ in range(15):
        rank = choose.choice((1, 2))
        kernel = [choose.choice((1, 2, 3, 4, 6)) for _ in range(rank)]
        dilations = [choose.choice((1, 1, 1, 2)) for _ in range(rank)]
        extents = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
        pads = [choose.randrange(size) for size in kernel * 2]
        sizes = [extent + choose.randrange(12) for extent in extents]
        pool = Pool(
            choose.choice(OPERATORS),
            (choose.choice((1, 2)), choose.choice((1, 6, 16, 21, 40)), *sizes),
            tuple(kernel),
            tuple(choose.choice((1, 2, 3, 5)) for _ in range(rank)),
            tuple(pads),
            tuple(dilations),
            choose.choice(CEIL_MODES),
            choose.choice((0, 1)),
        )
        check(pool, (1,))


@pytest.mark.parametrize("shape", ((0, 5, 4, 4), (0, 20, 4, 4)))
@pytest.mark.parametrize("operator", OPERATORS)
def test_no_image(operator: str, shape: tuple[int, ...]) -> None:
    check(Pool(operator, shape, (2, 2), (2, 2)))


def test_no_channels() -> None:
    found = results(Pool("MaxPool", (2, 0, 4, 4), (2, 2), (2, 2)), np.zeros((2, 0, 4, 4), np.float32))
    assert found.shape == (2, 2, 2, 0)


@pytest.mark.parametrize("channels", (5, 16, 40))
@pytest.mark.parametrize("value", (np.inf, -np.inf))
def test_infinities(channels: int, value: float) -> None:
    """Of nothing but -inf the greatest element is that; ONNX Runtime has the lowest number in some of its kernels."""
    for operator in OPERATORS:
        pool = Pool(operator, (1, channels, 6, 7), (2, 3), (2, 2), (1, 1, 0, 1))
        x = pool.x()
        x[0, :, 3, 4] = value
        np.testing.assert_allclose(results(pool, x), pool.expected(x), rtol=2e-6, atol=2e-6)
        x[:] = value
        assert (results(pool, x) == value).all()


@pytest.mark.parametrize("place", range(9))
def test_windows_with_nan(place: int) -> None:
    """They are NaN wherever it is, and no others; in ONNX Runtime's MaxPool that depends on the place."""
    for operator, channels in itertools.product(OPERATORS, (3, 21)):
        pool = Pool(operator, (1, channels, 3, 6), (3, 3), (1, 3))
        x = pool.x()
        wanted = pool.expected(x)
        x[:, :, place // 3, place % 3] = np.nan
        found = results(pool, x)
        assert np.isnan(found[0, 0, 0]).all()
        np.testing.assert_allclose(found[0, 0, 1], wanted[0, 0, 1], rtol=2e-6, atol=2e-6)


def test_one_session_takes_any_shapes_and_threads() -> None:
    pools = [
        Pool("MaxPool", (batch, 24, *size), (3, 3), (2, 2), (1, 1, 1, 1))
        for batch in (1, 2, 5)
        for size in ((3, 5), (16, 16), (100, 90))
    ]
    session = new_session(pools[0].model(), session_options())
    cases = [[last(pool.x())] for pool in pools]
    wanted = [pool.expected(pool.x()) for pool in pools]
    check_in_threads(session, cases, wanted, 0.0)


GOOD = Pool("MaxPool", (1, 6, 5, 5), (2, 2))
LARGE = 1 << 40


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"operator": None}, "operator is not MaxPool or AveragePool"),
        ({"operator": "LpPool"}, "operator is not MaxPool or AveragePool"),
        ({"kernel_shape": None}, "it has no attribute kernel_shape"),
        ({"kernel_shape": [2, 0]}, "an element of the attribute kernel_shape is not from 1 to 32767"),
        ({"kernel_shape": [2, LARGE]}, "an element of the attribute kernel_shape is not from 1 to 32767"),
        ({"kernel_shape": [2]}, "the attribute strides has 2 elements, not 1"),
        ({"kernel_shape": [2] * 4}, "the attribute kernel_shape has not 1 to 3 elements"),
        (
            {"kernel_shape": [2] * 3, "strides": [1] * 3, "dilations": [1] * 3, "pads": [0] * 6},
            "the attribute kernel_shape has more than 2 elements",
        ),
        ({"strides": [1, 0]}, "an element of the attribute strides is not from 1"),
        ({"strides": [-1, 1]}, "an element of the attribute strides is not from 1"),
        ({"dilations": [0, 1]}, "an element of the attribute dilations is not from 1"),
        ({"dilations": None}, "it has no attribute dilations"),
        ({"pads": None}, "it has no attribute pads"),
        ({"pads": [0, 0, 0]}, "the attribute pads has 3 elements, not 4"),
        ({"pads": [0, -1, 0, 0]}, "an element of the attribute pads is not from 0"),
        ({"pads": [0, 0, 0, 2]}, "an element of the attribute pads is not less than that of kernel_shape"),
        ({"ceil_mode": 2}, "the attribute ceil_mode is not 0 or 1"),
        ({"ceil_mode": None}, "the attribute ceil_mode is not 0 or 1"),
        ({"count_include_pad": -1}, "the attribute count_include_pad is not 0 or 1"),
        ({"count_include_pad": None}, "the attribute count_include_pad is not 0 or 1"),
    ],
)
def test_attributes_that_are_refused(more: dict[str, Any], reason: str) -> None:
    with pytest.raises(Exception, match=reason) as caught:
        new_session(GOOD.model(**more), session_options())
    assert NODE in str(caught.value) or "FusedNhwcPool" in str(caught.value)


def test_more_inputs_or_outputs_are_refused() -> None:
    model = GOOD.model()
    model.graph.node[0].input.append("x0")
    with pytest.raises(Exception, match="the node has 2 inputs, not 1"):
        new_session(model, session_options())


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ((1, 5, 6), "input 0 of shape \\[1,5,6\\] does not have 4 dimensions"),
        ((1, 5, 5, 5, 6), "does not have 4 dimensions"),
        ((1, 1, 5, 6), "has no elements along dimension 1"),
        ((1, 5, 0, 6), "has no elements along dimension 2"),
    ],
)
def test_shapes_that_are_refused(shape: Sizes, reason: str) -> None:
    model = GOOD.model()
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(Exception, match=reason) as caught:
        run(new_session(model, session_options()), [np.zeros(shape, np.float32)])
    assert NODE in str(caught.value)


def test_types_that_are_refused() -> None:
    model = GOOD.model()
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    with pytest.raises(Exception, match=r"Type 'tensor\(double\)'") as caught:
        run(new_session(model, session_options()), [np.zeros((1, 5, 5, 6))])
    assert NODE_NAME in str(caught.value)


def test_the_shape_of_the_output_is_known_before_it_runs() -> None:
    def shape(pool: Pool, *x_shape: int | str) -> list[int | str]:
        return list(new_session(pool.model(x_shape), session_options()).get_outputs()[0].shape)

    halves = Pool("MaxPool", (1, 6, 8, 8), (3, 3), (2, 2), (1, 1, 1, 1))
    assert shape(halves, 2, 9, 12, 6) == [2, 5, 6, 6]
    assert shape(halves, "n", 9, "w", 6)[:2] == ["n", 5] and shape(halves, "n", 9, "w", 6)[3] == 6
    assert shape(halves, "n", 9, "w", 6)[2] != "w"
    assert shape(Pool("MaxPool", (1, 6, 8, 8), (3, 3), (1, 1), (1, 1, 1, 1)), "n", "h", "w", 6) == ["n", "h", "w", 6]
    rounded = Pool("MaxPool", (1, 6, 8, 8), (2, 2), (3, 3), (1, 1, 1, 1), ceil_mode=1)
    assert shape(rounded, 1, 6, 8, 6) == [1, *results(rounded, np.zeros((1, 6, 6, 8), np.float32)).shape[1:]]
    assert shape(Pool("AveragePool", (1, 6, 8), (2,), (2,)), "n", 8, 5) == ["n", 4, 5]
