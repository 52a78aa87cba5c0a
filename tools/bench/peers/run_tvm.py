"""TVM: the pipeline for static shapes, its kernels tuned by MetaSchedule as far as the number of trials allows."""

import hashlib
from pathlib import Path

import numpy as np
import onnx
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from tools.bench.peers.job import Job, Prepared


def prepare(job: Job) -> Prepared:
    """The virtual machine's main function, on inputs in TVM's own tensors.

    The model is the one with static shapes after ONNX Runtime folded its constants: the importer wants shapes
    that are constants.
    """
    source = Path(job.settings.get("file", job.static))
    cpu = tvm_ffi.get_global_func("target.llvm_get_system_cpu")()
    target = tvm.target.Target({"kind": "llvm", "mcpu": str(cpu), "num-cores": job.threads})
    key = hashlib.sha256(source.read_bytes() + f"{tvm.__version__} {target} {job.trials}".encode()).hexdigest()[:16]
    library = Path(job.cache) / f"{key}.so"
    if not library.is_file():
        library.parent.mkdir(parents=True, exist_ok=True)
        unfinished = library.with_name(f"unfinished-{library.name}")
        _compile(source, target, job.trials, library.with_suffix(".tuning")).export_library(str(unfinished))
        unfinished.replace(library)
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())
    function = machine["main"]
    arguments = [tvm.runtime.tensor(array) for array in job.feeds().values()]
    last = function(*arguments)

    def run() -> None:
        nonlocal last
        last = function(*arguments)

    def outputs() -> list[np.ndarray]:
        return [last.numpy()] if hasattr(last, "numpy") else [value.numpy() for value in last]

    return Prepared(run, outputs, f"{job.trials} trials a kernel" if job.trials else "not tuned")


def _compile(source: Path, target: tvm.target.Target, trials: int, log: Path) -> tvm.runtime.Module:
    module = from_onnx(onnx.load(source))
    if trials:
        # No limit over all kernels: each gets its trials.
        tuning = {"total_trials": trials * 10_000, "max_trials_per_task": trials, "work_dir": str(log)}
        module = relax.get_pipeline("static_shape_tuning", target=target, **tuning)(module)
    return tvm.compile(module, target)
