"""Run by scripts/wheels.sh: the Windows library under Wine, in ONNX Runtime's DLL and in the native fuzz drivers."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

import onnxfuse

ROOT = Path(__file__).parents[1]

# name: nodes, sizes of the input and sizes of the weights
MODELS: dict[str, tuple[str, tuple[int, ...], list[tuple[int, ...]]]] = {
    "chain": ("a = Sigmoid(x) b = Mul(a, x) y = Add(b, w0)", (3, 8), [(8,)]),
    "normalization": ("a = Add(x, w0) y = LayerNormalization<axis = -1>(a, w1)", (4, 64), [(4, 64), (64,)]),
    "softmax": ("a = Mul(x, w0) b = Add(a, w1) y = Softmax<axis = -1>(b)", (2, 4, 33), [(33,), (4, 1)]),
    "product": ("a = MatMul(x, w0) b = Add(a, w1) y = Gelu(b)", (5, 64), [(64, 48), (48,)]),
    "convolution": (
        "a = Conv<pads = [1, 1, 1, 1]>(x, w0, w1) b = Sigmoid(a) y = Mul(a, b)",
        (1, 8, 16, 16),
        [(16, 8, 3, 3), (16,)],
    ),
}
INSTRUCTION_SETS = ("baseline", "avx2", "avx512")
FUZZ_RUNS = "40"
SECONDS = 300


def make_model(nodes: str, sizes: tuple[int, ...], weights: list[tuple[int, ...]]) -> onnx.ModelProto:
    """The model of an input x, an output y, and random weights."""
    random = np.random.default_rng(1)
    x = ",".join(map(str, sizes))
    text = f'<ir_version: 8, opset_import: ["" : 20]> g (float[{x}] x) => (float[] y) {{ {nodes} }}'
    model: onnx.ModelProto = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    for index, shape in enumerate(weights):
        values = random.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, f"w{index}"))
    return model


def wine(command: list[str | Path], folder: Path, **settings: str) -> str:
    """What a program prints.  Raises SystemExit, with what it said, if it fails."""
    environment = {**os.environ, "WINEDEBUG": "-all", **settings}
    done = subprocess.run(
        ["wine", *command], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS
    )
    if done.returncode != 0:
        sys.exit(
            f"error: {command} {settings} ended with {done.returncode}: {done.stdout[-500:]} {done.stderr[-2000:]}"
        )
    return done.stdout


def build_host(python: str, folder: Path) -> None:
    """The C example and what it loads, in ``folder``, whose ``packages`` are ONNX Runtime and onnxfuse for Windows."""
    packages = folder / "packages"
    for name in ("onnxruntime/capi/onnxruntime.dll", "onnxfuse/lib/onnxfuse_ops.dll"):
        shutil.copy(packages / name, folder)
    (folder / "onnxruntime.def").write_text("LIBRARY onnxruntime.dll\nEXPORTS\n  OrtGetApiBase\n", encoding="ascii")
    zig = [python, "-I", "-m", "ziglang"]
    machine = ["dlltool", "-m", "i386:x86-64", "-d", "onnxruntime.def", "-l", "onnxruntime.lib"]
    subprocess.run([*zig, *machine], cwd=folder, check=True)
    headers = [f"-I{ROOT / 'tests/examples'}", f"-I{packages / 'onnxfuse/lib'}"]
    compiler = ["cc", "-target", "x86_64-windows-gnu", *headers, "-o", "main.exe", str(ROOT / "examples/c/main.c")]
    subprocess.run([*zig, *compiler, "onnxruntime.lib"], cwd=folder, check=True)


def run_model(path: Path, sizes: tuple[int, ...]) -> None:
    """Compare the first values of a model's result here with those there, by each set of instructions."""
    session = onnxfuse.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {session.get_inputs()[0].name: np.ones(sizes, np.float32)})
    for isa in INSTRUCTION_SETS:
        printed = wine(["main.exe", path.name, *map(str, sizes)], path.parent, ONNXFUSE_ISA=isa)
        found = np.array(printed.split(), np.float32)
        np.testing.assert_allclose(found, expected.reshape(-1)[: found.size], rtol=1e-4, atol=1e-5)
        assert found.size == min(4, expected.size)


def main(python: str, build: Path) -> None:
    """``python`` has Zig; ``build`` is where the wheel was built, and its folder ``run`` has the packages."""
    folder = build / "run"
    build_host(python, folder)
    for name, (nodes, sizes, weights) in MODELS.items():
        path = folder / f"{name}.onnx"
        result = onnxfuse.optimize(make_model(nodes, sizes, weights), output=path)
        assert " fused into " in result.report.summary(), result.report.summary()
        run_model(path, sizes)
    detector = folder / "detector.onnx"
    fetched = subprocess.run(
        [sys.executable, "-P", "-m", "onnxfuse", "zoo", "fetch", "ch_PP-OCRv4_det"],
        capture_output=True,
        text=True,
        check=True,
    )
    onnxfuse.optimize(fetched.stdout.strip(), output=detector)
    run_model(detector, (1, 3, 64, 64))
    print(f"{len(MODELS) + 1} models: right, with {', '.join(INSTRUCTION_SETS)}")
    drivers = sorted((build / "native").glob("fuzz_*.exe"))
    for driver in drivers:
        wine([driver, FUZZ_RUNS, "1"], folder)
    print(f"{len(drivers)} fuzz drivers: right")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
