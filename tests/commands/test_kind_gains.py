"""What a kind of fused node is worth: the planner without it, and the time of what it makes then."""

from pathlib import Path

import kind_gains
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxfuse
from onnxfuse.fused.kinds import MATMUL
from onnxfuse.fused.target import CPU, TARGETS

pytestmark = pytest.mark.skipif(not CPU.fast_products(), reason="the library multiplies no faster than ONNX Runtime")


def product() -> onnx.ModelProto:
    """A product with a constant matrix, its bias and SiLU."""
    model: onnx.ModelProto = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17]> g (float[64, 256] x) => (float[64, 256] y)
        { p = MatMul (x, w) s = Add (p, b) g = Sigmoid (s) y = Mul (s, g) }"""
    )
    for name, shape in (("w", (256, 256)), ("b", (256,))):
        model.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    return model


def test_without_a_kind_another_computes_what_it_would(tmp_path: Path) -> None:
    found = []
    for number, kind in enumerate((None, MATMUL)):
        file = tmp_path / f"{number}.onnx"
        if kind is None:
            onnxfuse.optimize(product(), "cpu", output=file)
        else:
            with kind_gains.without(kind):
                onnxfuse.optimize(product(), "cpu", output=file)
        found.append(kind_gains.kinds_of(file))
    assert MATMUL in found[0] and MATMUL not in found[1]
    assert TARGETS[CPU.name] is CPU


def test_kinds_of_a_model_have_a_cell_each(tmp_path: Path) -> None:
    def make(folder: Path) -> kind_gains.Subject:
        onnx.save(product(), folder / "model.onnx")
        return folder / "model.onnx", {"x": np.ones((64, 256), np.float32)}

    assert list(kind_gains.measure(make, seconds=0.1)) == [MATMUL.name]


def test_a_model_that_there_is_not_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert kind_gains.main(["nothing-like-it", "--no-page"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
