"""Models of one FusedConv node for the tests of the launcher, and machine code of the stand-in driver's for them."""

import hashlib
import itertools
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxfuse.cuda.conv.arguments import choose, grid_size, pack, splits, sum_grid_size, workspace_bytes
from onnxfuse.cuda.conv.kernel import ConvAccess, ConvKernel, ConvSource, Family
from onnxfuse.cuda.conv.recipe import ConvRecipe
from onnxfuse.cuda.conv.spec import Convolution
from onnxfuse.program import Program, reference
from onnxfuse.program.figures import CONV_SUM_BLOCK
from tests.cuda.contract import SOURCE
from tests.cuda.conv.convolutions import MULTIPROCESSORS, Fused, convolve, integers
from tests.cuda.emulation.emulator import FLAGS, HEADERS, cpp_text
from tests.cuda.stand_in import NATIVE, Call, StandIn, compile_shared, cubin, scratch_folder
from tests.custom_ops.fused import NODE_NAME, assert_same_bits, make_model, run, sample

Dims = Sequence[int | str] | None
NODE = f"onnxfuse::FusedConv node '{NODE_NAME}': "


def attributes(conv: Convolution, epilogue: Program, prologue: Program | None = None) -> dict[str, Any]:
    """The attributes of a node, but for those with code."""
    if conv.channels_last:
        own = {"operator": "MatMul", "weight_shape": conv.weight_shape, "transB": int(not conv.transposed)}
        programs = {"program": str(epilogue)} | ({} if prologue is None else {"prologue": str(prologue)})
        return {**own, **programs}
    found: dict[str, Any] = {
        "operator": "ConvTranspose" if conv.transposed else "Conv",
        "weight_shape": conv.weight_shape,
        "kernel_shape": conv.kernel,
        "strides": conv.strides,
        "dilations": conv.dilations,
        "group": conv.group,
        "auto_pad": conv.auto_pad,
        "program": str(epilogue),
    }
    if conv.pads is not None:
        found["pads"] = conv.pads
    if conv.transposed:
        found["output_padding"] = conv.output_padding
    if prologue is not None:
        found["prologue"] = str(prologue)
    return found


def conv_model(fused: Fused, shapes: Sequence[Dims] | None = None, **more: Any) -> onnx.ModelProto:
    """A model of the node on graph inputs x0, x1, … with outputs y0, y1, …

    ``shapes`` are those of the inputs, which else are dynamic; ``more`` are more attributes, or others, None for none.
    """
    kinds = [fused.conv.dtype] * 2
    for program in (fused.prologue, fused.epilogue):
        kinds += [spec.dtype for spec in program.inputs[1:]] if program else []
    own = [fused.x_shape, fused.conv.weight_shape, *fused.x_operands, *fused.operands]
    dynamic = [[f"d{i}_{axis}" for axis in range(len(shape))] for i, shape in enumerate(own)]
    inputs = {f"x{i}": (kind, dims) for i, (kind, dims) in enumerate(zip(kinds, shapes or dynamic, strict=True))}
    outputs: dict[str, tuple[str, Dims]] = {
        f"y{i}": (fused.epilogue.dtype(output), None) for i, output in enumerate(fused.epilogue.outputs)
    }
    node = helper.make_node("FusedConv", list(inputs), list(outputs), domain="onnxfuse", name=NODE_NAME)
    known = {**attributes(fused.conv, fused.epilogue, fused.prologue), **more}
    node.attribute.extend(helper.make_attribute(name, value) for name, value in known.items() if value is not None)
    return make_model([node], inputs, outputs)


def node_case(make: Callable[[int], Fused], seed: int) -> Fused:
    """A case that can be a node: every output has the result's shape, as ONNX broadcasts."""
    for number in itertools.count(seed, 1000):
        fused = make(number)
        specs = fused.epilogue.inputs
        shapes = [fused.conv.output_shape(fused.x_shape), *fused.operands]
        arrays = [
            sample(spec.dtype, int(np.prod(shape))).reshape(shape) for spec, shape in zip(specs, shapes, strict=True)
        ]
        with np.errstate(all="ignore"):
            results = reference.run(fused.epilogue, arrays)
        if all(result.shape == shapes[0] for result in results):
            break
    return fused


def arrays_of(fused: Fused, seed: int = 0) -> list[np.ndarray]:
    """Inputs of the node; X and W are small integers, so that every order of the sums gives the same bits."""
    conv = fused.conv
    arrays = [integers(conv.dtype, fused.x_shape, seed), integers(conv.dtype, conv.weight_shape, seed + 1, -3, 3)]
    for program, shapes in ((fused.prologue, fused.x_operands), (fused.epilogue, fused.operands)):
        specs = program.inputs[1:] if program else ()
        for spec, shape in zip(specs, shapes, strict=True):
            flat = sample(spec.dtype, int(np.prod(shape)), seed + len(arrays), special=False)
            small = integers(spec.dtype, shape, seed + len(arrays)) if flat.dtype.kind in "fV" else flat.reshape(shape)
            arrays.append(small)
    return arrays


def expected(fused: Fused, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What ONNX Runtime's own convolution and the reference of the Programs give."""
    x, w, *rest = arrays
    before = len(fused.x_operands)
    if fused.prologue is not None:
        (x,) = reference.run(fused.prologue, [x, *rest[:before]])
    return reference.run(fused.epilogue, [convolve(fused.conv, x, w), *rest[before:]])


def places(kernel: ConvKernel, outputs: int) -> list[tuple[int, int]]:
    """(offset, bytes) of each parameter."""
    word, divider = (4, 12) if kernel.index == 32 else (8, 8)
    sizes = [8] * (2 + len(kernel.access.letters) + outputs + 1) + [11 * word + 3 * divider]
    sizes += [5 * word] * kernel.access.letters.count("g")
    return [(sum(sizes[:i]), size) for i, size in enumerate(sizes)]


def functions(kernels: Sequence[ConvKernel]) -> list[tuple[str, bool, ConvKernel]]:
    """The name of each function of the machine code, whether it adds up parts, and its kernel."""
    found = [(kernel.name, False, kernel) for kernel in kernels]
    return found + [(kernel.sum_name, True, kernel) for kernel in kernels if kernel.split > 1]


def _table(name: str, kernel: ConvKernel, outputs: int) -> str:
    numbers = ", ".join(f"{offset}, {size}" for offset, size in [*places(kernel, outputs), (0, 0)])
    return f"extern const size_t {name}_parameters[];\nconst size_t {name}_parameters[] = {{{numbers}}};\n"


# --------------------------------------------------------------------------------------------------------- launches


def check_launches(
    calls: Sequence[Call], scratch: Sequence[int], fused: Fused, kernels: Sequence[ConvKernel]
) -> ConvKernel:
    """The launches and the workspace of one run are those that ``onnxfuse.cuda.conv`` foretells; returns the kernel."""
    layout = fused.layout()
    parameters = bytes.fromhex(calls[0]["parameters"])
    tensors = 2 + len(layout.prologue) + len(layout.epilogue) + len(layout.outputs)
    *addresses, workspace = (int.from_bytes(parameters[8 * i : 8 * i + 8], "little") for i in range(tensors + 1))
    kernel = choose(kernels, layout, addresses)
    parts = splits(kernel, layout, MULTIPROCESSORS)
    wanted = [(kernel.name, grid_size(kernel, layout, MULTIPROCESSORS), kernel.block)]
    if parts > 1:
        wanted.append((kernel.sum_name, sum_grid_size(kernel, layout, MULTIPROCESSORS), CONV_SUM_BLOCK))
    assert [(call["kernel"], call["grid"], call["block"]) for call in calls] == wanted
    assert scratch == ([workspace_bytes(layout, parts)] if parts > 1 else [])
    assert (workspace != 0) == (parts > 1)
    arguments = pack(kernel, layout, addresses, parts, workspace)
    for call in calls:
        block = bytes.fromhex(call["parameters"])
        assert [block[offset : offset + size] for offset, size in places(kernel, len(layout.outputs))] == arguments
        assert len(block) == sum(map(len, arguments))
    return kernel


def check_launcher(fused: Fused, source: ConvSource, code: Path, seed: int, folder: Path) -> None:
    """The library launches the kernels of a source, and the last of them alone, as foretold, and has the reference's
    results; ``code`` is machine code of the stand-in's, ``folder`` one to work in.
    """
    stand_in = StandIn(folder, [(9, 0, MULTIPROCESSORS)])
    inputs = arrays_of(fused, seed)
    wanted = expected(fused, inputs)
    for kernels in (source.kernels, source.kernels[-1:]):
        recipe = str(ConvRecipe(source.sha256, kernels))
        session = stand_in.session(rendered_model(fused, source, code, cuda_recipe=recipe))
        stand_in.use_stream(0)
        stand_in.launches()
        for result, own in zip(run(session, inputs), wanted, strict=True):
            assert_same_bits(result, own)
        check_launches(stand_in.launches(), stand_in.scratch(), fused, kernels)


# --------------------------------------------------------------------------------------------- kernels that do nothing


def conv_kernel(name: str, family: Family, access: str, **fields: Any) -> ConvKernel:
    """A kernel with plain values where ``fields`` do not say otherwise."""
    plain = {"tile": (1, 1, 1), "block": 64, "split": 1, "vector": 1, "index": 32}
    return ConvKernel(name, family, access=ConvAccess.parse(access), **{**plain, **fields})


def any_kernel(access: str) -> ConvKernel:
    """The last kernel of a recipe."""
    return conv_kernel("any", "any", "".join(letter if letter == ";" else "g" for letter in access), index=64)


def recipe(kernels: Sequence[ConvKernel]) -> str:
    return str(ConvRecipe(SOURCE, tuple(kernels)))


@cache
def stub_object(kernels: tuple[ConvKernel, ...], outputs: int) -> Path:
    """Functions that can be launched, and leave the outputs as they are."""
    text = "#include <stddef.h>\n" + "".join(
        f"const char* {name}_emulated(const void* launch) {{ return (void)launch, (const char*)0; }}\n"
        + _table(name, kernel, outputs)
        for name, _, kernel in functions(kernels)
    )
    source = scratch_folder() / f"{hashlib.sha256(text.encode()).hexdigest()}.c"
    source.write_text(text, encoding="ascii")
    return compile_shared(source.with_suffix(".so"), "-x", "c", str(source))


def stub_model(fused: Fused, kernels: Sequence[ConvKernel], **more: Any) -> onnx.ModelProto:
    """A node with these kernels, for sm_90 unless ``more`` has other code; they compute nothing."""
    code = {"cuda_sm_90": cubin(stub_object(tuple(kernels), len(fused.epilogue.outputs)), 90)}
    return conv_model(fused, **{"cuda_recipe": recipe(kernels), **code, **more})


# ------------------------------------------------------------------------------------------ kernels that are rendered


def _rendered(fused: Fused, source: ConvSource) -> str:
    """C++ through which the stand-in driver launches the kernels of a source in the emulation."""
    conv = fused.conv
    types = [conv.dtype] * 2
    types += [spec.dtype for program in (fused.prologue, fused.epilogue) if program for spec in program.inputs[1:]]
    types += [fused.epilogue.dtype(output) for output in fused.epilogue.outputs]
    sizes = ", ".join(str(integers(dtype, [1], 0, 0, 1).itemsize) for dtype in types)
    text = []
    for name, is_sum, kernel in functions(source.kernels):
        letters = f'"{kernel.access.prologue}", "{kernel.access.epilogue}"'
        wide, weights = int(kernel.index == 64), int(np.prod(conv.weight_shape))
        text.append(
            f'extern "C" {{\n{_table(name, kernel, len(fused.epilogue.outputs))}'
            f"const char* {name}_emulated(const EmulatedLaunch* launch) {{\n"
            f"  static const rendered::Conv conv{{{letters}, {wide}, {conv.in_channels}, {conv.out_channels}, "
            f"{weights}, {{{sizes}}}}};\n"
            f'  return rendered::run("{name}", {int(is_sum)}, conv, {name}_parameters, launch);\n}}\n}}\n'
        )
    return "".join(text)


def rendered_object(cases: Sequence[tuple[Fused, ConvSource]]) -> Path:
    """The kernels of all sources in the emulation of CUDA, compiled at once."""
    sources = {source.sha256: (fused, source) for fused, source in cases}.values()
    wrappers = "".join(_rendered(fused, source) for fused, source in sources)
    text = cpp_text([source for _, source in sources]) + '\n#include "tests/cuda/rendered_conv.h"\n' + wrappers
    path = scratch_folder() / f"{hashlib.sha256(text.encode()).hexdigest()}.cc"
    path.write_text(text, encoding="utf-8")
    flags = [*FLAGS, f"-I{HEADERS}", f"-I{NATIVE}"]
    return compile_shared(path.with_suffix(".so"), *flags, str(path))


def rendered_model(fused: Fused, source: ConvSource, code: Path, **more: Any) -> onnx.ModelProto:
    """A node with rendered kernels for sm_90."""
    return conv_model(fused, **{"cuda_recipe": str(ConvRecipe.of(source)), "cuda_sm_90": cubin(code, 90), **more})
