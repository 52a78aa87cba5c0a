"""Independent small maps that share a launch on CUDA."""

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onnxfuse
from onnxfuse.fused.elementwise.fuse_elementwise import FuseElementwise
from onnxfuse.model.graph import Model
from onnxfuse.program import Program, reference
from onnxfuse.program.figures import MAX_PARTS
from onnxfuse.rewrite.base import PassContext


def model_of(nodes: Sequence[onnx.NodeProto], inputs: dict[str, list[int | str]], outputs: Sequence[str]) -> Model:
    graph = helper.make_graph(
        list(nodes),
        "maps",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    return Model.from_proto(onnx.shape_inference.infer_shapes(proto))


def chain(number: int, source: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("Abs", [source], [f"abs{number}"]),
        helper.make_node("Sqrt", [f"abs{number}"], [f"y{number}"]),
    ]


def fused(model: Model, target: str = "cuda") -> list[Program]:
    context = PassContext(target=target)
    FuseElementwise().run(model, context)
    return [
        Program.parse(node.attrs["program"]) for node in model.graph.nodes if node.op.startswith("FusedElementwise")
    ]


def test_maps_of_different_shapes_are_one_node() -> None:
    nodes = [node for number in range(3) for node in chain(number, f"x{number}")]
    model = model_of(nodes, {"x0": [2, 8], "x1": [5], "x2": [3, 4, 4]}, ["y0", "y1", "y2"])
    (program,) = fused(model)
    arrays = [np.arange(n, dtype=np.float32).reshape(s) for n, s in ((16, (2, 8)), (5, (5,)), (48, (3, 4, 4)))]
    results = reference.run(program, arrays)
    (node,) = model.graph.nodes
    by_name = dict(zip((tensor.name for tensor in node.outputs), results, strict=True))
    inputs = [tensor.name for tensor in node.inputs]
    for name, array in zip(inputs, arrays, strict=True):
        np.testing.assert_array_equal(by_name["y" + name[1:]], np.sqrt(array))


def test_more_maps_than_a_kernel_has_parts_are_several_nodes() -> None:
    count = 2 * MAX_PARTS + 3
    nodes = [node for number in range(count) for node in chain(number, f"x{number}")]
    sizes: dict[str, list[int | str]] = {f"x{number}": [number + 2] for number in range(count)}
    model = model_of(nodes, sizes, [f"y{number}" for number in range(count)])
    programs = fused(model)
    assert [len(program.outputs) for program in programs] == [MAX_PARTS, MAX_PARTS, 3]
    for node, program in zip(model.graph.nodes, programs, strict=True):
        arrays = [np.arange(int(tensor.name[1:]) + 2, dtype=np.float32) for tensor in node.inputs]
        for array, result in zip(arrays, reference.run(program, arrays), strict=True):
            np.testing.assert_array_equal(result, np.sqrt(array))


def transposes(*perms: list[int]) -> Model:
    nodes = [
        helper.make_node("Transpose", [f"x{number}"], [f"y{number}"], perm=perm) for number, perm in enumerate(perms)
    ]
    inputs: dict[str, list[int | str]] = {f"x{number}": [1, 5, 4, 6] for number in range(len(perms))}
    return model_of(nodes, inputs, [f"y{number}" for number in range(len(perms))])


def test_heads_that_are_put_first_are_one_node() -> None:
    """Transposes alone, of whole rows: queries and keys that two products read."""
    model = transposes([0, 2, 1, 3], [2, 0, 1, 3])
    (program,) = fused(model)
    arrays = [np.arange(120, dtype=np.float32).reshape(1, 5, 4, 6) + 1000 * number for number in range(2)]
    (node,) = model.graph.nodes
    order = [int(tensor.name[1:]) for tensor in node.inputs]
    results = reference.run(program, [arrays[number] for number in order])
    by_name = dict(zip((tensor.name for tensor in node.outputs), results, strict=True))
    np.testing.assert_array_equal(by_name["y0"], arrays[0].transpose(0, 2, 1, 3))
    np.testing.assert_array_equal(by_name["y1"], arrays[1].transpose(2, 0, 1, 3))


@pytest.mark.parametrize("perms", [[[0, 2, 1, 3]], [[0, 2, 3, 1], [0, 3, 1, 2]]])
def test_transposes_that_stay(perms: list[list[int]]) -> None:
    """One alone, and those that take rows apart, for which there are tiles."""
    assert not fused(transposes(*perms))


@pytest.mark.parametrize("size", [1 << 22, 1 << 10])
def test_large_maps_have_launches_of_their_own(size: int) -> None:
    nodes = [node for number in range(2) for node in chain(number, f"x{number}")]
    assert len(fused(model_of(nodes, {"x0": [size, 2], "x1": [5]}, ["y0", "y1"]))) == (2 if size > 1 << 20 else 1)


def test_the_cpu_has_no_launches_to_share() -> None:
    nodes = [node for number in range(2) for node in chain(number, f"x{number}")]
    model = model_of(nodes, {"x0": [7, 2], "x1": [5]}, ["y0", "y1"])
    assert len(fused(model, "cpu")) != 1


def test_what_waits_for_another_is_not_joined() -> None:
    """Between the maps is a product, which reads the one and makes what the other reads."""
    nodes = [
        *chain(0, "x0"),
        helper.make_node("MatMul", ["y0", "w"], ["p"]),
        *chain(1, "p"),
    ]
    model = model_of(nodes, {"x0": [4, 4], "w": [4, 4]}, ["y1"])
    assert len(fused(model)) == 2


def test_crossed_waits_make_no_cycle() -> None:
    """Two pairs might be joined, each of which alone is without a cycle."""
    nodes = [
        *chain(0, "x0"),
        *chain(1, "x1"),
        helper.make_node("MatMul", ["y0", "w"], ["p"]),
        helper.make_node("MatMul", ["y1", "w"], ["q"]),
        *chain(2, "p"),
        *chain(3, "q"),
    ]
    model = model_of(nodes, {"x0": [4, 4], "x1": [3, 4], "w": [4, 4]}, ["y2", "y3"])
    assert len(fused(model)) == 2
    assert sum(node.op == "MatMul" for node in model.graph.nodes) == 2
    onnx.checker.check_model(model.to_proto())


@pytest.mark.parametrize("waits", (True, False))
def test_what_is_far_apart_is_joined_only_where_it_reads_inputs_of_the_model(waits: bool) -> None:
    """Those live anyway: a mask of an attention may wait for what makes the queries."""
    nodes = [helper.make_node("MatMul", ["x0", "w"], ["first"]), *chain(0, "first" if waits else "x0")]
    last = "x1"
    for step in range(6):
        nodes.append(helper.make_node("MatMul", [last, "w"], [f"p{step}"]))
        last = f"p{step}"
    nodes += chain(1, last)
    outputs = ["y0", "y1", *([] if waits else ["first"])]
    made = fused(model_of(nodes, {"x0": [4, 4], "x1": [3, 4], "w": [4, 4]}, outputs))
    assert len(made) == (2 if waits else 1)


def test_results_of_one_shape_that_do_not_meet_share_a_view() -> None:
    """Two masks of one tensor, which a node between dimensions of 1 casts: all of it is one node."""
    nodes = [
        helper.make_node("Cast", ["x"], ["b"], to=TensorProto.BOOL),
        helper.make_node("Reshape", ["b", "shape"], ["r"]),
        *(helper.make_node("And", ["r", f"own{number}"], [f"and{number}"]) for number in range(2)),
        *(helper.make_node("Where", [f"and{number}", "one", "two"], [f"y{number}"]) for number in range(2)),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.INT64, [1, 64])]
    inputs += [helper.make_tensor_value_info(f"own{number}", TensorProto.BOOL, [1, 1, 64, 1]) for number in range(2)]
    graph = helper.make_graph(
        nodes, "masks", inputs,
        [helper.make_tensor_value_info(f"y{number}", TensorProto.FLOAT, [1, 1, 64, 64]) for number in range(2)],
        [
            helper.make_tensor("shape", TensorProto.INT64, [4], [1, 1, 1, 64]),
            helper.make_tensor("one", TensorProto.FLOAT, [], [1.0]),
            helper.make_tensor("two", TensorProto.FLOAT, [], [2.0]),
        ],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    model = Model.from_proto(onnx.shape_inference.infer_shapes(proto))
    (program,) = fused(model)
    (node,) = model.graph.nodes
    feeds = {"x": np.arange(64)[None] % 3}
    feeds |= {f"own{number}": np.arange(64).reshape(1, 1, 64, 1) % (number + 2) == 0 for number in range(2)}
    results = reference.run(program, [feeds[tensor.name] for tensor in node.inputs if tensor.name in feeds])
    for tensor, result in zip(node.outputs, results, strict=True):
        chosen = feeds[f"own{tensor.name[1:]}"] & (feeds["x"] != 0)
        np.testing.assert_array_equal(result, np.where(chosen, np.float32(1), np.float32(2)))


def test_a_single_node_joins_others_only() -> None:
    nodes = [*chain(0, "x0"), helper.make_node("Neg", ["x1"], ["y1"])]
    assert len(fused(model_of(nodes, {"x0": [4, 4], "x1": [3, 5]}, ["y0", "y1"]))) == 1
    assert not fused(model_of([nodes[-1]], {"x1": [3, 5]}, ["y1"]))


def test_at_most_sixteen_parts() -> None:
    nodes = [node for number in range(20) for node in chain(number, f"x{number}")]
    inputs = {f"x{number}": [number + 2] for number in range(20)}
    programs = fused(model_of(nodes, inputs, [f"y{number}" for number in range(20)]))
    assert sorted(len(program.outputs) for program in programs) == [4, 16]


def test_a_concat_of_two_activations_is_one_node() -> None:
    nodes = [*chain(0, "x0"), *chain(1, "x1"), helper.make_node("Concat", ["y0", "y1"], ["y"], axis=1)]
    model = model_of(nodes, {"x0": ["n", 3, 8], "x1": ["n", 5, 8]}, ["y"])
    (program,) = fused(model)
    assert program.appends == (0, -2)


def keys_that_grow(past: int | str) -> Model:
    """A new key goes through a rotary embedding, heads first, and is appended to those of before, as its value is."""
    nodes = [
        helper.make_node("Split", ["new"], ["low", "high"], axis=-1),
        helper.make_node("Neg", ["high"], ["minus"]),
        helper.make_node("Concat", ["minus", "low"], ["turned"], axis=-1),
        helper.make_node("Mul", ["new", "cos"], ["one"]),
        helper.make_node("Mul", ["turned", "sin"], ["other"]),
        helper.make_node("Add", ["one", "other"], ["embedded"]),
        helper.make_node("Concat", ["past", "embedded"], ["present"], axis=-2),
        helper.make_node("Concat", ["values", "value"], ["present_values"], axis=-2),
    ]
    before, now = [1, 12, past, 64], [1, 12, 1, 64]
    inputs = {"past": before, "new": now, "cos": [1, 1, 1, 64], "sin": [1, 1, 1, 64], "values": before, "value": now}
    return model_of(nodes, inputs, ["present", "present_values"])


@pytest.mark.parametrize("past", ["n", 64])
def test_keys_that_grow_by_a_token(past: int | str) -> None:
    """The embedding, the copies of the keys of before, and those of the values are one launch."""
    found = onnxfuse.optimize(keys_that_grow(past).to_proto(), target="cuda", embed=False)
    assert [node.op_type for node in found.model.graph.node] == ["FusedElementwise"]
    assert len(found.model.graph.node[0].output) == 2


def test_a_concat_alone_is_left_to_onnx_runtime() -> None:
    nodes = [helper.make_node("Concat", ["past", "new"], ["present"], axis=-2)]
    model = model_of(nodes, {"past": [1, 12, "n", 64], "new": [1, 12, 1, 64]}, ["present"])
    found = onnxfuse.optimize(model.to_proto(), target="cuda", embed=False)
    assert [node.op_type for node in found.model.graph.node] == ["Concat"]


def test_a_concat_within_a_region_is_copied_by_nobody_else() -> None:
    """Halves that change places before a product are a region, which alone is not worth a node."""
    nodes = [
        helper.make_node("Split", ["x"], ["low", "high"], axis=-1),
        helper.make_node("Concat", ["high", "low"], ["turned"], axis=-1),
        helper.make_node("Mul", ["turned", "x"], ["y"]),
    ]
    found = onnxfuse.optimize(model_of(nodes, {"x": [1, 1, 2, 2]}, ["y"]).to_proto(), target="cuda", embed=False)
    assert [node.op_type for node in found.model.graph.node] == ["Split", "Concat", "Mul"]
