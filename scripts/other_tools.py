#!/usr/bin/env python3
"""What other tools do with an optimized file, and what is to be run before: the table of docs/tools.md.

Prints the table, of the tools that are installed.
"""

import importlib
import importlib.util
import re
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))  # tools/, behind the packages of this Python

import numpy as np
import onnx
import onnxruntime

import onnxfuse
from tools.messages import Parser

PAGE = Path(__file__).resolve().parents[1] / "docs" / "tools.md"

_MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1, 16] x) => (float[1, 16] y) <float[16, 16] w> {
  a = MatMul(x, w) b = Sigmoid(a) c = Mul(b, a) d = MatMul(c, w) e = Tanh(d) f = Mul(e, d) y = Add(f, x)
}"""


def model() -> onnx.ModelProto:
    """Two products of a constant, with a chain behind each."""
    made = onnx.parser.parse_model(_MODEL)
    weights = np.random.default_rng(0).normal(0, 0.25, (16, 16)).astype(np.float32)
    for node in made.graph.node:  # float16 of onnxconverter-common makes names of them
        node.name = f"node_{node.output[0]}"
    made.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return made


@cache
def optimized_model() -> onnx.ModelProto:
    """The same, optimized."""
    return onnxfuse.optimize(model(), check=False).model


def _tool(module: str, name: str) -> Callable[..., Any]:
    return getattr(importlib.import_module(module), name)


def _onnxslim(source: Path, target: Path) -> None:
    onnx.save(_tool("onnxslim", "slim")(str(source)), target)


def _onnxsim(source: Path, target: Path) -> None:
    simplified, _ = _tool("onnxsim", "simplify")(str(source))
    onnx.save(simplified, target)


def _float16(source: Path, target: Path) -> None:
    convert = _tool("onnxconverter_common.float16", "convert_float_to_float16")
    onnx.save(convert(onnx.load(source), keep_io_types=True), target)


def _dynamic(source: Path, target: Path) -> None:
    _tool("onnxruntime.quantization", "quantize_dynamic")(str(source), str(target))


def _static(source: Path, target: Path) -> None:
    samples = iter([{"x": np.linspace(-2, 2, 16, dtype=np.float32).reshape(1, 16) * k} for k in range(1, 5)])
    reader: Any = _tool("onnxruntime.quantization", "CalibrationDataReader")
    fixed = type("Samples", (reader,), {"get_next": lambda _: next(samples, None)})
    _tool("onnxruntime.quantization", "quantize_static")(str(source), str(target), fixed())


def _version(source: Path, target: Path) -> None:
    onnx.save(_tool("onnx.version_converter", "convert_version")(onnx.load(source), 21), target)


def _load(source: Path, target: Path) -> None:
    """What a viewer does."""
    loaded = onnx.load(source)
    onnx.checker.check_model(loaded)
    onnx.save(onnx.shape_inference.infer_shapes(loaded), target)


def _polygraphy(source: Path, target: Path) -> None:
    onnx.save(_tool("polygraphy.backend.onnx", "fold_constants")(onnx.load(source)), target)


TOOLS: dict[str, tuple[str, Callable[[Path, Path], None], float]] = {
    "onnx: load, check, infer shapes (what viewers do)": ("onnx", _load, 1e-6),
    "onnx.version_converter": ("onnx", _version, 1e-6),
    "onnxslim": ("onnxslim", _onnxslim, 1e-6),
    "onnxsim": ("onnxsim", _onnxsim, 1e-6),
    "polygraphy surgeon sanitize --fold-constants": ("polygraphy", _polygraphy, 1e-6),
    "onnxconverter-common float16": ("onnxconverter_common", _float16, 2e-2),
    "onnxruntime.quantization, dynamic": ("onnxruntime", _dynamic, 2e-1),
    "onnxruntime.quantization, static (QDQ)": ("onnxruntime", _static, 2e-1),
}
"""By what they are called: the module that they need, what runs them, and how far values about 1 may be off."""


def fused_nodes(path: Path) -> int:
    """How many nodes of a file are fused, and have their function."""
    loaded = onnx.load(path)
    functions = {(function.domain, function.name) for function in loaded.functions}
    return sum((node.domain, node.op_type) in functions for node in loaded.graph.node if node.domain == "onnxfuse")


def output(path: Path) -> np.ndarray:
    """What a file computes, which must be the same with the library and without."""
    x = np.linspace(-2, 2, 16, dtype=np.float32).reshape(1, 16)
    plain = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    fused = onnxfuse.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    np.testing.assert_allclose(fused, plain, rtol=1e-2, atol=1e-2)
    return fused


def attempt(steps: Callable[[], Path], wanted: np.ndarray, tolerance: float) -> str:
    """``N fused nodes``, or what went wrong."""
    try:
        path = steps()
        count = fused_nodes(path)
        off = np.abs(output(path) - wanted).max()
    except Exception as error:
        return f"fails: {type(error).__name__}"
    kept = f"{count} fused node{'' if count == 1 else 's'}" if count else "nothing fused"
    return kept if off <= tolerance else "other values"


def row(name: str, folder: Path) -> str | None:
    """The row of a tool: what it does to an optimized file, and optimize with its own; None if it is not there."""
    module, run, tolerance = TOOLS[name]
    if importlib.util.find_spec(module) is None:
        return None
    original, optimized = folder / "original.onnx", folder / "optimized.onnx"
    onnx.save(model(), original)
    onnx.save(optimized_model(), optimized)
    wanted = output(original)

    def behind() -> Path:
        run(optimized, folder / "behind.onnx")
        return folder / "behind.onnx"

    def before() -> Path:
        run(original, folder / "before.onnx")
        onnxfuse.optimize(folder / "before.onnx", output=folder / "both.onnx", check=False)
        return folder / "both.onnx"

    def unfused() -> Path:
        onnxfuse.unfuse(optimized, output=folder / "plain.onnx")
        run(folder / "plain.onnx", folder / "again.onnx")
        onnxfuse.optimize(folder / "again.onnx", output=folder / "all.onnx", check=False)
        return folder / "all.onnx"

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = [attempt(steps, wanted, tolerance) for steps in (behind, before, unfused)]
    return f"| {name} | {' | '.join(results)} |"


def rows() -> list[str]:
    """Those of the tools that are installed."""
    found = []
    for name in TOOLS:
        with tempfile.TemporaryDirectory() as folder:
            if text := row(name, Path(folder)):
                found.append(text)
    return found


def main() -> int:
    """The exit status."""
    parser = Parser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit status 1 if a row of the page is another one here")
    check = parser.parse_args().check
    found = rows()
    if not check:
        print("\n".join(found))
        return 0
    known = re.findall(r"^\| .* \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    wrong = [text for text in found if text not in known]
    print("\n".join(f"not in {PAGE.name}: {text}" for text in wrong) or f"{len(found)} rows are as in {PAGE.name}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
