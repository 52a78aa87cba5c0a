"""The Python API: ``import onnxfuse`` and ``onnxfuse.optimize``."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

import onnxfuse
from onnxfuse.errors import OnnxfuseError, ParityError
from onnxfuse.targets import request
from tests.support.parity_models import Breaks, chain, save


def test_importing_is_quick_and_every_name_is_there() -> None:
    code = "import sys, onnxfuse; assert not {'numpy', 'onnx', 'onnxruntime'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    for name in onnxfuse.__all__:
        assert getattr(onnxfuse, name) is not None
    assert set(onnxfuse.__all__) <= set(dir(onnxfuse))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = onnxfuse.nothing


def test_a_model_in_memory_is_optimized_and_itself_unchanged() -> None:
    model = chain()
    before = model.SerializeToString(deterministic=True)
    result = onnxfuse.optimize(model, target="cpu")
    assert model.SerializeToString(deterministic=True) == before
    assert [node.op_type for node in result.model.graph.node] == ["FusedElementwise"]
    assert result.report.parity is not None and result.report.parity.ok
    assert result.report.before.launches == 4 and result.report.after.launches == 1
    assert result.report.seconds > 0


def test_a_model_as_bytes() -> None:
    result = onnxfuse.optimize(chain().SerializeToString(), target="cpu")
    assert [node.op_type for node in result.model.graph.node] == ["FusedElementwise"]
    for given, message in ((b"junk" * 9, "not an ONNX model"), (b"", "empty"), (5, "not as int"), (None, "NoneType")):
        with pytest.raises(OnnxfuseError, match=message):
            onnxfuse.optimize(given)


def test_passes_are_names_or_a_text_with_commas() -> None:
    for given in (["fold-constants"], "fold-constants", "fold-constants, fuse-elementwise"):
        fused = bool(onnxfuse.optimize(chain(), passes=given, check=False).report.fused)
        assert fused == ("fuse-elementwise" in given)
    with pytest.raises(OnnxfuseError, match="unknown pass 'none-such'"):
        onnxfuse.optimize(chain(), passes="none-such")


@pytest.mark.parametrize("shape", [(-1, 4, 5), (1.5, 4, 5), (None, 4, 5), ("N", 4, 5), (True, 4, 5), (1 << 63, 4, 5)])
def test_sizes_that_are_none(shape: tuple[object, ...]) -> None:
    for static in (False, True):
        with pytest.raises(OnnxfuseError, match="is no shape for 'x': sizes are whole numbers"):
            onnxfuse.optimize(chain(), shapes={"x": shape}, static=static, check=False)


def test_shapes_that_are_none() -> None:
    for shape in ("1x4", "", b"\1\4", None, 1.5):
        with pytest.raises(OnnxfuseError, match="is no shape for 'x'"):
            onnxfuse.optimize(chain(), shapes={"x": shape})
    with pytest.raises(OnnxfuseError, match="shape 4 does not fit input x"):
        onnxfuse.optimize(chain(), shapes={"x": 4})
    with pytest.raises(OnnxfuseError, match="dict of the inputs' names, not as list"):
        onnxfuse.optimize(chain(), shapes=["x=1x4x5"])


def test_sizes_may_be_integers_of_numpy() -> None:
    model = onnxfuse.optimize(chain(), shapes={"x": np.array([1, 4, 5])}, static=True, check=False).model
    assert [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim] == [1, 4, 5]


@pytest.mark.usefixtures("breaking_pass")
def test_a_pass_that_breaks_is_named() -> None:
    with pytest.raises(ValueError, match="no such thing") as caught:
        onnxfuse.optimize(chain())
    assert caught.value.__notes__ == ["pass 'mine'"]


def test_annotations_are_for_other_projects_too() -> None:
    assert any((Path(folder) / "py.typed").is_file() for folder in onnxfuse.__path__)


def test_a_file_is_optimized_and_runs(tmp_path: Path) -> None:
    path = save(chain(), tmp_path / "in.onnx")
    messages: list[str] = []
    onnxfuse.optimize(str(path), output=str(tmp_path / "out.onnx"), progress=messages.append)
    assert "pass fuse-elementwise" in messages
    session = onnxfuse.InferenceSession(tmp_path / "out.onnx", providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": np.ones((1, 4, 3), np.float32)})
    assert y.shape == (1, 4, 3)


def test_external_data_survives(tmp_path: Path) -> None:
    onnx.save(chain(), tmp_path / "in.onnx", save_as_external_data=True, location="in.bin", size_threshold=0)
    (tmp_path / "there").mkdir()
    onnxfuse.optimize(tmp_path / "in.onnx", output=tmp_path / "there" / "out.onnx")
    onnx.checker.check_model(tmp_path / "there" / "out.onnx", full_check=True)


@pytest.mark.parametrize("place", ["in.onnx", "out.onnx"])
def test_the_result_refers_to_the_external_data_that_was_written(place: str, tmp_path: Path) -> None:
    """Also where that has replaced the data of the input, in which tensors lay elsewhere."""
    rng = np.random.default_rng(0)
    nodes = "a = MatMul(x, w1) b = Mul(a, k) c = Softmax(b) d = MatMul(c, w2) e = Exp(d) y = Neg(e)"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[1, 32] x) => (float[1, 32] y) {{ {nodes} }}'
    )
    for name, shape in (("w1", (32, 32)), ("w2", (32, 32)), ("k", (32,))):
        values = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    onnx.save(model, tmp_path / "in.onnx", save_as_external_data=True, location="in.onnx.data", size_threshold=1024)
    feeds = {"x": np.ones((1, 32), np.float32)}
    (expected,) = ort.InferenceSession(tmp_path / "in.onnx").run(None, feeds)
    result = onnxfuse.optimize(tmp_path / "in.onnx", "cpu", output=tmp_path / place, overwrite=True).model
    onnx.external_data_helper.load_external_data_for_model(result, str(tmp_path))
    (actual,) = onnxfuse.InferenceSession(result.SerializeToString()).run(None, feeds)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_wrong_requests(tmp_path: Path) -> None:
    model = chain()
    for options, message in (
        ({"target": "cuda", "arch": ["sm_60"]}, "unknown architecture"),
        ({"target": "cpu", "arch": "sm_90"}, "for the target cuda"),
        ({"target": "tpu"}, "unknown target"),
        ({"passes": ["nothing-such"]}, "nothing-such"),
        ({"shapes": {"z": (1,)}}, "no input or dimension 'z'"),
        ({"shapes": {"x": (1, 5, 3)}}, "does not fit"),
    ):
        with pytest.raises(OnnxfuseError, match=message):
            onnxfuse.optimize(model, **options)
    with pytest.raises(OnnxfuseError, match="no such file"):
        onnxfuse.optimize(tmp_path / "none.onnx")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"passes": 5}, "passes are names, in a list or with commas between, not int"),
        ({"passes": [["x"]]}, "passes are names, in a list or with commas between, not list"),
        ({"arch": 5}, "architectures are names, in a list or with commas between, not int"),
        ({"arch": [5]}, "architectures are names, in a list or with commas between, not int"),
        ({"tuning": 5}, "a tuning file is given by its path, not as int"),
        ({"tuning": ["x.json", 5]}, "a tuning file is given by its path, not as int"),
        ({"tuning": "a\0b"}, "no path of a tuning file"),
        ({"keep_source": 5}, "the directory for the source is given by its path, not as int"),
        ({"keep_source": "a\0b"}, r"'a\\x00b' is no path of the directory for the source"),
        ({"inputs": 5}, "an input file is given by its path, not as int"),
        ({"inputs": {"x": [1.0]}}, "inputs has no array for 'x', but list"),
        ({"inputs": "a\0b"}, "no path of an input file"),
        ({"inputs": "in.npz", "check": False}, "nothing is run on the inputs"),
        ({"inputs": "in.npz", "check": False, "tune": True, "target": "cpu"}, "no such file or directory: in.npz"),
        ({"output": 5}, "the output is given by its path, not as int"),
        ({"output": b"out.onnx"}, "the output is given by its path, not as bytes"),
        ({"output": "a\0b"}, "no path of the output"),
        ({"shapes": {"x": (10**5000, 4, 1)}}, "no shape for 'x': sizes are whole numbers"),
    ],
)
def test_values_of_a_wrong_type(
    options: dict[str, object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    convolution = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1, 4, 9, 9] x) => (float[1, 4, 9, 9] y) '
        "<float[4, 4, 1, 1] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}> { c = Conv(x, w) y = Relu(c) }"
    )
    target = "cuda" if options.keys() & {"arch", "tuning", "keep_source"} else "auto"
    with pytest.raises(OnnxfuseError, match=message):
        onnxfuse.optimize(convolution, **{"target": target} | options)


def test_a_wrong_result_is_an_error_and_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "resolve", lambda names: [Breaks()])
    with pytest.raises(ParityError, match="output 'y' differs"):
        onnxfuse.optimize(chain(), output=tmp_path / "out.onnx")
    assert not list(tmp_path.iterdir())
    onnxfuse.optimize(chain(), output=tmp_path / "out.onnx", check=False)
    assert (tmp_path / "out.onnx").exists()


def test_the_input_is_not_overwritten_unasked(tmp_path: Path) -> None:
    path = save(chain(), tmp_path / "m.onnx")
    before = path.read_bytes()
    with pytest.raises(OnnxfuseError, match="the output is the input"):
        onnxfuse.optimize(path, output=path)
    assert path.read_bytes() == before
    onnxfuse.optimize(path, output=path, overwrite=True)
    assert path.read_bytes() != before


def test_a_shape_to_check_with_is_not_written_into_the_model(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Abs", ["x"], ["a"]),
            helper.make_node("Neg", ["a"], ["b"]),
            helper.make_node("Trilu", ["b"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [None, None])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["p", "q"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=9)
    result = onnxfuse.optimize(model, "cpu", shapes={"x": (3, 5)}, output=tmp_path / "out.onnx")
    for written in (result.model, onnx.load(tmp_path / "out.onnx")):
        (info,) = written.graph.value_info
        assert not any(dim.HasField("dim_value") for dim in info.type.tensor_type.shape.dim)


def test_sequences_as_inputs_have_no_shapes_to_count_for() -> None:
    text = "g (seq(float[n]) x) => (float[m] y) { c = ConcatFromSequence<axis=0>(x) d = Mul(c, c) y = Add(d, c) }"
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]>\n{text}')
    for check in (True, False):
        assert onnxfuse.optimize(model, check=check).report.example.shapes == {}


def test_a_result_does_not_give_what_was_written_over_it(tmp_path: Path) -> None:
    path = tmp_path / "out.onnx"
    first = onnxfuse.optimize(chain(), "cpu", output=path, check=False)
    asked = onnxfuse.optimize(chain(), "cpu", output=path, check=False)
    assert asked.model == onnx.load(path)
    with pytest.raises(onnxfuse.OnnxfuseError, match="not what was written there any more"):
        _ = first.model
    path.unlink()
    assert asked.model.graph.node, "it was read already"
