"""CUDA architectures: lists of names, and the occupancy that NVIDIA's calculator gives."""

import pytest

from onnxfuse.cuda.arch import COMMON, architecture, devices, parse_architectures
from onnxfuse.errors import OnnxfuseError


def test_a_list_is_sorted_and_has_each_once() -> None:
    assert parse_architectures("sm_100,sm_75,sm_90,sm_75") == ("sm_75", "sm_90", "sm_100")
    assert parse_architectures(COMMON) == COMMON


@pytest.mark.parametrize("text", ["", "sm_90,", "90", "compute_90", "sm_90a", "sm_9", "sm_70", "sm_80, sm_90", "sm_٨٠"])
def test_what_is_no_architecture_is_one_clear_line(text: str) -> None:
    with pytest.raises(OnnxfuseError, match="architecture") as error:
        parse_architectures(text)
    assert "\n" not in str(error.value)


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(OnnxfuseError, match="no architecture"):
        parse_architectures([])


@pytest.mark.parametrize(
    ("name", "registers", "block", "expected"),
    [
        ("sm_90", 32, 256, 1.0),
        ("sm_90", 64, 256, 0.5),
        ("sm_90", 65, 256, 0.375),  # 72 registers a thread are given: 28 warps, 3 blocks of 8
        ("sm_90", 255, 256, 0.125),
        ("sm_90", 16, 32, 0.5),  # 32 blocks of one warp
        ("sm_75", 128, 256, 0.5),
        ("sm_86", 40, 256, 1.0),
        ("sm_86", 80, 256, 0.5),
        ("sm_80", 255, 1024, 0.0),  # a block that cannot be launched
    ],
)
def test_occupancy(name: str, registers: int, block: int, expected: float) -> None:
    assert architecture(name).occupancy(registers, block) == expected


def test_an_architecture_to_come_is_taken_for_the_one_before_it() -> None:
    assert architecture("sm_130").threads == architecture("sm_121").threads


def test_the_devices_are_architectures() -> None:
    found = devices()
    assert found == () or parse_architectures(found) == found
