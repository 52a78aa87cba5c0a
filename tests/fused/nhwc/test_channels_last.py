"""Elementwise nodes with the channels last, for CUDA with prefer_nhwc: which are, and that they compute the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

import onnxfuse
from onnxfuse.errors import OnnxfuseError
from onnxfuse.fused.kinds import PREFERS_NHWC
from onnxfuse.passes import PassContext
from tests.passes.models import apply, assert_close, model, node, ops, random, run
from tests.support.fusing import fused_nodes

PASS = "channels-last"
TO_LAST, TO_FIRST = [0, 2, 3, 1], [0, 3, 1, 2]


def network(*nodes, constants=None, outputs=("y",), opset=17, dtype=np.float32, shape=("n", 3, "h", "w")):
    """c, six channels of a convolution of x, what ``nodes`` make of it, and the weights v of another convolution."""
    weights = {"w": random(6, 3, 3, 3, seed=1, dtype=dtype), "v": random(6, 6, 1, 1, seed=2, dtype=dtype)}
    nodes = [node("Conv", "x w", "c", pads=[1, 1, 1, 1]), *nodes]
    return model(
        nodes, {"x": list(shape)}, outputs=outputs, constants=weights | (constants or {}), opset=opset, dtype=dtype
    )


def rewrite(proto, dtype=np.float32, ulps=64.0):
    after, context = apply(proto, PASS, target="cuda", prefer_nhwc=True)
    for shape in ((1, 3, 4, 5), (2, 3, 6, 6)):
        assert_close(proto, after, {"x": random(*shape, dtype=dtype)}, ulps)
    return after, context


def transposes(proto):
    """How each Transpose of the main graph permutes."""
    return [list(one.attribute[0].ints) for one in proto.graph.node if one.op_type == "Transpose"]


def made_last(proto):
    """The operators of nodes that read what a Transpose to channels that come last makes, directly or not."""
    last: set[str] = set()
    found = []
    for one in proto.graph.node:
        if one.op_type == "Transpose":
            last.update(one.output if list(one.attribute[0].ints) == TO_LAST else ())
        elif last & set(one.input):
            found.append(one.op_type)
            last.update(one.output)
    return found


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_an_activation_between_convolutions(dtype):
    proto = network(node("Relu", "c", "r"), node("Conv", "r v", "y"), dtype=dtype)
    after, context = rewrite(proto, dtype)
    assert ops(after) == ["Conv", "Transpose", "Relu", "Transpose", "Conv"]
    assert transposes(after) == [TO_LAST, TO_FIRST]
    assert [(item.rule, item.nodes) for item in context.report.rewrites] == [(PASS, ("Relu_r",))]
    assert [(entry.key, entry.value) for entry in after.metadata_props] == [(PREFERS_NHWC, "1")]


@pytest.mark.parametrize(("target", "prefer_nhwc"), [("cpu", True), ("cuda", False)])
def test_it_is_for_cuda_and_on_request(target, prefer_nhwc):
    proto = network(node("Relu", "c", "r"), node("Conv", "r v", "y"))
    after, _ = apply(proto, PASS, target=target, prefer_nhwc=prefer_nhwc)
    assert ops(after) == ["Conv", "Relu", "Conv"]
    assert not after.metadata_props


@pytest.mark.parametrize(
    "shape", [(), (1,), (6, 1, 1), (1, 6, 1, 1), (1, 1, 1, 1), (1, 6, 4, 5), (5,), (4, 1), (2, 1, 4, 5)]
)
def test_constants_of_every_shape(shape):
    proto = network(
        node("Mul", "k c", "m"), node("Sub", "m k", "s"), node("Conv", "s v", "y"), constants={"k": random(*shape)}
    )
    after, _ = apply(proto, PASS, target="cuda", prefer_nhwc=True)
    assert made_last(after) == ["Mul", "Sub"]
    assert_close(proto, after, {"x": random(1, 3, 4, 5)}, 64)


def test_a_residual_block_has_no_transposes_inside():
    proto = network(
        *(node("Relu", "c", "r"), node("Conv", "r v", "d"), node("Add", "d b", "e"), node("Add", "e r", "f")),
        *(node("Relu", "f", "g"), node("Conv", "g v", "y")),
        constants={"b": random(6, 1, 1)},
    )
    after, _ = rewrite(proto)
    assert made_last(after) == ["Relu", "Add", "Add", "Relu"]
    assert sorted(transposes(after)) == sorted([TO_LAST, TO_FIRST, TO_LAST, TO_FIRST])


def test_gates_of_a_channel_each():
    proto = network(
        *(node("GlobalAveragePool", "c", "p"), node("Conv", "p v", "q"), node("Sigmoid", "q", "s")),
        *(node("Mul", "c s", "m"), node("Conv", "m v", "y")),
    )
    after, _ = rewrite(proto)
    assert made_last(after) == ["Sigmoid", "Mul"]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_batch_normalization_is_a_difference_a_product_and_a_sum(dtype):
    constants = {name: np.abs(random(6, seed=seed, dtype=dtype)) + dtype(0.5) for seed, name in enumerate("smbv")}
    constants["k"] = random(6, 6, 1, 1, seed=9, dtype=dtype)
    proto = network(
        node("BatchNormalization", "c s b m v", "d"), node("Relu", "d", "r"), node("Conv", "r k", "y"),
        constants=constants, dtype=dtype,
    )  # fmt: skip
    after, _ = rewrite(proto, dtype)
    assert made_last(after) == ["Sub", "Mul", "Add", "Relu"]


def test_pools_and_concats_between_are_taken_for_what_onnx_runtime_moves_transposes_past():
    proto = network(
        *(node("Relu", "c", "r"), node("MaxPool", "r", "p", kernel_shape=[2, 2])),
        *(node("Concat", "p p", "j", axis=1), node("Tanh", "j", "t"), node("Conv", "t u", "y")),
        constants={"u": random(4, 12, 1, 1)},
    )
    after, _ = rewrite(proto)
    assert [op for op in made_last(after) if op in ("Relu", "Tanh")] == ["Relu", "Tanh"]


def test_what_nothing_convolves_keeps_its_layout():
    proto = model([node("Relu", "x", "r"), node("MatMul", "r x", "y")], {"x": ["n", 3, 4, 4]})
    assert ops(apply(proto, PASS, target="cuda", prefer_nhwc=True)[0]) == ["Relu", "MatMul"]


def test_more_plain_readers_than_convolutions_keep_it():
    """A Softmax over the width, and the model's own results: transposing them all would cost more."""
    proto = network(
        *(node("Softmax", "c", "a", axis=3), node("Softmax", "a", "b", axis=3)),
        *(node("Add", "a b", "e"), node("Softmax", "e", "y", axis=3)),
    )
    assert ops(rewrite(proto)[0]) == ["Conv", "Softmax", "Softmax", "Add", "Softmax"]


def test_results_of_the_model_have_their_channels_first():
    proto = network(node("Relu", "c", "r"), node("Conv", "r v", "y"), outputs=("y", "r"))
    after, _ = rewrite(proto)
    assert made_last(after) == ["Relu"]
    assert [output.name for output in after.graph.output] == ["y", "r"]


@pytest.mark.parametrize("returned", [False, True])
def test_transposes_of_the_model_are_part_of_it(returned):
    """ConvNeXt's: normalized and multiplied with the channels last."""
    proto = network(
        *(node("Relu", "c", "r"), node("Transpose", "r", "t", perm=TO_LAST), node("MatMul", "t m", "u")),
        *(node("Transpose", "u", "z", perm=TO_FIRST), node("Add", "z r", "a"), node("Conv", "a v", "y")),
        constants={"m": random(6, 6)},
        outputs=("y", "t") if returned else ("y",),
    )
    after, _ = rewrite(proto)
    assert ("Add" in made_last(after)) and "Relu" in made_last(after)
    assert transposes(after).count(TO_LAST) == (2 if returned else 1)


def test_a_body_reads_what_has_its_channels_first():
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[n, 3, h, w] x, bool q) => (float[n, 6, h, w] y) {
        c = Conv <pads = [1, 1, 1, 1]> (x, k) r = Relu(c) z = Conv(r, v)
        e = If (q) <
            then_branch = one () => (float[n, 6, h, w] o) { o = Neg(r) },
            else_branch = two () => (float[n, 6, h, w] p) { p = Identity(z) }
        >
        y = Add(e, z) }"""
    proto = parser.parse_model(text)
    for name, values in (("k", random(6, 3, 3, 3)), ("v", random(6, 6, 1, 1))):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    after, _ = apply(proto, PASS, target="cuda", prefer_nhwc=True)
    assert "Relu" in made_last(after)
    for chosen in (False, True):
        assert_close(proto, after, {"x": random(2, 3, 5, 4), "q": np.array(chosen)}, 64)


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Mul", "c k", "m")],
        [node("PRelu", "c k", "m")],
    ],
    ids=["rank of an operand that is computed", "slopes that are computed"],
)
def test_operands_of_other_ranks_that_are_computed_stay(nodes):
    proto = network(node("Neg", "k0", "k"), *nodes, node("Conv", "m v", "y"), constants={"k0": random(6, 1, 1)})
    assert made_last(rewrite(proto)[0]) == []


def test_the_whole_way(tmp_path):
    """From the API to the file: channels last in fused nodes, and the option in the file's metadata."""
    proto = network(
        *(node("Tanh", "c", "m"), node("Relu", "m", "r"), node("Conv", "r v", "d")),
        *(node("Mul", "d r", "e"), node("Tanh", "e", "t"), node("Conv", "t v", "y")),
        shape=(1, 3, 8, 9),
    )
    out = tmp_path / "out.onnx"
    result = onnxfuse.optimize(proto, "cuda", arch="sm_90", embed=False, prefer_nhwc=True, output=out)
    fused = fused_nodes(result.model)
    assert len(fused) == 2
    shapes = {
        info.name: [dim.dim_value for dim in info.type.tensor_type.shape.dim] for info in result.model.graph.value_info
    }
    assert [shapes[one.output[0]] for one in fused] == [[1, 8, 9, 6]] * 2
    assert result.report.parity is not None and result.report.parity.ok
    assert result.report.layout.startswith("Written for sessions with prefer_nhwc")
    session = onnxfuse.InferenceSession(out, providers=["CPUExecutionProvider"])
    x = random(1, 3, 8, 9)
    assert session.run(None, {"x": x})[0].shape == (1, 6, 8, 9)


def test_the_target_cpu_refuses_the_option():
    with pytest.raises(OnnxfuseError, match="for the target cuda"):
        onnxfuse.optimize(network(node("Relu", "c", "y")), "cpu", prefer_nhwc=True)


def test_the_context_says_nothing_by_default():
    assert not PassContext().prefer_nhwc


def test_optimizing_twice_says_so_once():
    proto = network(node("Relu", "c", "r"), node("Conv", "r v", "d"), node("Tanh", "d", "t"), node("Conv", "t v", "y"))
    once, _ = apply(proto, PASS, target="cuda", prefer_nhwc=True)
    again, _ = apply(once, PASS, target="cuda", prefer_nhwc=True)
    assert [(entry.key, entry.value) for entry in again.metadata_props] == [(PREFERS_NHWC, "1")]


@pytest.mark.parametrize("after", [[node("Softmax", "c", "y")], [node("Conv", "c v", "y")]], ids=["softmax", "none"])
def test_a_model_says_so_whatever_was_moved(after):
    """Its convolutions are left to ONNX Runtime because they will have their channels last."""
    made, _ = apply(network(*after), PASS, target="cuda", prefer_nhwc=True)
    assert [entry.key for entry in made.metadata_props] == [PREFERS_NHWC]
    assert "Transpose" not in ops(made)


@pytest.mark.parametrize(("mean", "variance"), [(1000, 0.01), (30, 1), (3000, 0.001)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_batch_normalization_of_large_means_keeps_its_digits(mean, variance, dtype):
    """x · factor + offset would be the difference of two large numbers, or of infinities."""
    constants = {"s": np.ones(3), "b": np.zeros(3), "m": np.full(3, mean), "q": np.full(3, variance)}
    proto = model(
        [
            *(node("Conv", "x k", "c"), node("BatchNormalization", "c s b m q", "d")),
            *(node("Tanh", "d", "t"), node("Conv", "t k", "y")),
        ],
        {"x": ["n", 3, "h", "w"]},
        constants={name: values.astype(dtype) for name, values in constants.items()}
        | {"k": np.eye(3, dtype=dtype).reshape(3, 3, 1, 1)},
        dtype=dtype,
    )
    after, _ = apply(proto, PASS, target="cuda", prefer_nhwc=True)
    assert "Sub" in made_last(after)
    x = (mean + np.sqrt(variance) * random(1, 3, 4, 4)).astype(dtype)
    factor = 1 / np.sqrt(np.float64(dtype(variance)) + 1e-5)
    expected = np.tanh((x.astype(np.float64) - float(dtype(mean))) * factor)
    np.testing.assert_allclose(run(after, {"x": x})[0], expected, rtol=0, atol=8 * float(np.finfo(dtype).eps))


def test_a_factor_that_float16_does_not_hold_keeps_its_layout():
    constants = {"s": np.full(3, 6e4), "b": np.zeros(3), "m": np.zeros(3), "q": np.full(3, 1e-3)}
    proto = network(
        node("BatchNormalization", "c s b m q", "d"), node("Conv", "d v", "y"),
        constants={name: np.resize(values, 6).astype(np.float16) for name, values in constants.items()},
        dtype=np.float16,
    )  # fmt: skip
    assert ops(apply(proto, PASS, target="cuda", prefer_nhwc=True)[0]) == ["Conv", "BatchNormalization", "Conv"]


def test_a_body_that_names_its_own_tensor_as_one_outside():
    """What a Transpose outside reads has the name of the body's input: inside, that is what the name stands for."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[n, h, w, 6] a, int64 m, bool q) => (float[s, n, 6, h, w] y) {
        t = Transpose <perm = [0, 3, 1, 2]> (a)
        l, y = Loop (m, q, a) <
            body = b (int64 i, bool p, float[n, h, w, 6] a)
                => (bool o, float[n, h, w, 6] e, float[n, 6, h, w] z) {
                o = Identity(p) e = Add(a, a) u = Tanh(t) z = Conv(u, v)
            }
        > }"""
    proto = parser.parse_model(text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(random(6, 6, 1, 1), "v"))
    after, _ = apply(proto, PASS, target="cuda", prefer_nhwc=True)
    assert_close(proto, after, {"a": random(1, 4, 5, 6), "m": np.array(3), "q": np.array(True)}, 64)


def test_types_that_not_every_transpose_takes_keep_their_layout():
    proto = network(
        *(node("Relu", "c", "r"), node("Cast", "r", "f", to=onnx.TensorProto.FLOAT8E4M3FN)),
        *(node("Cast", "f", "g", to=onnx.TensorProto.FLOAT), node("Conv", "g v", "y")),
        outputs=("y",),
        opset=19,
    )
    result = onnxfuse.optimize(proto, "cuda", arch="sm_90", embed=False, prefer_nhwc=True)
    assert result.report.parity is not None and result.report.parity.ok


def test_transposes_of_results_count_too():
    """Of double: that of float before it is cheaper."""
    proto = network(node("Cast", "c", "y", to=onnx.TensorProto.DOUBLE), shape=(1, 3, 64, 64))
    proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    assert ops(apply(proto, PASS, target="cuda", prefer_nhwc=True)[0]) == ["Conv", "Cast"]


def test_transposes_of_inputs_count_too():
    """Three of them for one after: it stays."""
    proto = model(
        [node("Sum", "x z u", "s"), node("Conv", "s w", "y")],
        {name: [1, 3, 32, 32] for name in ("x", "z", "u")},
        constants={"w": random(3, 3, 1, 1)},
    )
    assert ops(apply(proto, PASS, target="cuda", prefer_nhwc=True)[0]) == ["Sum", "Conv"]
