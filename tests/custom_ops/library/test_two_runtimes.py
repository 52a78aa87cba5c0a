"""Two copies of ONNX Runtime in one process, as where two packages bring one each; both load the library once."""

import os
import shutil
import subprocess
from pathlib import Path

import onnxruntime as ort
import pytest

from tests.custom_ops.fused import library, run_code
from tests.custom_ops.library.test_cpp import COMPILER, NATIVE, compile_cpp, run_program

SESSIONS = """
import itertools, sys
import numpy as np
from tests.custom_ops.fused import fused_model, library

def load(folder):
    sys.path.insert(0, folder)
    import onnxruntime
    del sys.path[0]
    for name in [name for name in sys.modules if name.split(".")[0] == "onnxruntime"]:
        del sys.modules[name]
    return onnxruntime

copies = [load(folder) for folder in sys.argv[1:]]
assert copies[0].__file__ != copies[1].__file__
program = "onnxfuse 1\\ninput f32 broadcast\\ninput f32 broadcast\\nadd f32 0 1\\noutput 2\\n"
model = fused_model(program, [["n", 3], [3]])
x = np.arange(6, dtype=np.float32).reshape(2, 3)

def options(copy):
    made = copy.SessionOptions()
    made.register_custom_ops_library(library())
    return made

def session(copy, options):
    made = copy.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert made.get_outputs()[0].shape == ["n", 3]
    return made

for first, second in (copies, copies[::-1]) * 2:
    asked = [options(first), options(second)]
    sessions = [session(first, asked[0]), session(second, asked[1])]
    for one in (*sessions, *sessions):
        np.testing.assert_array_equal(one.run(None, {"x0": x, "x1": x[1]})[0], x + x[1])
"""


def run_sessions(*folders: Path) -> None:
    """Sessions of the copies of ONNX Runtime in these folders, with the options of both made before either."""
    result = run_code(f"import sys\nsys.argv[1:] = {list(map(str, folders))!r}\n{SESSIONS}")
    assert result.returncode == 0, f"{result.returncode} {result.stdout[-2000:]} {result.stderr[-4000:]}"


def test_the_same_version_twice(tmp_path: Path) -> None:
    package = Path(ort.__file__).parent
    shutil.copytree(package, tmp_path / "onnxruntime", ignore=shutil.ignore_patterns("*.pyc", "tools", "transformers"))
    run_sessions(package.parent, tmp_path)


def test_the_oldest_version_and_this_one() -> None:
    python = os.environ.get("ONNXFUSE_ORT_OLDEST")
    if not python:
        pytest.skip("ONNXFUSE_ORT_OLDEST is not set")
    code = "import onnxruntime, pathlib; print(pathlib.Path(onnxruntime.__file__).parents[1])"
    other = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    if other == str(Path(ort.__file__).parents[1]):
        pytest.skip("it is the one that runs here")
    run_sessions(Path(ort.__file__).parents[1], Path(other))


@pytest.mark.skipif(not COMPILER, reason="there is no C++ compiler")
def test_what_each_is_given(tmp_path: Path) -> None:
    """Domains and operators are those that were made for it, and callbacks use its functions."""
    program = compile_cpp(tmp_path / "test", [NATIVE / "tests/two_runtimes_test.cc"], ["-O1"])
    run_program(program, library())
