"""A Program on one element, as a device function: what every kernel calls, whatever it reads and writes around it."""

import math
import re
from collections.abc import Callable, Iterable

from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program import Const, Input, Instruction, Program
from onnxfuse.program.ops import OPS


def stored(dtype: str) -> str:
    """The C++ type of an element in memory."""
    return "boolean" if dtype == "bool" else dtype


def computed(dtype: str) -> str:
    """The C++ type of a value."""
    return DTYPES[dtype].compute


def live(program: Program, outputs: Iterable[int] | None = None) -> set[int]:
    """The ids of the values that some outputs, by their places, need; by default all."""
    live = set(program.outputs) if outputs is None else {program.outputs[output] for output in outputs}
    for index in reversed(range(len(program.values))):
        value = program.values[index]
        if index in live and isinstance(value, Instruction):
            live.update(value.operands)
    return live


def header(program: Program) -> str:
    """The Program's text as a comment."""
    return "".join(f"// {line}\n" for line in str(program).splitlines())


def element_function(program: Program, name: str) -> str:
    """The text of a function of this name, of the inputs that are needed and then the outputs, as computed with."""
    needed = live(program)
    parameters = [
        f"{computed(value.dtype)} v{index}"
        for index, value in enumerate(program.values)
        if isinstance(value, Input) and index in needed
    ]
    parameters += [f"{computed(program.dtype(value))}& y{index}" for index, value in enumerate(program.outputs)]
    lines = [f"ONNXFUSE_DEVICE void {name}({', '.join(parameters)}) {{"]
    for index, value in enumerate(program.values):
        if index not in needed:
            continue
        match value:
            case Const(dtype):
                lines.append(f"  const {computed(dtype)} v{index} = {literal(value)};")
            case Instruction():
                lines.append(f"  const {computed(value.result)} v{index} = {expression(value)};")
            case Input():
                pass
    lines += [f"  y{index} = v{value};" for index, value in enumerate(program.outputs)]
    return "\n".join([*lines, "}\n"])


def expression(instruction: Instruction, name: Callable[[int], str] = "v{}".format) -> str:
    """The C++ expression of an instruction, of operands whose names ``name`` gives."""
    names = dict(zip("abc", map(name, instruction.operands), strict=False))
    names["T"] = stored(instruction.dtype)
    return re.sub(r"\b[abcT]\b", lambda match: names[match[0]], OPS[instruction.op].cuda)


def literal(const: Const) -> str:
    """A C++ literal of exactly this value, of the type that it is computed with."""
    value = const.value.item() if const.dtype != "bf16" else float(const.value)
    if const.dtype == "bool":
        return "true" if value else "false"
    compute = DTYPES[computed(const.dtype)]
    if compute.numpy.kind in "iu":
        suffix = {"i64": "ll", "u32": "u", "u64": "ull"}.get(const.dtype, "")
        if value == -(1 << (8 * compute.itemsize - 1)):
            return f"-{-(value + 1)}{suffix} - 1"  # C++ has no negative literals
        return f"{value}{suffix}"
    if math.isfinite(value):
        digits, exponent = value.hex().split("p")
        digits = digits.rstrip("0").rstrip(".") if "." in digits else digits
        return f"{digits}p{exponent}{'f' if compute.name == 'f32' else ''}"
    bits = Const.of(compute.name, value).bits
    return f"from_bits<{compute.name}>({bits:#x}{'u' if compute.name == 'f32' else 'ull'})"


def computed_of(element: str) -> str:
    """The C++ type of a value whose element in memory is of this C++ type."""
    return computed("bool" if element == "boolean" else element)
