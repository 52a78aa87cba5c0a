"""Guesses at shapes that a model leaves open."""

import numpy as np
import onnx
from onnx import numpy_helper, parser

import onnxfuse
from onnxfuse.fused.likely_shapes import LIKELY_SIZE, LikelyShapes
from onnxfuse.shapes.inference import infer


def shapes(
    text: str, given: dict[str, tuple[int, ...]] | None = None, **constants: np.ndarray
) -> dict[str, tuple[int, ...] | None]:
    made: onnx.ModelProto = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]>\n{text}')
    made.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    model = onnxfuse.Model.from_proto(made)
    infer(model)
    likely = LikelyShapes(model.graph, given)
    return {tensor.name: likely.of(tensor) for node in model.graph.nodes for tensor in node.outputs}


def test_open_sizes_follow_strides_scales_and_broadcasts() -> None:
    found = shapes(
        """g (float[n, 3, h, w] x) => (float[n, c, hh, ww] y) {
        a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (x, w1)
        b = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a)
        g1 = GlobalAveragePool(b) s = Sigmoid(g1) m = Mul(b, s)
        r = Resize <mode = "nearest"> (m, , scales) sum = Add(r, a)
        t = ConvTranspose <kernel_shape = [2, 2], strides = [2, 2]> (sum, w2)
        y = Concat <axis = 1> (x, t) }""",
        w1=np.zeros((8, 3, 3, 3), np.float32),
        w2=np.zeros((8, 5, 2, 2), np.float32),
        scales=np.array([1, 1, 2, 2], np.float32),
    )
    half, quarter = LIKELY_SIZE // 2, LIKELY_SIZE // 4
    assert found["a"] == found["r"] == found["sum"] == (1, 8, half, half)
    assert found["b"] == found["m"] == (1, 8, quarter, quarter)
    assert found["s"] == (1, 8, 1, 1)
    assert found["t"] == (1, 5, LIKELY_SIZE, LIKELY_SIZE)
    assert found["y"] == (1, 8, LIKELY_SIZE, LIKELY_SIZE)


def test_channels_that_come_last_are_no_width() -> None:
    found = shapes(
        """g (float[n, h, w, 3] x) => (float[ww, hh, 8, nn] z) {
        a = Transpose <perm = [0, 3, 1, 2]> (x) y = Conv <kernel_shape = [3, 3]> (a, w1) z = Transpose(y) }""",
        w1=np.zeros((8, 3, 3, 3), np.float32),
    )
    assert found["a"] == (1, 3, LIKELY_SIZE, LIKELY_SIZE)
    assert found["y"] == (1, 8, LIKELY_SIZE, LIKELY_SIZE)
    assert found["z"] == (LIKELY_SIZE, LIKELY_SIZE, 8, 1)


def test_known_sizes_are_kept() -> None:
    found = shapes(
        "g (float[2, 3, 7, w] x) => (float[2, 3, 7, w] y) { y = Relu(x) }",
    )
    assert found["y"] == (2, 3, 7, LIKELY_SIZE)


def test_given_shapes_of_inputs_are_no_guess() -> None:
    found = shapes(
        """g (float[n, 3, h, w] x) => (float[n, c, hh, ww] y) {
        a = Relu(x) y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a) }""",
        {"x": (2, 3, 640, 48), "a name of no input": (1,)},
    )
    assert found["a"] == (2, 3, 640, 48)
    assert found["y"] == (2, 3, 320, 24)


def test_channels_that_are_shuffled_keep_the_image() -> None:
    """Computed shapes, of which inference tells no more than a rank and some sizes."""
    found = shapes(
        """g (float[n, 8, h, w] x) => (float[n, a, b, c] y, float[d, e] z) {
        p, q = Split <axis = 1, num_outputs = 2> (x)
        all = Shape(x) batch = Gather(all, i0) rows = Gather(all, i2) columns = Gather(all, i3)
        apart = Concat <axis = 0> (batch, two, four, rows, columns) r = Reshape(x, apart)
        t = Transpose <perm = [0, 2, 1, 3, 4]> (r)
        again = Concat <axis = 0> (batch, eight, rows, columns) s = Reshape(t, again)
        y = Add(s, x) z = Flatten(x) }""",
        {"x": (2, 8, 40, 30)},
        **{f"i{k}": np.array([k], np.int64) for k in (0, 2, 3)},
        **{name: np.array([k], np.int64) for name, k in {"two": 2, "four": 4, "eight": 8}.items()},
    )
    assert found["p"] == found["q"] == (2, 4, 40, 30)
    assert found["r"] == (2, 2, 4, 40, 30)
    assert found["s"] == found["y"] == (2, 8, 40, 30)
    assert found["z"] == (2, 8 * 40 * 30)


def test_what_is_guessed_for_a_symbol_holds_wherever_it_is() -> None:
    found = shapes(
        """g (float[1, 4, h, w] x, float[1, 4, h, w] other) => (float[1, 4, h, w] y, float[1, 4, h, w] z) {
        y = Relu(x) z = Relu(other) }""",
        {"x": (1, 4, 9, 11)},
    )
    assert found["y"] == found["z"] == (1, 4, 9, 11)
