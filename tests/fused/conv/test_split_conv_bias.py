"""The bias of a convolution as an addition, on CUDA: where it is fused with what follows, and where it stays."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

import onnxfuse
from tests.passes.models import apply, assert_close, model, node, ops, random

PASS = "split-conv-bias"


def convolution(*after, op="Conv", rank=2, opset=17, dtype=np.float32, **attributes):
    """y of a convolution of x, 4 to 6 channels, and what comes after it."""
    shape = (4, 6, *[3] * rank) if op == "ConvTranspose" else (6, 4, *[3] * rank)
    constants = {"w": random(*shape, seed=1, dtype=dtype), "b": random(6, seed=2, dtype=dtype)}
    nodes = [node(op, "x w b", "c", **attributes), *after]
    sizes = ["h", "w", "d"][:rank]
    return model(nodes, {"x": ["n", 4, *sizes]}, constants=constants, opset=opset, dtype=dtype)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_bias_before_an_activation(op, rank):
    proto = convolution(node("Relu", "c", "y"), op=op, rank=rank)
    after, _ = apply(proto, PASS, target="cuda")
    assert ops(after) == [op, "Add", "Relu"]
    assert_close(proto, after, {"x": random(2, 4, *[5] * rank)}, 16)


def test_the_target_cpu_keeps_it():
    proto = convolution(node("Relu", "c", "y"))
    assert ops(apply(proto, PASS)[0]) == ["Conv", "Relu"]


@pytest.mark.parametrize(
    "after",
    [
        [node("MaxPool", "c", "y", kernel_shape=[2, 2])],
        [node("Transpose", "c", "y", perm=[0, 2, 3, 1])],
    ],
    ids=["pool", "transpose"],
)
def test_what_cannot_be_fused_keeps_it(after):
    assert "Add" not in ops(apply(convolution(*after), PASS, target="cuda")[0])


def test_a_bias_that_is_computed_stays():
    proto = convolution(node("Relu", "c", "y"))
    extra = model([], {"b": [6]}, outputs=()).graph.input[0]
    del proto.graph.initializer[1]
    proto.graph.input.append(extra)
    assert ops(apply(proto, PASS, target="cuda")[0]) == ["Conv", "Relu"]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_bias_and_activation_become_one_node(dtype):
    proto = convolution(node("Relu", "c", "y"), dtype=dtype)
    result = onnxfuse.optimize(proto, "cuda", arch="sm_90", embed=False, check=False).model
    assert ops(result) == ["Conv", "FusedElementwise"] and len(result.graph.node[0].input) == 2


def _keeps_its_bias(*after, **more):
    proto = convolution(*after)
    proto.graph.initializer.append(numpy_helper.from_array(random(6, 6, 3, 3, seed=3), "v"))
    result, _ = apply(proto, PASS, target="cuda", **more)
    return ops(result).count("Add") == ops(proto).count("Add")


def test_a_result_that_a_convolution_reads_too_keeps_the_bias():
    """The addition could not join what comes behind that convolution."""
    again = node("Conv", "c v", "d", pads=[1, 1, 1, 1])
    assert _keeps_its_bias(again, node("Add", "c d", "e"), node("Relu", "e", "y"))


def test_a_result_that_two_regions_read_keeps_the_bias():
    """As in WaveNet: the addition would tie the sum at the end to the residual, and part it."""
    residual = [node("Relu", "c", "r"), node("Conv", "r v", "d", pads=[1, 1, 1, 1]), node("Tanh", "d", "t")]
    assert _keeps_its_bias(*residual, node("Add", "c t", "y"))


def test_one_region_may_read_the_result_twice():
    proto = convolution(node("Sigmoid", "c", "s"), node("Mul", "c s", "y"))
    after, _ = apply(proto, PASS, "fuse-elementwise", target="cuda")
    assert ops(after) == ["Conv", "FusedElementwise"]
    assert_close(proto, after, {"x": random(1, 4, 9, 9)}, 64)


def test_a_result_that_the_graph_returns_keeps_the_bias():
    proto = convolution(node("Relu", "c", "y"))
    proto.graph.output.append(model([], {"c": ["n", 6, "a", "b"]}, outputs=()).graph.input[0])
    assert "Add" not in ops(apply(proto, PASS, target="cuda")[0])
