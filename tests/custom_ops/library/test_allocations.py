"""A run of a node for shapes that it has had before allocates nothing but scratch memory, which is not operator new's.

The node runs in a process of its own, where operator new counts who calls it. A thread keeps lists of its own, which it
allocates in the first part that it runs; on a busy machine that can be long after the first run.
"""

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import pytest

from onnxfuse.cuda.conv.spec import Convolution
from tests.cuda import stand_in
from tests.cuda.conv.convolutions import Fused, convolution, head, tail
from tests.cuda.conv.nodes import arrays_of, conv_model
from tests.custom_ops.fused import library, new_session, run, run_code, session_options
from tests.custom_ops.library.test_stress import chain_of_nodes, inputs_of
from tests.custom_ops.nodes import test_nhwc_concat, test_reductions
from tests.custom_ops.nodes.nhwc_nodes import PAIRS, Nhwc, pair
from tests.custom_ops.nodes.test_attention import Attention
from tests.custom_ops.nodes.test_fused_conv import of_several_shapes
from tests.custom_ops.nodes.test_nhwc_parts import product
from tests.custom_ops.nodes.test_nhwc_pool import SHAPES, last
from tests.custom_ops.nodes.test_squeeze_excite import Gate, gate_model

pytestmark = pytest.mark.skipif(not stand_in.AVAILABLE, reason="there is no C++ compiler, or no Linux")

Case = tuple[onnx.ModelProto, list[np.ndarray]]


def fused_conv(conv: Convolution, *spatial: int, prologue: str = "") -> Case:
    x_shape = (2, conv.in_channels, *spatial)
    epilogue = tail("f32", "bias, hard swish, residual", conv.output_shape(x_shape))
    return case_of(Fused(conv, x_shape, *epilogue, *head("f32", prologue, x_shape)))


def case_of(fused: Fused) -> Case:
    return conv_model(fused), arrays_of(fused, 0)


def nhwc(node: Nhwc) -> Case:
    return node.model(), node.inputs(node.arrays())[0]


def nhwc_conv(conv: Convolution, *spatial: int) -> Case:
    x_shape = (2, conv.in_channels, *spatial)
    return nhwc(Nhwc(Fused(conv, x_shape, *tail("f32", "bias, hard swish, residual", conv.output_shape(x_shape)))))


def attention() -> Case:
    node = Attention(2, 3, 50, 16)
    return node.model(), node.laid_out(node.inputs())


def reduction(name: str, shape: Sequence[int], axes: str) -> Case:
    arrays = [test_reductions.normal(shape)]
    return test_reductions.node_model(test_reductions.PROGRAMS[name].format(axes=axes), [shape]), arrays


def pool() -> Case:
    node = SHAPES["threads"]
    return node.model(), [last(node.x())]


def concat() -> Case:
    return test_nhwc_concat.node(2), test_nhwc_concat.arrays((2, 60, 60), (24, 5))


def gate() -> Case:
    node = Gate((2, 40, 9, 9), 8, 40)
    return gate_model(node), node.arrays()


CASES: dict[str, Callable[[], Case]] = {
    "elementwise, in place": lambda: (chain_of_nodes(), inputs_of(1, 1)),
    "convolution": lambda: fused_conv(convolution("f32", (16, 24), (3, 3), pads=(1,) * 4), 20, 20),
    "product with a prologue": lambda: fused_conv(convolution("f32", (16, 24), (1, 1)), 20, 20, prologue="gate"),
    "prologue by itself": lambda: fused_conv(convolution("f32", (16, 24), (3, 3)), 20, 20, prologue="affine"),
    "transposed": lambda: fused_conv(convolution("f32", (16, 9), (2, 2), strides=(2, 2), transposed=True), 9, 9),
    "rows": lambda: fused_conv(convolution("f32", (9, 9), (3, 3), group=9, pads=(1,) * 4), 31, 70),
    "lanes": lambda: fused_conv(convolution("f32", (35, 35), (5, 5), group=35, strides=(2, 2)), 14, 17),
    "epilogue by itself": lambda: case_of(of_several_shapes("dense")),
    "channels last": lambda: nhwc_conv(convolution("f32", (16, 24), (3, 3), pads=(1,) * 4), 20, 20),
    "single channels last": lambda: nhwc_conv(convolution("f32", (24, 24), (3, 3), group=24), 20, 20),
    "pair": lambda: nhwc(pair(*PAIRS["plain"])),
    "parts": lambda: nhwc(product((20, 13), 2, 40, 40, prologue="affine")),
    "pooling": pool,
    "concat": concat,
    "gate": gate,
    "attention": attention,
    "reduction": lambda: reduction("softmax", (300, 64), "-1"),
    "reduction of long rows": lambda: reduction("softmax", (30, 9000), "-1"),
    "reduction of a row that threads share": lambda: reduction("moments", (1, 300000), "-1"),
    "reduction of columns": lambda: reduction("deviation", (50, 3000), "-2"),
    "reduction phase by phase": lambda: reduction("softmax", (3, 4, 5, 6, 7), "-5,-3,-1"),
    "reduction alone": lambda: reduction("mean of silu", (300, 640), "-1"),
}
RUNS = 20
ROUNDS = 50  # of RUNS runs: in one of them at least, each thread has had its first part


def count(name: str) -> None:
    """Print whether the library's code allocates in the first run of a case, and how often at least in RUNS later."""
    import ctypes

    model, arrays = CASES[name]()
    session = new_session(model, session_options())
    counter = ctypes.CDLL(None)
    assert counter.watch_object(library().encode())

    def allocations(runs: int) -> int:
        before = counter.allocations()
        for _ in range(runs):
            run(session, arrays)
        return int(counter.allocations() - before)

    first = allocations(1)
    print(first > 0, min(allocations(RUNS) for _ in range(ROUNDS)))


@pytest.mark.parametrize("name", CASES)
def test_no_run_allocates_but_the_first(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", str(stand_in.built("count_allocations")))
    done = run_code(f"from tests.custom_ops.library.test_allocations import count; count({name!r})", timeout=600)
    assert done.stdout.split() == ["True", "0"], done.stdout + done.stderr
