"""Outputs that a user binds to the memory of an input, as for a state that is updated in place, or of another output.

ONNX Runtime's own nodes have finished reading when the last of them writes, and write one output after the other; a
fused node still reads then, and writes all outputs at once.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
import pytest

from onnxfuse.program import Program
from tests.cuda.conv.convolutions import Fused, convolution, raw, tail
from tests.cuda.conv.nodes import arrays_of, conv_model
from tests.custom_ops.fused import fused_model, new_session, run, sample, session_options
from tests.custom_ops.nodes import test_nhwc_concat
from tests.custom_ops.nodes.nhwc_nodes import with_tail
from tests.custom_ops.nodes.test_attention import Attention
from tests.custom_ops.nodes.test_fused_conv import of_several_shapes
from tests.custom_ops.nodes.test_nhwc_parts import product
from tests.custom_ops.nodes.test_nhwc_pool import Pool, last
from tests.custom_ops.nodes.test_normalizations import Normalization
from tests.custom_ops.nodes.test_squeeze_excite import Gate, gate_model

Arrays = Sequence[np.ndarray]
SHAPE = (1, 32, 40, 40)
CONV = convolution("f32", (32, 32), (3, 3), pads=(1, 1, 1, 1))


def plain_conv(kind: str) -> tuple[onnx.ModelProto, Arrays]:
    fused = Fused(CONV, SHAPE, *(tail("f32", kind, SHAPE) if kind else (raw("f32"), ())))
    return conv_model(fused), arrays_of(fused, 0)


def nhwc_conv(x_last: bool, y_last: bool) -> tuple[onnx.ModelProto, Arrays]:
    node = with_tail(CONV, SHAPE, "bias, hard swish, residual", (x_last, y_last))
    return node.model(), node.inputs(node.arrays())[0]


def attention() -> tuple[onnx.ModelProto, Arrays]:
    node = Attention(2, 2, 300, 32, mask=(300, 1))
    return node.model(), node.laid_out(node.inputs())


def normalization() -> tuple[onnx.ModelProto, Arrays]:
    node = Normalization((33, 513), before=True, keeps=True)
    return node.model(), node.arrays()


def pool() -> tuple[onnx.ModelProto, Arrays]:
    node = Pool("MaxPool", (1, 24, 20, 20), (3, 3), pads=(1, 1, 1, 1))
    return node.model(), [last(node.x())]


def parts() -> tuple[onnx.ModelProto, Arrays]:
    node = product((20, 13), 1, 20, 20, prologue="affine")
    return node.model(), node.inputs(node.arrays())[0]


def concat() -> tuple[onnx.ModelProto, Arrays]:
    return test_nhwc_concat.node(2), test_nhwc_concat.arrays((1, 20, 20), (24, 5))


def conv_of_several_shapes() -> tuple[onnx.ModelProto, Arrays]:
    fused = of_several_shapes("dense")
    fused = replace(fused, epilogue=Program.parse(f"{fused.epilogue}output 0\n"))
    return conv_model(fused), arrays_of(fused, 0)


def nhwc_results() -> tuple[onnx.ModelProto, Arrays]:
    node = with_tail(CONV, SHAPE, "masks", (True, True))
    return node.model(), node.inputs(node.arrays())[0]


def elementwise() -> tuple[onnx.ModelProto, Arrays]:
    program = "onnxfuse 1\ninput f32 broadcast\ninput f32 broadcast\n"
    program += "add f32 0 1\nmul f32 0 1\nexp f32 1\noutput 2\noutput 4\noutput 3\noutput 0\n"
    shapes = [(300, 400), (400,)]
    model = fused_model(program, [[None] * len(shape) for shape in shapes])
    return model, [sample("f32", int(np.prod(shape)), special=False).reshape(shape) for shape in shapes]


def gate() -> tuple[onnx.ModelProto, Arrays]:
    made = Gate((2, 48, 5, 7), 12, 48, ("bias, relu", "swish"))
    return gate_model(made), made.arrays()


NODES = {
    "conv": lambda: plain_conv(""),
    "conv and residual": lambda: plain_conv("bias, hard swish, residual"),
    "conv of several results": lambda: plain_conv("masks"),
    "channels last": lambda: nhwc_conv(True, True),
    "channels last, then first": lambda: nhwc_conv(True, False),
    "channels first, then last": lambda: nhwc_conv(False, True),
    **{"attention": attention, "normalization": normalization, "pool": pool, "gate": gate},
    **{"parts": parts, "concat": concat, "elementwise": elementwise},
    "conv, then elementwise": conv_of_several_shapes,
    "channels last, of several results": nhwc_results,
}
SEVERAL_RESULTS = (
    *("conv of several results", "conv, then elementwise", "channels last, of several results"),
    *("normalization", "elementwise"),
)


@pytest.mark.parametrize("shift", (0, 64, -64))
@pytest.mark.parametrize("kind", NODES)
def test_an_output_in_an_inputs_memory(kind: str, shift: int) -> None:
    """Each output in the memory of each input, or ``shift`` bytes behind where that begins, as far as they fit."""
    model, made = NODES[kind]()
    arrays = [np.ascontiguousarray(array) for array in made]
    for threads in (1, 2):
        session = new_session(model, session_options(threads))
        wanted = run(session, arrays)
        for o, result in enumerate(wanted):
            for i, array in enumerate(arrays):
                binding = session.io_binding()
                memory = np.zeros(max(array.nbytes, result.nbytes) + 3 * 64, np.uint8)
                own = memory[64 : 64 + array.nbytes]
                own[:] = array.reshape(-1).view(np.uint8)
                for name, value in zip(session.get_inputs(), arrays, strict=True):
                    at = own.ctypes.data if value is array else value.ctypes.data
                    binding.bind_input(name.name, "cpu", 0, value.dtype.type, value.shape, at)
                at = own.ctypes.data + shift
                for place, name in enumerate(session.get_outputs()):
                    if place == o:
                        binding.bind_output(name.name, "cpu", 0, result.dtype.type, result.shape, at)
                    else:
                        binding.bind_output(name.name)
                session.run_with_iobinding(binding)
                found = memory[64 + shift : 64 + shift + result.nbytes].view(result.dtype).reshape(result.shape)
                np.testing.assert_array_equal(found, result, err_msg=f"output {o} in input {i}")


@pytest.mark.parametrize("shift", (0, 64, -64))
@pytest.mark.parametrize("kind", SEVERAL_RESULTS)
def test_outputs_in_one_memory(kind: str, shift: int) -> None:
    """Of what two outputs share the later one has all, and of the rest each its own; an input may be there too."""
    model, made = NODES[kind]()
    arrays = [np.ascontiguousarray(array) for array in made]
    for threads in (1, 2):
        session = new_session(model, session_options(threads))
        wanted = run(session, arrays)
        assert len(wanted) > 1
        begin = 64 if shift >= 0 else 64 * len(wanted)
        for shared in (None, *range(len(arrays))):
            memory = np.zeros(max(array.nbytes for array in (*arrays, *wanted)) + 64 * (len(wanted) + 1), np.uint8)
            binding = session.io_binding()
            for i, (name, value) in enumerate(zip(session.get_inputs(), arrays, strict=True)):
                own = value
                if i == shared:
                    own = memory[begin : begin + value.nbytes].view(value.dtype)
                    own[:] = value.reshape(-1)
                binding.bind_input(name.name, "cpu", 0, value.dtype.type, value.shape, own.ctypes.data)
            expected = memory.copy()
            for place, (name, result) in enumerate(zip(session.get_outputs(), wanted, strict=True)):
                at = begin + shift * place
                binding.bind_output(name.name, "cpu", 0, result.dtype.type, result.shape, memory.ctypes.data + at)
                expected[at : at + result.nbytes] = result.reshape(-1).view(np.uint8)
            session.run_with_iobinding(binding)
            np.testing.assert_array_equal(memory, expected, err_msg=f"input {shared} is there too")
