"""What a convolution is, and what has no kernel."""

import pytest

from onnxfuse.program import ProgramError
from tests.cuda.conv.convolutions import convolution


def test_families() -> None:
    depthwise = convolution("f32", (8, 8), (3, 3), group=8)
    assert depthwise.depthwise
    assert not depthwise.pointwise
    assert depthwise.depth == 9
    assert convolution("f32", (8, 4), (1, 1)).pointwise
    assert convolution("f32", (8, 4), (1, 1), pads="SAME_LOWER").pointwise
    assert not convolution("f32", (8, 8), (1, 1), group=8).pointwise
    assert not convolution("f32", (8, 4), (1, 1), strides=(1, 2)).pointwise
    assert not convolution("f32", (8, 4), (1, 1), transposed=True).pointwise
    assert not convolution("f32", (8, 4), (1, 1), pads=(0, 0, 0, 1)).pointwise
    assert not convolution("f32", (8, 16), (3, 3), group=8).depthwise
    assert not convolution("f32", (8, 8), (3, 3), group=8, transposed=True).depthwise


def test_pads_are_known_unless_they_depend_on_sizes() -> None:
    assert convolution("f32", (1, 1), (3, 4), pads=(1, 2, 3, 0)).static_pads == (1, 2, 3, 0)
    assert convolution("f32", (1, 1), (3, 4), pads="SAME_UPPER").static_pads == (1, 1, 1, 2)
    assert convolution("f32", (1, 1), (3, 4), pads="SAME_LOWER").static_pads == (1, 2, 1, 1)
    assert convolution("f32", (1, 1), (3, 4), pads="VALID", strides=(2, 1)).static_pads == (0, 0, 0, 0)
    automatic = convolution("f32", (1, 1), (3,), pads="SAME_UPPER", strides=(2,))
    assert automatic.static_pads is None
    assert [automatic.resolved_pads((size,)) for size in (7, 8)] == [(1, 1), (0, 1)]


def test_shapes() -> None:
    conv = convolution("f32", (6, 4), (3, 3), group=2, strides=(2, 1), pads=(1, 0, 1, 0))
    assert conv.weight_shape == (4, 3, 3, 3)
    assert conv.output_shape((0, 6, 9, 8)) == (0, 4, 5, 6)
    assert conv.output_shape((2, 6, 9, 2)) == (2, 4, 5, 0)
    transposed = convolution("f32", (6, 4), (3,), group=2, strides=(2,), output_padding=(1,), transposed=True)
    assert transposed.weight_shape == (6, 2, 3)
    assert transposed.output_shape((1, 6, 5)) == (1, 4, 12)


@pytest.mark.parametrize("x_shape", [(1, 5, 8, 8), (1, 6, 8), (1, 6, 8, 8, 8), (-1, 6, 8, 8)])
def test_an_x_that_does_not_fit_is_refused(x_shape: tuple[int, ...]) -> None:
    with pytest.raises(ProgramError, match="X of shape"):
        convolution("f32", (6, 4), (3, 3)).output_shape(x_shape)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "f64"}, "type f64"),
        ({"kernel": ()}, "0 spatial"),
        ({"kernel": (1, 1, 1, 1)}, "4 spatial"),
        ({"kernel": (0, 1)}, "kernel size"),
        ({"strides": (1,)}, "2 spatial"),
        ({"strides": (1, 0)}, "stride"),
        ({"dilations": (1, 1 << 15)}, "dilation"),
        ({"pads": (0, 0, 0)}, "2 spatial"),
        ({"pads": (0, 0, 0, -1)}, "padding"),
        ({"pads": "SAME"}, "auto_pad"),
        ({"output_padding": (1, 0)}, "output_padding"),
        ({"channels": (6, 0)}, "no channels"),
        ({"channels": (6, 5), "group": 2}, "2 groups"),
        ({"channels": (1 << 16, 1 << 16)}, "weights"),
    ],
)
def test_what_has_no_kernel_is_refused(options: dict, message: str) -> None:
    own = {"dtype": "f32", "channels": (6, 4), "kernel": (3, 3), **options}
    with pytest.raises(ProgramError, match=message):
        convolution(own.pop("dtype"), own.pop("channels"), own.pop("kernel"), **own)
