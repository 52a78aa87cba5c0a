"""Models of one FusedReduction node for the tests of the launcher, and code of the stand-in driver's for them."""

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from onnxfuse.cuda.nest.arguments import grid_of, pack, workspace_bytes
from onnxfuse.cuda.nest.kernel import NestAccess, NestKernel, NestSource
from onnxfuse.cuda.nest.layout import accepts, lay_out
from onnxfuse.cuda.nest.recipe import NestRecipe
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program import Program
from tests.cuda.contract import SOURCE
from tests.cuda.emulation.emulator import FLAGS, HEADERS, cpp_text
from tests.cuda.stand_in import NATIVE, Call, compile_shared, cubin, scratch_folder
from tests.custom_ops.fused import NODE_NAME, make_model

Shapes = Sequence[Sequence[int | str] | None]
NODE = f"onnxfuse::FusedReduction node '{NODE_NAME}': "
MULTIPROCESSORS = 3


def reduction_model(program: Program | str, shapes: Shapes, **attributes: Any) -> onnx.ModelProto:
    """A model of the node on graph inputs x0, x1, … with outputs y0, y1, …"""
    parsed = program if isinstance(program, Program) else Program.parse(program)
    inputs = {f"x{i}": (spec.dtype, shape) for i, (spec, shape) in enumerate(zip(parsed.inputs, shapes, strict=True))}
    outputs: dict[str, tuple[str, Sequence[int | str] | None]] = {
        f"y{i}": (parsed.dtype(output), None) for i, output in enumerate(parsed.outputs)
    }
    node = helper.make_node("FusedReduction", list(inputs), list(outputs), domain="onnxfuse", name=NODE_NAME)
    known = {"program": str(parsed), **attributes}
    node.attribute.extend(helper.make_attribute(name, value) for name, value in known.items())
    return make_model([node], inputs, outputs)


def places(kernel: NestKernel, tables: int = 0) -> list[tuple[int, int]]:
    """(offset, bytes) of each parameter, where it is named rows of so many inputs."""
    word, divider = (4, 12) if kernel.index == 32 else (8, 8)
    access = kernel.access
    sizes = [8] * (len(access.inputs) + len(access.outputs) + 1) + [word] * 4 + [8 + 16 * divider]
    sizes += [17 * word] * len(access.letters) + [2 * word] * tables
    return [(sum(sizes[:i]), size) for i, size in enumerate(sizes)]


def check_launches(
    calls: Sequence[Call], scratch: Sequence[int], program: Program, shapes: Shapes, kernels: Sequence[NestKernel]
) -> NestKernel:
    """The launches and the workspace of one run are those that ``onnxfuse.cuda.nest`` foretells; returns the kernel."""
    layout = lay_out(program, shapes)  # type: ignore[arg-type]
    parameters = bytes.fromhex(calls[0]["parameters"])
    tensors = len(program.inputs) + len(program.outputs)
    *addresses, workspace = (int.from_bytes(parameters[8 * i : 8 * i + 8], "little") for i in range(tensors + 1))
    kernel, grid = next(
        (one, grid)
        for one in kernels
        if accepts(one, layout, addresses)
        and ((grid := grid_of(one, layout, MULTIPROCESSORS)).splits > 1 or not one.steps)
    )
    assert [(call["kernel"], call["grid"], call["block"]) for call in calls] == [
        (name, grid.blocks, kernel.block) for name in kernel.functions
    ]
    assert scratch == ([workspace_bytes(program, layout, grid)] if grid.splits > 1 else [])
    arguments = pack(kernel, layout, grid, addresses, workspace)
    for call in calls:
        block = bytes.fromhex(call["parameters"])
        assert [block[offset : offset + size] for offset, size in places(kernel, len(_tables(program)))] == arguments
        assert len(block) == sum(map(len, arguments))
    return kernel


# --------------------------------------------------------------------------------------------- kernels that do nothing


def nest_kernel(name: str, access: str, **fields: Any) -> NestKernel:
    """A kernel with plain values where ``fields`` do not say otherwise."""
    plain = {"along": "rows", "threads": 32, "items": 0, "vector": 1, "block": 64, "index": 32, "steps": 0}
    return NestKernel(name, access=NestAccess.parse(access), **{**plain, **fields})


def recipe(kernels: Sequence[NestKernel]) -> str:
    return str(NestRecipe(SOURCE, tuple(kernels)))


@cache
def stub_object(kernels: tuple[NestKernel, ...]) -> Path:
    """Functions that can be launched, and leave the outputs as they are."""
    text = "#include <stddef.h>\n" + "".join(
        f"const char* {name}_emulated(const void* launch) {{ return (void)launch, (const char*)0; }}\n"
        + _table(name, kernel)
        for kernel in kernels
        for name in kernel.functions
    )
    source = scratch_folder() / f"{hashlib.sha256(text.encode()).hexdigest()}.c"
    source.write_text(text, encoding="ascii")
    return compile_shared(source.with_suffix(".so"), "-x", "c", str(source))


def stub_model(program: Program | str, shapes: Shapes, kernels: Sequence[NestKernel], **more: Any) -> onnx.ModelProto:
    """A node with these kernels, for sm_90 unless ``more`` has other code; they compute nothing."""
    code = {"cuda_sm_90": cubin(stub_object(tuple(kernels)), 90)}
    return reduction_model(program, shapes, **{"cuda_recipe": recipe(kernels), **code, **more})


def _tables(program: Program) -> list[int]:
    """The inputs of which rows are named."""
    return [place for place, spec in enumerate(program.inputs) if spec.row is not None]


def _table(name: str, kernel: NestKernel, tables: int = 0) -> str:
    numbers = ", ".join(f"{offset}, {size}" for offset, size in [*places(kernel, tables), (0, 0)])
    return f"extern const size_t {name}_parameters[];\nconst size_t {name}_parameters[] = {{{numbers}}};\n"


# ------------------------------------------------------------------------------------------ kernels that are rendered


def _rendered(program: Program, source: NestSource) -> str:
    """C++ through which the stand-in driver launches the kernels of a source in the emulation."""
    bits = [spec.bits for spec in program.inputs]
    bits += [8 * DTYPES[program.dtype(output)].itemsize for output in program.outputs]
    sizes = ", ".join(map(str, bits))
    counts = f"{len(program.inputs)}, {len(program.indices)}, {len(program.outputs)}"
    tables = _tables(program)
    text = []
    for kernel in source.kernels:
        facts = f"{counts}, {int(kernel.index == 64)}, {kernel.steps}, {len(program.reductions)}, {{{sizes}}}"
        facts += f", {{{', '.join(map(str, tables))}}}"
        text += [
            f'extern "C" {{\n{_table(name, kernel, len(tables))}'
            f"const char* {name}_emulated(const EmulatedLaunch* launch) {{\n"
            f"  static const rendered::Nest nest{{{facts}}};\n"
            f'  return rendered::run("{name}", nest, {name}_parameters, launch);\n}}\n}}\n'
            for name in kernel.functions
        ]
    return "".join(text)


def rendered_object(cases: Sequence[tuple[Program, NestSource]]) -> Path:
    """The kernels of all sources in the emulation of CUDA, compiled at once."""
    sources = {source.sha256: (program, source) for program, source in cases}.values()
    wrappers = "".join(_rendered(program, source) for program, source in sources)
    text = cpp_text([source for _, source in sources]) + '\n#include "tests/cuda/rendered_nest.h"\n' + wrappers
    path = scratch_folder() / f"{hashlib.sha256(text.encode()).hexdigest()}.cc"
    path.write_text(text, encoding="utf-8")
    return compile_shared(path.with_suffix(".so"), *FLAGS, f"-I{HEADERS}", f"-I{NATIVE}", str(path))


def rendered_model(program: Program, shapes: Shapes, source: NestSource, code: Path) -> onnx.ModelProto:
    """A node with rendered kernels for sm_90."""
    return reduction_model(program, shapes, cuda_recipe=str(NestRecipe.of(source)), cuda_sm_90=cubin(code, 90))
