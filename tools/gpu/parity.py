"""Do fused nodes on the GPU compute what they should?  The op matrix, random Programs, and models of the zoo.

Programs run as fused nodes with embedded code in ONNX Runtime, and are held against the NumPy reference: basic
operations bit for bit, functions within a few units in the last place (FUNCTION_ULP, REFERENCE_ULP, DOUBLE_ULP), and
what uses them within a few more.  There are NaN, infinities, both zeros, denormals and the largest numbers among the
inputs of all but the last.  Large Programs have many blocks, for every width of vectors.  Models are held
against their originals by ``onnxfuse.check.parity``.
"""

import math
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from onnx import helper

import onnxfuse
from onnxfuse.check.parity import compare
from onnxfuse.cuda.arch import COMMON, devices
from onnxfuse.cuda.complete import provider_options
from onnxfuse.cuda.elementwise.fitting import Fitter
from onnxfuse.cuda.embed import elementwise_nodes, embed
from onnxfuse.cuda.options import CudaOptions
from onnxfuse.cuda.tuned import TunedKernels
from onnxfuse.fused.kinds import DOMAIN, OPSET_VERSION
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.model.graph import Model
from onnxfuse.program import Program, ProgramBuilder
from onnxfuse.program.ops import OPS
from onnxfuse.program.reference import run as reference
from onnxfuse.run.inputs import InputSet
from onnxfuse.shapes.inference import infer
from tools.gpu.half import half_model, half_values
from tools.gpu.sessions import BoundSession, new_session
from tools.messages import one_line

# For the Programs and helpers of the tests.  The installed package is imported by now: the checkout's, which has no
# native library, would take its place.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.cuda.elementwise import programs
from tests.custom_ops.fused import run, sample
from tests.support.fusing import ulp_distance

FUNCTION_ULP = max(op.ulp for op in OPS.values())
"""How far functions of the kernels may be off, but for those of double."""
REFERENCE_ULP = 4
"""How far NumPy's own are off: its logarithm of float32 is, with AVX-512."""
DOUBLE_ULP = 512
"""How far kernels and reference are apart in double, where an error in the argument of exp or erfc is one of GELU."""
_EXACT_POWERS = 2.0**53
"""Powers of integers from here on go through double, on either side, and are rounded."""
CASES_IN_A_MODEL = 12
SHAPES = ((), (1,), (7,), (4096,), (100_003,), (3, 1, 33), (2, 64, 31), (16, 8, 64))
"""Shapes of the first input, among them scalars, tails of vectors, and more than one block."""
LARGE_GROUPS = 1 << 23
"""Many times the threads that a GPU runs at once."""
_PERIOD = 1_000_003
"""Elements after which large inputs repeat."""


@dataclass(frozen=True)
class Case:
    """A Program and its inputs.

    ``ulps`` are how far an element of each output may be off, ``loose``: in steps of the largest.  Of large results
    only these ``rows`` are compared, places in the first dimension.
    """

    name: str
    program: Program
    inputs: tuple[np.ndarray, ...]
    ulps: tuple[int, ...]
    loose: bool = False
    rows: tuple[int, ...] = ()

    def expected(self) -> list[np.ndarray]:
        """What the reference gives for what is compared."""
        return reference(self.program, [self.compared(array) for array in self.inputs])

    def compared(self, array: np.ndarray) -> np.ndarray:
        """What is compared of a result, or of an input what that comes from."""
        rank = max(each.ndim for each in self.inputs)
        return array[list(self.rows)] if self.rows and array.ndim == rank else array

    @property
    def has_bf16(self) -> bool:
        """Whether an input or output is bfloat16, which ONNX Runtime's Python API cannot bind to the device."""
        operands = [spec.dtype for spec in self.program.inputs]
        return "bf16" in operands + [self.program.dtype(output) for output in self.program.outputs]


@dataclass(frozen=True)
class Verdict:
    """What came of one comparison; ``detail`` says how it differs, or why it did not run."""

    kind: str
    name: str
    ok: bool
    detail: str = ""


def program_cases(dtypes: Sequence[str], randoms: int) -> Iterator[Case]:
    """The op matrix for ``dtypes``, casts, chains, and ``randoms`` random Programs, on varied broadcasts."""
    rng = random.Random(0)
    for dtype in dtypes:
        for number, (program, ops) in enumerate(programs.operator_programs(dtype)):
            ulps = tuple(op.ulp and (DOUBLE_ULP if dtype == "f64" else op.ulp + REFERENCE_ULP) for op in ops)
            yield _case(f"operators {dtype} {number}", program, SHAPES[6], rng, ulps)
        casts = _case(f"casts {dtype}", programs.cast_program(dtype), SHAPES[4], rng)
        # NumPy makes another u32 of NaN where its vectors end, so the special values go to the beginning.
        yield replace(casts, inputs=tuple(np.roll(array, 100) for array in casts.inputs))
    for dtype in ("f32", "f16", "bf16", "f64"):
        for name, (program, _) in programs.chains(dtype).items():
            yield _case(f"{name} {dtype}", program, SHAPES[7], rng, (2 * FUNCTION_ULP,) * len(program.outputs), True)
        for name, (program, _, shapes) in programs.view_chains(dtype).items():
            inputs = [sample(dtype, math.prod(shape), seed).reshape(shape) for seed, shape in enumerate(shapes)]
            yield Case(f"{name} {dtype}", program, tuple(inputs), (0,) * len(program.outputs))
    for seed in range(randoms):
        yield _case(f"random {seed}", programs.random_program(seed), rng.choice(SHAPES), rng)


def large_cases(groups: int = LARGE_GROUPS) -> Iterator[Case]:
    """Every width of vectors, from 16 to 2 elements and none, on so many groups and some elements more."""
    for dtype, vector in (("u8", 16), ("f16", 8), ("f32", 4), ("f64", 2)):
        builder = ProgramBuilder()
        x = builder.input(dtype)
        program = builder.build([builder.emit("add", dtype, builder.emit("mul", dtype, x, x), x)])
        values = np.resize(sample(dtype, _PERIOD), groups * vector + vector - 1)
        yield Case(f"large {dtype}", program, (values,), (0,))
    builder = ProgramBuilder()
    x, row = builder.input("f32"), builder.input("f32")
    program = builder.build([builder.emit("add", "f32", x, row)])
    columns = 1001  # which no vector divides
    values = np.resize(sample("f32", _PERIOD), (-(-groups // columns), columns))
    yield Case("large f32, odd rows", program, (values, sample("f32", columns, 1)), (0,))


def giant_case(rows: int = 65_537, columns: int = 32_771) -> Case:
    """More than 2^31 elements of a byte, for which indices need 64 bits; some rows are compared."""
    builder = ProgramBuilder()
    x, row = builder.input("u8"), builder.input("u8")
    program = builder.build([builder.emit("add", "u8", x, row)])
    values = np.resize(sample("u8", _PERIOD), (rows, columns))
    last_of_32 = 2**31 // columns
    chosen = {0, 1, rows // 2, last_of_32 - 1, last_of_32, last_of_32 + 1, rows - 2, rows - 1}
    compared = tuple(sorted(place for place in chosen if place < rows))
    return Case("giant u8", program, (values, sample("u8", columns, 1)), (0,), rows=compared)


def _case(
    name: str,
    program: Program,
    shape: tuple[int, ...],
    rng: random.Random,
    ulps: tuple[int, ...] = (),
    loose: bool = False,
) -> Case:
    """Without ``ulps`` all bits have to agree.  What is loose gets no special values: the largest would allow all."""
    generator = np.random.default_rng(rng.randrange(1 << 30))
    inputs = []
    for index, spec in enumerate(program.inputs):
        own = shape
        if spec.axis is not None:
            own = (shape[spec.axis],)
        elif index and rng.random() < 0.4:
            own = tuple(size if rng.random() < 0.5 else 1 for size in shape)[rng.randrange(len(shape) + 1) :]
        if loose:
            inputs.append(_values(generator, spec.dtype, own))
        else:  # NumPy takes x ** 0.5 for a square root, which is another one of -inf, if 0.5 is broadcast
            special = own == shape
            inputs.append(sample(spec.dtype, math.prod(own), rng.randrange(1 << 30), special=special).reshape(own))
    return Case(name, program, tuple(inputs), ulps or (0,) * len(program.outputs), loose)


def _values(generator: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    kind = DTYPES[dtype].numpy
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(np.bool_)
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        return generator.integers(max(limits.min, -100), min(limits.max, 100), shape).astype(kind)
    return np.asarray(generator.normal(0, 2, shape), np.float32).astype(kind)


def program_model(cases: Sequence[Case]) -> onnx.ModelProto:
    """A model with a fused node for each case; its inputs are x0, x1, … and its outputs y0, y1, … through all nodes."""
    inputs: list[onnx.ValueInfoProto] = []
    outputs: list[onnx.ValueInfoProto] = []
    nodes = []
    for case in cases:
        read = [f"x{len(inputs) + index}" for index in range(len(case.inputs))]
        written = [f"y{len(outputs) + index}" for index in range(len(case.program.outputs))]
        for name, spec, array in zip(read, case.program.inputs, case.inputs, strict=True):
            inputs.append(helper.make_tensor_value_info(name, DTYPES[spec.dtype].onnx, list(array.shape)))
        for name, value in zip(written, case.program.outputs, strict=True):
            outputs.append(helper.make_tensor_value_info(name, DTYPES[case.program.dtype(value)].onnx, None))
        program = str(case.program)
        nodes.append(helper.make_node("FusedElementwise", read, written, case.name, domain=DOMAIN, program=program))
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, OPSET_VERSION)]
    return helper.make_model(helper.make_graph(nodes, "programs", inputs, outputs), opset_imports=opsets, ir_version=10)


def embedded(models: Sequence[onnx.ModelProto]) -> list[bytes]:
    """The models with machine code for the GPU here, all compiled at once."""
    loaded = [Model.from_proto(model) for model in models]
    options = CudaOptions(devices() or COMMON[-1:])
    for model in loaded:
        infer(model)
    _compile_ahead(loaded, options)
    with ThreadPoolExecutor() as pool:  # what takes too many registers is compiled in several ways, one after the other
        list(pool.map(lambda model: embed(model, options.fitter(fast_math=False), options), loaded))
    return [model.to_proto().SerializeToString() for model in loaded]


def _compile_ahead(models: Sequence[Model], options: CudaOptions) -> None:
    """Compile the sources of all models together, which takes all processors; later they come from the cache."""
    renderer = Fitter(None, options.architectures, False, TunedKernels(()))
    nodes = [node for model in models for node in elementwise_nodes(model)]
    sources = [renderer.fit(node.program, node.shapes).source.text for node in nodes]
    options.compiler.compile(dict.fromkeys(sources), options.architectures, renderer.options)


def check_programs(cases: Sequence[Case], on_gpu: bool, graph: bool = False) -> Iterator[Verdict]:
    """Run every case and compare it with the reference; many share a session."""
    kind = "program, CUDA graph" if graph else "program"
    wanted = [case for case in cases if not (graph and case.has_bf16)]
    batches = [wanted[start : start + CASES_IN_A_MODEL] for start in range(0, len(wanted), CASES_IN_A_MODEL)]
    models = [program_model(batch) for batch in batches]
    codes = embedded(models) if on_gpu else [model.SerializeToString() for model in models]
    for batch, code in zip(batches, codes, strict=True):
        try:
            results = _run(batch, code, on_gpu, graph)
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            if len(batch) > 1:
                for case in batch:  # to find the one
                    yield from check_programs([case], on_gpu, graph)
            else:
                yield Verdict(kind, batch[0].name, False, one_line(error))
            continue
        for case in batch:
            own = [results.pop(0) for _ in case.program.outputs]
            yield Verdict(kind, case.name, *_compare([case.compared(array) for array in own], case.expected(), case))


def _run(batch: Sequence[Case], code: bytes, on_gpu: bool, graph: bool) -> list[np.ndarray]:
    arrays = [array for case in batch for array in case.inputs]
    if not graph:
        return run(new_session(code, library=True, on_gpu=on_gpu), arrays)
    feeds = {f"x{index}": array for index, array in enumerate(arrays)}
    session = BoundSession(code, feeds, library=True, on_gpu=on_gpu, graph=True)
    session.run()
    return session.results()


def _compare(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray], case: Case) -> tuple[bool, str]:
    for number, (left, right) in enumerate(zip(actual, expected, strict=True)):
        right = np.asarray(right)
        if left.shape != right.shape or left.dtype != right.dtype:
            return False, f"output {number} is {left.dtype}{list(left.shape)}, not {right.dtype}{list(right.shape)}"
        ulp = case.ulps[number]
        different = int(np.count_nonzero(_differs(left, right, ulp, case.loose)))
        if different:
            return False, f"output {number}: {different} of {left.size} elements differ by more than {ulp} ulp"
    return True, ""


def _differs(left: np.ndarray, right: np.ndarray, ulp: int, loose: bool) -> np.ndarray:
    if left.dtype.kind in "iub":
        large = ulp > 0 and left.dtype.itemsize == 8
        return _powers_differ(left, right, ulp) if large else np.asarray(left != right)
    if ulp == 0:  # the zeros are told apart, and NaNs are not
        bits = np.dtype(f"u{left.dtype.itemsize}")
        return np.asarray((left.view(bits) != right.view(bits)) & ~(np.isnan(left) & np.isnan(right)))
    if not loose:  # NumPy's mish has few bits where an intermediate result is denormal
        tiny = np.finfo(np.float64 if left.dtype.itemsize == 8 else np.float32).tiny
        with np.errstate(all="ignore"):
            close = np.abs(left.astype(np.float64) - right.astype(np.float64)) <= tiny
        return (ulp_distance(left, right) > ulp) & ~close
    actual, wanted = left.astype(np.float64), right.astype(np.float64)
    largest = np.max(np.abs(wanted), initial=1, where=np.isfinite(wanted))
    step = float(ml_dtypes.finfo(left.dtype).eps)  # type: ignore[no-untyped-call]
    allowed = ulp * step * largest
    return ~np.isclose(actual, wanted, rtol=0, atol=allowed, equal_nan=True)


def _powers_differ(left: np.ndarray, right: np.ndarray, ulp: int) -> np.ndarray:
    actual, wanted = left.astype(np.float64), right.astype(np.float64)
    rounded = (np.abs(wanted) >= _EXACT_POWERS) & (np.abs(actual - wanted) <= ulp * np.spacing(np.abs(wanted)))
    return (left != right) & ~rounded


def check_model(
    path: Path, scratch: Path, on_gpu: bool, feeds: dict[str, np.ndarray] | None = None
) -> Iterator[Verdict]:
    """Optimize a model for CUDA, and for ``prefer_nhwc``, and compare it with the original; on a GPU also from a
    CUDA graph."""
    for prefer_nhwc in (False, True):
        kind = "model, prefer_nhwc" if prefer_nhwc else "model"
        optimized = scratch / f"{path.stem}.{'nhwc' if prefer_nhwc else 'cuda'}.onnx"
        try:
            found = onnxfuse.optimize(
                path, "cuda", check=False, prefer_nhwc=prefer_nhwc, output=optimized, overwrite=True
            )
            if prefer_nhwc and not provider_options(found.model):
                return
            sets = None if feeds is None else [InputSet("zoo", feeds)]
            result = compare(path, optimized, inputs=sets, target="cuda" if on_gpu else "cpu")
            yield Verdict(kind, path.stem, result.ok, result.failure())
        except Exception as error:
            yield Verdict(kind, path.stem, False, one_line(error))
            return
        if on_gpu and feeds is not None and not prefer_nhwc:
            yield _check_graph(path, optimized, feeds)


def check_half_model(path: Path, scratch: Path, on_gpu: bool, feeds: Mapping[str, np.ndarray]) -> Iterator[Verdict]:
    """The same for the model converted to float16; nothing of one that cannot be."""
    half = half_model(path, scratch / f"{path.stem} in float16.onnx")
    try:
        onnx.checker.check_model(str(half), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):  # a Range of float16, say
        return
    yield from check_model(half, scratch, on_gpu, half_values(feeds))


def _check_graph(path: Path, optimized: Path, feeds: dict[str, np.ndarray]) -> Verdict:
    """A replayed graph against a plain run of the same model.  One that ORT cannot capture counts for nothing."""
    kind = "model, CUDA graph"
    try:
        plain = BoundSession(str(optimized), feeds, library=True)
        plain.run()
        expected = plain.results()
        try:
            BoundSession(str(path), feeds, library=False, graph=True)
        except Exception as error:
            return Verdict(kind, path.stem, True, f"the original cannot be captured either: {one_line(error)}")
        replayed = BoundSession(str(optimized), feeds, library=True, graph=True)
        replayed.run()
        for left, right in zip(replayed.results(), expected, strict=True):
            if not np.allclose(left, right, 1e-3, 1e-5, equal_nan=True):
                return Verdict(kind, path.stem, False, "the replayed graph gives other results")
        return Verdict(kind, path.stem, True)
    except Exception as error:
        return Verdict(kind, path.stem, False, one_line(error))
