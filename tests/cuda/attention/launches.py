"""Models of one FusedAttention node for the tests of the launcher, and code of the stand-in driver's for them."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxfuse.cuda.attention.arguments import PARAMETER_BYTES, choose, pack, splits, sum_blocks, tiles, workspace_bytes
from onnxfuse.cuda.attention.kernel import AttentionKernel, AttentionSource
from onnxfuse.cuda.attention.layout import lay_out
from onnxfuse.cuda.attention.recipe import AttentionRecipe
from onnxfuse.model.dtypes import DTYPES, from_numpy
from onnxfuse.program.figures import ATTENTION_SUM_BLOCK
from tests.cuda.attention.nodes import Node
from tests.cuda.contract import SOURCE
from tests.cuda.emulation.emulator import FLAGS, HEADERS, cpp_text
from tests.cuda.stand_in import NATIVE, Call, compile_shared, cubin, scratch_folder
from tests.custom_ops.fused import NODE_NAME, make_model

NODE = f"onnxfuse::FusedAttention node '{NODE_NAME}': "
PLACES = [(sum(PARAMETER_BYTES[:i]), size) for i, size in enumerate(PARAMETER_BYTES)]
"""(offset, bytes) of each parameter."""


def attention_model(node: Node, inputs: Sequence[np.ndarray], **more: Any) -> onnx.ModelProto:
    """A model of the node on graph inputs x0, x1, … of any sizes but those of heads, with the output y."""
    given = feeds(node, inputs)
    specs: dict[str, tuple[str, Sequence[int | str] | None]] = {}
    for place, array in enumerate(given):
        known = from_numpy(array.dtype)
        assert known is not None
        specs[f"x{place}"] = known.name, [f"d{place}_{d}" for d in range(array.ndim - 1)] + [array.shape[-1]]
    shared = len(inputs) - len(given)
    names = [f"x{max(place - shared, 0)}" for place in range(len(inputs))]
    made = helper.make_node("FusedAttention", names, ["y"], domain="onnxfuse", name=NODE_NAME)
    attributes = {**node.attributes, **more}
    made.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    return make_model([made], specs, {"y": (node.dtype, None)})


def feeds(node: Node, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The arrays of the graph's inputs."""
    return [*inputs[:1], *inputs[3:]] if node.form == "packed" else list(inputs)


def check_launches(
    calls: Sequence[Call],
    scratch: Sequence[int],
    attributes: Mapping[str, object],
    shapes: Sequence[tuple[int, ...]],
    kernels: Sequence[AttentionKernel],
    multiprocessors: int,
) -> AttentionKernel:
    """The launches of one run are those that ``onnxfuse.cuda.attention`` foretells; returns the kernel."""
    layout = lay_out(attributes, shapes)
    block = bytes.fromhex(calls[0]["parameters"])
    addresses = [int.from_bytes(block[8 * i : 8 * i + 8], "little") for i in range(6)]
    workspace = int.from_bytes(block[48:56], "little")
    kernel = choose(kernels, layout, [*addresses[:3], addresses[5]], multiprocessors)
    parts = splits(kernel, layout, multiprocessors)
    expected = [(kernel.name, tiles(kernel, layout) * parts[0], kernel.block)]
    if parts[0] > 1:
        expected.append((kernel.sum_name, sum_blocks(layout), ATTENTION_SUM_BLOCK))
    assert [(call["kernel"], call["grid"], call["block"]) for call in calls] == expected
    assert scratch == ([workspace_bytes(layout, parts[0])] if parts[0] > 1 else [])
    arguments = pack(attributes, layout, addresses, parts, workspace)
    for call in calls:
        assert bytes.fromhex(call["parameters"]) == b"".join(arguments)
    return kernel


def recipe(kernels: Sequence[AttentionKernel]) -> str:
    return str(AttentionRecipe(SOURCE, tuple(kernels)))


@cache
def stub_object(functions: tuple[str, ...]) -> Path:
    """Functions that can be launched, and leave the outputs as they are."""
    text = "#include <stddef.h>\n" + "".join(
        f"const char* {name}_emulated(const void* launch) {{ return (void)launch, (const char*)0; }}\n{_table(name)}"
        for name in functions
    )
    source = scratch_folder() / f"{hashlib.sha256(text.encode()).hexdigest()}.c"
    source.write_text(text, encoding="ascii")
    return compile_shared(source.with_suffix(".so"), "-x", "c", str(source))


def _table(name: str) -> str:
    numbers = ", ".join(f"{offset}, {size}" for offset, size in [*PLACES, (0, 0)])
    return f"extern const size_t {name}_parameters[];\nconst size_t {name}_parameters[] = {{{numbers}}};\n"


@cache
def rendered_code(source: AttentionSource) -> Path:
    """The kernels of a source in the emulation of CUDA."""
    wrappers = "".join(
        f'extern "C" {{\n{_table(name)}'
        f"const char* {name}_emulated(const EmulatedLaunch* launch) {{\n"
        f'  return rendered::run_attention("{name}", {int(name.endswith("_sum"))}, '
        f"{DTYPES[source.kernels[0].dtype].itemsize}, launch);\n}}\n}}\n"
        for name in source.functions()
    )
    text = cpp_text([source]) + '\n#include "tests/cuda/rendered_attention.h"\n' + wrappers
    path = scratch_folder() / f"{hashlib.sha256(text.encode()).hexdigest()}.cc"
    path.write_text(text, encoding="utf-8")
    return compile_shared(path.with_suffix(".so"), *FLAGS, f"-I{HEADERS}", f"-I{NATIVE}", str(path))


def rendered_model(node: Node, inputs: Sequence[np.ndarray], source: AttentionSource) -> onnx.ModelProto:
    """A node with rendered kernels for sm_90."""
    code = cubin(rendered_code(source), 90)
    return attention_model(node, inputs, cuda_recipe=str(AttentionRecipe.of(source)), cuda_sm_90=code)
