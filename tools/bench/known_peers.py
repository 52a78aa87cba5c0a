"""The programs that scripts/bench.py runs models with, and the environment of each."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnxruntime
from onnx import helper

from onnxfuse.zoo.fetching import cache, environment_python, recipe_python
from onnxfuse.zoo.manifest import Environment, read_manifest

HERE = Path(__file__).resolve().parent
WORKER = HERE / "peers" / "worker.py"

OURS, FAST, BASE, COPY, RELU = "onnxfuse", "fast", "ort", "copy", "relu"
ALONE, FAST_ALONE = "executable", "fast-executable"

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Peer:
    """One way to run a model.

    ``runner`` names its module, ``peers/run_RUNNER.py``.  ``requirements`` are what its environment needs: without
    any it runs beside onnxfuse.  ``simplifier`` is a tool in that environment that rewrites the model for ONNX
    Runtime.  ``packages`` are those whose versions are told; ``setting`` is what it is run with, in words.  With
    ``limit`` it runs something else, which shows what a chain takes at least; with ``own`` it is onnxfuse in another
    setting.  Both take part in chains alone.
    """

    name: str
    title: str
    runner: str
    setting: str
    requirements: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    simplifier: str = ""
    limit: bool = False
    own: bool = False

    @property
    def rival(self) -> bool:
        """Whether it is another program that does the same."""
        return self.name != OURS and not self.limit and not self.own

    def python(self, progress: Progress) -> str:
        """The Python of its environment, which is set up at first use.  Raises FetchError if it cannot be."""
        if not self.requirements:
            return sys.executable
        if self.name == "torch":  # where the recipes export the models
            environments = (model.environment for model in read_manifest().values() if model.environment is not None)
            return recipe_python(next(found for found in environments if found.name == "transformers"), progress)
        return environment_python(Environment(self.name, self.requirements), progress)

    def folder(self) -> Path:
        """Where it keeps what it has compiled."""
        return cache().parent / "bench" / self.name

    def versions(self, python: str) -> str:
        """The versions of its packages, as its own Python knows them."""
        code = "import sys, importlib.metadata as m; print(', '.join(f'{p} {m.version(p)}' for p in sys.argv[1:]))"
        done = subprocess.run([python, "-c", code, *self.packages], capture_output=True, text=True)
        return done.stdout.strip()


_ORT = f"onnxruntime=={onnxruntime.__version__}"

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(BASE, "ORT", "onnxruntime", "all optimizations, threads that spin", packages=("onnxruntime",)),
        Peer(
            "onnxslim",
            "ORT after onnxslim",
            "onnxruntime",
            "given the shapes of the inputs",
            requirements=("onnxslim", _ORT),
            packages=("onnxslim",),
            simplifier="onnxslim",
        ),
        Peer(
            "onnxsim",
            "ORT after onnxsim",
            "onnxruntime",
            "given the shapes of the inputs",
            requirements=("onnxsim", _ORT),
            packages=("onnxsim",),
            simplifier="onnxsim",
        ),
        Peer(
            "openvino",
            "OpenVINO",
            "openvino",
            "PERFORMANCE_HINT=LATENCY, INFERENCE_PRECISION_HINT=f32, INFERENCE_NUM_THREADS, static shapes",
            requirements=("openvino", "numpy"),
            packages=("openvino",),
        ),
        Peer(
            "iree",
            "IREE",
            "iree",
            "llvm-cpu for the host, -O3, local-task, caching allocator, static shapes",
            requirements=("iree-base-compiler[onnx]", "iree-base-runtime", "numpy"),
            packages=("iree-base-compiler", "iree-base-runtime"),
        ),
        Peer(
            "tvm",
            "TVM",
            "tvm",
            "Relax, static_shape_tuning, llvm for the host; MetaSchedule where trials are given",
            # With the next version of apache-tvm-ffi, serializing a function for the tuner crashes.
            requirements=("apache-tvm[meta-schedule,popen-pool,rpc]", "apache-tvm-ffi==0.1.14.post1", "onnx", "numpy"),
            packages=("apache-tvm",),
        ),
        Peer(
            "torch",
            "torch.compile",
            "torch",
            "Inductor, dynamic=False, freezing; the fastest of as it is, max-autotune and channels last",
            requirements=("torch",),
            packages=("torch",),
        ),
        Peer(
            OURS,
            "onnxfuse",
            "onnxruntime",
            "onnxfuse optimize --shape …, ORT as above",
            packages=("onnxfuse",),
        ),
        Peer(
            FAST,
            "onnxfuse --fast-math",
            "onnxruntime",
            "the same with --fast-math: products rounded with their sums, as in TVM, chains of both put together, as "
            "OpenVINO does",
            packages=("onnxfuse",),
            own=True,
        ),
        Peer(
            ALONE,
            "onnxfuse.Executable",
            "executable",
            "the model of onnxfuse, without ONNX Runtime",
            packages=("onnxfuse",),
            own=True,
        ),
        Peer(
            FAST_ALONE,
            "onnxfuse.Executable --fast-math",
            "executable",
            "the model of onnxfuse --fast-math, without ONNX Runtime",
            packages=("onnxfuse",),
            own=True,
        ),
        Peer(RELU, "one Relu in ORT (limit)", "onnxruntime", "a model of one node, a Relu of the input", limit=True),
        Peer(COPY, "copy (limit)", "copy", "the input copied into another buffer", limit=True),
    )
}
"""In the order of the columns."""


# What a run has freed stays with its process and is not taken from the operating system anew by the next one.
# That is what the allocators do that PyTorch recommends; programs with an arena of their own do not notice.
_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(1 << 26),
}


def settings(threads: int, folder: Path) -> dict[str, str]:
    """The environment variables of a worker."""
    return {
        **_MEMORY,
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONSAFEPATH": "",  # a worker's modules lie beside it
        "OMP_NUM_THREADS": str(threads),
        "TVM_NUM_THREADS": str(threads),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
        "PATH": os.environ.get("PATH", ""),
    }


def one_relu(chain: Path, target: Path) -> Path:
    """A model from a chain's input to its output with a single node, which ONNX Runtime has a kernel for."""
    model = onnx.load(chain)
    relu = helper.make_node("Relu", [model.graph.input[0].name], [model.graph.output[0].name])
    graph = helper.make_graph([relu], "relu", model.graph.input[:1], model.graph.output[:1])
    onnx.save(helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version), target)
    return target


def simplified(peer: Peer, python: str, source: Path) -> Path:
    """The model after the peer's simplifier.  Raises RuntimeError with its last line if it fails."""
    key = hashlib.sha256(source.read_bytes() + peer.versions(python).encode()).hexdigest()[:16]
    target = peer.folder() / f"{key}.onnx"
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f"unfinished-{target.name}")
        command = [python, str(HERE / "peers" / "simplify.py"), peer.simplifier, str(source), str(unfinished)]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment)
        if done.returncode != 0:
            lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["no reason given"]
            raise RuntimeError(lines[-1])
        unfinished.replace(target)
    return target
