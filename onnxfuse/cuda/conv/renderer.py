"""From a convolution and its Programs to CUDA C++: a kernel for each tiling, and one that takes anything.

The device code is in custom_ops/cuda/device/conv*.cuh.  What is rendered is the description of the convolution (Spec in
conv.cuh), the Programs as functors, and the kernels, which bring these together.
"""

import hashlib
from collections.abc import Iterator, Sequence

from onnxfuse.cuda.conv.arguments import padded, parameter_bytes
from onnxfuse.cuda.conv.functors import Head, Tail
from onnxfuse.cuda.conv.kernel import ConvAccess, ConvKernel, ConvSource
from onnxfuse.cuda.conv.spec import Convolution
from onnxfuse.cuda.conv.tiling import ANY, Tiling
from onnxfuse.cuda.element import element_function, header
from onnxfuse.cuda.prelude import conv_prelude
from onnxfuse.program import Program, ProgramError
from onnxfuse.program.figures import CONV_SUM_BLOCK, MAX_PARAMETER_BYTES


def render_conv(
    conv: Convolution,
    epilogue: Program,
    prologue: Program | None,
    access: ConvAccess,
    tilings: Sequence[Tiling],
) -> ConvSource:
    """The source of a fused convolution whose operands are expected to be read in the ways of ``access``.

    A kernel for each tiling, in this order, then one that takes everything.  Raises ProgramError if a Program's first
    input or the prologue's output is not of the convolution's type, or the operands are too many.
    """
    _check(conv, epilogue, prologue, access)
    general = access.general
    key = "\n".join((conv_prelude(), repr(conv), str(epilogue), str(prologue), str(access), *map(repr, tilings)))
    name = f"conv_{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    kernels = [
        (tiling, _kernel(f"{name}_{number}_{tiling.family}", tiling, 32, access))
        for number, tiling in enumerate(tilings)
    ]
    kernels.append((ANY, _kernel(f"{name}_any", ANY, 64, general)))
    size = max(parameter_bytes(kernel, len(epilogue.outputs)) for _, kernel in kernels)
    if size > MAX_PARAMETER_BYTES:
        raise ProgramError(f"the operands take {size} bytes of kernel parameters; the limit is {MAX_PARAMETER_BYTES}")
    parts = [_spec(conv, name)]
    if prologue is not None:
        parts += [header(prologue), element_function(prologue, f"{name}_prologue")]
    parts += [header(epilogue), element_function(epilogue, f"{name}_epilogue")]
    texts = _Texts(conv, epilogue, prologue, name)
    parts += [texts.functors(access, 32)] if tilings else []
    parts += [texts.functors(general, 64)]
    parts += [texts.kernel(tiling, kernel) for tiling, kernel in kernels]
    parts += [texts.sum_kernel(kernel) for _, kernel in kernels if kernel.split > 1]
    body = "\n".join(("namespace onnxfuse {\n", *parts, "}  // namespace onnxfuse\n"))
    return ConvSource(conv_prelude(), body, tuple(kernel for _, kernel in kernels))


def _check(conv: Convolution, epilogue: Program, prologue: Program | None, access: ConvAccess) -> None:
    operands = len(prologue.inputs) - 1 if prologue else 0
    if (len(access.prologue), len(access.epilogue)) != (operands, len(epilogue.inputs) - 1):
        raise ProgramError(f"access {access} does not fit the Programs of the convolution")
    for program in (epilogue, prologue):
        if program is not None and (not program.inputs or program.inputs[0].dtype != conv.dtype):
            raise ProgramError(f"the first input of a Program of the convolution is not of type {conv.dtype}")
    if prologue is not None and [prologue.dtype(output) for output in prologue.outputs] != [conv.dtype]:
        raise ProgramError(f"the prologue does not have one output of type {conv.dtype}")


def _kernel(name: str, tiling: Tiling, index: int, access: ConvAccess) -> ConvKernel:
    block = 256 if tiling.family == "any" else tiling.block
    return ConvKernel(name, tiling.family, tiling.tile, block, tiling.split, tiling.vector, index, access)


def _spec(conv: Convolution, name: str) -> str:
    """The struct Spec of conv.cuh."""
    pads = conv.static_pads
    numbers = {"in_channels": conv.in_channels, "out_channels": conv.out_channels, "group": conv.group}
    for what, values, filler in (
        ("kernel", conv.kernel, 1),
        ("stride", conv.strides, 1),
        ("dilation", conv.dilations, 1),
        ("pad", pads[: conv.rank] if pads is not None else (0,) * conv.rank, 0),
    ):
        numbers |= {f"{what}_{axis}": value for axis, value in zip("dhw", padded(values, filler), strict=True)}
    flags = {
        "transposed": conv.transposed,
        "pointwise": conv.pointwise,
        "channels_last": conv.channels_last,
        "has_pads": pads is not None,
    }
    return "\n".join(
        (
            f"struct {name}_Spec {{",
            f"  using T = {conv.dtype};",
            *(f"  static constexpr bool {key} = {str(value).lower()};" for key, value in flags.items()),
            *(f"  static constexpr int {key} = {value};" for key, value in numbers.items()),
            "};\n",
        )
    )


class _Texts:
    """Writes the functors and the kernels of one source."""

    def __init__(self, conv: Convolution, epilogue: Program, prologue: Program | None, name: str) -> None:
        self.conv = conv
        self.epilogue = epilogue
        self.prologue = prologue
        self.name = name

    def tail(self, access: ConvAccess, index: int) -> Tail:
        """The epilogue's functor."""
        function, channels = f"{self.name}_epilogue", self.conv.out_channels
        name = f"{self.name}_Tail{index}"
        last = self.conv.channels_last
        return Tail(name, self.epilogue, function, access.epilogue, index, self.conv.dtype, last, channels)

    def head(self, access: ConvAccess, index: int) -> Head | None:
        """The prologue's functor."""
        if self.prologue is None:
            return None
        function, channels = f"{self.name}_prologue", self.conv.in_channels
        name = f"{self.name}_Head{index}"
        last = self.conv.channels_last
        return Head(name, self.prologue, function, access.prologue, index, self.conv.dtype, last, channels)

    def functors(self, access: ConvAccess, index: int) -> str:
        """The definitions of the functors for these letters."""
        head = self.head(access, index)
        return "\n".join(([head.text()] if head else []) + [self.tail(access, index).text()])

    def kernel(self, tiling: Tiling, kernel: ConvKernel) -> str:
        """The kernel of a tiling."""
        head = self.head(kernel.access, kernel.index)
        make = f"const {head.name} head{{{head.arguments}}};" if head else "const NoHead head;"
        return self._definition(kernel, kernel.name, kernel.block, (make, *self._call(tiling, kernel)))

    def sum_kernel(self, kernel: ConvKernel) -> str:
        """The kernel that adds the parts of a split sum."""
        call = f"sum_parts<{self.name}_Spec, {kernel.vector}>(workspace, shape, tail);"
        return self._definition(kernel, kernel.sum_name, CONV_SUM_BLOCK, (call,))

    def _definition(self, kernel: ConvKernel, name: str, block: int, body: Sequence[str]) -> str:
        tail = self.tail(kernel.access, kernel.index)
        return "\n".join(
            (
                f'extern "C" __global__ void __launch_bounds__({block})',
                f"{name}(",
                ",\n".join(f"    {parameter}" for parameter in self._parameters(kernel)) + ") {",
                f"  const {tail.name} tail{{{tail.arguments}}};",
                *(f"  {line}" for line in body),
                "}\n",
            )
        )

    def _parameters(self, kernel: ConvKernel) -> Iterator[str]:
        """As ``onnxfuse.cuda.conv.arguments.pack`` gives them."""
        head, tail = self.head(kernel.access, kernel.index), self.tail(kernel.access, kernel.index)
        yield f"const {self.conv.dtype}* x"
        yield f"const {self.conv.dtype}* w"
        yield from head.pointers if head else ()
        yield from tail.pointers
        yield from (f"{dtype}* {name}" for name, dtype in tail.outputs)
        yield "f32* workspace"
        yield f"const __grid_constant__ ConvShape<u{kernel.index}> shape"
        for name in (head.steps if head else []) + tail.steps:
            yield f"const __grid_constant__ ConvSteps<u{kernel.index}> {name}"

    def _call(self, tiling: Tiling, kernel: ConvKernel) -> tuple[str, ...]:
        spec = f"{self.name}_Spec"
        first, second, third = tiling.tile
        rows, columns = tiling.thread
        vector = tiling.vector
        match tiling.family:
            case "depthwise":
                sizes = f"{first}, {second}, {third}, {rows}, {vector}, {kernel.block}"
                return (f"convolve_depthwise<{spec}, {sizes}>(x, w, shape, head, tail);",)
            case "direct":
                sizes = f"{first}, {second}, {third}, {rows}, {vector}, {kernel.block}"
                return (f"convolve_direct<{spec}, {sizes}>(x, w, shape, head, tail);",)
            case "gemm":
                engine = "TensorEngine" if tiling.tensor_cores else "SimtEngine"
                splits = str(tiling.split > 1).lower()
                sizes = f"{first}, {second}, {third}, {rows}, {columns}, {vector}"
                function = "multiply_rows" if self.conv.channels_last else "convolve_gemm"
                return (
                    f"using Engine = {engine}<{self.conv.dtype}, {sizes}>;",
                    f"{function}<{spec}, Engine, {first}, {second}, {vector}, {splits}>"
                    "(x, w, workspace, shape, head, tail);",
                )
            case _:
                return (f"convolve_any<{spec}>(x, w, shape, head, tail);",)
