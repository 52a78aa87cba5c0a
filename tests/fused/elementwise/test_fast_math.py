"""``fast_math``: what fused nodes may round otherwise, and that without it they do not."""

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.cli import cli
from tests.custom_ops.fused import rounds_once
from tests.fused.conv.test_cpu_convolutions import array, model
from tests.support import fusing

AFFINE = "g (float[n, 900] x, float[n, 900] s) => (float[n, 900] y) { a = Mul(x, s) b = Add(a, c) y = Relu(b) }"
TAIL = "a = Mul(b, s) y = Add(a, t)"
CONVOLUTION = "g (float[2, 32, h, w] x, float[2, 32, h, w] s, float[2, 32, h, w] t) => (float[2, 32, h, w] y)"


def affine() -> onnx.ModelProto:
    return model(AFFINE, c=np.array(0.3, np.float32))


def test_elementwise_nodes_round_once() -> None:
    made, feeds = affine(), {"x": array(3, 900), "s": array(3, 900)}
    exact, fast = (onnxfuse.optimize(made, "cpu", fast_math=wanted) for wanted in (False, True))
    for result in (exact, fast):
        assert result.report.parity is not None and result.report.parity.ok
        assert [node.op_type for node in result.model.graph.node] == ["FusedElementwise"]
    (unfused,), (same,) = fusing.run(made, feeds, library=False), fusing.run(exact.model, feeds, library=True)
    (other,) = fusing.run(fast.model, feeds, library=True)
    assert np.array_equal(unfused, same)
    np.testing.assert_allclose(other, unfused, rtol=1e-4, atol=1e-6)
    assert np.array_equal(other, unfused) != rounds_once()
    fusing.assert_same_everywhere(exact.model, made, feeds)
    assert np.array_equal(fusing.run(fast.model, feeds, library=False)[0], unfused)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("kernel", [1, 3])
def test_tails_of_convolutions(kernel: int, static: bool) -> None:
    """With operands that are tensors: they lie where the results do, in every layout."""
    conv = f"b = Conv <kernel_shape = [{kernel}, {kernel}], pads = [{', '.join([str(kernel // 2)] * 4)}]> (x, k)"
    made = model(f"{CONVOLUTION} {{ {conv} {TAIL} }}", k=array(32, 32, kernel, kernel))
    feeds = {name: array(2, 32, 19, 13) for name in "xst"}
    shapes = {name: values.shape for name, values in feeds.items()}
    results = []
    for fast in (True, False):
        result = onnxfuse.optimize(made, "cpu", fast_math=fast, conv="all", shapes=shapes, static=static)
        assert any(node.op_type.startswith(("FusedConv", "FusedNhwcConv")) for node in result.model.graph.node)
        results += fusing.run(result.model, feeds, library=True)
    for actual in results:
        np.testing.assert_allclose(actual, fusing.run(made, feeds, library=False)[0], rtol=1e-3, atol=1e-3)
    assert np.array_equal(*results) != rounds_once()


def test_the_command(tmp_path: Path) -> None:
    onnx.save(affine(), tmp_path / "in.onnx")
    assert cli.main(["optimize", str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx"), "--fast-math"]) == 0
    (node,) = onnx.load(tmp_path / "out.onnx").graph.node
    (program,) = (a.s for a in node.attribute if a.name == "program")
    assert program.startswith(b"onnxfuse 1\ncontract\n")
