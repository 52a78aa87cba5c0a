"""Do fused convolutions on the GPU compute what they should?  Every family of kernels, on random convolutions.

The cases are those of the emulation: X and W are small integers, so that every order of the sums gives the same bits,
and results are held against ONNX Runtime on the CPU and the NumPy reference, bit for bit.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from onnxfuse.cuda.arch import COMMON, devices, number
from onnxfuse.cuda.conv.recipe import ConvRecipe
from onnxfuse.cuda.embed import CODE, PTX, RECIPE
from onnxfuse.cuda.options import CudaOptions
from onnxfuse.fused.conv.conv_node import node_attributes
from onnxfuse.fused.kinds import CONV, DOMAIN, OPSET_VERSION
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program import Program, reference
from tools.gpu.parity import Verdict
from tools.gpu.sessions import new_session
from tools.messages import one_line

# For the cases and helpers of the tests.  The installed package is imported by now: the checkout's, which has no native
# library, would take its place.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.cuda.conv.convolutions import Fused, convolve, integers
from tests.cuda.conv.test_emulation import BOUNDARIES, CASES, MAKERS, boundary_cases
from tests.custom_ops.fused import run, sample
from tests.support.fusing import same_bits

KIND = "fused convolution"
BOUNDARY = "boundary"
CASES_IN_A_MODEL = 9
SEEDS = range(CASES)
"""Those of the emulation: together they have every tiling."""


@dataclass(frozen=True)
class ConvCase:
    """A random fused convolution and its inputs: X, W, and the operands of the Programs."""

    name: str
    fused: Fused
    inputs: tuple[np.ndarray, ...]

    def expected(self) -> list[np.ndarray]:
        """What it should give."""
        return self._expected

    @cached_property
    def _expected(self) -> list[np.ndarray]:
        fused = self.fused
        before = len(fused.x_operands)
        x, w, *operands = self.inputs
        if fused.prologue is not None:
            (x,) = reference.run(fused.prologue, [x, *operands[:before]])
        return list(reference.run(fused.epilogue, [convolve(fused.conv, x, w), *operands[before:]]))

    @property
    def is_a_node(self) -> bool:
        """Whether all its results have the shape of the convolution's: a node may have no others, a kernel may."""
        shape = self.fused.conv.output_shape(self.fused.x_shape)
        return all(result.shape == tuple(shape) for result in self._expected)


def conv_cases(seeds: Sequence[int], families: Sequence[str] = (*MAKERS, BOUNDARY)) -> Iterator[ConvCase]:
    """Random convolutions of each family of kernels, and those at the boundaries of what the families compute."""
    yield from (case for case in _all_cases(seeds, families) if case.is_a_node)


def _all_cases(seeds: Sequence[int], families: Sequence[str]) -> Iterator[ConvCase]:
    for family in families:
        if family != BOUNDARY:
            yield from (_case(f"{family} {seed}", MAKERS[family](seed), seed) for seed in seeds)
            continue
        boundaries = [fused for family in BOUNDARIES for fused in boundary_cases(family)]
        for seed, fused in enumerate(boundaries):
            if seed % CASES in seeds:
                yield _case(f"{BOUNDARY} {seed}", fused, seed)


def _case(name: str, fused: Fused, seed: int) -> ConvCase:
    conv = fused.conv
    x, w = integers(conv.dtype, fused.x_shape, seed), integers(conv.dtype, conv.weight_shape, seed + 1, -3, 3)
    before = _operands(fused.prologue, fused.x_operands, seed + 2)
    after = _operands(fused.epilogue, fused.operands, seed + 20)
    return ConvCase(name, fused, (x, w, *before, *after))


def _operands(program: Program | None, shapes: Sequence[tuple[int, ...]], seed: int) -> list[np.ndarray]:
    specs = () if program is None else program.inputs[1:]
    found = []
    for index, (spec, shape) in enumerate(zip(specs, shapes, strict=True), seed):
        if DTYPES[spec.dtype].compute == "f32":
            found.append(integers(spec.dtype, shape, index))
        else:
            found.append(sample(spec.dtype, int(np.prod(shape)), index, special=False).reshape(shape))
    return found


def conv_model(cases: Sequence[ConvCase], code: Sequence[dict[str, str | bytes]]) -> onnx.ModelProto:
    """A model with a fused node for each case; its inputs are x0, x1, … and its outputs y0, y1, … through all nodes."""
    inputs: list[onnx.ValueInfoProto] = []
    outputs: list[onnx.ValueInfoProto] = []
    nodes = []
    for case, attributes in zip(cases, code, strict=True):
        fused = case.fused
        read = [f"x{len(inputs) + index}" for index in range(len(case.inputs))]
        for name, array in zip(read, case.inputs, strict=True):
            kind = next(dtype.onnx for dtype in DTYPES.values() if dtype.numpy == array.dtype)
            inputs.append(helper.make_tensor_value_info(name, kind, list(array.shape)))
        written = [f"y{len(outputs) + index}" for index in range(len(fused.epilogue.outputs))]
        for name, value in zip(written, fused.epilogue.outputs, strict=True):
            shape = fused.conv.output_shape(fused.x_shape)
            outputs.append(helper.make_tensor_value_info(name, DTYPES[fused.epilogue.dtype(value)].onnx, shape))
        known = {**node_attributes(fused.conv, fused.epilogue, fused.prologue), **attributes}
        node = helper.make_node(CONV.name, read, written, case.name, domain=DOMAIN)
        node.attribute.extend(helper.make_attribute(name, value) for name, value in known.items())
        nodes.append(node)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, OPSET_VERSION)]
    graph = helper.make_graph(nodes, "convolutions", inputs, outputs)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def compiled(cases: Sequence[ConvCase]) -> list[dict[str, str | bytes]]:
    """The recipes and the machine code for the GPU here, all compiled at once."""
    options = CudaOptions(devices() or COMMON[-1:])
    sources = [case.fused.render() for case in cases]
    flags = options.fitter(fast_math=False).options
    code = options.compiler.compile([source.text for source in sources], options.architectures, flags)
    oldest = min(options.architectures, key=number)
    return [
        {
            RECIPE: str(ConvRecipe.of(source)),
            **{CODE + name: code[source.sha256, name].cubin for name in options.architectures},
            PTX: code[source.sha256, oldest].ptx,
        }
        for source in sources
    ]


def check_convolutions(cases: Sequence[ConvCase], on_gpu: bool) -> Iterator[Verdict]:
    """Run every case and compare it with the reference; without a GPU the models are only built."""
    if not on_gpu:
        onnx.checker.check_model(conv_model(cases, [{} for _ in cases]))
        return
    code = compiled(cases)
    for start in range(0, len(cases), CASES_IN_A_MODEL):
        chosen = slice(start, start + CASES_IN_A_MODEL)
        yield from _check(cases[chosen], code[chosen])


def _check(cases: Sequence[ConvCase], code: Sequence[dict[str, str | bytes]]) -> Iterator[Verdict]:
    try:
        model = conv_model(cases, code).SerializeToString()
        results = run(new_session(model, library=True), [array for case in cases for array in case.inputs])
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        if len(cases) > 1:
            for case, own in zip(cases, code, strict=True):  # to find the one
                yield from _check([case], [own])
        else:
            yield Verdict(KIND, cases[0].name, False, one_line(error))
        return
    for case in cases:
        expected = case.expected()
        own, results = results[: len(expected)], results[len(expected) :]
        yield Verdict(KIND, case.name, *_compare(own, expected))


def _compare(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> tuple[bool, str]:
    for index, (left, right) in enumerate(zip(actual, expected, strict=True)):
        if not same_bits(left, right):
            return False, f"output {index} has other bits than the reference"
    return True, ""
