"""What values make a length, a count, a condition or the like for the node that reads them."""

import math

import numpy as np
import onnx

from onnxfuse.check.wants import FEW, Reader, Rule, Want, between, dim, exactly, up_to


def parts(call: Reader) -> Want | None:
    """Sizes of the parts of a Split: the declared ones, or equal ones."""
    axis, count = call.attribute("axis", 0), call.count()
    size = dim(call.shape(0), axis)
    if size is None:
        return None
    declared = [dim(call.declared(place), axis) for place in range(len(call.node.output))]
    if call.node.op_type == "Split" and None not in declared and len(declared) == count:
        return exactly(part or 0 for part in declared)
    if call.node.op_type == "SplitToSequence" and call.whole(1) == ():
        return between(1, max(1, size))
    if count < 1:
        return None
    parts = [size // count] * count
    parts[-1] += size - sum(parts)
    return exactly(parts)


def count_along(default: int) -> Rule:
    """A number of elements along the node's axis, such as the k of TopK."""

    def rule(call: Reader) -> Want | None:
        axis = call.attribute("axis", default)
        declared, size = dim(call.declared(), axis), dim(call.shape(0), axis)
        if declared is not None:
            return exactly(declared)
        return between(1, 1 if size is None else max(1, min(size, FEW)))

    return rule


def lengths_of_sequences(call: Reader) -> Want | None:
    """Of a recurrent network, whose layout puts the time first or second."""
    return up_to(dim(call.shape(0), 1 if call.attribute("layout", 0) else 0), 1)


def reversed_lengths(call: Reader) -> Want | None:
    """Of the sequences that ReverseSequence turns round."""
    return up_to(dim(call.shape(0), call.attribute("time_axis", 0)), 1)


def lengths_of_keys(call: Reader) -> Want | None:
    """How many of an Attention's keys count."""
    return up_to(dim(call.shape(1), -2), 1)


def written_at(call: Reader) -> Want | None:
    """Where TensorScatter writes its update into the cache."""
    axis = call.attribute("axis", -2)
    cache, update = dim(call.shape(0), axis), dim(call.shape(1), axis)
    return None if cache is None or update is None else up_to(cache - update)


def last_keys(call: Reader) -> Want | None:
    """Of GroupQueryAttention: the place of the last key of each sequence."""
    total = total_length(call)
    return None if total is None else exactly(total.low - 1)


def total_length(call: Reader) -> Want | None:
    """Of past and new keys together."""
    new, past = dim(call.shape(0), 1), dim(call.shape(3), 2) if call.has(3) else 0
    return None if new is None or past is None else exactly(new + past)


def range_start(_call: Reader) -> Want | None:
    """Near 0."""
    return between(0, 2)


def range_delta(_call: Reader) -> Want | None:
    """Counting up."""
    return exactly(1)


def range_limit(call: Reader) -> Want | None:
    """As far as the declared size, or what its numbers are looked up in, reaches."""
    start, delta = call.value(0), call.value(2)
    first = 0.0 if start is None else float(start.reshape(-1)[0])
    step = 1.0 if delta is None else float(delta.reshape(-1)[0])
    declared = dim(call.declared(), 0)
    if declared is not None:
        return exactly(first + declared * step)
    wanted = call.wanted(call.node.output[0])
    if wanted is not None and step > 0 and math.isfinite(most := float(wanted.high.min(initial=math.inf))):
        return between(min(first + 1, most + 1), min(first + 4 * FEW, most + 1))
    return between(*sorted((first + step, first + FEW * step)))


def trips(_call: Reader) -> Want | None:
    """A few rounds of a Loop."""
    return between(1, 4)


def length_or(default_low: int, default_high: int) -> Rule:
    """The first size that is declared of the result, or one of these."""

    def rule(call: Reader) -> Want | None:
        declared = dim(call.declared(), 0)
        return between(default_low, default_high) if declared is None else exactly(declared)

    return rule


def transformed_length(call: Reader) -> Want | None:
    """The length of a DFT, whose axis may be an input too."""
    axis = call.integers(2)
    place = axis[0] if axis else call.attribute("axis", 1)
    size = dim(call.declared(), place) if not call.attribute("onesided", 0) else None
    size = dim(call.shape(0), place) if size is None else size
    return None if size is None else exactly(size)


def frame_step(call: Reader) -> Want | None:
    """Less than the signal."""
    size = dim(call.shape(0), 1)
    return None if size is None else between(1, max(1, size // 4))


def frame_length(call: Reader) -> Want | None:
    """That of the window, or less than the signal."""
    size, window = dim(call.shape(0), 1), dim(call.shape(2), 0)
    if window is not None:
        return exactly(window)
    return None if size is None else exactly(max(1, size // 2))


def mel_bins(call: Reader) -> Want | None:
    """The declared number, or a small one."""
    declared = dim(call.declared(), 1)
    return between(2, FEW) if declared is None else exactly(declared)


def mel_length(call: Reader) -> Want | None:
    """Of the transform that gives the declared number of frequencies."""
    declared = dim(call.declared(), 0)
    return exactly(64 if declared is None else 2 * (declared - 1))


def always(low: float, high: float) -> Rule:
    """The same bounds wherever the operator is."""
    want = between(low, high)
    return lambda _call: want


def steps_between(call: Reader) -> Want | None:
    """Boxes and their scores: one box is kept at least, and all may be."""
    return up_to(dim(call.shape(0), 1), 1)


def boxes(call: Reader) -> Want | None:
    """Regions of an image, the first corner in its first half and the second in the other."""
    image = call.whole(0)
    if image is None or len(image) != 4 or dim(call.shape(call.place), -1) not in (4, 5):
        return None
    height, width = image[2:]
    low, high = [0, 0, width / 2, height / 2], [width / 2, height / 2, width, height]
    if call.node.op_type == "MaxRoiPool":
        low, high = [0, *low], [image[0] - 1, *high]
    return Want(np.array(low, np.float64), np.array(high, np.float64))


def shifted_bits(call: Reader) -> Want | None:
    """Fewer bits than there are."""
    proto = call.facts.graph.declared.get(call.node.input[0])
    size = 8 if proto is None else 8 * onnx.helper.tensor_dtype_to_np_dtype(proto.tensor_type.elem_type).itemsize
    return between(0, size - 1)


def condition(call: Reader) -> Want | None:
    """As the branch that is to be taken says."""
    return exactly(float(call.branch))


def divisor(call: Reader) -> Want | None:
    """No integer zero."""
    return between(1, 15) if call.facts.is_integer(call.node.input[1]) else None


def exponent(call: Reader) -> Want | None:
    """Small, or integers overflow."""
    return between(0, 3) if call.facts.is_integer(call.node.input[1]) else between(-3, 3)


def zero_point(call: Reader) -> Want | None:
    """0 where it is of a type of 8 bits that is no integer, of which no other is taken."""
    return None if call.facts.is_integer(call.node.input[call.place]) else exactly(0)
