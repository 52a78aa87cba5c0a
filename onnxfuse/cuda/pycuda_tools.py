"""What PyCUDA is used for besides compiling: the GPU of this machine, its memory, and times of kernels."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

from onnxfuse.cuda.compile.resources import Resources
from onnxfuse.errors import OnnxfuseError
from onnxfuse.system import CUDA_DRIVER

_WARM_UP = 3
_ROUNDS = 7
_SECONDS_A_ROUND = 0.002
_MOST_LAUNCHES = 1000
_MOST_IN_A_GRAPH = 20
_SECONDS_A_GRAPH = 0.001
_CAPTURE_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


@dataclass(frozen=True)
class Gpu:
    """A GPU whose primary context is current; ``driver`` is the module ``pycuda.driver``."""

    name: str
    architecture: str
    multiprocessors: int
    driver: Any

    def allocate(self, size: int) -> Any:
        """``size`` bytes of device memory, one at least, freed with the object; ``int`` of it is the address."""
        return self.driver.mem_alloc(max(size, 1))


@contextmanager
def open_gpu(index: int = 0) -> Iterator[Gpu]:
    """The GPU number ``index``, its primary context made current.

    Raises OnnxfuseError without PyCUDA or a GPU, and in place of what PyCUDA raises meanwhile.
    """
    try:
        import pycuda.driver as driver
    except ImportError as error:
        raise OnnxfuseError(f"PyCUDA cannot be used: {error}; take 'pip install pycuda'") from error
    try:
        driver.init()
        if driver.Device.count() <= index:
            raise OnnxfuseError("there is no CUDA GPU here")
        device = driver.Device(index)
        context = _primary_context(driver, index)
    except driver.Error as error:
        raise OnnxfuseError(f"the GPU cannot be used: {error}") from error
    major, minor = device.compute_capability()
    count = device.get_attribute(driver.device_attribute.MULTIPROCESSOR_COUNT)
    gpu = Gpu(device.name(), f"sm_{major}{minor}", count, driver)
    context.push()
    try:
        yield gpu
    except driver.Error as error:
        raise OnnxfuseError(f"the GPU failed: {error}") from error
    finally:
        context.pop()


@cache
def _primary_context(driver: Any, index: int) -> Any:
    """The primary context of a GPU, which ONNX Runtime uses too.

    Its object stays for good, past the end of the interpreter: PyCUDA would detach from the context with it, which the
    driver does not allow for a primary one.
    """
    context = driver.Device(index).retain_primary_context()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(context))
    return context


def seconds(gpu: Gpu, run: Callable[[], None]) -> float:
    """The time on the GPU of what ``run`` enqueues: the median of several rounds of many runs each."""
    for _ in range(_WARM_UP):
        run()
    once = _round(gpu, run, 1)
    count = max(1, min(_MOST_LAUNCHES, int(_SECONDS_A_ROUND / max(once, 1e-7))))
    return median(_round(gpu, run, count) / count for _ in range(_ROUNDS))


def launch_seconds(gpu: Gpu, launch: Callable[[Any], None]) -> float:
    """The time on the GPU of one launch, or copy, that ``launch`` enqueues on the stream that it is given.

    Many of them are replayed from a CUDA graph, for a launch from Python takes longer than a small kernel runs; one by
    one where the driver is not found, or where they take long.  Raises OnnxfuseError with the call of the driver that
    fails.
    """
    driver = _driver()
    launch(None)  # what a first launch loads cannot be captured
    count = min(_MOST_IN_A_GRAPH, int(_SECONDS_A_GRAPH / max(_round(gpu, lambda: launch(None), 1), 1e-7)))
    if driver is None or count < 2:
        return seconds(gpu, lambda: launch(None))

    def call(name: str, *arguments: Any) -> None:
        code = getattr(driver, name)(*arguments)
        if code != 0:
            raise OnnxfuseError(f"the GPU failed: {name} fails with error {code} of CUDA")

    stream = gpu.driver.Stream()
    handle = ctypes.c_void_p(int(stream.handle))
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuStreamBeginCapture_v2", handle, _CAPTURE_RELAXED)
    for _ in range(count):
        launch(stream)
    call("cuStreamEndCapture", handle, ctypes.byref(graph))
    call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0))
    found = seconds(gpu, lambda: call("cuGraphLaunch", executable, None)) / count
    call("cuGraphExecDestroy", executable)
    call("cuGraphDestroy", graph)
    return found


def _driver() -> Any:
    """The CUDA driver's library, or None; PyCUDA has no graphs."""
    try:
        return ctypes.CDLL(CUDA_DRIVER)
    except OSError:
        return None


def _round(gpu: Gpu, run: Callable[[], None], count: int) -> float:
    start, end = gpu.driver.Event(), gpu.driver.Event()
    start.record()
    for _ in range(count):
        run()
    end.record()
    end.synchronize()
    return float(start.time_till(end)) / 1000


def copy_bandwidth(gpu: Gpu, size: int) -> float:
    """Bytes a second that a copy within device memory moves, both ways counted, for buffers of ``size`` bytes."""
    source, target = gpu.allocate(size), gpu.allocate(size)
    return 2 * size / launch_seconds(gpu, lambda stream: gpu.driver.memcpy_dtod_async(target, source, size, stream))


def resources(function: Any) -> Resources:
    """What the driver says of a loaded kernel; it counts local memory as one, here as the stack."""
    return Resources(function.num_regs, stack=function.local_size_bytes, shared=function.shared_size_bytes)


def occupancy(gpu: Gpu, function: Any, block: int) -> float:
    """The share of a multiprocessor's threads that blocks of ``block`` threads fill here, as ``pycuda.tools`` tells."""
    from pycuda.tools import DeviceData, OccupancyRecord

    device = gpu.driver.Context.get_device()
    attribute = gpu.driver.device_attribute
    data = DeviceData(device)  # knows the limits of compute capability 3
    data.thread_blocks_per_mp = device.get_attribute(attribute.MAX_BLOCKS_PER_MULTIPROCESSOR)
    data.warps_per_mp = device.get_attribute(attribute.MAX_THREADS_PER_MULTIPROCESSOR) // data.warp_size
    record = OccupancyRecord(data, block, function.shared_size_bytes, function.num_regs)
    return float(record.occupancy)
