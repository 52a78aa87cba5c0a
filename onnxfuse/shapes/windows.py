"""Windows that slide over a dimension: convolutions and pooling.

The formulas are those of ONNX's operators Conv, MaxPool and AveragePool.
"""


def extent(kernel: int, dilation: int) -> int:
    """What a window of ``kernel`` elements spans, of which neighbours are ``dilation`` apart."""
    return dilation * (kernel - 1) + 1


def covered(count: int, extent: int, stride: int) -> int:
    """What ``count`` windows of an ``extent`` cover, at least one: of ConvTranspose the size of the result."""
    return stride * (count - 1) + extent


def same_padding(size: int, extent: int, stride: int) -> int:
    """What SAME_UPPER and SAME_LOWER pad ``size`` elements with, so that there is a window for each stride of them.

    Negative where windows of which each skips elements leave the last ones out.
    """
    return covered(-(-size // stride), extent, stride) - size


def sides(padding: int, auto_pad: str) -> tuple[int, int]:
    """What of it is before and behind: SAME_UPPER has an odd one behind, SAME_LOWER before."""
    less, more = padding // 2, padding - padding // 2
    return (less, more) if auto_pad == "SAME_UPPER" else (more, less)


def count(size: int, extent: int, stride: int, pads: tuple[int, int] = (0, 0), *, rounds_up: bool = False) -> int:
    """How many windows of an ``extent`` there are over ``size`` elements and the padding before and behind them.

    With ``rounds_up`` the last may reach beyond the padding, but does not begin in that at the end.  Less than 1 where
    nothing remains of a window that is larger than what it slides over.
    """
    room = size + sum(pads) - extent
    if not rounds_up:
        return room // stride + 1
    found = -(-room // stride) + 1
    return found - 1 if (found - 1) * stride >= size + pads[0] else found
