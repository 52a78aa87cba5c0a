"""Convolutions on several devices, in several sessions and threads, and what a run asks of the driver."""

import gc
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest

from onnxfuse.cuda.conv.kernel import ConvSource
from onnxfuse.cuda.conv.tiling import Tiling
from tests.cuda.conv.convolutions import MULTIPROCESSORS, Fused, convolution, raw, tail
from tests.cuda.conv.nodes import (
    any_kernel,
    arrays_of,
    check_launches,
    conv_kernel,
    expected,
    rendered_model,
    rendered_object,
    stub_model,
)
from tests.cuda.stand_in import AVAILABLE, REASON, StandIn
from tests.custom_ops.fused import assert_same_bits, run
from tests.support.threads import run_in_threads

pytestmark = pytest.mark.skipif(not AVAILABLE, reason=REASON)

LAUNCH = ["cuCtxGetCurrent", "cuLaunchKernel"]
EPILOGUE, OPERANDS = tail("f32", "bias, hard swish, residual", (1, 8, 6, 8))
CONV = convolution("f32", (12, 8), (3, 3), pads=(1, 1, 1, 1))
FUSED = Fused(CONV, (1, 12, 6, 8), EPILOGUE, OPERANDS, tilings=(Tiling("gemm", (32, 32, 8), (4, 4), 4, split=4),))
KERNELS = (conv_kernel("k", "gemm", ";", tile=(8, 48, 8), split=4), any_kernel(";"))
STUB = Fused(CONV, (1, 12, 6, 8), raw("f32"))


def rendered() -> tuple[ConvSource, onnx.ModelProto]:
    source = FUSED.render()
    return source, rendered_model(FUSED, source, rendered_object([(FUSED, source)]))


def check(session: ort.InferenceSession, seed: int) -> None:
    arrays = arrays_of(FUSED, seed)
    for result, wanted in zip(run(session, arrays), expected(FUSED, arrays), strict=True):
        assert_same_bits(result, wanted)


def test_a_run_can_be_captured(tmp_path: Path) -> None:
    """Everything is loaded when the session is created; a run allocates nothing but scratch and waits for nothing."""
    stand_in = StandIn(tmp_path, [(9, 0, MULTIPROCESSORS)])
    session = stand_in.session(stub_model(STUB, KERNELS))
    stand_in.use_stream(0)
    stand_in.calls()
    stand_in.capture(True)
    for _ in range(3):
        run(session, arrays_of(STUB))
        assert [call["call"] for call in stand_in.calls()] == ["cuStreamGetCtx", *LAUNCH, *LAUNCH]
        assert stand_in.scratch() == [4 * 8 * 48 * 4]


def test_equal_code_is_loaded_once(tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path)
    sessions = [stand_in.session(stub_model(STUB, KERNELS)) for _ in range(3)]
    assert len(stand_in.calls("cuModuleLoadDataEx")) == 1
    while sessions:
        assert not stand_in.calls("cuModuleUnload")
        sessions.pop()
        gc.collect()
    assert len(stand_in.calls("cuModuleUnload")) == 1


def test_every_name_of_the_operator(tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path)
    for name in ("FusedConv", "FusedConv_2", "FusedConv_16"):
        model = stub_model(STUB, KERNELS)
        model.graph.node[0].op_type = name
        run(stand_in.session(model), arrays_of(STUB))
    assert len(stand_in.launches()) == 3 * 2


def test_devices_take_turns(tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path, [(9, 0, MULTIPROCESSORS), (9, 0, MULTIPROCESSORS)])
    _, model = rendered()
    sessions = [stand_in.session(model, device) for device in (0, 1)]
    assert [call["device"] for call in stand_in.calls("cuModuleLoadDataEx")] == [0, 1]
    for seed, device in enumerate((0, 1, 1, 0)):
        stand_in.use_stream(device)
        check(sessions[device], seed)
        calls = stand_in.launches()
        assert {call["device"] for call in calls} == {device}


def test_threads_share_a_session(tmp_path: Path) -> None:
    """Each run has a workspace of its own."""
    stand_in = StandIn(tmp_path, [(9, 0, MULTIPROCESSORS)])
    source, model = rendered()
    assert source.kernels[0].split > 1
    session = stand_in.session(model, device=None)
    stand_in.use_stream(0)

    def work(first: int) -> None:
        for seed in range(first, first + 6):
            check(session, seed)

    run_in_threads(work, range(0, 40, 10))
    assert len(stand_in.calls("cuModuleLoadDataEx")) == 1
    assert len(stand_in.scratch()) == 4 * 6
    arrays = arrays_of(FUSED)
    run(session, arrays)
    check_launches(stand_in.launches(), stand_in.scratch(), FUSED, source.kernels)
