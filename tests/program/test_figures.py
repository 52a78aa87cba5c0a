"""The table of figures: each row has the readers that its place says, and device code repeats what it cannot read."""

import ast
import re
from pathlib import Path

import pytest

from onnxfuse.program import figures
from onnxfuse.program.figures import MAX_RANK, SHARED_BYTES, TABLES

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "custom_ops"
ROWS = {figure.name: (figure, table.header) for table in TABLES for figure in table.figures}


def constant(name: str) -> str:
    return "k" + "".join(map(str.capitalize, name.split("_")))


def test_the_library_reads_the_rows_with_a_header_and_no_others() -> None:
    read: set[str] = set()
    for path in NATIVE.rglob("*"):
        if path.suffix in {".cc", ".h", ".inc"} and "tests" not in path.parts:
            read |= set(re.findall(r"\bk[A-Z]\w*", re.sub("//.*", "", path.read_text(encoding="utf-8"))))
    assert {name for name in ROWS if constant(name) in read} == {name for name, (_, header) in ROWS.items() if header}


def test_python_reads_the_rows_with_a_name_and_no_others() -> None:
    read: set[str] = set()
    for path in (ROOT / "onnxfuse").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == figures.__name__:
                read |= {alias.name for alias in node.names}
    assert read == {name for name in ROWS if hasattr(figures, name)}
    assert {name for name, (_, header) in ROWS.items() if not header} <= read
    assert all(getattr(figures, name) == ROWS[name][0].value for name in read)


def test_a_row_stands_in_one_table() -> None:
    assert len(ROWS) == sum(len(table.figures) for table in TABLES)


@pytest.mark.parametrize(
    ("file", "name", "figure"),
    [("indexing.cuh", "max_rank", MAX_RANK), ("conv_gemm.cuh", "shared_bytes", SHARED_BYTES)],
)
def test_device_code_has_the_figures_of_the_table(file: str, name: str, figure: int) -> None:
    (value,) = re.findall(
        rf"constexpr int {name} = ([\d <]+);", (NATIVE / "cuda" / "device" / file).read_text(encoding="utf-8")
    )
    number, _, shift = value.partition(" << ")
    assert int(number) << int(shift or 0) == figure
