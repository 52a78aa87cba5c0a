"""Inputs that a user gives, as shapes or in files, and those that cannot be made up: what is refused, and how."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfuse
from onnxfuse.bench import bench
from onnxfuse.check.made_up_inputs import generate, make_inputs
from onnxfuse.check.parity import compare
from onnxfuse.errors import OnnxfuseError
from onnxfuse.run.given_shapes import parse_shapes
from onnxfuse.run.inputs import InputSpec, default_specs, input_specs, read_inputs, value_spec
from tests.support.parity_models import model_file, save

F32 = TensorProto.FLOAT


def with_map(path: Path) -> Path:
    """A model of an input that is a map, which ONNX Runtime runs."""
    of_maps = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(F32, None))
    graph = helper.make_graph(
        [
            helper.make_node("CastMap", ["d"], ["x"], domain="ai.onnx.ml", cast_to="TO_FLOAT"),
            helper.make_node("Mul", ["x", "x"], ["a"]),
            helper.make_node("Neg", ["a"], ["y"]),
        ],
        "g",
        [helper.make_value_info("d", of_maps)],
        [helper.make_tensor_value_info("y", F32, None)],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]
    return save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


def with_default(path: Path) -> Path:
    """A model that takes ``w``, which is 1 unless it is given."""
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1] w, float[n] x) => (float[n] y) '
        "{ a = Add(x, w) b = Relu(a) y = Mul(b, w) }"
    )
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), "w"))
    return save(proto, path)


@pytest.mark.parametrize(
    "command",
    [
        lambda path: compare(path, path),
        lambda path: bench(path, path, seconds=0.01),
        lambda path: onnxfuse.optimize(path, "cpu"),
    ],
)
def test_no_map_is_made_up(tmp_path: Path, command: Callable[[Path], object]) -> None:
    with pytest.raises(OnnxfuseError, match="no inputs can be made up for 'd', a map"):
        command(with_map(tmp_path / "m.onnx"))


def test_values_that_are_no_tensors_are_named() -> None:
    tensor = helper.make_tensor_type_proto(F32, ["n"])
    a_map = helper.make_map_type_proto(TensorProto.INT64, tensor)
    for proto, kind in (
        (tensor, "tensor"),
        (a_map, "map"),
        (helper.make_sequence_type_proto(tensor), "sequence"),
        (helper.make_sequence_type_proto(a_map), "sequence of maps"),
        (helper.make_optional_type_proto(a_map), "optional of maps"),
        (helper.make_sparse_tensor_type_proto(F32, ["n"]), "sparse tensor"),
    ):
        spec = value_spec(helper.make_value_info("d", proto))
        assert spec.kind == kind
        assert spec.describe() == (f"d: {kind}" if spec.elem_type == TensorProto.UNDEFINED else "d: float[n]")


def test_a_map_is_not_read_from_files(tmp_path: Path) -> None:
    path = with_map(tmp_path / "m.onnx")
    np.savez(tmp_path / "in.npz", d=np.ones(2, np.float32))
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "input_0.pb").write_bytes(numpy_helper.from_array(np.ones(2)).SerializeToString())
    for source in ("in.npz", "set"):
        with pytest.raises(OnnxfuseError, match="'d' is a map, which is not read from files"):
            compare(path, path, inputs=tmp_path / source)


def test_structured_arrays_are_no_bits(tmp_path: Path) -> None:
    spec = InputSpec("x", F32, (3,))
    for dtype in ([("a", "<i4")], "V4"):
        np.savez(tmp_path / "in.npz", x=np.zeros(3, dtype))
        with pytest.raises(OnnxfuseError, match="cannot take an array of"):
            read_inputs(tmp_path / "in.npz", [spec])
    path = model_file(tmp_path / "s.onnx", "(string[1] x) => (string[1] y)", "y = Identity(x)")
    np.savez(tmp_path / "in.npz", x=np.zeros(1, [("a", "<i8")]))
    with pytest.raises(OnnxfuseError, match="cannot take an array of"):
        compare(path, path, inputs=tmp_path / "in.npz")


@pytest.mark.parametrize(("name", "elem_type"), [("bfloat16", TensorProto.BFLOAT16), ("int4", TensorProto.INT4)])
def test_types_that_numpy_does_not_know_are_bits(tmp_path: Path, name: str, elem_type: int) -> None:
    values = np.arange(3).astype(getattr(ml_dtypes, name))
    np.savez(tmp_path / "in.npz", x=values)
    (found,) = read_inputs(tmp_path / "in.npz", [InputSpec("x", elem_type, (3,))])
    np.testing.assert_array_equal(found.feeds["x"], values, strict=True)


def test_a_size_of_more_digits_than_python_takes() -> None:
    with pytest.raises(
        OnnxfuseError, match="'x' a size of too many digits: sizes are whole numbers from 0 to"
    ) as caught:
        parse_shapes(["x=2x" + "9" * 5000])
    assert len(str(caught.value)) < 200


def test_errors_name_no_option_that_a_command_may_not_have(tmp_path: Path) -> None:
    where = "where the command has --shape or --inputs"
    path = model_file(
        tmp_path / "a.onnx", "(float[n, m] x) => (float[7, 11] y) <int64[2] s = {7, 11}>", "y = Reshape(x, s)"
    )
    with pytest.raises(OnnxfuseError, match=f"could not run the original with generated inputs: .* {where}"):
        bench(path, path, seconds=0.01)
    with pytest.raises(OnnxfuseError, match=f"larger than 2 GiB: .* {where}"):
        make_inputs([InputSpec("x", F32, (1 << 30,))], {"x": (1 << 30,)}, "normal", 16)


def protobufs(folder: Path, *values: np.ndarray) -> Path:
    folder.mkdir()
    for index, value in enumerate(values):
        (folder / f"input_{index}.pb").write_bytes(numpy_helper.from_array(value).SerializeToString())
    return folder


def test_protobufs_for_inputs_that_the_model_does_not_have_are_refused(tmp_path: Path) -> None:
    x = np.ones(3, np.float32)
    spec = InputSpec("x", F32, (3,))
    assert read_inputs(protobufs(tmp_path / "one", x), [spec])
    with pytest.raises(OnnxfuseError, match=r"two has input_1\.pb, which is for no input of the model"):
        read_inputs(protobufs(tmp_path / "two", x, x), [spec])


def test_values_for_inputs_with_a_default_are_taken(tmp_path: Path) -> None:
    path = with_default(tmp_path / "m.onnx")
    proto = onnx.load(path)
    specs, defaults = input_specs(proto), default_specs(proto)
    assert [spec.name for spec in specs] == ["x"] and [spec.name for spec in defaults] == ["w"]
    x, w = np.float32([1, -1, 2]), np.float32([3])
    np.savez(tmp_path / "both.npz", x=x, w=w)
    (found,) = read_inputs(tmp_path / "both.npz", specs, defaults)
    assert list(found.feeds) == ["x", "w"]
    other = onnx.load(path)
    other.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.float32([3]), "w"))
    changed = save(other, tmp_path / "changed.onnx")
    assert compare(path, path, inputs=tmp_path / "both.npz").ok
    assert compare(path, changed, inputs=tmp_path / "both.npz").ok
    np.savez(tmp_path / "one.npz", x=x)
    assert not compare(path, changed, inputs=tmp_path / "one.npz").ok
    np.savez(tmp_path / "wrong.npz", x=x, w=np.ones(2, np.float32))
    with pytest.raises(OnnxfuseError, match=r"w: float\[1\] cannot take an array of shape \[2\]"):
        compare(path, path, inputs=tmp_path / "wrong.npz")
    np.savez(tmp_path / "other.npz", x=x, z=w)
    with pytest.raises(OnnxfuseError, match="'z', which is no input"):
        compare(path, path, inputs=tmp_path / "other.npz")


def test_nothing_is_made_up_for_what_has_no_type() -> None:
    with pytest.raises(OnnxfuseError, match="no inputs can be made up for 'x', a sequence of maps"):
        next(generate([InputSpec("x", TensorProto.UNDEFINED, None, "sequence of maps")], lambda feeds: [], {}))


def test_both_branches_are_checked() -> None:
    specs = [InputSpec("flag", TensorProto.BOOL, ()), InputSpec("mask", TensorProto.BOOL, (64,))]
    sets = [inputs.feeds for inputs, _ in generate(specs, lambda feeds: [], {})]
    assert [bool(feeds["flag"]) for feeds in sets[:2]] == [True, False]
    assert all(0 < np.count_nonzero(feeds["mask"]) < 64 for feeds in sets)


def test_inputs_from_files(tmp_path: Path) -> None:
    path = model_file(
        tmp_path / "a.onnx", "(float[n] x, int64[n] i) => (float[n] y)", "c = Cast<to=1>(i) y = Add(x, c)"
    )
    specs = input_specs(onnx.load(path))
    x, i = np.ones(3, np.float32), np.arange(3)
    np.savez(tmp_path / "in.npz", x=x, i=i)
    (tmp_path / "sets" / "test_data_set_0").mkdir(parents=True)
    for index, value in enumerate((x, i)):
        file = tmp_path / "sets" / "test_data_set_0" / f"input_{index}.pb"
        file.write_bytes(numpy_helper.from_array(value).SerializeToString())
    for source in (tmp_path / "in.npz", tmp_path / "sets", tmp_path / "sets" / "test_data_set_0"):
        (found,) = read_inputs(source, specs)
        np.testing.assert_array_equal(found.feeds["i"], i)
        assert compare(path, path, inputs=source).ok


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.ones(3, np.float32)}, "no value for input 'i'"),
        ({"x": np.ones(3, np.float32), "i": np.arange(3), "z": np.ones(1)}, "'z', which is no input"),
        ({"x": np.ones(3), "i": np.arange(3)}, "cannot take an array of float64"),
        ({"x": np.ones((3, 1), np.float32), "i": np.arange(3)}, r"shape \[3, 1\]"),
    ],
)
def test_wrong_arrays_are_refused(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    specs = [InputSpec("x", F32, ("n",)), InputSpec("i", onnx.TensorProto.INT64, ("n",))]
    np.savez(tmp_path / "in.npz", **arrays)
    with pytest.raises(OnnxfuseError, match=message):
        read_inputs(tmp_path / "in.npz", specs)


def test_arrays_of_the_other_byte_order_are_converted(tmp_path: Path) -> None:
    x = np.arange(3, dtype=np.float32)
    np.savez(tmp_path / "in.npz", x=x.astype(x.dtype.newbyteorder()))
    value = read_inputs(tmp_path / "in.npz", [InputSpec("x", F32, (3,))])[0].feeds["x"]
    assert value.dtype == np.float32
    np.testing.assert_array_equal(value, x)


def test_files_that_are_no_archives_of_arrays(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("hello")
    np.save(tmp_path / "single.npy", np.ones(2, np.float32))
    with zipfile.ZipFile(tmp_path / "other.npz", "w") as archive:
        archive.writestr("x", "hello")
    for name, message in (
        ("text.npz", "not an .npz"),
        ("single.npy", "not an .npz"),
        ("other.npz", "no array for 'x'"),
    ):
        with pytest.raises(OnnxfuseError, match=message) as caught:
            read_inputs(tmp_path / name, [InputSpec("x", F32, (2,))])
        assert "allow_pickle" not in str(caught.value)


def test_damaged_input_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 not a zip")
    (tmp_path / "empty").mkdir()
    for source in (tmp_path / "bad.npz", tmp_path / "empty", tmp_path / "none.npz"):
        with pytest.raises(OnnxfuseError):
            read_inputs(source, [InputSpec("x", F32, (2,))])
    np.savez(tmp_path / "pickle.npz", x=np.array([{}], dtype=object))
    with pytest.raises(OnnxfuseError, match="cannot read"):
        read_inputs(tmp_path / "pickle.npz", [InputSpec("x", F32, (1,))])
