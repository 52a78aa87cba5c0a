"""Loading models: what comes through, and what is refused."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from onnxfuse.errors import OnnxfuseError
from onnxfuse.files import model_io
from tests.support.model_files import external, info, model_of, names, refused, small_model, write


@pytest.fixture
def small(tmp_path) -> Path:
    return write(tmp_path / "in.onnx", small_model())


def test_load_and_save_give_the_same_model(small, tmp_path):
    model = model_io.load(str(small))
    assert model.path == small
    assert model.graph.nodes[0].outputs[0].shape == ["N", 3]
    assert model.graph.nodes[0].outputs[0].dtype == np.float32
    model_io.save(model, tmp_path / "out.onnx")
    assert onnx.load(tmp_path / "out.onnx") == small_model()
    assert names(tmp_path) == ["in.onnx", "out.onnx"]


def test_a_model_in_memory():
    assert model_io.load_proto(small_model()).graph.nodes[1].outputs[0].shape == ["N", 3]


def test_a_model_for_other_shapes_of_its_inputs(small):
    for source in (small, small_model()):
        model = model_io.load_again(source, {"x": [2, 3]})
        assert model.graph.nodes[1].outputs[0].shape == [2, 3]


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


@pytest.mark.parametrize(
    "readers",
    [
        "y = OptionalGetElement(b)",
        "s = Optional(b) y = OptionalGetElement(s)",
        "s = SequenceConstruct(b, x) y = SequenceAt(s, k)",
        "s = SequenceEmpty<dtype = 10>() t = SequenceInsert(s, b) y = SequenceAt(t, k)",
        "s = SequenceConstruct(x) t = SequenceInsert(s, b) y = ConcatFromSequence<axis = 0>(t)",
        "y = If(c) <then_branch = t () => (u) { u = Identity(b) }, else_branch = e () => (v) { v = Neg(b) }>",
    ],
)
def test_a_type_that_onnx_does_not_find_is_no_error_of_what_reads_it(tmp_path, readers):
    text = f"""<ir_version: 10, opset_import: ["": 20]> g (float16[2, 3, 4, 5] x, bool c) => (float16[N, 3, 4, 5] y)
        <int64 k = {{0}}> {{ b = MeanVarianceNormalization(x) {readers} }}"""
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
