"""From CUDA source to machine code: which compiler does it, and the cache in front of it.

On a machine with a GPU that is PyCUDA with the toolkit's nvcc, elsewhere NVRTC.  Sources are compiled one by one,
several at a time: nvcc would take a whole model as one source in less time, but its one cubin could not be cut into
those of single nodes, and a node has to carry its own.
"""

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from hashlib import sha256
from typing import Protocol

from onnxfuse import cpu
from onnxfuse.cuda.arch import devices
from onnxfuse.cuda.compile.cache import Cache
from onnxfuse.cuda.compile.compiled import Compiled
from onnxfuse.cuda.compile.resources import Resources
from onnxfuse.errors import OnnxfuseError

NO_COMPILER = (
    "no CUDA compiler: take 'pip install cuda-bindings nvidia-cuda-nvrtc', or pycuda where there are a GPU and nvcc"
    " ({reason})"
)


class Compiler(Protocol):
    """A CUDA compiler; ``version`` names it and says which it is."""

    version: str

    def compile(self, source: str, architecture: str, options: tuple[str, ...]) -> Compiled:
        """Compile ``source`` for ``architecture`` (``sm_90``).  Raises CompileError."""


def find_compiler() -> Compiler:
    """PyCUDA on a machine with a GPU and nvcc, else NVRTC.  Raises OnnxfuseError that names the extra to install."""
    from onnxfuse.cuda.compile.nvrtc import Nvrtc
    from onnxfuse.cuda.compile.pycuda_compiler import PycudaCompiler

    choices: list[Callable[[], Compiler]] = [PycudaCompiler, Nvrtc] if devices() else [Nvrtc, PycudaCompiler]
    reasons = []
    for choice in choices:
        try:
            return choice()
        except OnnxfuseError as error:
            reasons.append(str(error))
    raise OnnxfuseError(NO_COMPILER.format(reason="; ".join(reasons)))


class CompilerCache:
    """A compiler whose results are kept on disk.  ``compiled`` and ``found`` count what was and was not compiled."""

    def __init__(self, compiler: Compiler | None = None, cache: Cache | None = None) -> None:
        """``compiler``: the one that is found when something is to be compiled, by default."""
        self._compiler = compiler
        self._cache = Cache() if cache is None else cache
        self.compiled = 0
        self.found = 0

    @property
    def version(self) -> str:
        """The version of the compiler.  Raises OnnxfuseError if there is none."""
        return self._the_compiler().version

    def compile(
        self, sources: Iterable[str], architectures: tuple[str, ...], options: tuple[str, ...]
    ) -> dict[tuple[str, str], Compiled]:
        """Every source for every architecture, by the sha256 of the source and the architecture.

        Raises CompileError for the first that does not compile, OnnxfuseError if there is no compiler.
        """
        compiler = self._the_compiler()
        by_hash = {sha256(source.encode()).hexdigest(): source for source in sources}
        jobs = [(digest, architecture) for digest in by_hash for architecture in architectures]
        results: dict[tuple[str, str], Compiled] = {}
        for digest, architecture in jobs:
            kept = self._cache.load(_key(digest, architecture, options, compiler.version))
            if kept is not None and (entry := _unpack(kept)) is not None:
                results[digest, architecture] = entry
        missing = [job for job in jobs if job not in results]
        self.found += len(results)
        self.compiled += len(missing)

        def run(job: tuple[str, str]) -> Compiled:
            digest, architecture = job
            made = compiler.compile(by_hash[digest], architecture, options)
            self._cache.store(_key(digest, architecture, options, compiler.version), _pack(made))
            return made

        if missing:
            with ThreadPoolExecutor(min(len(missing), cpu.usable())) as pool:
                futures = [pool.submit(run, job) for job in missing]
                try:
                    results.update({job: future.result() for job, future in zip(missing, futures, strict=True)})
                finally:
                    for future in futures:
                        future.cancel()
            self._cache.prune()
        return results

    def _the_compiler(self) -> Compiler:
        if self._compiler is None:
            self._compiler = find_compiler()
        return self._compiler


def _key(source: str, architecture: str, options: tuple[str, ...], version: str) -> str:
    return sha256("\n".join(["compiled 1", source, architecture, *options, version]).encode()).hexdigest()


def _pack(compiled: Compiled) -> bytes:
    resources = {name: asdict(each) for name, each in compiled.resources.items()}
    head = json.dumps({"cubin": len(compiled.cubin), "resources": resources}).encode()
    return head + b"\n" + compiled.cubin + compiled.ptx


def _unpack(entry: bytes) -> Compiled | None:
    """None for an entry that another version of onnxfuse wrote in another form."""
    head, _, code = entry.partition(b"\n")
    try:
        known = json.loads(head)
        resources = {name: Resources(**each) for name, each in known["resources"].items()}
        return Compiled(code[: known["cubin"]], code[known["cubin"] :], resources)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
