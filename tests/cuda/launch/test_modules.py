"""Which machine code is loaded, how often, into which context, and what a run asks of the driver."""

import gc
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests.cuda.contract import Kernel, node_model, shared_object
from tests.cuda.stand_in import AVAILABLE, NO_BINARY, REASON, StandIn, cubin, ptx
from tests.custom_ops.fused import run
from tests.support.threads import run_in_threads

pytestmark = pytest.mark.skipif(not AVAILABLE, reason=REASON)

KERNELS = (Kernel("k", "ll:l"), Kernel("any", "gg:w", index=64))
LAUNCH_CALLS = ["cuStreamGetCtx", "cuCtxGetCurrent", "cuLaunchKernel"]
A, B = np.arange(12, dtype=np.float32), np.full(12, 3, np.float32)


def model(**code: bytes) -> onnx.ModelProto:
    return node_model(KERNELS, [["n"], ["m"]], **code)


def code_for(*architectures: int) -> dict[str, bytes]:
    return {f"cuda_sm_{number}": cubin(shared_object(KERNELS), number) for number in architectures}


def check(session: ort.InferenceSession) -> None:
    np.testing.assert_array_equal(run(session, [A, B])[0], A + B)


def loads(stand_in: StandIn) -> list[tuple[int, str]]:
    return [(call["device"], call["kind"]) for call in stand_in.calls("cuModuleLoadDataEx")]


@pytest.mark.parametrize(
    ("capability", "architectures", "with_ptx", "loaded"),
    [
        ((9, 0), [80, 90], None, ["cubin"]),
        ((8, 6), [80, 90], None, ["cubin"]),
        ((8, 6), [80, 86, 89, 90], None, ["cubin"]),
        ((8, 6), [89, 90], 75, ["ptx"]),
        ((12, 1), [100, 120], None, ["cubin"]),
        ((7, 5), [], 75, ["ptx"]),
        ((7, 5), [80], None, []),
    ],
)
def test_code_for_the_device(
    capability: tuple[int, int], architectures: list[int], with_ptx: int | None, loaded: list[str], tmp_path: Path
) -> None:
    code = code_for(*architectures)
    if with_ptx is not None:
        code["cuda_ptx"] = ptx(shared_object(KERNELS), with_ptx)
    stand_in = StandIn(tmp_path, [(*capability, 10)])
    session = stand_in.session(model(**code), severity=4)
    assert [kind for _, kind in loads(stand_in)] == loaded
    check(session)
    assert len(stand_in.launches()) == len(loaded)


def test_the_newest_fitting_code_is_tried_first(tmp_path: Path) -> None:
    """What the driver refuses is passed over, down to PTX."""
    stand_in = StandIn(tmp_path, [(8, 9, 10)])
    stand_in.fail("cuModuleLoadDataEx", NO_BINARY)
    session = stand_in.session(model(**code_for(80, 86, 90), cuda_ptx=ptx(shared_object(KERNELS), 75)))
    assert len(stand_in.calls("cuModuleLoadDataEx")) == 2
    check(session)
    assert len(stand_in.launches()) == 1


def test_everything_is_loaded_when_the_session_is_created(tmp_path: Path) -> None:
    """Then even the first run can be captured as a CUDA graph; runs allocate nothing and wait for nothing."""
    stand_in = StandIn(tmp_path)
    session = stand_in.session(model())
    stand_in.use_stream(0)
    stand_in.calls()
    stand_in.capture(True)
    for size in (12, 5, 12):
        np.testing.assert_array_equal(run(session, [A[:size], B[:size]])[0], A[:size] + B[:size])
        assert [call["call"] for call in stand_in.calls()] == LAUNCH_CALLS


def test_without_a_context_modules_are_loaded_by_the_first_run(tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path)
    session = stand_in.session(model(), device=None)
    assert not loads(stand_in)
    stand_in.use_stream(0)
    for _ in range(2):
        check(session)
    calls = [call["call"] for call in stand_in.calls()]
    assert calls.count("cuModuleLoadDataEx") == 1
    assert calls.count("cuLaunchKernel") == 2
    assert calls.count("cuCtxPushCurrent") == calls.count("cuCtxPopCurrent") > 0


def test_the_default_stream_of_a_thread_without_a_context(tmp_path: Path) -> None:
    """The primary context is that of the device that has the tensors, retained once."""
    stand_in = StandIn(tmp_path)
    session = stand_in.session(model(), device=None)
    for _ in range(3):
        check(session)
    calls = stand_in.calls()
    assert [call["stream"] for call in calls if call["call"] == "cuLaunchKernel"] == [-1, -1, -1]
    assert sum(call["call"] == "cuDevicePrimaryCtxRetain" for call in calls) == 1


def test_launches_go_to_the_stream_of_the_run(tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path)
    session = stand_in.session(model())
    for number in range(3):
        stand_in.use_stream(0)
        check(session)
        assert [call["stream"] for call in stand_in.launches()] == [number]


def test_a_stream_that_does_not_tell_its_context(tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path)
    session = stand_in.session(model())
    stand_in.use_stream(0)
    stand_in.fail("cuStreamGetCtx", 999)
    check(session)
    assert len(stand_in.launches()) == 1


def test_equal_code_is_loaded_once(tmp_path: Path) -> None:
    """By nodes of one model and of several sessions; the last user unloads it."""
    twice = model()
    node = twice.graph.node.add()
    node.CopyFrom(twice.graph.node[0])
    node.name, node.input[0], node.output[0] = "second", "y0", "z"
    twice.graph.output[0].name = "z"
    stand_in = StandIn(tmp_path)
    sessions = [stand_in.session(twice), stand_in.session(model()), stand_in.session(model())]
    assert loads(stand_in) == [(0, "cubin")]
    np.testing.assert_array_equal(run(sessions[0], [A, B])[0], A + B + B)
    while sessions:
        assert not stand_in.calls("cuModuleUnload")
        sessions.pop()
        gc.collect()
    assert len(stand_in.calls("cuModuleUnload")) == 1
    check(stand_in.session(model()))
    assert loads(stand_in) == [(0, "cubin")]


def test_different_code_is_loaded_apart(tmp_path: Path) -> None:
    """Even where it claims to have the same source."""
    stand_in = StandIn(tmp_path)
    other = Kernel("k", "ll:l", ("0",)), KERNELS[1]
    sessions = [stand_in.session(model()), stand_in.session(node_model(other, [["n"], ["m"]]))]
    assert len(loads(stand_in)) == 2
    check(sessions[0])
    np.testing.assert_array_equal(run(sessions[1], [A, B])[0], A)


def test_each_device_has_its_module(tmp_path: Path) -> None:
    """A session stays on its device whatever the thread that runs it has used before."""
    stand_in = StandIn(tmp_path, [(9, 0, 10), (8, 0, 1)])
    code = code_for(80, 90)
    sessions = [stand_in.session(model(**code), device=device) for device in (0, 1)]
    assert loads(stand_in) == [(0, "cubin"), (1, "cubin")]
    for device in (1, 0, 1):
        for current in (0, 1, None):
            stand_in.use_stream(device)
            stand_in.set_current(current)
            check(sessions[device])
            assert [call["device"] for call in stand_in.launches()] == [device]
    del sessions
    gc.collect()
    assert sorted(call["device"] for call in stand_in.calls("cuModuleUnload")) == [0, 1]


def test_a_node_on_two_devices(tmp_path: Path) -> None:
    """Not what ONNX Runtime does today; the stream decides."""
    stand_in = StandIn(tmp_path, [(9, 0, 10), (9, 0, 10)])
    session = stand_in.session(model())
    for device in (0, 1, 0, 1):
        stand_in.use_stream(device)
        check(session)
    assert [call["device"] for call in stand_in.launches()] == [0, 1, 0, 1]


def test_threads_share_a_session(tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path)
    session = stand_in.session(model(), device=None)
    stand_in.use_stream(0)

    def work(seed: int) -> None:
        for step in range(40):
            size = 1 + (seed * 7 + step) % 12
            np.testing.assert_array_equal(run(session, [A[:size], B[:size]])[0], A[:size] + B[:size])

    run_in_threads(work, range(6))
    calls = [call["call"] for call in stand_in.calls()]
    assert calls.count("cuModuleLoadDataEx") == 1
    assert calls.count("cuLaunchKernel") == 6 * 40


def test_threads_run_sessions_on_several_devices(tmp_path: Path) -> None:
    """Each with streams of its own, among sessions that come and go: every launch is on the device of its session."""
    stand_in = StandIn(tmp_path, [(9, 0, 10), (8, 0, 1)])
    code = code_for(80, 90)
    sessions = [stand_in.session(model(**code), device=device) for device in (0, 1)]
    stand_in.launches()

    def work(seed: int) -> None:
        for step in range(30):
            device, size = (seed + step) % 2, 1 + (seed * 7 + step) % 12
            stand_in.set_current((None, 0, 1)[step % 3])
            stand_in.use_stream_of_thread(device)
            session = sessions[device]
            if step % 10 == 9:
                session = stand_in.session(model(**code), device=device)
            np.testing.assert_array_equal(run(session, [A[:size], B[:size]])[0], A[:size] + B[:size])

    run_in_threads(work, range(6))
    calls = stand_in.calls("cuLaunchKernel", "cuModuleLoadDataEx")
    launches = [call for call in calls if call["call"] == "cuLaunchKernel"]
    assert Counter(call["device"] for call in launches) == {0: 90, 1: 90}
    assert len({call["stream"] for call in launches}) == len(launches)
    assert len(calls) == len(launches)  # the modules were there


def test_attributes_of_other_devices_are_not_looked_at(tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path)
    check(stand_in.session(model(**code_for(90), cuda_sm_80=b"rubbish")))
