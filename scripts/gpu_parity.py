"""Do fused nodes on the GPU compute what they should?  The op matrix, random Programs, and models of the zoo.

Programs run as fused nodes with embedded code in ONNX Runtime, and are held against the NumPy reference: basic
operations bit for bit, functions within a few units in the last place (FUNCTION_ULP, REFERENCE_ULP, DOUBLE_ULP), and
what uses them within a few more.  Models are held against their originals by ``onnxfuse.parity``.
"""

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from onnx import helper

import onnxfuse  # the installed package, before the checkout can be found

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for the Programs and helpers of the tests

from gpu_sessions import BoundSession, new_session
from messages import one_line

from onnxfuse.cuda.arch import COMMON, devices
from onnxfuse.cuda.embed import embed, fused_nodes
from onnxfuse.cuda.fitting import Fitter
from onnxfuse.cuda.options import CudaOptions
from onnxfuse.cuda.tuned import TunedKernels
from onnxfuse.dtypes import DTYPES
from onnxfuse.graph import Model
from onnxfuse.inference import infer
from onnxfuse.inputs import InputSet
from onnxfuse.parity import compare
from onnxfuse.program import Program
from onnxfuse.program.reference import run as reference
from onnxfuse.runtime import DOMAIN
from tests.cuda import programs
from tests.custom_ops.fused import run
from tests.fusing import ulp_distance

FUNCTION_ULP = 4
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


@dataclass(frozen=True)
class Case:
    """A Program and its inputs.  ``ulp`` is how far an element may be off; ``loose``: in steps of the largest."""

    name: str
    program: Program
    inputs: tuple[np.ndarray, ...]
    ulp: int
    loose: bool = False

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
            ulp = DOUBLE_ULP if dtype == "f64" else FUNCTION_ULP + REFERENCE_ULP
            has_functions = any(op.name in programs.FUNCTIONS for op in ops)
            yield _case(f"operators {dtype} {number}", program, SHAPES[6], rng, ulp if has_functions else 0)
        yield _case(f"casts {dtype}", programs.cast_program(dtype), SHAPES[4], rng, 0)
    for dtype in ("f32", "f16", "bf16", "f64"):
        for name, (program, _) in programs.chains(dtype).items():
            yield _case(f"{name} {dtype}", program, SHAPES[7], rng, 2 * FUNCTION_ULP, loose=True)
    for seed in range(randoms):
        yield _case(f"random {seed}", programs.random_program(seed), rng.choice(SHAPES), rng, 0)


def _case(
    name: str, program: Program, shape: tuple[int, ...], rng: random.Random, ulp: int, loose: bool = False
) -> Case:
    generator = np.random.default_rng(rng.randrange(1 << 30))
    inputs = []
    for index, spec in enumerate(program.inputs):
        own = shape
        if spec.axis is not None:
            own = (shape[spec.axis],)
        elif index and rng.random() < 0.4:
            own = tuple(size if rng.random() < 0.5 else 1 for size in shape)[rng.randrange(len(shape) + 1) :]
        inputs.append(_values(generator, spec.dtype, own))
    return Case(name, program, tuple(inputs), ulp, loose)


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
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(helper.make_graph(nodes, "programs", inputs, outputs), opset_imports=opsets, ir_version=10)


def embedded(models: Sequence[onnx.ModelProto]) -> list[bytes]:
    """The models with machine code for the GPU here, all compiled at once."""
    loaded = [Model.from_proto(model) for model in models]
    options = CudaOptions(devices() or COMMON[-1:])
    fitter = options.fitter(fast_math=False)
    for model in loaded:
        infer(model)
    _compile_ahead(loaded, options)
    for model in loaded:
        embed(model, fitter, options)
    return [model.to_proto().SerializeToString() for model in loaded]


def _compile_ahead(models: Sequence[Model], options: CudaOptions) -> None:
    """Compile the sources of all models together, which takes all processors; later they come from the cache."""
    renderer = Fitter(None, options.architectures, False, TunedKernels(()))
    sources = [node.fit(renderer).source.text for model in models for node in fused_nodes(model)]
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
            yield Verdict(kind, case.name, *_compare(own, reference(case.program, case.inputs), case))


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
        different = int(np.count_nonzero(_differs(left, right, case)))
        if different:
            return False, f"output {number}: {different} of {left.size} elements differ by more than {case.ulp} ulp"
    return True, ""


def _differs(left: np.ndarray, right: np.ndarray, case: Case) -> np.ndarray:
    if left.dtype.kind in "iub":
        large = case.ulp > 0 and left.dtype.itemsize == 8
        return _powers_differ(left, right, case.ulp) if large else np.asarray(left != right)
    if not case.loose:
        return ulp_distance(left, right) > case.ulp
    actual, wanted = left.astype(np.float64), right.astype(np.float64)
    largest = np.max(np.abs(wanted), initial=1, where=np.isfinite(wanted))
    step = float(ml_dtypes.finfo(left.dtype).eps)  # type: ignore[no-untyped-call]
    allowed = case.ulp * step * largest
    return ~np.isclose(actual, wanted, rtol=0, atol=allowed, equal_nan=True)


def _powers_differ(left: np.ndarray, right: np.ndarray, ulp: int) -> np.ndarray:
    actual, wanted = left.astype(np.float64), right.astype(np.float64)
    rounded = (np.abs(wanted) >= _EXACT_POWERS) & (np.abs(actual - wanted) <= ulp * np.spacing(np.abs(wanted)))
    return (left != right) & ~rounded


def check_model(path: Path, scratch: Path, on_gpu: bool, feeds: dict[str, np.ndarray] | None = None) -> list[Verdict]:
    """Optimize a model for CUDA and compare it with the original; on a GPU also replayed from a CUDA graph."""
    optimized = scratch / f"{path.stem}.cuda.onnx"
    try:
        onnxfuse.optimize(path, "cuda", check=False, output=optimized, overwrite=True)
        sets = None if feeds is None else [InputSet("zoo", feeds)]
        result = compare(path, optimized, inputs=sets, target="cuda" if on_gpu else "cpu")
        verdicts = [Verdict("model", path.stem, result.ok, result.failure())]
    except Exception as error:
        return [Verdict("model", path.stem, False, one_line(error))]
    if on_gpu and feeds is not None:
        verdicts.append(_check_graph(path, optimized, feeds))
    return verdicts


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
