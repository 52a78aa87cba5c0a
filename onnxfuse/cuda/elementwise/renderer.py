"""From a Program to CUDA C++: one source with the kernels that its access patterns need.

All kernels of a source call one device function, the Program on one element.  A kernel differs in how it reads and
writes operands (its ``Access``), in how many neighbouring elements a thread takes at once, and in the width of indices.
The device code that every source shares is in custom_ops/cuda/device; ``for_own_group`` there shares the space out.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from onnxfuse.cuda.arguments import joint_bytes, parameter_bytes
from onnxfuse.cuda.element import element_function, header
from onnxfuse.cuda.elementwise.access import tile_bytes, tile_of
from onnxfuse.cuda.elementwise.parts import Part, is_appended
from onnxfuse.cuda.elementwise.text import KernelText, TransposingText, joint_kernel
from onnxfuse.cuda.kernel import Access, JointKernel, Kernel, PartKernels, Source
from onnxfuse.cuda.prelude import prelude, transpose_prelude
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program import Program, ProgramError
from onnxfuse.program.figures import MAX_KERNELS, MAX_PARAMETER_BYTES, SHARED_BYTES
from onnxfuse.program.ops import OPS


@dataclass(frozen=True)
class Tuning:
    """What a tuner may vary; None leaves it to the heuristic.

    ``vector``: elements a thread (1, 2, 4, 8 or 16); ``block``: threads a block (a multiple of 32 up to 1024).
    """

    vector: int | None = None
    block: int | None = None


HEURISTIC = Tuning()


def compile_options(fast_math: bool) -> tuple[str, ...]:
    """Options for NVRTC and nvcc alike; the architecture is to be added.

    Exactness is one of options: without contraction, and with IEEE division and square root and denormals, basic
    operations give the bits of separate ONNX nodes.
    """
    if fast_math:
        return ("--std=c++17", "--use_fast_math")
    return ("--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")


def render(program: Program, accesses: Sequence[Access], tuning: Tuning = HEURISTIC) -> Source:
    """The source of ``program``, for nodes that are expected to access their operands in these ways.

    For each access its vector kernel, where an operand repeats or is a view one of smaller vectors too, and the same
    for single elements, which serves unaligned pointers and sizes that are no multiple of a vector; then kernels that
    address by strides, the last of which takes any shapes.  Raises ProgramError if the operands are too many for a
    kernel's parameters or the accesses do not fit the Program.
    """
    for access in accesses:
        if (len(access.inputs), len(access.outputs)) != (len(program.inputs), len(program.outputs)):
            raise ProgramError(
                f"access {access} does not fit {len(program.inputs)} inputs and {len(program.outputs)} outputs"
            )
    before = transpose_prelude() if any(access.transposes for access in accesses) else prelude()
    key = hashlib.sha256("\n".join((before, str(program), *map(str, accesses), str(tuning))).encode()).hexdigest()
    name = f"fused_{key[:12]}"
    kernels = tuple(_kernels(program, accesses, tuning, name))
    if len(kernels) > MAX_KERNELS:
        raise ProgramError(f"{len(kernels)} kernels for {len(accesses)} access patterns; the limit is {MAX_KERNELS}")
    if (size := max(map(parameter_bytes, kernels))) > MAX_PARAMETER_BYTES:
        operands = len(program.inputs) + len(program.outputs)
        what = f"{operands} operands take {size} bytes of kernel parameters"
        raise ProgramError(f"{what}; the limit is {MAX_PARAMETER_BYTES}")
    parts = [header(program), element_function(program, name)]
    texts = [TransposingText if kernel.tile else KernelText for kernel in kernels]
    parts += [text(program, kernel, name).text() for text, kernel in zip(texts, kernels, strict=True)]
    body = "\n".join((*parts[:1], "namespace onnxfuse {\n", *parts[1:], "}  // namespace onnxfuse\n"))
    return Source(before, body, kernels)


def render_parts(
    program: Program,
    parts: Sequence[Part],
    accesses: Sequence[Access],
    tunings: Sequence[Tuning],
    members: Callable[[Sequence[Sequence[Kernel]]], Sequence[Sequence[int]]],
) -> Source:
    """The source of a ``program`` of several parts, with an access and sizes for each.

    A part has its vector kernel, that of smaller vectors as above, that for single elements, and one that takes any
    shapes, to be launched alone where no joint kernel takes what a run has.  ``members`` says of which of these kernels
    the joint ones are made: for each a place among every part's own.  Raises ProgramError as ``render`` does, and if
    the parts are too many for one kernel's parameters or shared memory.
    """
    before = transpose_prelude() if any(access.transposes for access in accesses) else prelude()
    cases = list(zip(parts, accesses, tunings, strict=True))
    own = [tuple(_kernels_of_part(program, part, access, tuning)) for part, access, tuning in cases]
    chosen = [tuple(places) for places in members(own)]
    described = [f"{part.outputs} {access} {tuning}" for part, access, tuning in cases]
    key = hashlib.sha256("\n".join((before, str(program), *described, str(chosen))).encode()).hexdigest()
    name = f"fused_{key[:12]}"
    own = [
        tuple(replace(kernel, name=f"{name}_p{number}{kernel.name}") for kernel in kernels)
        for number, kernels in enumerate(own)
    ]
    ranges: list[PartKernels] = []
    kernels: list[Kernel] = []
    for part, own_kernels in zip(parts, own, strict=True):
        ranges.append(PartKernels(part.outputs, len(kernels), len(kernels) + len(own_kernels)))
        kernels += own_kernels
    joint = tuple(
        JointKernel(
            f"{name}_joint{number}", tuple(one.first + place for one, place in zip(ranges, places, strict=True))
        )
        for number, places in enumerate(chosen)
    )
    texts = [header(program)]
    writers: dict[int, KernelText] = {}
    for number, (part, found) in enumerate(zip(parts, ranges, strict=True)):
        function = f"{name}_p{number}"
        texts.append(element_function(part.program, function))
        for place in range(found.first, found.end):
            kernel = kernels[place]
            writers[place] = (TransposingText if kernel.tile else KernelText)(part.program, kernel, function)
            texts.append(writers[place].text())
    texts += [writers[place].part() for place in sorted({place for one in joint for place in one.members})]
    for one in joint:
        of_joint = [kernels[place] for place in one.members]
        if (size := joint_bytes(of_joint)) > MAX_PARAMETER_BYTES:
            raise ProgramError(
                f"{len(parts)} parts take {size} bytes of kernel parameters; the limit is {MAX_PARAMETER_BYTES}"
            )
        shared = sum(tile_bytes(part.program, kernel) for part, kernel in zip(parts, of_joint, strict=True))
        if shared > SHARED_BYTES:
            raise ProgramError(
                f"the tiles of its parts take {shared} bytes of shared memory; the limit is {SHARED_BYTES}"
            )
        texts.append(joint_kernel(one, [writers[place] for place in one.members]))
    body = "\n".join((*texts[:1], "namespace onnxfuse {\n", *texts[1:], "}  // namespace onnxfuse\n"))
    return Source(before, body, tuple(kernels), tuple(ranges), joint)


def _kernels_of_part(program: Program, part: Part, access: Access, tuning: Tuning) -> Iterator[Kernel]:
    """As ``_kernels``, but for the one that addresses by strides of 32 bits; the names lack their beginnings."""
    writes = "p" if is_appended(program, part.outputs[0]) else "w"
    for kernel in _kernels(part.program, [access], tuning, "", writes):
        if kernel.index == 64 or kernel.access == access:
            yield kernel


def joint_members(first: Sequence[int], own: Sequence[Sequence[Kernel]]) -> list[tuple[int, ...]]:
    """What joint kernels are made of: the ``first`` of each part, then, where that is another, what needs no alignment.

    The last kernel of each part, which takes any shapes, is in none: it takes more registers.
    """
    singles = tuple(len(kernels) - 2 for kernels in own)
    return list(dict.fromkeys([tuple(first), singles]))


# ------------------------------------------------------------------------------------------------ choice of kernels


def _kernels(
    program: Program, accesses: Sequence[Access], tuning: Tuning, name: str, writes: str = "w"
) -> Iterator[Kernel]:
    """The kernels of a source, of which the last writes outputs by the letter ``writes``."""
    strided_inputs = "g" * len(program.inputs)
    wanted: dict[tuple[Access, int, int], None] = {}  # in order, each once
    tiles: dict[Access, int] = {}
    for access in accesses:
        if access.transposes:
            tiles[access] = tile_of(program, access)
            if not tiles[access]:
                raise ProgramError(f"the tiles of access {access} do not fit in shared memory")
        vector = 1 if "w" in access.outputs else tuning.vector or _vector(program, access)
        wanted[access, vector, 32] = None
        repeats = "iocg" if program.reads_views and not access.transposes else "ioc"
        if vector > _NARROW and (set(access.inputs) & set(repeats) or "p" in access.outputs):
            wanted[access, _NARROW, 32] = None
        wanted[access, 1, 32] = None
    for access in accesses:
        wanted[Access(strided_inputs, access.outputs), 1, 32] = None
    wanted[Access(strided_inputs, writes * len(program.outputs)), 1, 64] = None
    for access, vector, index in wanted:
        suffix = f"{access.inputs}_{access.outputs}_v{vector}" + ("" if index == 32 else f"_i{index}")
        yield Kernel(f"{name}_{suffix}", vector, tuning.block or _BLOCK, index, access, tiles.get(access, 0))


_BLOCK = 256
_NARROW = 4
"""Elements a group where the size that an operand repeats by, or the rows of a view, are no multiple of more: images of
14x14, in float16."""


def _vector(program: Program, access: Access) -> int:
    """Elements a group, so that the item size with the most traffic is accessed 16 bytes at a time.

    Operands of half that size are then accessed 8 bytes at a time, which still fills the memory's 32-byte sectors.
    Operands of a larger size take several 16-byte pieces, whose sectors two instructions share: no more than two.
    """
    sizes = [
        DTYPES[spec.dtype].itemsize
        for spec, letter in zip(program.inputs, access.inputs, strict=True)
        if letter in "lgt"
    ]
    sizes += [DTYPES[program.dtype(output)].itemsize for output in program.outputs]
    traffic = {size: sizes.count(size) * size for size in sizes}
    widest = max(traffic, key=lambda size: (traffic[size], size))
    vector = min(16 // widest, 32 // max(sizes))
    while vector > 1 and vector * _instructions(program) > _MAX_INSTRUCTIONS:
        vector //= 2
    return vector


_MAX_INSTRUCTIONS = 1 << 13


def _instructions(program: Program) -> int:
    """Roughly, the machine instructions for one element."""
    return sum(OPS[one.op].cost.cuda[one.dtype.endswith("64")] for one in program.instructions)
