"""From ``optimize --target cuda`` to kernels that run: whole models in ONNX Runtime, launched by the native library.

The compiler is the host's, whose "machine code" the stand-in driver launches in the emulation of CUDA.
"""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import onnxfuse
from onnxfuse.cuda.compile import compiler as compilers
from onnxfuse.cuda.compile.compiled import Compiled
from onnxfuse.cuda.compile.resources import Resources
from onnxfuse.cuda.complete import complete, read
from onnxfuse.cuda.kernel import Access, Kernel, Source
from onnxfuse.fused.target import CUDA, TARGETS
from onnxfuse.program import Program
from tests.cuda.elementwise.test_end_to_end import stand_in_kernel
from tests.cuda.emulation.emulator import FLAGS, HEADERS, cpp_text
from tests.cuda.stand_in import AVAILABLE, NATIVE, REASON, StandIn, compile_shared, cubin, ptx, scratch_folder
from tests.support import fusing

pytestmark = pytest.mark.skipif(not AVAILABLE, reason=REASON)

_NAME = re.compile(r"\n(fused_[0-9a-f]+_([a-z]*)_([a-z]+)_v\d+(_i64)?)\(")


class EmulatingCompiler:
    """Compiles CUDA sources for the emulation, as machine code in the stand-in driver's form."""

    version = "emulation 1"

    def __init__(self) -> None:
        self._folder = scratch_folder()  # made once, before several threads ask for it

    def compile(self, source: str, architecture: str, options: tuple[str, ...]) -> Compiled:
        kernels = [
            Kernel(name, 1, 256, 64 if wide else 32, Access(inputs, outputs), 32 if "t" in inputs else 0)
            for name, inputs, outputs, wide in _NAME.findall(source)
        ]
        prefix = kernels[0].name[:18]
        file = self._folder / f"{prefix}.cc"
        shared = file.with_suffix(".so")
        if not shared.exists():
            text = cpp_text([Source("", source, tuple(kernels))]) + '\n#include "tests/cuda/rendered_kernel.h"\n'
            program = _program(source)
            file.write_text(text + "".join(stand_in_kernel(kernel, program) for kernel in kernels), encoding="utf-8")
            compile_shared(shared, *FLAGS, f"-I{HEADERS}", f"-I{NATIVE}", str(file))
        number = int(architecture.removeprefix("sm_"))
        return Compiled(cubin(shared, number), ptx(shared, number), {kernel.name: Resources(32) for kernel in kernels})


def _program(source: str) -> Program:
    """The Program in the comment at the head of a source's kernels."""
    lines = source.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("// onnxfuse "))
    end = next(number for number in range(start, len(lines)) if not lines[number].startswith("// "))
    return Program.parse("".join(line.removeprefix("// ") + "\n" for line in lines[start:end]))


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compilers, "find_compiler", EmulatingCompiler)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _network() -> onnx.ModelProto:
    """Regions with per-channel vectors, a broadcast of two sides, several outputs, float16, and a condition."""
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]>'
        "g (float[n, 4, h, w] x, float[n, 1, h, 1] column) => (float[n, 4, h, w] y, float16[n, 4, h, w] z) {"
        " c = Conv <kernel_shape = [1, 1]> (x, weight)"
        " b = BatchNormalization (c, scale, shift, mean, variance) a = Clip (b, low, high) r = Mul (a, x)"
        " p = Softmax (r) q = Mul (p, column) s = Add (q, r) y = Abs (s)"
        " t = Transpose <perm = [0, 1, 2, 3]> (y) k = Less (t, column) v = Where (k, t, high)"
        " z = Cast <to = 10> (v) }"
    )
    random = np.random.default_rng(0)
    vectors = {name: random.normal(size=4).astype(np.float32) for name in ("scale", "shift", "mean")}
    constants = {
        **vectors,
        "variance": np.abs(random.normal(size=4)).astype(np.float32) + 0.5,
        "weight": random.normal(size=(4, 4, 1, 1)).astype(np.float32),
        "low": np.float32(-1),
        "high": np.float32(2),
    }
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
    )
    return model


@pytest.mark.parametrize("embed", [True, False], ids=["embedded", "compiled for the session"])
def test_a_model_runs_its_regions_as_kernels(emulated: None, tmp_path: Path, embed: bool) -> None:
    original = _network()
    passes = ["fuse-elementwise"]  # so that bits stay
    fused = onnxfuse.optimize(original, "cuda", passes, arch="sm_90", embed=embed, check=False).model
    if not embed:
        completed = complete(*read(fused.SerializeToString()), ("sm_90",))
        assert completed is not None
        fused = onnx.load_model_from_string(completed)
    nodes = fusing.fused_nodes(fused)
    assert len(nodes) >= 2
    driver = StandIn(tmp_path / "driver")
    session = driver.session(fused)
    random = np.random.default_rng(1)
    for n, h, w in ((2, 3, 8), (1, 1, 1), (3, 5, 7), (1, 4, 16)):
        x = random.normal(size=(n, 4, h, w)).astype(np.float32)
        column = random.normal(size=(n, 1, h, 1)).astype(np.float32)
        feeds = {"x": x, "column": column}
        driver.launches()
        results = session.run(None, feeds)
        assert len(driver.launches()) == len(nodes)
        for actual, wanted in zip(results, fusing.run(fused, feeds, library=True, optimize=True), strict=True):
            assert fusing.same_bits(actual, wanted)
        for actual, wanted in zip(results, fusing.run(original, feeds, library=False), strict=True):
            np.testing.assert_allclose(actual.astype(np.float32), wanted.astype(np.float32), 1e-3, 1e-4)


def test_the_kernels_are_those_for_the_shapes_that_were_foreseen(emulated: None, tmp_path: Path) -> None:
    passes = ["fuse-elementwise"]
    fused = onnxfuse.optimize(_network(), "cuda", passes, arch="sm_80", conv="none", check=False).model
    driver = StandIn(tmp_path / "driver", devices=((8, 6, 20),))
    session = driver.session(fused)
    x = np.ones((2, 4, 3, 64), np.float32)
    session.run(None, {"x": x, "column": np.ones((2, 1, 3, 1), np.float32)})
    names = [call["kernel"] for call in driver.launches()]
    assert names and all("_v1" not in name for name in names), names


def test_a_model_reads_parts_and_transposes_where_they_lie(
    emulated: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gated unit, a rotary embedding, and channels that come last; each has a launch of its own here."""
    monkeypatch.setitem(TARGETS, "cuda", replace(CUDA, shares_launches=False))
    original = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]>'
        "g (float[n, s, 96] x, float[s, 48] cosine, float[s, 48] sine, float[n, 40, s] image)"
        " => (float[n, s, 48] y, float[n, s, 48] z, float[n, s, 40] t) {"
        " a, b = Split <axis = 2> (x, parts) e = Sigmoid (a) f = Mul (a, e) y = Mul (f, b)"
        " q = Slice (x, zero, middle, last) h = Slice (q, quarter, middle, last) i = Slice (q, zero, quarter, last)"
        " j = Neg (h) k = Concat <axis = 2> (j, i) l = Mul (q, cosine) m = Mul (k, sine) z = Add (l, m)"
        " u = Transpose <perm = [0, 2, 1]> (image) v = Relu (u) t = Add (v, one) }"
    )
    integers = {"parts": [48, 48], "zero": [0], "quarter": [24], "middle": [48], "last": [2]}
    original.graph.initializer.extend(numpy_helper.from_array(np.array(v), name) for name, v in integers.items())
    original.graph.initializer.append(numpy_helper.from_array(np.float32(1), "one"))
    fused = onnxfuse.optimize(original, "cuda", arch="sm_90", check=False).model
    assert len(fusing.fused_nodes(fused)) == len(fused.graph.node) == 3
    driver = StandIn(tmp_path / "driver")
    session = driver.session(fused)
    random = np.random.default_rng(1)
    names = set()
    for n, s in ((2, 33), (1, 64), (3, 1)):
        shapes = {"x": (n, s, 96), "cosine": (s, 48), "sine": (s, 48), "image": (n, 40, s)}
        feeds = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
        driver.launches()
        results = session.run(None, feeds)
        launches = driver.launches()
        assert len(launches) == 3
        names.update(call["kernel"].split("_", 2)[2] for call in launches)
        for actual, wanted in zip(results, fusing.run(original, feeds, library=False), strict=True):
            np.testing.assert_allclose(actual, wanted, 1e-5, 1e-6)
    assert {"t_l_v4", "t_l_v1", "g_l_v1"} <= names, names
