"""Loading and saving models: what comes through, what is refused, and what a failure leaves behind."""

import os
import stat
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxfuse.errors import OnnxfuseError
from onnxfuse.files import model_io
from onnxfuse.model import tensor_data
from onnxfuse.model.graph import Model

ROWS = 1 << 19


def info(name: str, shape: list | None, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def model_of(nodes: list, inputs: list, outputs: list, initializer: list | None = None, **fields) -> ModelProto:
    graph = helper.make_graph(nodes, "main", inputs, outputs, initializer)
    return helper.make_model(graph, **{"opset_imports": [helper.make_opsetid("", 17)], "ir_version": 8, **fields})


def small_model() -> ModelProto:
    weights = numpy_helper.from_array(np.arange(3, dtype=np.float32).reshape(1, 3), "w")
    nodes = [
        helper.make_node("Add", ["x", "w"], ["t"], name="add"),
        helper.make_node("Relu", ["t"], ["y"], name="relu"),
    ]
    return model_of(nodes, [info("x", ["N", 3])], [info("y", ["N", 3])], [weights])


def write(path: Path, proto: ModelProto) -> Path:
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.fixture
def small(tmp_path) -> Path:
    return write(tmp_path / "in.onnx", small_model())


def external(name: str, dims: list[int], location: str, dtype: int = TensorProto.FLOAT, **entries) -> TensorProto:
    tensor = TensorProto(name=name, dims=dims, data_type=dtype, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def external_model(directory: Path) -> Path:
    """Several MB in two files: tensors that share bytes, one in a Constant node, a shape, and some inline."""
    directory.mkdir(exist_ok=True)
    big = np.arange(ROWS * 2, dtype=np.float32)
    (directory / "weights.bin").write_bytes(b"pad" + big.tobytes())
    (directory / "sub").mkdir(exist_ok=True)
    (directory / "sub" / "more.bin").write_bytes(
        np.array([-1, 2]).tobytes() + np.arange(4096, dtype=np.float32).tobytes()
    )
    nodes = [
        helper.make_node("Constant", [], ["c"], value=external("", [2048, 2], "sub/more.bin", offset=16)),
        helper.make_node("Reshape", ["x", "shape"], ["r"]),
        helper.make_node("Add", ["r", "a"], ["t0"]),
        helper.make_node("Add", ["t0", "b"], ["t1"]),
        helper.make_node("MatMul", ["c", "small"], ["t2"]),
        helper.make_node("Add", ["t1", "zero"], ["y"]),
    ]
    initializer = [
        external("a", [ROWS, 2], "weights.bin", offset=3, length=ROWS * 8, checksum="stale"),
        external("b", [ROWS, 2], "weights.bin", offset=3),
        external("shape", [2], "sub/more.bin", TensorProto.INT64, length=16),
        numpy_helper.from_array(np.ones((2, 2), np.float32), "small"),
        numpy_helper.from_array(np.float32(0), "zero"),
    ]
    outputs = [info("y", [ROWS, 2]), info("t2", [2048, 2])]
    return write(directory / "in.onnx", model_of(nodes, [info("x", [ROWS * 2])], outputs, initializer))


def arrays(path: Path) -> dict[str, np.ndarray]:
    proto = onnx.load(path)
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    found.update(
        (node.output[0], numpy_helper.to_array(node.attribute[0].t))
        for node in proto.graph.node
        if node.op_type == "Constant"
    )
    return found


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def refused(path: Path, message: str | None = None) -> str:
    """Load must fail with one line that names the file."""
    with pytest.raises(OnnxfuseError, match=message) as caught:
        model_io.load(path)
    text = str(caught.value)
    assert text.startswith(str(path))
    assert "\n" not in text
    return text


def test_load_and_save_give_the_same_model(small, tmp_path):
    model = model_io.load(str(small), shapes={"x": [2, 3]})
    assert model.path == small
    assert model.graph.nodes[0].outputs[0].shape == [2, 3]
    assert model.graph.nodes[0].outputs[0].dtype == np.float32
    model_io.save(model, tmp_path / "out.onnx")
    assert onnx.load(tmp_path / "out.onnx") == small_model()
    assert names(tmp_path) == ["in.onnx", "out.onnx"]


def test_a_model_in_memory():
    assert model_io.load_proto(small_model()).graph.nodes[1].outputs[0].shape == ["N", 3]


def test_unknown_domains_and_unknown_ranks_are_no_error(tmp_path):
    nodes = [
        helper.make_node("Mystery", ["x"], ["t"], domain="org.example", secret=1),
        helper.make_node("Relu", ["t"], ["y"]),
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("org.example", 3)]
    proto = model_of(nodes, [info("x", None)], [info("y", None)], opset_imports=opsets)
    assert model_io.load(write(tmp_path / "m.onnx", proto)).to_proto() == proto


def test_truncated_files_are_refused(tmp_path):
    data = small_model().SerializeToString()
    for part in range(1, 16):
        path = tmp_path / f"cut{part}.onnx"
        path.write_bytes(data[: len(data) * part // 16])
        refused(path)


def test_damaged_files_never_give_a_traceback(tmp_path):
    random = np.random.default_rng(0)
    data = np.frombuffer(small_model().SerializeToString(), np.uint8)
    path = tmp_path / "damaged.onnx"
    for _ in range(400):
        damaged = data.copy()
        damaged[random.integers(0, len(data), 3)] = random.integers(0, 256, 3)
        path.write_bytes(damaged.tobytes())
        try:
            model_io.save(model_io.load(path), tmp_path / "out.onnx")
        except OnnxfuseError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"# not a model\nprint('hello')\n", "not an ONNX model"),
        (bytes(range(256)) * 8, "not an ONNX model"),
        (b"PK\3\4" + bytes(100), "not an ONNX model"),
        (bytes(1000), "not an ONNX model"),
    ],
)
def test_files_that_are_no_models(tmp_path, content, message):
    path = tmp_path / "file.onnx"
    path.write_bytes(content)
    refused(path, message)


def test_paths_that_are_no_files(tmp_path):
    refused(tmp_path / "missing.onnx", "no such file")
    refused(tmp_path, "directory")
    refused(Path("/dev/null"), "not a file")
    (tmp_path / "loop").symlink_to("loop")
    refused(tmp_path / "loop", "cannot be read")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(small):
    small.chmod(0)
    refused(small, "Permission denied")


def change(proto: ModelProto, **fields) -> ModelProto:
    for name, value in fields.items():
        setattr(proto, name, value)
    return proto


def test_other_versions_are_refused(tmp_path):
    path = tmp_path / "m.onnx"
    refused(write(path, change(small_model(), ir_version=999)), "IR version 999.*upgrade onnx")
    proto = small_model()
    proto.opset_import[0].version = 999
    refused(write(path, proto), "opset 999.*upgrade onnx")
    proto.ClearField("opset_import")
    refused(write(path, proto), "opset_import")
    proto = small_model()
    proto.ClearField("ir_version")
    refused(write(path, proto), "ir_version")
    proto.ClearField("graph")
    refused(write(path, proto), "no graph")


@pytest.mark.parametrize("dtype", ["float16", "double"])
def test_a_type_error_in_what_an_operator_expands_to_is_not_the_models(tmp_path, dtype):
    """The function of MeanVarianceNormalization has constants of float; ONNX Runtime takes it in other types."""
    text = f"""<ir_version: 8, opset_import: ["": 17]> g ({dtype}[2, 3, 4, 5] x) => ({dtype}[2, 3, 4, 5] y) {{
        a = Neg(x) y = MeanVarianceNormalization(a) }}"""
    proto = onnx.parser.parse_model(text)
    assert model_io.load(write(tmp_path / "m.onnx", proto)).to_proto().graph == proto.graph


def test_cycles_and_type_errors_are_refused(tmp_path):
    path = tmp_path / "m.onnx"
    proto = small_model()
    proto.graph.node[0].input[1] = "y"
    refused(write(path, proto), r"cycle through node '(add|relu)'")
    proto = small_model()
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    refused(write(path, proto), "types do not check.*node name: add")
    proto = small_model()
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    refused(write(path, proto), "types do not check.*node name: relu")
    proto = small_model()
    proto.graph.node[0].input[1] = "nowhere"
    refused(write(path, proto), "'nowhere'")
    proto = small_model()
    proto.graph.node[1].op_type = "NoSuchOperator"
    refused(write(path, proto), "NoSuchOperator")


@pytest.mark.parametrize("count", [3, 5000])
def test_too_little_data_inside_the_file(tmp_path, count):
    proto = small_model()
    proto.graph.initializer[0].dims[:] = [count, 3]
    refused(write(tmp_path / "m.onnx", proto), "w")


@pytest.mark.parametrize(
    ("location", "entries", "message"),
    [
        ("../secret.bin", {}, "outside the model's directory"),
        ("sub/../../secret.bin", {}, "outside the model's directory"),
        ("link.bin", {}, "outside the model's directory"),
        ("linked/secret.bin", {}, "outside the model's directory"),
        ("/etc/passwd", {}, "absolute"),
        ("missing.bin", {}, "does not exist"),
        ("sub", {}, "not a regular file"),
        ("", {}, "names no file"),
        ("short.bin", {}, "too short"),
        ("fine.bin", {"offset": 8}, "too short"),
        ("fine.bin", {"offset": -8}, "do not fit"),
        ("fine.bin", {"length": 8}, "do not fit"),
        ("fine.bin", {"offset": "eight"}, "whole numbers"),
    ],
)
def test_external_data_that_is_refused(tmp_path, location, entries, message):
    directory = tmp_path / "model"
    (directory / "sub").mkdir(parents=True)
    for path, size in (
        (tmp_path / "secret.bin", 4096),
        (directory / "short.bin", 100),
        (directory / "fine.bin", 4096),
    ):
        path.write_bytes(bytes(size))
    (directory / "link.bin").symlink_to("../secret.bin")
    (directory / "linked").symlink_to("..")
    tensor = external("weights", [1024], location, **entries)
    proto = model_of(
        [helper.make_node("Add", ["x", "weights"], ["y"])], [info("x", [1])], [info("y", [1024])], [tensor]
    )
    text = refused(write(directory / "m.onnx", proto), message)
    assert "'weights'" in text
    assert location in text


def test_external_data_is_found_in_attributes_and_subgraphs(tmp_path):
    constant = helper.make_node("Constant", [], ["c"], value=external("hidden", [4], "../data"))
    branch = helper.make_graph([constant], "b", [], [info("c", [4])])
    node = helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=branch)
    proto = model_of([node], [info("flag", [], TensorProto.BOOL)], [info("y", [4])])
    refused(write(tmp_path / "m.onnx", proto), "'hidden'.*outside")


def test_external_data_stays_external(tmp_path):
    path = external_model(tmp_path / "in")
    model = model_io.load(path)
    assert model.graph.nodes[1].outputs[0].shape == [ROWS, 2], "a small external tensor gives a shape"
    (tmp_path / "out").mkdir()
    out = tmp_path / "out" / "out.onnx"
    model_io.save(model, out)
    assert names(out.parent) == ["out.onnx", "out.onnx.data"]
    before, after = arrays(path), arrays(out)
    assert before.keys() == after.keys()
    for name, values in before.items():
        np.testing.assert_array_equal(after[name], values)
    written = onnx.load(out, load_external_data=False)
    entries = {tensor.name: {e.key: e.value for e in tensor.external_data} for tensor in written.graph.initializer}
    assert entries["a"] == entries["b"], "bytes that were shared are shared"
    assert not entries["small"]
    for tensor in tensor_data.tensors(written):
        if tensor_data.is_external(tensor):
            entry = {e.key: e.value for e in tensor.external_data}
            assert (entry["location"], int(entry["offset"]) % 64) == ("out.onnx.data", 0)
            assert "checksum" not in entry
    assert out.with_name("out.onnx.data").stat().st_size < ROWS * 8 + 20_000
    onnx.checker.check_model(out)
    model_io.load(out)


def test_new_data_of_an_external_model_is_external(tmp_path):
    model = model_io.load(external_model(tmp_path))
    add = model.graph.nodes[2]
    values = add.inputs[1].values
    assert not values.flags.writeable
    add.inputs[1].values = values * 2
    add.inputs[1].name = model.unique_name("doubled")
    model.graph.nodes[5].inputs[1] = gs.Constant("one", np.ones(1, np.float32))
    model_io.save(model, tmp_path / "out.onnx")
    external_names = {
        t.name
        for t in onnx.load(tmp_path / "out.onnx", load_external_data=False).graph.initializer
        if tensor_data.is_external(t)
    }
    assert external_names == {"doubled", "b", "shape"}
    np.testing.assert_array_equal(arrays(tmp_path / "out.onnx")["doubled"], values * 2)


def test_new_data_is_external_even_if_all_of_the_old_is_gone(tmp_path):
    model = model_io.load(external_model(tmp_path))
    for graph in model.graphs():
        for node in graph.nodes:
            for index, tensor in enumerate(node.inputs):
                if isinstance(tensor, gs.Constant) and tensor.values.nbytes >= 1024:
                    node.inputs[index] = model.constant(np.array(tensor.values), "mine")
            if "value" in node.attrs:
                node.attrs["value"] = np.array(node.attrs["value"].values)
    written = model_io.save(model, tmp_path / "out.onnx")
    external = [tensor for tensor in written.graph.initializer if tensor_data.is_external(tensor)]
    assert {tensor.name for tensor in external} >= {"mine"}
    assert written == onnx.load(tmp_path / "out.onnx", load_external_data=False)


def test_a_model_too_large_for_one_file_is_split(small, tmp_path, monkeypatch):
    monkeypatch.setattr(model_io, "_EXTERNAL_BYTES", 8)
    monkeypatch.setattr(model_io, "_PROTOBUF_LIMIT", model_io._PROTOBUF_MARGIN + 8)
    model = Model.from_proto(small_model())
    model_io.save(model, tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx.data").stat().st_size == 12
    assert onnx.load(tmp_path / "out.onnx").graph.node == small_model().graph.node
    np.testing.assert_array_equal(arrays(tmp_path / "out.onnx")["w"], arrays(small)["w"])


def test_overwriting_a_model_with_external_data(tmp_path):
    path = external_model(tmp_path)
    before = arrays(path)
    model_io.save(model_io.load(path), path, overwrite=True)
    model_io.save(model_io.load(path), path, overwrite=True)
    for name, values in arrays(path).items():
        np.testing.assert_array_equal(values, before[name])


def test_data_of_the_input_is_not_overwritten_by_another_output(tmp_path):
    path = external_model(tmp_path)
    model_io.save(model_io.load(path), tmp_path / "a.onnx")
    (tmp_path / "a.onnx").rename(tmp_path / "b.onnx")
    with pytest.raises(OnnxfuseError, match="belongs to the input"):
        model_io.save(model_io.load(tmp_path / "b.onnx"), tmp_path / "a.onnx", overwrite=True)
    model_io.load(tmp_path / "b.onnx")


def snapshot(directory: Path) -> dict[str, bytes | str]:
    return {
        str(path.relative_to(directory)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in directory.rglob("*")
        if not path.is_dir()
    }


def test_the_input_is_not_overwritten_unasked(small, tmp_path):
    model = model_io.load(small)
    (tmp_path / "link.onnx").symlink_to("in.onnx")
    os.link(small, tmp_path / "hard.onnx")
    before = snapshot(tmp_path)
    for name in ("in.onnx", "link.onnx", "hard.onnx", "../" + tmp_path.name + "/in.onnx"):
        with pytest.raises(OnnxfuseError, match="--overwrite"):
            model_io.save(model, tmp_path / name)
    other = Model.from_proto(small_model())
    with pytest.raises(OnnxfuseError, match="--overwrite"):
        model_io.save(other, small, source=small)
    assert snapshot(tmp_path) == before
    model.graph.name = "changed"
    model_io.save(model, small, overwrite=True)
    assert onnx.load(small).graph.name == "changed"


def test_outputs_that_cannot_be_written(small, tmp_path):
    model = model_io.load(small)
    (tmp_path / "directory").mkdir()
    for path in (
        tmp_path / "directory",
        tmp_path / "none" / "out.onnx",
        small / "out.onnx",
        Path("/dev/null"),
    ):
        with pytest.raises(OnnxfuseError) as caught:
            model_io.save(model, path)
        assert str(caught.value).startswith(str(path))
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission(small, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(OnnxfuseError, match="Permission denied"):
        model_io.save(model_io.load(small), tmp_path / "locked" / "out.onnx")


class Interrupt(BaseException):
    """What a handler of a termination signal may raise."""


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), Interrupt(), OnnxfuseError("not equal"), RuntimeError("bug")])
def test_a_check_that_raises_leaves_no_trace(tmp_path, existing, error):
    path = external_model(tmp_path)
    if existing:
        (tmp_path / "out.onnx").write_bytes(b"old model")
        (tmp_path / "out.onnx.data").write_bytes(b"old data")
    before = snapshot(tmp_path)
    seen = []

    def check(temporary: Path) -> None:
        seen.append(temporary.name)
        model_io.load(temporary)
        raise error

    with pytest.raises(type(error)) as caught:
        model_io.save(model_io.load(path), tmp_path / "out.onnx", check=check)
    assert caught.value is error
    assert seen == ["out.onnx"]
    assert snapshot(tmp_path) == before
    assert not [name for name in names(tmp_path) if name.startswith(".")]


@pytest.mark.parametrize("failing", ["fsync", "rename", "replace"])
@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_failures_while_writing_leave_no_trace(tmp_path, monkeypatch, failing, existing, error):
    path = external_model(tmp_path)
    if existing:
        (tmp_path / "out.onnx").write_bytes(b"old model")
        (tmp_path / "out.onnx.data").write_bytes(b"old data")
    before = snapshot(tmp_path)
    model = model_io.load(path)
    original = getattr(os, failing)
    calls = []

    def fail_once(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            raise error
        return original(*arguments)

    monkeypatch.setattr(os, failing, fail_once)
    expected = OnnxfuseError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected, match="out.onnx: .*No space left" if expected is OnnxfuseError else None):
        model_io.save(model, tmp_path / "out.onnx")
    assert snapshot(tmp_path) == before


def test_external_data_that_shrinks_meanwhile(tmp_path):
    path = external_model(tmp_path)
    model = model_io.load(path)
    with (tmp_path / "weights.bin").open("r+b") as file:
        file.truncate(100)
    before = snapshot(tmp_path)
    with pytest.raises(OnnxfuseError, match="too short"):
        model_io.save(model, tmp_path / "out.onnx")
    with pytest.raises(OnnxfuseError, match="too short"):
        model.graph.nodes[2].inputs[1].values  # noqa: B018
    assert snapshot(tmp_path) == before


def test_an_existing_output_is_replaced_and_has_ordinary_permissions(small, tmp_path):
    out = tmp_path / "out.onnx"
    out.write_bytes(b"old")
    ordinary = tmp_path / "ordinary"
    ordinary.touch()
    model_io.save(model_io.load(small), out)
    assert onnx.load(out) == small_model()
    assert stat.S_IMODE(out.stat().st_mode) == stat.S_IMODE(ordinary.stat().st_mode)


def test_relative_paths(small, monkeypatch):
    monkeypatch.chdir(small.parent)
    model_io.save(model_io.load("in.onnx"), "out.onnx")
    assert onnx.load(small.with_name("out.onnx")) == small_model()
    with pytest.raises(OnnxfuseError):
        model_io.save(model_io.load("in.onnx"), "in.onnx")


def test_a_graph_without_a_name_is_no_error(tmp_path):
    proto = small_model()
    proto.graph.name = ""
    assert model_io.load(write(tmp_path / "m.onnx", proto)).to_proto() == proto


def test_an_output_path_can_be_checked_before_any_work(tmp_path):
    source = write(tmp_path / "m.onnx", small_model())
    model_io.check_output(tmp_path / "o.onnx", source)
    model_io.check_output(source, source, overwrite=True)
    for path in (source, tmp_path, tmp_path / "none" / "o.onnx"):
        with pytest.raises(OnnxfuseError):
            model_io.check_output(path, source)


def test_a_link_stays_one_and_its_target_is_written(small, tmp_path):
    (tmp_path / "real").mkdir()
    for name, content in (("old.onnx", b"old"), ("new.onnx", None)):
        target, link = tmp_path / "real" / name, tmp_path / f"link-{name}"
        if content is not None:
            target.write_bytes(content)
        link.symlink_to(f"real/{name}")
        model_io.save(model_io.load(small), link)
        assert link.is_symlink() and onnx.load(target) == small_model()
    assert names(tmp_path / "real") == ["new.onnx", "old.onnx"]


def test_a_link_to_the_input_is_the_input(small, tmp_path):
    (tmp_path / "link.onnx").symlink_to("in.onnx")
    model = model_io.load(small)
    model.graph.name = "changed"
    model_io.save(model, tmp_path / "link.onnx", overwrite=True)
    assert (tmp_path / "link.onnx").is_symlink() and onnx.load(small).graph.name == "changed"


def test_what_is_no_regular_file_is_refused_and_stays(small, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "to-fifo").symlink_to("fifo")
    (tmp_path / "loop").symlink_to("loop")
    before = {path.name: path.lstat() for path in tmp_path.iterdir()}
    for name in ("fifo", "to-fifo", "loop"):
        with pytest.raises(OnnxfuseError, match=f"{name}: it exists and is not a regular file"):
            model_io.save(model_io.load(small), tmp_path / name)
    assert {path.name: path.lstat() for path in tmp_path.iterdir()} == before


def test_data_that_lies_elsewhere_than_readers_of_a_link_look(tmp_path):
    path = external_model(tmp_path)
    (tmp_path / "real").mkdir()
    (tmp_path / "link.onnx").symlink_to("real/out.onnx")
    (tmp_path / "near.onnx").symlink_to("out.onnx")
    with pytest.raises(OnnxfuseError, match="readers of this link"):
        model_io.save(model_io.load(path), tmp_path / "link.onnx")
    assert not names(tmp_path / "real")
    model_io.save(model_io.load(path), tmp_path / "near.onnx")
    assert arrays(tmp_path / "near.onnx").keys() == arrays(path).keys()


def test_data_that_is_a_link_is_refused(tmp_path):
    path = external_model(tmp_path)
    (tmp_path / "out.onnx.data").symlink_to("elsewhere")
    with pytest.raises(OnnxfuseError, match=r"out\.onnx\.data, which is not a regular file"):
        model_io.save(model_io.load(path), tmp_path / "out.onnx")


def test_permissions_of_what_is_replaced_are_kept(tmp_path):
    path = external_model(tmp_path)
    data = tmp_path / "in.onnx.data"

    def modes() -> list[int]:
        return [stat.S_IMODE(file.stat().st_mode) for file in (path, data)]

    path.chmod(0o600)
    model_io.save(model_io.load(path), path, overwrite=True)
    assert modes() == [0o600, 0o600], "new data is as private as the model was"
    data.chmod(0o640)
    model_io.save(model_io.load(path), path, overwrite=True)
    assert modes() == [0o600, 0o640]


def test_a_path_that_onnxruntime_would_not_take(small, tmp_path):
    with pytest.raises(OnnxfuseError, match="not UTF-8"):
        model_io.check_output(tmp_path / os.fsdecode(b"\xff.onnx"), small)
    model_io.check_output(tmp_path / ("x" * 250 + ".onnx"), small)
    model_io.save(model_io.load(small), tmp_path / ("x" * 250 + ".onnx"))


def test_a_proto_is_read_from_a_regular_file_alone(small, tmp_path):
    assert model_io.read_proto(small) == small_model()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "empty").touch()
    no_graph = small_model()
    no_graph.ClearField("graph")
    write(tmp_path / "no-graph", no_graph)
    for name, message in (("fifo", "not a file"), ("empty", "empty"), ("no-graph", "no graph"), ("none", "no such")):
        with pytest.raises(OnnxfuseError, match=f"{name}: .*{message}"):
            model_io.read_proto(tmp_path / name)
