"""Nodes that carry no kernels for the GPU at hand: the CPU computes, and a warning says so."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest

from tests.cuda.contract import shared_object
from tests.cuda.conv import nodes
from tests.cuda.launch import test_conv_errors as convolution
from tests.cuda.launch import test_errors as elementwise
from tests.cuda.stand_in import AVAILABLE, REASON, StandIn, cubin, ptx
from tests.custom_ops.fused import fused_model

pytestmark = pytest.mark.skipif(not AVAILABLE, reason=REASON)

ADD = "onnxfuse 1\ninput f32 broadcast\ninput f32 broadcast\nadd f32 0 1\noutput 2\n"


@dataclass(frozen=True)
class Fallback:
    """A kind of node: what its lines begin with, how many inputs it copies, one without a recipe and one with code."""

    line: str
    inputs: int
    bare: Callable[[], onnx.ModelProto]
    code: Callable[[], Path]
    model: Callable[..., onnx.ModelProto]
    check: Callable[[ort.InferenceSession], None]

    def without(self, what: str) -> onnx.ModelProto:
        """A model whose node lacks what the GPU needs."""
        match what:
            case "recipe":
                return self.bare()
            case "code":
                return self.model(cuda_sm_80=cubin(self.code(), 80))
            case _:
                return self.model(cuda_ptx=ptx(self.code(), 100))


KINDS = {
    "elementwise": Fallback(
        elementwise.NODE,
        2,
        partial(fused_model, ADD, [["n"], ["n"]]),
        partial(shared_object, elementwise.KERNELS),
        elementwise.model,
        elementwise.check,
    ),
    "convolution": Fallback(
        nodes.NODE,
        5,
        partial(nodes.conv_model, convolution.FUSED),
        partial(nodes.stub_object, convolution.KERNELS, 1),
        partial(nodes.stub_model, convolution.FUSED, convolution.KERNELS, cuda_sm_90=None),
        partial(convolution.check_on_the_cpu, fused=convolution.FUSED),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        ("recipe", "it carries no CUDA kernels"),
        ("code", "it has no machine code for compute capability 9.0, and no PTX"),
        ("older PTX", "(ptxas fatal: the target is newer than the device)"),
    ],
)
def test_without_kernels_the_cpu_computes(
    missing: str,
    reason: str,
    kind: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On copies of the tensors, made on the stream of the run; one warning a node says so.  Or the run fails."""
    node = KINDS[kind]
    model = node.without(missing)
    stand_in = StandIn(tmp_path)
    session = stand_in.session(model)
    stand_in.use_stream(0)
    stand_in.calls()
    for _ in range(3):
        node.check(session)
    calls = [call["call"] for call in stand_in.calls()]
    assert calls.count("cuMemcpyDtoHAsync") == 3 * node.inputs
    assert calls.count("cuMemcpyHtoDAsync") == 3
    moves = [call for call in calls if call.startswith(("cuMemcpy", "cuStreamSync"))]
    assert moves[1::2] == ["cuStreamSynchronize"] * (3 * (node.inputs + 1))
    assert "cuLaunchKernel" not in calls
    err = capfd.readouterr().err
    assert err.count(node.line + "runs on the CPU, with its tensors copied there and back: ") == 1
    assert reason in err
    monkeypatch.setenv("ONNXFUSE_REQUIRE_GPU", "1")
    with pytest.raises(Exception, match="cannot run on the GPU: ") as caught:
        node.check(stand_in.session(model))
    assert node.line in str(caught.value) and reason in str(caught.value)
