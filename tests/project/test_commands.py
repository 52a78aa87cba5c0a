"""Every command in the documents runs, or is in a table that says what it needs (commands.py)."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxfuse
from onnxfuse.cli import cli
from onnxfuse.cli.cli_arguments import make_parser
from onnxfuse.cuda.compile.compiler import find_compiler
from onnxfuse.errors import OnnxfuseError
from onnxfuse.passes import REGISTRY
from tests.project.commands import LANGUAGES, PAGES, ROOT, TABLE, blocks, commands

NAMES = {
    **dict.fromkeys(("IN", "MODEL", "ORIGINAL", "MODEL.onnx"), "model.onnx"),
    **{"OUT": "fused.onnx", "OPTIMIZED": "fused.onnx", "DIR": "lib", "ch_*": "camera"},
}
"""What is put in place of names in commands."""
FILES = {
    **{name: ["model.onnx", "fused.onnx"] for name in ("optimize", "check", "bench")},
    **{"inspect": ["model.onnx"], "unfuse": ["fused.onnx", "plain.onnx"]},
}
"""Of commands that are named without."""
NETWORK = {"tutorial", "howto"}
"""Pages that say what their model is."""
PYTHON_ELSEWHERE = {
    "README.md": "project/test_documents.py::test_the_python_of_the_readme_runs",
    "docs/languages.md": "project/test_documents.py::test_the_python_of_the_readme_runs",
}
"""Pages whose Python another test runs."""


def network() -> onnx.ModelProto:
    """A model of the signature of the tutorial's."""
    weights = np.random.default_rng(0).normal(size=(8, 3, 3, 3)).astype(np.float32)
    text = """<ir_version: 8, opset_import: ["" : 17]>
        network (float[batch, 3, 32, 32] x) => (float[batch, 8, 1, 1] y) {
            c = Conv <pads = [1, 1, 1, 1]> (x, w)
            s = Sigmoid(c)
            m = Mul(c, s)
            y = GlobalAveragePool(m)
        }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


def chain() -> onnx.ModelProto:
    """A model of elementwise nodes, which costs a compiler of CUDA little."""
    return onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        chain (float[batch, 3, 32, 32] x) => (float[batch, 3, 32, 32] y) { a = Exp(x) b = Sqrt(a) y = Neg(b) }"""
    )


def completed(command: str) -> list[str]:
    """The words behind ``onnxfuse``, with names for what stands for one, and those that are missing."""
    words = [NAMES.get(word, word) for word in shlex.split(command)[1:]]
    words += FILES.get(words[0], []) if not any(".onnx" in word for word in words) else []
    return words + (["--seconds", "0.1"] if words[0] == "bench" and "--seconds" not in words else [])


def has_compiler() -> bool:
    try:
        find_compiler()
    except OnnxfuseError:
        return False
    return True


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and its result, of the names in the documents, and inputs."""
    folder = tmp_path_factory.mktemp("models")
    for name, model in (("network", network()), ("chain", chain())):
        (folder / name).mkdir()
        onnx.save(model, folder / name / "model.onnx")
        onnxfuse.optimize(folder / name / "model.onnx", output=folder / name / "fused.onnx", check=False)
        np.savez(folder / name / "inputs.npz", x=np.zeros((2, 3, 32, 32), np.float32))
    return folder


@pytest.fixture(scope="module")
def done() -> set[tuple[str, ...]]:
    """The commands that other pages had before."""
    return set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_onnxfuse_and_python_of_the_page_run(
    page: Path,
    folder: Path,
    done: set[tuple[str, ...]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = [completed(command) for command in commands(page) if command.startswith("onnxfuse")]
    code = [text for reason, language, text in blocks(page) if language == "python" and not reason]
    if not own and not code:
        return
    name = str(page.relative_to(ROOT))
    shutil.copytree(folder / ("network" if page.stem in NETWORK else "chain"), tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    before = set(REGISTRY.names())
    namespace: dict[str, Any] = {"onnxfuse": onnxfuse, "onnxruntime": onnxruntime}
    try:
        for text in code if name not in PYTHON_ELSEWHERE else []:
            exec(compile(text, name, "exec"), namespace)
        for words in own:
            if tuple(words) in done or ("cuda" in words and not has_compiler()):
                continue
            assert cli.main(words) == 0, f"{words}\n{capsys.readouterr().err}"
            done.add(tuple(words))
    finally:
        for added in set(REGISTRY.names()) - before:
            REGISTRY.remove(added)


def test_every_other_command_is_in_the_table() -> None:
    found = {command: page.name for page in PAGES for command in commands(page)}
    others = {command: page for command, page in found.items() if command.split()[0] != "onnxfuse"}
    assert {command: page for command, page in others.items() if command not in TABLE} == {}
    assert sorted(set(TABLE) - set(others)) == []  # nothing but what a page has
    for page in PAGES:
        assert {language for _, language, _ in blocks(page)} <= LANGUAGES, page


def test_the_table_says_of_each_command_how_it_is_run() -> None:
    for command, how in TABLE.items():
        assert how.run or how.test or how.stand_ins or how.needs, command
        if how.run and not how.needs:  # the same, with more
            missing = set(parts(command)) - set(parts(how.run))
            assert missing <= {"DIR", "S", "MODEL"}, command
    for test in [*PYTHON_ELSEWHERE.values(), *(how.test for how in TABLE.values() if how.test)]:
        path, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / path).read_text(encoding="utf-8"), test


def parts(command: str) -> list[str]:
    """The words of a command, but for the name of Python."""
    return [word for word in shlex.split(command) if not word.endswith("python")]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources that commands may write to; what none of them writes to is linked."""
    clone = tmp_path_factory.mktemp("clone")
    for name in ("scripts", "tools", "docs", "benchmarks"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.name not in {"build", "dist", ".git", ".venv"} and not (clone / path.name).exists():
            (clone / path.name).symlink_to(path)
    (clone / ".venv").symlink_to(sys.prefix)
    return clone


@pytest.mark.parametrize("command", sorted({how.run for how in TABLE.values() if how.run}))
def test_it_runs(command: str, clone: Path) -> None:
    if ("conv_instances" in command or "zoo_" in command) and not has_compiler():
        pytest.skip("there is no CUDA compiler")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.run(
        ["bash", "-ec", f"set -o pipefail; {command}"],
        cwd=clone,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    accepted = {0, 1} if "scripts/bench_cpu.py" in command else {0}  # 1: a target is missed, on a busy machine
    assert process.returncode in accepted, process.stdout + process.stderr
    assert "does not provide the extra" not in process.stderr
    assert "Traceback" not in process.stderr


def test_bad_usage_of_a_script_is_one_line(clone: Path) -> None:
    scripts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "scripts").glob("*.py"))]
    parsing = re.compile(r"\bParser\(description=__doc__|\bwrite_files\(\s*\"\w+\.py\",\s*__doc__,")
    assert all("ArgumentParser(" not in text and parsing.search(text) for text in scripts)
    for arguments in (["scripts/fuzz.py", "graphs", "--cuont", "3"], ["scripts/zoo_kernels.py", "--nonsense"]):
        done = subprocess.run([sys.executable, *arguments], cwd=clone, capture_output=True, text=True, check=False)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and "--help" in done.stderr, done.stderr


def test_commands_of_onnxfuse_in_blocks_name_no_option_that_is_not() -> None:
    """Those of pages that are not run without a CUDA compiler too."""
    for page in PAGES:
        for command in commands(page):
            if command.startswith("onnxfuse"):
                make_parser().parse_args(completed(command))


def test_commands_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`scripts/a.py` and `python` or `python b\nc` `onnxfuse`\n```sh\nd --e \\\n  f  # g\n\n# h\ni\n```\n"
    )
    assert list(commands(page)) == ["d --e f", "i", "scripts/a.py", "python b c"]
