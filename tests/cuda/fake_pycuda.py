"""A stand-in for PyCUDA on a machine without a GPU: memory of the host, kernels in the emulation, and a clock.

Machine code is the text of the source.  A kernel takes as long as ``cost`` says of its name, and one in ``wrong``
writes wrong results.
"""

import re
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from onnxfuse.cuda.conv.kernel import ConvAccess, ConvKernel, ConvSource
from onnxfuse.cuda.kernel import Access, Kernel, Source
from tests.cuda.emulation.emulator import Emulation

_NAME = re.compile(r"\n(fused_[0-9a-f]+_([a-z]*)_([a-z]+)_v\d+(?:_i64)?)\(")
_CONV_NAME = re.compile(r"\n(conv_[0-9a-f]+_[a-z0-9_]+)\(\n((?: +.*\n)*? +.*)\) \{\n")
_CONV_POINTER = re.compile(r"(const )?\w+\* (\w+)")


class FakeGpu:
    """The state of the stand-in."""

    def __init__(self, capability: tuple[int, int] = (9, 0)) -> None:
        self.capability = capability
        self.cost: Callable[[str], float] = lambda name: 1e-5
        self.wrong: set[str] = set()
        self.now = 0.0
        self.launched: list[str] = []
        self.contexts = 0
        self.retained = 0
        self.memory: dict[int, np.ndarray] = {}


class _Allocation:
    def __init__(self, gpu: FakeGpu, size: int) -> None:
        raw = np.full(size + 256, 0xCC, np.uint8)
        start = -raw.ctypes.data % 256
        self.array = raw[start : start + size]
        self._gpu = gpu
        gpu.memory[int(self)] = self.array

    def __int__(self) -> int:
        return self.array.ctypes.data

    def __del__(self) -> None:
        self._gpu.memory.pop(self.array.ctypes.data, None)


class _Function:
    num_regs, local_size_bytes, shared_size_bytes = 40, 0, 0

    def __init__(self, gpu: FakeGpu, emulation: Emulation, name: str, operands: list[str]) -> None:
        """``operands`` are the names of the pointers that it takes first; it may write what begins with ``out``."""
        self._gpu, self._emulation, self._name, self._operands = gpu, emulation, name, operands
        self._sizes: list[int] = []

    def prepare(self, formats: list[str]) -> None:
        self._sizes = [int(text.removesuffix("s")) for text in formats]

    def prepared_async_call(
        self, grid: tuple[int, int], block: tuple[int, int, int], stream: Any, *values: bytes
    ) -> None:
        assert [len(value) for value in values] == self._sizes
        assert stream is None and block[1:] == (1, 1) and grid[1] == 1
        named = list(zip(self._operands, values, strict=False))
        places = [(name, int.from_bytes(value, "little")) for name, value in named if any(value)]
        if any(name == "out workspace" for name, _ in places):  # what it gets is written, and then summed up
            is_sum = self._name.endswith("_sum")
            places = [
                ("workspace" if is_sum else name, a) if "workspace" in name else (name, a)
                for name, a in places
                if is_sum or "workspace" in name or name.startswith("in")
            ]
        operands = [(name, address, self._gpu.memory[address].nbytes) for name, address in places]
        self._emulation.launch(self._name, values, grid[0], block[0], operands)
        if self._name in self._gpu.wrong:
            written = [address for name, address in places if name.startswith("out")]
            self._gpu.memory[written[0]][-1] ^= 0x41
        self._gpu.launched.append(self._name)
        self._gpu.now += self._gpu.cost(self._name)


class _Module:
    def __init__(self, gpu: FakeGpu, code: bytes) -> None:
        text = code.decode()
        self._functions = {}
        kernels = []
        for name, inputs, outputs in _NAME.findall(text):
            kernels.append(Kernel(name, 1, 32, 32, Access(inputs, outputs)))
        emulation = Emulation([Source("", text, tuple(kernels))]) if kernels else None
        for kernel in kernels:
            names = [f"in{i}" for i in range(len(kernel.access.inputs))]
            names += [f"out{i}" for i in range(len(kernel.access.outputs))]
            self._functions[kernel.name] = _Function(gpu, emulation, kernel.name, names)
        self._functions.update(_convolutions(gpu, text))

    def get_function(self, name: str) -> _Function:
        return self._functions[name]


def _convolutions(gpu: FakeGpu, text: str) -> dict[str, _Function]:
    """The kernels of a convolution's source; what they may write is told by the types of their parameters."""
    found = _CONV_NAME.findall(text)
    if not found:
        return {}
    kernels = [ConvKernel(name, "any", (1, 1, 1), 32, 1, 1, 64, ConvAccess("", "")) for name, _ in found]
    emulation = Emulation([ConvSource("", text, tuple(kernels))])
    functions = {}
    for name, parameters in found:
        operands = [f"{'in' if const else 'out'} {own}" for const, own in _CONV_POINTER.findall(parameters)]
        functions[name] = _Function(gpu, emulation, name, operands)
    return functions


def install(monkeypatch: pytest.MonkeyPatch, gpu: FakeGpu, devices: int = 1) -> None:
    """Make it what ``import pycuda.driver`` gives."""

    class Event:
        at = 0.0

        def record(self) -> None:
            self.at = gpu.now

        def synchronize(self) -> None:
            pass

        def time_till(self, other: "Event") -> float:
            return 1000 * (other.at - self.at)

    class Context:
        @staticmethod
        def get_device() -> "Device":
            return Device(0)

        def push(self) -> None:
            gpu.contexts += 1

        def pop(self) -> None:
            gpu.contexts -= 1

    class Device:
        def __init__(self, index: int) -> None:
            pass

        @staticmethod
        def count() -> int:
            return devices

        def name(self) -> str:
            return "made-up GPU"

        def compute_capability(self) -> tuple[int, int]:
            return gpu.capability

        def get_attribute(self, attribute: str) -> int:
            return {"multiprocessors": 2, "blocks": 24, "threads": 1536}[attribute]

        def retain_primary_context(self) -> Context:
            gpu.retained += 1
            return Context()

    def array(place: Any) -> np.ndarray:
        return gpu.memory[int(place)]

    def copy_dtod(target: Any, source: Any, size: int, stream: Any) -> None:
        array(target)[:size] = array(source)[:size]
        gpu.now += 2 * size / 1e12

    def copy_htod(target: Any, values: np.ndarray) -> None:
        array(target)[: values.nbytes] = values.reshape(-1).view(np.uint8)

    def copy_dtoh(values: np.ndarray, source: Any) -> None:
        values[...] = array(source)[: values.nbytes]

    def fill(target: Any, value: int, size: int) -> None:
        array(target)[:size] = value

    driver: Any = types.ModuleType("pycuda.driver")
    driver.Error = type("Error", (Exception,), {})
    driver.init = lambda: None
    driver.Device, driver.Event = Device, Event
    driver.Context = Context
    driver.device_attribute = types.SimpleNamespace(
        MULTIPROCESSOR_COUNT="multiprocessors",
        MAX_BLOCKS_PER_MULTIPROCESSOR="blocks",
        MAX_THREADS_PER_MULTIPROCESSOR="threads",
    )
    driver.mem_alloc = lambda size: _Allocation(gpu, size)
    driver.memcpy_htod, driver.memcpy_dtoh, driver.memcpy_dtod_async = copy_htod, copy_dtoh, copy_dtod
    driver.memset_d8 = fill
    driver.module_from_buffer = lambda code: _Module(gpu, code)
    package: Any = types.ModuleType("pycuda")
    package.driver, package.tools = driver, _tools()
    monkeypatch.setitem(sys.modules, "pycuda", package)
    monkeypatch.setitem(sys.modules, "pycuda.driver", driver)
    monkeypatch.setitem(sys.modules, "pycuda.tools", package.tools)
    monkeypatch.setattr("onnxfuse.cuda.pycuda_tools._driver", lambda: None)  # it has no graphs


def _tools() -> Any:
    """``pycuda.tools`` of version 2026.1, as far as occupancy is concerned."""

    class DeviceData:
        def __init__(self, device: Any) -> None:
            self.warp_size, self.warps_per_mp, self.thread_blocks_per_mp, self.registers = 32, 64, 8, 65536

    class OccupancyRecord:
        def __init__(self, data: DeviceData, threads: int, shared: int, registers: int) -> None:
            warps = threads // data.warp_size
            limits = (data.thread_blocks_per_mp, data.warps_per_mp // warps, data.registers // (warps * 32 * registers))
            self.occupancy = min(limits) * warps / data.warps_per_mp

    tools: Any = types.ModuleType("pycuda.tools")
    tools.DeviceData, tools.OccupancyRecord = DeviceData, OccupancyRecord
    return tools
