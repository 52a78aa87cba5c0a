"""How far Programs that reduce are from float64, beside ONNX Runtime's own nodes."""

import numpy as np
import onnx
import pytest
from onnx import helper

from onnxfuse.program import Program, reference
from tests.custom_ops.fused import make_model, new_session, session_options
from tests.custom_ops.nodes.test_reductions import SOFTMAX, Sizes, run_reduction


def of_kind(kind: str, shape: Sizes) -> np.ndarray:
    """Data of which sums are hard in one way or another."""
    rng = np.random.default_rng([len(kind), *shape])
    x = rng.standard_normal(shape)
    match kind:
        case "far from zero":
            x = x + 1000
        case "of all sizes":
            x = x * 10.0 ** rng.integers(-6, 6, shape)
        case "that cancel":
            x[..., 1::2] = -x[..., : x[..., 1::2].shape[-1]]
        case "denormal":
            x = x * 1e-39
    return x.astype(np.float32)


# What is left of the mean, which is rounded, is taken out too.
LAYER_NORM_ALONE = """onnxfuse 2
input f32 broadcast
const f32 3727c5ac
reduce_mean f32 0 -1
sub f32 0 2
reduce_mean f32 3 -1
mul f32 3 3
reduce_mean f32 5 -1
mul f32 4 4
sub f32 6 7
add f32 8 1
sqrt f32 9
sub f32 3 4
div f32 11 10
output 12
"""
ALONE: dict[str, tuple[str, list[onnx.NodeProto]]] = {
    "sum": (
        "onnxfuse 2\ninput f32 broadcast\nreduce_sum f32 0 -1\noutput 1\n",
        [helper.make_node("ReduceSum", ["x0", "x1"], ["y0"])],
    ),
    "mean": (
        "onnxfuse 2\ninput f32 broadcast\nreduce_mean f32 0 -1\noutput 1\n",
        [helper.make_node("ReduceMean", ["x0", "x1"], ["y0"])],
    ),
    "softmax": (SOFTMAX.format(axes="-1"), [helper.make_node("Softmax", ["x0"], ["y0"], axis=-1)]),
    "layer norm": (
        LAYER_NORM_ALONE,
        [helper.make_node("LayerNormalization", ["x0", "x2"], ["y0"])],
    ),
    "l2 norm": (
        "onnxfuse 2\ninput f32 broadcast\nmul f32 0 0\nreduce_sum f32 1 -1\nsqrt f32 2\noutput 3\n",
        [helper.make_node("ReduceL2", ["x0", "x1"], ["y0"])],
    ),
}


@pytest.mark.parametrize("kind", ["plain", "far from zero", "of all sizes", "that cancel", "denormal"])
@pytest.mark.parametrize("shape", [(40, 64), (30, 768), (3, 40001)])
@pytest.mark.parametrize("name", ALONE)
def test_errors_are_no_larger_than_onnx_runtimes(name: str, shape: Sizes, kind: str) -> None:
    """Twice at most, beside the float64 result."""
    program, nodes = ALONE[name]
    x = of_kind(kind, shape)
    exact = reference.run(
        Program.parse(program.replace("f32 3727c5ac", "f64 3ee4f8b580000000").replace("f32", "f64")),
        [x.astype(np.float64)],
    )[0]
    (ours,) = run_reduction(program, [x])
    arrays = {"x0": x, "x1": np.array([-1], np.int64), "x2": np.ones(shape[-1], np.float32)}
    inputs = {name: ("i64" if name == "x1" else "f32", array.shape) for name, array in arrays.items()}
    session = new_session(make_model(nodes, inputs, {"y0": ("f32", None)}), session_options(2, ops=False))
    (theirs,) = session.run(None, arrays)
    # Beside what is summed, or the largest of a row's results.
    scale = (
        np.abs(x.astype(np.float64)).sum(-1, keepdims=True) if name == "sum" else np.abs(exact).max(-1, keepdims=True)
    )
    if name == "mean":
        scale = np.abs(x.astype(np.float64)).mean(-1, keepdims=True)
    error, allowed = (np.max(np.abs(result - exact) / np.maximum(scale, 1e-37)) for result in (ours, theirs))
    assert error <= max(2 * allowed, 4 * np.finfo(np.float32).eps)
