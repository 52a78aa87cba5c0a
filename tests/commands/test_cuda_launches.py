"""What is left to launch on CUDA: the lines of the table, for a model of the zoo that is small."""

import cuda_launches
import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from tests.passes.models import run
from tools.gpu.four_bits import BLOCK, four_bit_model


def test_lines_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert cuda_launches.main(["tabular"]) == 0
    head, _, *lines = capsys.readouterr().out.splitlines()
    columns = [cell.strip() for cell in head.strip("|").split("|")]
    assert tuple(columns) == cuda_launches.COLUMNS
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert {line[2] for line in cells} == {"float32", "float16"}
    assert all(int(line[4]) < int(line[3]) for line in cells)


def test_a_model_that_there_is_not_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cuda_launches.main(["nothing-like-it"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_weights_of_four_bits_are_near_those_that_they_stand_for(tmp_path) -> None:
    weights = np.random.default_rng(0).standard_normal((2 * BLOCK, 3)).astype(np.float32)
    proto = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 17]> g (float[2, 64] x) => (float[2, 3] y) { y = MatMul(x, w) }'
    )
    proto.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    onnx.save(proto, tmp_path / "model.onnx")
    made = onnx.load(four_bit_model(tmp_path / "model.onnx", tmp_path / "four.onnx"))
    assert [node.op_type for node in made.graph.node] == ["MatMulNBits"]
    x = np.eye(2, 64, dtype=np.float32)
    found, expected = run(made, {"x": x})[0], run(proto, {"x": x})[0]
    assert 0 < np.abs(found - expected).max() < 0.5
