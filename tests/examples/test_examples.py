"""The programs in examples/: each runs where its language is at hand, and gives what ONNX Runtime gives."""

import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from google.protobuf import text_format

import onnxfuse
from tests.project import commands

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
STAND_IN = Path(__file__).parent
HEADERS = os.environ.get("ONNXRUNTIME_INCLUDE", "")
NODE_MODULES = os.environ.get("ONNXFUSE_NODE_MODULES", "")
JAR = os.environ.get("ONNXRUNTIME_JAR", "")
MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1, n] x) => (float[1, n] y) { a = Exp(x) b = Sqrt(a) y = Sub(b, x) }"""
WANTED = [f"{np.sqrt(np.exp(1)) - 1:.5g}"] * 4

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the examples' commands are for Linux")


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a fused model in a folder with the exported library."""
    folder = tmp_path_factory.mktemp("examples")
    onnx.save(onnx.parser.parse_model(MODEL), folder / "model.onnx")
    result = onnxfuse.optimize(folder / "model.onnx", output=folder / "fused.onnx", check=False)
    assert [node.op_type for node in result.model.graph.node] == ["FusedElementwise"]
    onnxfuse.export_library(folder)
    return folder / "fused.onnx"


def output(*command: str | Path) -> list[str]:
    """The numbers that a program prints, to five digits."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return [f"{float(line):.5g}" for line in done.stdout.split()]


def shared_library() -> Path:
    """That of the installed ONNX Runtime."""
    libraries = sorted((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
    if not libraries:
        pytest.skip("this ONNX Runtime has no library to link to")
    return libraries[0]


def build(compiler: str | None, source: Path, fused: Path, *flags: str) -> Path:
    """Compile an example into the folder of the library, without warnings, with the installed ONNX Runtime."""
    if not compiler:
        pytest.skip("there is no compiler")
    program = fused.with_name(f"main-{source.suffix[1:]}")
    runtime = fused.with_name("libonnxruntime.so.1")  # the name that programs ask for, which its Python package lacks
    if not runtime.exists():
        runtime.symlink_to(shared_library())
    command = [compiler, "-Wall", "-Wextra", "-Werror", *flags, f"-I{fused.parent}", str(source), str(runtime)]
    command += [f"-Wl,-rpath,{fused.parent}", "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


@pytest.fixture(scope="module")
def c_program(fused: Path) -> Path:
    flags = ("-std=c99", "-D_GNU_SOURCE", f"-I{HEADERS or STAND_IN}")
    return build(shutil.which("cc") or shutil.which("gcc"), EXAMPLES / "c/main.c", fused, *flags)


def documented(command: str, example: str, fused: Path, folder: Path) -> list[str]:
    """The numbers that the program of an example prints, by its command in examples/README.md."""
    shutil.copytree(EXAMPLES / example, folder, dirs_exist_ok=True)
    shutil.copy(fused, folder)
    onnxfuse.export_library(folder / "lib")
    runtime = folder / "onnxruntime"
    (runtime / "lib").mkdir(parents=True)
    (runtime / "include").symlink_to(HEADERS or STAND_IN)
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):  # which its Python package lacks
        (runtime / "lib" / name).symlink_to(shared_library())
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    settings |= {"ORT": str(runtime), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-ec", command], cwd=folder, env=settings, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return [f"{float(line):.5g}" for line in done.stdout.split()]


def test_c(fused: Path, tmp_path: Path) -> None:
    if not shutil.which("cc"):
        pytest.skip("there is no compiler")
    assert documented(commands.C, "c", fused, tmp_path) == WANTED


def test_c_without_the_library(c_program: Path, fused: Path, tmp_path: Path) -> None:
    program = shutil.copy(c_program, tmp_path / "main")
    done = subprocess.run([program, fused, "1", "8"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "neither beside the program nor where ONNXFUSE_LIBRARY says" in done.stderr
    (tmp_path / "lib").mkdir()
    (tmp_path / "bin").mkdir()
    program = shutil.move(program, tmp_path / "bin")
    (tmp_path / "lib/libonnxfuse_ops.so").symlink_to(fused.with_name("libonnxfuse_ops.so"))
    assert output(program, fused, "1", "8") == WANTED


def test_cpp(fused: Path, tmp_path: Path) -> None:
    if not (HEADERS and (Path(HEADERS) / "onnxruntime_cxx_api.h").is_file()):
        pytest.skip("ONNXRUNTIME_INCLUDE names no folder with onnxruntime_cxx_api.h")
    assert documented(commands.CPP, "cpp", fused, tmp_path) == WANTED


def test_python_without_onnxfuse(fused: Path, tmp_path: Path) -> None:
    (tmp_path / "onnxfuse.py").write_text("raise ImportError('not installed')")  # the first that an import would find
    assert documented(commands.PYTHON, "python", fused, tmp_path) == WANTED


def test_nodejs(fused: Path, tmp_path: Path) -> None:
    node = shutil.which("node")
    if not node or not (Path(NODE_MODULES) / "onnxruntime-node").is_dir() or not NODE_MODULES:
        pytest.skip("ONNXFUSE_NODE_MODULES names no folder with onnxruntime-node")
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    shutil.copy(EXAMPLES / "nodejs/main.js", tmp_path)
    assert output(node, tmp_path / "main.js", fused, "1", "8") == WANTED


def test_java(fused: Path) -> None:
    java = shutil.which("java")
    if not java or not JAR:
        pytest.skip("ONNXRUNTIME_JAR names no onnxruntime.jar")
    library = fused.with_name("libonnxfuse_ops.so")
    assert output(java, "-cp", JAR, EXAMPLES / "java/Main.java", library, fused, "1", "8") == WANTED


@pytest.mark.parametrize(
    ("folder", "fetch", "run"),
    [
        ("rust", ("cargo", "fetch", "--offline"), ("cargo", "run", "--offline", "--quiet", "--")),
        ("csharp", ("dotnet", "restore"), ("dotnet", "run", "--no-restore", "--")),
    ],
)
def test_projects_with_packages(folder: str, fetch: tuple[str, ...], run: tuple[str, ...], fused: Path) -> None:
    project = shutil.copytree(EXAMPLES / folder, fused.with_name(folder))
    if not shutil.which(fetch[0]) or subprocess.run(fetch, cwd=project, capture_output=True, check=False).returncode:
        pytest.skip("the language is not here, or the packages that the example takes")
    arguments = (fused.with_name("libonnxfuse_ops.so"), fused, "1", "8")
    done = subprocess.run((*run, *arguments), cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [f"{float(line):.5g}" for line in done.stdout.split()] == WANTED


@pytest.fixture
def address(fused: Path) -> Iterator[str]:
    """That of the running service."""
    command = [sys.executable, EXAMPLES / "http/server.py", fused, "0", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        try:
            yield f"http://{words[2]}"
        finally:
            process.kill()


def test_http(address: str) -> None:
    with urllib.request.urlopen(f"{address}/healthz") as answer:
        assert answer.status == 200
    body = BytesIO()
    np.savez(body, x=np.ones((1, 8), np.float32))
    for _ in range(3):
        with urllib.request.urlopen(f"{address}/run", data=body.getvalue()) as answer:
            y = np.load(BytesIO(answer.read()))["y"]
        np.testing.assert_allclose(y, np.full((1, 8), np.sqrt(np.e) - 1), rtol=1e-6)
    wrong = BytesIO()
    np.savez(wrong, x=np.ones((1, 8), np.float64))
    for data in (wrong.getvalue(), b"no archive"):
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(f"{address}/run", data=data)


def test_the_configuration_for_triton() -> None:
    """Against the server's own schema."""
    schema = pytest.importorskip("tritonclient.grpc.model_config_pb2")
    path = EXAMPLES / "triton/fused/config.pbtxt"
    config = text_format.Parse(path.read_text(encoding="utf-8"), schema.ModelConfig())
    assert (config.name, config.backend) == (path.parent.name, "onnxruntime")
    (library,) = config.model_operations.op_library_filename
    assert Path(library).name == "libonnxfuse_ops.so"


def test_exported_files_replace_earlier_ones(tmp_path: Path) -> None:
    (tmp_path / "onnxfuse.h").write_text("earlier")
    library, header, licence = onnxfuse.export_library(tmp_path)
    assert library.read_bytes() == Path(onnxfuse.custom_ops_library()).read_bytes()
    assert header.read_bytes() == (ROOT / "onnxfuse/include/onnxfuse.h").read_bytes()
    assert licence.read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(p.name for p in (library, header, licence))
