"""Runs kernels on the CPU: their source is compiled as C++ after tests/cuda/emulation/emulation.h.

Libraries are kept in the temporary folder by the hash of what they were compiled from.
"""

import ctypes
import fcntl
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from onnxfuse.cuda.arguments import grid_size, pack
from onnxfuse.cuda.attention.kernel import AttentionKernel, AttentionSource
from onnxfuse.cuda.conv.kernel import ConvKernel, ConvSource
from onnxfuse.cuda.elementwise.access import Layout, accepts, classify
from onnxfuse.cuda.kernel import Kernel, Source
from onnxfuse.cuda.nest.kernel import NestKernel, NestSource
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program import Program

HEADERS = Path(__file__).parent
FLAGS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-w", "-ffp-contract=off", "-fno-strict-aliasing")
_BARRIERS = re.compile(r"__sync|__shfl|__ballot|__any_|__all_|__shared__")


AnySource = Source | ConvSource | NestSource | AttentionSource


class ViolationError(Exception):
    """A kernel accessed what it must not, or left out what it must write."""


class _Operand(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("is_output", ctypes.c_uint64),
    )


class Emulation:
    """Sources compiled as one library for the CPU, which is kept in ``folder``, as for an ``architecture``."""

    def __init__(self, sources: Iterable[AnySource], architecture: int = 80, folder: Path | None = None) -> None:
        sources = list(sources)
        self._library = ctypes.CDLL(str(compile_for_cpu(sources, architecture, folder)))
        self._library.onnxfuse_emulate.restype = ctypes.c_char_p

    def launch(
        self,
        kernel: str,
        arguments: Sequence[bytes],
        blocks: int,
        threads: int,
        operands: Sequence[tuple[str, int, int]],
        in_part: bool = False,
    ) -> None:
        """Launch a kernel on parameters given as bytes.

        ``operands`` are (name, address, bytes) of what it may read, or write if the name begins with ``out``: each
        element once, and unless ``in_part`` all of them.  Raises ViolationError.
        """
        buffers = [ctypes.create_string_buffer(argument, len(argument)) for argument in arguments]
        pointers = (ctypes.c_void_p * len(buffers))(*(ctypes.addressof(buffer) for buffer in buffers))
        known = (_Operand * len(operands))(
            *(
                _Operand(name.encode(), address, size, (2 if in_part else 1) if name.startswith("out") else 0)
                for name, address, size in operands
            )
        )
        message = self._library.onnxfuse_emulate(
            kernel.encode(), pointers, blocks, threads, known, ctypes.c_uint64(len(operands))
        )
        if message:
            raise ViolationError(f"{kernel}: {message.decode()}")

    def run(
        self,
        kernel: Kernel,
        program: Program,
        layout: Layout,
        inputs: Sequence[np.ndarray],
        shifts: Sequence[int] = (),
        in_place: Mapping[int, int] = MappingProxyType({}),
    ) -> list[np.ndarray]:
        """Run ``kernel`` and return the outputs as flat arrays.

        ``shifts`` moves each operand by so many elements from an address that is aligned to 16 bytes.  ``in_place``
        gives outputs the memory of inputs.
        """
        memories = make_memories(program, layout, inputs, shifts)
        for output, source in in_place.items():
            memories[len(inputs) + output] = memories[source].view(memories[len(inputs) + output].dtype)
        names = operand_names(program)
        addresses = [memory.ctypes.data for memory in memories]
        sizes = [memory.nbytes for memory in memories]
        self.launch(
            kernel.name,
            pack(kernel, layout, addresses),
            grid_size(kernel, layout),
            kernel.block,
            list(zip(names, addresses, sizes, strict=True)),
        )
        return memories[len(inputs) :]


def operand_names(program: Program) -> list[str]:
    """The names of the operands in the kernels' text."""
    return [f"in{i}" for i in range(len(program.inputs))] + [f"out{i}" for i in range(len(program.outputs))]


def make_memories(
    program: Program, layout: Layout, inputs: Sequence[np.ndarray], shifts: Sequence[int] = ()
) -> list[np.ndarray]:
    """Flat arrays for all operands, ``shifts`` elements behind an aligned address; those of inputs hold ``inputs``."""
    memories = []
    for index, operand in enumerate(layout.operands):
        is_input = index < len(inputs)
        count = inputs[index].size if is_input else output_count(layout, index - len(inputs))
        memory = aligned(operand.dtype, count, shifts[index] if shifts else 0)
        if is_input:
            memory[...] = inputs[index].reshape(-1)
        memories.append(memory)
    return memories


def output_count(layout: Layout, output: int) -> int:
    """The elements of an output."""
    steps = layout.outputs[output].steps
    return int(np.prod([size for size, step in zip(layout.dims, steps, strict=True) if step], dtype=np.int64))


def aligned(dtype: str, count: int, shift: int) -> np.ndarray:
    """A flat array ``shift`` elements behind a multiple of 16 bytes, filled with a pattern that is no result."""
    numpy_type = DTYPES[dtype].numpy
    memory = np.full((count + shift) * numpy_type.itemsize + 16, 0xA5, np.uint8)
    start = -memory.ctypes.data % 16 + shift * numpy_type.itemsize
    return memory[start : start + count * numpy_type.itemsize].view(numpy_type)


def accepting(source: Source, layout: Layout, addresses: Sequence[int]) -> list[Kernel]:
    """Every kernel of the source that may run on these operands."""
    return [kernel for kernel in source.kernels if accepts(kernel, layout, addresses)]


def check_program(
    emulation: Emulation,
    source: Source,
    program: Program,
    inputs: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    compare: Callable[[np.ndarray, np.ndarray, int, str], None],
    shifts: Sequence[int] = (),
) -> set[str]:
    """Run every kernel that accepts the inputs; returns the names of those.

    ``compare`` is called with an output, what was expected, its index, and the kernel's name.
    """
    layout = classify(program, [array.shape for array in inputs])
    if layout.count == 0:
        return set()
    addresses = [
        shift * operand.itemsize
        for shift, operand in zip(shifts or [0] * len(layout.operands), layout.operands, strict=True)
    ]
    kernels = accepting(source, layout, addresses)
    for kernel in kernels:
        results = emulation.run(kernel, program, layout, inputs, shifts)
        for output, (result, wanted) in enumerate(zip(results, expected, strict=True)):
            compare(result.reshape(wanted.shape), wanted, output, kernel.name)
    return {kernel.name for kernel in kernels}


def compile_for_cpu(sources: Sequence[AnySource], architecture: int = 80, folder: Path | None = None) -> Path:
    """The library of these sources; one process compiles it, others wait."""
    text, flags = cpp_text(sources), (*FLAGS, f"-DONNXFUSE_EMULATED={architecture}0")
    key = hashlib.sha256("\0".join((text, *flags, *(h.read_text() for h in sorted(HEADERS.glob("*.h"))))).encode())
    if folder is None:
        folder = Path(tempfile.gettempdir()) / f"onnxfuse-emulation-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    library = folder / f"{key.hexdigest()[:32]}.so"
    with (folder / f"{library.stem}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            source = library.with_suffix(".cc")
            source.write_text(text)
            built = library.with_suffix(".tmp")
            subprocess.run(["g++", *flags, f"-I{HEADERS}", "-o", str(built), str(source)], check=True)
            built.replace(library)
    return library


def _functions(kernel: Kernel | ConvKernel | NestKernel | AttentionKernel) -> list[str]:
    if isinstance(kernel, NestKernel | AttentionKernel):
        return list(kernel.functions)
    sums = isinstance(kernel, ConvKernel) and kernel.split > 1
    return [kernel.name, *([kernel.sum_name] if isinstance(kernel, ConvKernel) and sums else [])]


def cpp_text(sources: Sequence[AnySource]) -> str:
    """The sources as one C++ file."""
    parts = [source.text for source in sources]
    fibers = any(_BARRIERS.search(source.text) for source in sources)
    kernels = [kernel for source in sources for kernel in source.kernels]
    names = [name for kernel in kernels for name in _functions(kernel)]
    names += [joint.name for source in sources if isinstance(source, Source) for joint in source.joint]
    registrations = "".join(f"ONNXFUSE_EMULATED_KERNEL({name});\n" for name in names)
    return "\n".join(
        (f"#define ONNXFUSE_EMULATION_FIBERS {int(fibers)}", '#include "emulation.h"', *parts, registrations)
    )
