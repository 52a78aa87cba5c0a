"""What kernels and launcher agree on, written down a second time: recipes, parameters, and kernels that obey."""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import helper

from tests.cuda.stand_in import built, compile_shared, cubin, scratch_folder
from tests.custom_ops.fused import fused_model

SOURCE = "0123456789abcdef" * 4


@dataclass(frozen=True)
class Kernel:
    """One kernel of a recipe.  ``sums`` says for each output which inputs it is the sum of."""

    name: str
    access: str
    sums: tuple[str, ...] = ("01",)
    vector: int = 1
    block: int = 128
    index: int = 32
    tile: int = 0

    @property
    def line(self) -> str:
        text = f"kernel {self.name} vector {self.vector} block {self.block} index {self.index} access {self.access}"
        return f"{text} tile {self.tile}\n" if self.tile else f"{text}\n"

    @property
    def parameters(self) -> list[tuple[int, int]]:
        """(offset, bytes) of each."""
        width = self.index // 8
        divider = 12 if self.index == 32 else 8
        letters = self.access.replace(":", "")
        kinds = [(8, 8)] * len(letters) + [(width, width)]
        for letter in "c" if self.tile else letters:
            kinds += [(divider, min(divider, width))] * {"i": 1, "o": 1, "c": 2}.get(letter, 0)
        general = sum(letter != "s" if self.tile else letter in "gw" for letter in letters)
        if general:
            kinds += [(4 + 16 * 12, 4) if self.index == 32 else (8 + 16 * 8, 8)] + [(16 * width, width)] * general
        places, offset = [], 0
        for size, alignment in kinds:
            offset = -(-offset // alignment) * alignment
            places.append((offset, size))
            offset += size
        return places

    @property
    def definition(self) -> str:
        """C for the stand-in driver."""
        letters = self.access.replace(":", "")
        sums = ", ".join(f'"{inputs}"' for inputs in self.sums)
        sizes = ", ".join(f"{offset}, {size}" for offset, size in [*self.parameters, (0, 0)])
        return (
            f"const char* {self.name}_emulated(const EmulatedLaunch* launch) {{\n"
            f"  const char* const sums[] = {{{sums}}};\n"
            f'  return contract_run("{letters}", {self.index}, {self.vector}, {len(self.sums)}, sums, launch);\n'
            f"}}\nconst size_t {self.name}_parameters[] = {{{sizes}}};\n"
        )


HEADER = """\
#include <stddef.h>
typedef struct EmulatedLaunch EmulatedLaunch;
const char* contract_run(const char*, int, unsigned, size_t, const char* const*, const EmulatedLaunch*);
"""


def recipe(kernels: Sequence[Kernel]) -> str:
    return f"onnxfuse-cuda 2\nsource {SOURCE}\n" + "".join(kernel.line for kernel in kernels)


@functools.cache
def shared_object(kernels: tuple[Kernel, ...]) -> Path:
    """The kernels, compiled for the stand-in driver."""
    text = HEADER + "".join(kernel.definition for kernel in kernels)
    source = scratch_folder() / f"{hashlib.sha256(text.encode()).hexdigest()}.c"
    source.write_text(text, encoding="ascii")
    return compile_shared(
        source.with_suffix(".so"), "-x", "c", str(source), "-x", "none", str(built("contract_kernel", ".o"))
    )


def sum_program(axes: Sequence[int | None], sums: Sequence[str]) -> str:
    """A Program of float inputs, each broadcast or along an axis, whose outputs are sums of some of them."""
    lines = ["onnxfuse 1"] + [f"input f32 {'broadcast' if axis is None else f'axis {axis}'}" for axis in axes]
    count, outputs = len(axes), []
    for inputs in sums:
        if not inputs:
            lines.append("const f32 00000000")
        value = int(inputs[0]) if inputs else count
        for other in inputs[1:]:
            lines.append(f"add f32 {value} {other}")
            value, count = count, count + 1
        outputs.append(value)
    return "\n".join([*lines, *(f"output {value}" for value in outputs)]) + "\n"


def node_model(
    kernels: Sequence[Kernel],
    shapes: Sequence[Sequence[int | str]],
    axes: Sequence[int | None] | None = None,
    **attributes: bytes,
) -> onnx.ModelProto:
    """A model of one fused node with these kernels, for sm_90 unless ``attributes`` hold other code."""
    program = sum_program(axes or [None] * len(shapes), kernels[0].sums)
    model = fused_model(program, shapes)
    code = attributes or {"cuda_sm_90": cubin(shared_object(tuple(kernels)), 90)}
    for name, value in {"cuda_recipe": recipe(kernels).encode(), **code}.items():
        model.graph.node[0].attribute.append(helper.make_attribute(name, value))
    return model
