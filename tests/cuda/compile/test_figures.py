"""Limits that device code repeats, for it is compiled where the table of figures is not."""

import re
from pathlib import Path

import pytest

from onnxfuse.program.figures import MAX_RANK, SHARED_BYTES

DEVICE = Path(__file__).parents[3] / "custom_ops" / "cuda" / "device"


@pytest.mark.parametrize(
    ("file", "name", "figure"),
    [("indexing.cuh", "max_rank", MAX_RANK), ("conv_gemm.cuh", "shared_bytes", SHARED_BYTES)],
)
def test_device_code_has_the_figures_of_the_table(file: str, name: str, figure: int) -> None:
    (value,) = re.findall(rf"constexpr int {name} = ([\d <]+);", (DEVICE / file).read_text(encoding="utf-8"))
    number, _, shift = value.partition(" << ")
    assert int(number) << int(shift or 0) == figure
