"""What a kind of fused node is worth: the planner without it, and the time of what it makes then."""

from pathlib import Path

import kind_gains
import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.fused.kinds import NORMALIZATION, REDUCTION
from onnxfuse.fused.target import CPU, TARGETS


def test_without_a_kind_another_computes_what_it_would(tmp_path: Path) -> None:
    found = []
    for number, kind in enumerate((None, NORMALIZATION)):
        file = tmp_path / f"{number}.onnx"
        proto = kind_gains.normalized((8, 64))
        if kind is None:
            onnxfuse.optimize(proto, "cpu", output=file)
        else:
            with kind_gains.without(kind):
                onnxfuse.optimize(proto, "cpu", output=file)
        found.append(kind_gains.kinds_of(file))
    assert found == [[NORMALIZATION], [REDUCTION]]
    assert TARGETS[CPU.name] is CPU


def test_kinds_of_a_model_have_a_cell_each(tmp_path: Path) -> None:
    def make(folder: Path) -> kind_gains.Subject:
        path = folder / "model.onnx"
        onnx.save(kind_gains.normalized((8, 64)), path)
        return path, {name: np.ones((8, 64), np.float32) for name in ("x", "r")}

    assert list(kind_gains.measure(make, seconds=0.1)) == [NORMALIZATION.name]


def test_a_model_that_there_is_not_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert kind_gains.main(["nothing-like-it", "--no-page"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
