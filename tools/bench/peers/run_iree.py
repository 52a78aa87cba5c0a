"""IREE: compiled for this very CPU at the highest level of optimization, run by its task system."""

import hashlib
import sys
from pathlib import Path

import iree.runtime as rt
import numpy as np

from tools.bench.peers.job import Job, Prepared, build

FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
    "--iree-opt-level=O3",
)


def prepare(job: Job) -> Prepared:
    """The compiled module's function, on inputs that lie in the device's memory, which is the host's."""
    tools = Path(sys.executable).parent
    key = hashlib.sha256(Path(job.static).read_bytes() + " ".join(FLAGS).encode()).hexdigest()[:16]
    imported, compiled = (Path(job.cache) / f"{key}{suffix}" for suffix in (".mlir", ".vmfb"))
    opset = ("--opset-version", "17")  # the least that the importer takes
    build(imported, lambda out: [str(tools / "iree-import-onnx"), job.static, *opset, "-o", str(out)])
    build(compiled, lambda out: [str(tools / "iree-compile"), str(imported), *FLAGS, "-o", str(out)])
    rt.flags.parse_flags(f"--task_topology_max_group_count={job.threads}")
    driver = rt.get_driver("local-task")
    # Without an allocator that keeps what was freed, each run takes its memory from the operating system anew.
    device = driver.create_device(driver.query_available_devices()[0]["device_id"], allocators=["caching"])
    config = rt.Config(device=device)
    context = rt.SystemContext(config=config)
    module = rt.VmModule.mmap(config.vm_instance, str(compiled))
    context.add_vm_module(module)
    name = next(name for name in module.function_names if not name.startswith("__") and not name.endswith("$async"))
    function = module.lookup_function(name)
    arguments = rt.VmVariantList(len(job.feeds()))
    kept = [rt.asdevicearray(device, array) for array in job.feeds().values()]
    for array in kept:
        arguments.push_ref(array._buffer_view)
    last = rt.VmVariantList(len(job.outputs))

    def run() -> None:
        nonlocal last
        last = rt.VmVariantList(len(job.outputs))
        context.vm_context.invoke(function, arguments, last)

    def outputs() -> list[np.ndarray]:
        views = [last.get_as_object(index, rt.HalBufferView) for index in range(len(job.outputs))]
        return [np.array(rt.DeviceArray(device, view, implicit_host_transfer=True)) for view in views]

    return Prepared(run, outputs, keep=kept)
