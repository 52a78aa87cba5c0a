"""Files with intrinsics, compiled for AArch64 where a compiler for it is: no other test sees them break."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NATIVE = ROOT / "custom_ops"
TABLES = [ROOT / "onnxfuse" / name for name in ("program/ops.py", "fused/kinds.py", "program/figures.py")]
COMPILER = next(
    filter(None, map(shutil.which, (ROOT / "build/aarch64/g++", "aarch64-linux-gnu-g++", "aarch64-linux-gnu-g++-12"))),
    None,
)
KNOWING = re.compile(r"arm_neon\.h|__aarch64__")

pytestmark = pytest.mark.skipif(
    COMPILER is None, reason="no compiler for AArch64; scripts/aarch64.sh tools fetches one"
)


def kernels() -> list[str]:
    """The kernels that each set of instructions has, as CMakeLists.txt lists them."""
    text = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    listed = re.findall(r"^\s*add_kernels\(\$\{\w+\} (\S+) ([^)]+)\)", text, re.MULTILINE)
    return [f"{folder}/{part}" for folder, parts in listed for part in parts.split()]


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The headers that the build makes of the package's tables."""
    folder = tmp_path_factory.mktemp("generated")
    command = [
        sys.executable,
        NATIVE / "generate_opcodes.py",
        *TABLES,
        folder / "program/opcodes.inc",
        folder / "figures",
    ]
    subprocess.run(command, check=True)
    return folder


def problems(source: Path, generated: Path) -> str:
    """What the compiler says of a file."""
    flags = ["-std=gnu++17", "-O0", "-S", "-Wall", "-Wextra", "-Werror", f"-I{NATIVE}", f"-I{generated}"]
    command = [COMPILER, *flags, "-o", "/dev/null", source]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


def test_kernels_compile_for_neon(generated: Path) -> None:
    """All in one file each, as the build makes them."""
    found = sorted(set(kernels()))
    assert len(found) > 8
    for name in found:
        source = generated / f"{Path(name).name}.cc"
        source.write_text(f'#include "simd/isa_neon.h"\n\n#include "{name}.inc"\n', encoding="utf-8")
        assert not problems(source, generated), name


def test_files_that_ask_for_the_processor_compile(generated: Path) -> None:
    sources = [path for path in NATIVE.rglob("*.cc") if "tests" not in path.parts]
    found = [path for path in sources if KNOWING.search(path.read_text(encoding="utf-8"))]
    assert found
    for source in found:
        assert not problems(source, generated), source
