"""Which provider runs fused convolutions, and that they run as their function body where they are not known."""

import os
import subprocess
import sys
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from onnxfuse.program import ProgramBuilder
from onnxfuse.run.runtime import CUDA_PROVIDER, OPERATORS
from tests.cuda.conv.convolutions import Fused, convolution
from tests.cuda.conv.nodes import any_kernel, arrays_of, conv_kernel, expected, stub_model
from tests.cuda.stand_in import AVAILABLE, REASON, StandIn
from tests.custom_ops.fused import assert_same_bits, library, run

pytestmark = pytest.mark.skipif(not AVAILABLE, reason=REASON)


def relu() -> Fused:
    b = ProgramBuilder()
    conv = convolution("f32", (4, 6), (3, 3), pads=(1, 1, 1, 1))
    return Fused(conv, (1, 4, 8, 8), b.build([b.emit("relu", "f32", b.input("f32"))]))


FUSED = relu()


def model_with_function() -> onnx.ModelProto:
    """A node with kernels that compute nothing, and a function for where they are not known."""
    model = stub_model(FUSED, [conv_kernel("k", "any", ";"), any_kernel(";")])
    body = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=FUSED.conv.pads),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    opsets = [helper.make_opsetid("", 20)]
    names = [attribute.name for attribute in model.graph.node[0].attribute]
    function = helper.make_function("onnxfuse", "FusedConv", ["x", "w"], ["y"], body, opsets, attributes=names)
    model.functions.append(function)
    return model


def check(session: ort.InferenceSession) -> None:
    arrays = arrays_of(FUSED)
    assert_same_bits(run(session, arrays)[0], expected(FUSED, arrays)[0])


SCRIPT = """
import sys, onnxruntime as ort
from tests.cuda.launch.test_conv_registration import check
options = ort.SessionOptions()
options.register_custom_ops_library(sys.argv[1])
options.optimized_model_filepath = sys.argv[3]
check(ort.InferenceSession(sys.argv[2], options, providers=["CPUExecutionProvider"]))
"""


@pytest.mark.parametrize("driver", [True, False])
def test_without_a_driver_or_a_provider_the_cpu_computes_it(driver: bool, tmp_path: Path) -> None:
    if driver and CUDA_PROVIDER in ort.get_available_providers():
        pytest.skip("ONNX Runtime has the CUDA provider")
    path, optimized = tmp_path / "model.onnx", tmp_path / "optimized.onnx"
    onnx.save(model_with_function(), path)
    stand_in = StandIn(tmp_path / "driver")
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "ONNXFUSE_TEST_LIBRARY": library(),
        "ONNXFUSE_LIBCUDA": str(stand_in.driver_path) if driver else "/nowhere/libcuda.so.1",
    }
    subprocess.run([sys.executable, "-c", SCRIPT, library(), str(path), str(optimized)], env=environment, check=True)
    assert "onnxfuse" in {node.domain for node in onnx.load(optimized).graph.node}


def test_where_there_are_both_the_kernels_run(tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path)
    session = stand_in.session(model_with_function())
    stand_in.launches()
    run(session, arrays_of(FUSED))
    assert len(stand_in.launches()) == 1


def test_only_the_operators_that_a_session_names(tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path)
    named = stand_in.session(model_with_function(), entries={OPERATORS: "FusedElementwise,FusedConv"})
    stand_in.launches()
    run(named, arrays_of(FUSED))
    assert len(stand_in.launches()) == 1
    for others in ("FusedElementwise", "FusedConv_2,FusedElementwise_2", "FusedCon", ""):
        check(stand_in.session(model_with_function(), entries={OPERATORS: others}))
    assert not stand_in.launches()


def test_a_session_without_the_cuda_provider_uses_no_gpu(tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path)
    stand_in.keep_providers()
    session = stand_in.session(model_with_function())
    stand_in.calls()
    for _ in range(3):
        check(session)
    assert not stand_in.calls()
