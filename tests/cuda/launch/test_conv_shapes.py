"""What ONNX Runtime is told of a fused convolution's outputs, against what its own operators say."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper

from onnxfuse.cuda.conv.spec import Convolution
from onnxfuse.program import ProgramBuilder
from tests.cuda.conv.convolutions import Fused, convolution, raw
from tests.cuda.conv.nodes import conv_model
from tests.cuda.conv.test_emulation import random_conv, random_spatial
from tests.cuda.stand_in import AVAILABLE, REASON, StandIn
from tests.custom_ops.fused import make_model, new_session, run, session_options

pytestmark = pytest.mark.skipif(not AVAILABLE, reason=REASON)

Dims = Sequence[int | str]


def inferred(stand_in: StandIn, fused: Fused, x: Dims | None, weights: Dims | None = None) -> list[int | str]:
    """The shape of output 0 in a session whose node has an X of this shape."""
    model = conv_model(fused, [x, weights or fused.conv.weight_shape])
    shape: list[int | str] = stand_in.session(model, severity=4).get_outputs()[0].shape
    return shape


def of_onnxruntime(conv: Convolution, x: Dims) -> list[int | str | None]:
    own = {"strides": conv.strides, "dilations": conv.dilations, "group": conv.group, "auto_pad": conv.auto_pad}
    own |= {} if conv.pads is None else {"pads": conv.pads}
    own |= {"output_padding": conv.output_padding} if conv.transposed else {}
    node = helper.make_node("ConvTranspose" if conv.transposed else "Conv", ["x", "w"], ["y"], **own)
    model = make_model([node], {"x": (conv.dtype, x), "w": (conv.dtype, conv.weight_shape)}, {"y": (conv.dtype, None)})
    options = session_options(1, ops=False)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    shape: list[int | str | None] = new_session(model, options).get_outputs()[0].shape
    return shape


@pytest.mark.parametrize("seed", range(40))
def test_known_shapes(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    conv = random_conv(rng, "f32", 1 + seed % 3)
    x = (rng.choice((0, 1, 3)), conv.in_channels, *random_spatial(rng, conv))
    shape = inferred(StandIn(tmp_path), Fused(conv, x, raw("f32")), x)
    assert shape == list(conv.output_shape(x))
    # Where SAME has nothing to take away, ONNX's inference and ONNX Runtime's kernel differ, and the kernel decides.
    if not (conv.transposed and conv.auto_pad.startswith("SAME")):
        assert shape == of_onnxruntime(conv, x)


def test_unknown_sizes(tmp_path: Path) -> None:
    """The batch keeps its name, so does what a convolution does not change; other sizes are new."""
    stand_in = StandIn(tmp_path)
    same = Fused(convolution("f32", (4, 6), (3, 1), pads=(1, 0, 1, 0)), (1, 4, 8, 8), raw("f32"))
    assert inferred(stand_in, same, ["n", 4, "h", "w"]) == ["n", 6, "h", "w"]
    assert inferred(stand_in, same, ["n", "c", "h", 7], ["m", "c", "k", "l"]) == ["n", 6, "h", 7]
    smaller = Fused(convolution("f32", (4, 6), (3, 3), strides=(2, 1)), (1, 4, 8, 8), raw("f32"))
    *known, height, width = inferred(stand_in, smaller, ["n", 4, "h", "w"])
    assert known == ["n", 6]
    assert len({str(height), str(width), "h", "w"}) == 4
    automatic = Fused(convolution("f32", (4, 6), (5, 5), strides=(1, 2), pads="SAME_LOWER"), (1, 4, 8, 8), raw("f32"))
    assert inferred(stand_in, automatic, ["n", 4, "h", 9]) == ["n", 6, "h", 5]
    transposed = Fused(convolution("f32", (4, 6), (3,), pads=(1, 1), transposed=True), (1, 4, 8), raw("f32"))
    assert inferred(stand_in, transposed, ["n", 4, "w"]) == ["n", 6, "w"]


def test_an_unknown_rank(tmp_path: Path) -> None:
    fused = Fused(convolution("f32", (4, 6), (3, 3)), (1, 4, 8, 8), raw("f32"))
    shape = inferred(StandIn(tmp_path), fused, None)
    assert shape[1] == 6
    assert len(shape) == 4


def test_types_are_the_programs(tmp_path: Path) -> None:
    b = ProgramBuilder()
    x = b.input("f16")
    program = b.build([b.cast(x, "u8"), x, b.emit("less", "f16", x, b.const("f16", 1))])
    fused = Fused(convolution("f16", (4, 6), (1,)), (1, 4, 8), program)
    outputs = StandIn(tmp_path).session(conv_model(fused), severity=4).get_outputs()
    assert [output.type for output in outputs] == ["tensor(uint8)", "tensor(float16)", "tensor(bool)"]
    assert [output.shape[:2] for output in outputs] == [["d0_0", 6]] * 3


def test_an_input_that_cannot_fit_is_refused_when_it_runs(tmp_path: Path) -> None:
    fused = Fused(convolution("f32", (4, 6), (3, 3)), (1, 4, 8, 8), raw("f32"))
    stand_in = StandIn(tmp_path)
    for shape in ([1, 4, 8], [1, 3, 8, 8]):
        assert inferred(stand_in, fused, shape)[1] == 6
        session = stand_in.session(conv_model(fused, [shape, fused.conv.weight_shape]), severity=4)
        arrays = [np.ones(shape, np.float32), np.ones(fused.conv.weight_shape, np.float32)]
        with pytest.raises(Exception, match=r"is not for weights \[6,4,3,3\]"):
            run(session, arrays)


def test_a_window_beyond_the_input_is_refused_when_it_runs(tmp_path: Path) -> None:
    """As ONNX Runtime's own operators do: the session is created."""
    fused = Fused(convolution("f32", (4, 6), (3, 3)), (1, 4, 8, 8), raw("f32"))
    shape = inferred(StandIn(tmp_path), fused, [1, 4, 2, 5])
    assert shape[:2] == [1, 6]
    assert shape[3] == 3
