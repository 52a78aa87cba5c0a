"""Saving models: what is written where, and what a failure leaves behind."""

import os
import stat
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

from onnxfuse.errors import OnnxfuseError
from onnxfuse.files import model_io
from onnxfuse.model import tensor_data
from onnxfuse.model.graph import Model
from tests.support.model_files import ROWS, arrays, external_model, names, small_model, write


@pytest.fixture
def small(tmp_path) -> Path:
    return write(tmp_path / "in.onnx", small_model())


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
    model_io.save(model, tmp_path / "out.onnx")
    written = onnx.load(tmp_path / "out.onnx", load_external_data=False)
    external = [tensor for tensor in written.graph.initializer if tensor_data.is_external(tensor)]
    assert {tensor.name for tensor in external} >= {"mine"}


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
