"""How long launches take, replayed from a CUDA graph, by a driver that is made up."""

from typing import Any

import pytest

from onnxfuse.cuda import pycuda_tools
from onnxfuse.cuda.pycuda_tools import launch_seconds, open_gpu
from onnxfuse.errors import OnnxfuseError
from tests.cuda.fake_pycuda import FakeGpu, install


class _Driver:
    """A driver whose launches of a graph take 0.2 ms; the call ``fails`` gives an error."""

    def __init__(self, gpu: FakeGpu, fails: str = "") -> None:
        self.calls: list[str] = []
        self._gpu, self._fails = gpu, fails

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: object) -> int:
            self.calls.append(name)
            if name == "cuGraphLaunch":
                self._gpu.now += 2e-4
            return 700 if name == self._fails else 0

        return call


class _Stream:
    handle = 7


def test_with_a_driver_launches_are_captured_in_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu()
    install(monkeypatch, gpu)
    driver = _Driver(gpu)
    monkeypatch.setattr(pycuda_tools, "_driver", lambda: driver)
    with open_gpu() as opened:
        opened.driver.Stream = _Stream
        launched: list[object] = []
        assert launch_seconds(opened, launched.append) == pytest.approx(1e-5)
    assert launched[:2] == [None, None] and len(launched) == 22
    assert all(isinstance(stream, _Stream) for stream in launched[2:])
    assert driver.calls[:3] == ["cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags"]
    assert driver.calls[-2:] == ["cuGraphExecDestroy", "cuGraphDestroy"]


@pytest.mark.parametrize(
    "name",
    [
        "cuStreamBeginCapture_v2",
        "cuStreamEndCapture",
        "cuGraphInstantiateWithFlags",
        "cuGraphLaunch",
        "cuGraphExecDestroy",
        "cuGraphDestroy",
    ],
)
def test_a_call_of_the_driver_that_fails_is_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu()
    install(monkeypatch, gpu)
    monkeypatch.setattr(pycuda_tools, "_driver", lambda: _Driver(gpu, name))
    with open_gpu() as opened:
        opened.driver.Stream = _Stream
        with pytest.raises(OnnxfuseError, match=f"^the GPU failed: {name} fails with error 700 of CUDA$"):
            launch_seconds(opened, lambda stream: None)


def test_what_takes_long_is_launched_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu()
    install(monkeypatch, gpu)
    driver = _Driver(gpu)
    monkeypatch.setattr(pycuda_tools, "_driver", lambda: driver)

    def launch(stream: object) -> None:
        gpu.now += 2e-3

    with open_gpu() as opened:
        assert launch_seconds(opened, launch) == pytest.approx(2e-3)
    assert driver.calls == []
