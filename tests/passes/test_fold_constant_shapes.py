"""What is read as a scalar becomes one, and what changes a shape and changes it back goes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from onnxfuse.run.sessions import Session
from tests.passes.models import apply, ops, random
from tests.passes.test_fold_constants import FOLD, same_bits

SCALARS = {
    "Range": ("float", 1, "r = Range (n, five, one) y = Add (x, r)"),
    "HannWindow": ("int64", 4, "w = HannWindow (n) y = Add (x, w)"),
    "HammingWindow": ("int64", 4, "w = HammingWindow (n) y = Add (x, w)"),
    "BlackmanWindow": ("int64", 4, "w = BlackmanWindow (n) y = Add (x, w)"),
    "DFT": ("int64", 1, "s = Reshape (x, signal) d = DFT (s, , n) y = Reshape (d, flat)"),
    "STFT": ("int64", 2, "s = Reshape (x, signal) d = STFT (s, two, , n) y = Reshape (d, flat)"),
    "MelWeightMatrix": ("int64", 16, "w = MelWeightMatrix (two, n, rate, one, five) m = ReduceMax (w) y = Mul (x, m)"),
}
"""Operators that read a scalar n: its type, a value of it, and what they do with it."""

MADE = {
    "a sum": "n = Add (number, zero)",
    # ONNX Runtime does not fold Size, and so knows the condition only after it was folded here.
    "an If": """size = Size (x) yes = Equal (size, four)
        n = If (yes) <then_branch = t () => (KIND[1] then) { then = Identity (number) },
                      else_branch = e () => (KIND[1] else) { else = Add (number, zero) }>""",
}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("operator", SCALARS)
def test_what_is_read_as_a_scalar_becomes_one(operator, made):
    """ONNX Runtime takes [1] there, but not as a constant."""
    kind, number, body = SCALARS[operator]
    proto = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 20]> g (float[4] x) => (float[k] y) <
            KIND[1] number = {{{number}}}, KIND[1] zero = {{0}}, float one = {{1}}, float five = {{5}},
            int64 two = {{2}}, int64 four = {{4}}, int64 rate = {{16}}, int64[3] signal = {{1, 4, 1}},
            int64[1] flat = {{-1}}> {{ {MADE[made]} {body} }}
        """.replace("KIND", kind)
    )
    after, context = apply(proto, FOLD)
    assert context.report.rewrites
    same_bits(proto, after, x=random(4))
    for optimized in (False, True):
        Session(after.SerializeToString(), optimized=optimized)


SHAPES = {
    "as tf2onnx writes a mean of channels": (
        "s = Squeeze(x, axes) y = Reshape(s, whole)",
        {"axes": [2, 3], "whole": [-1, 4, 1, 1]},
    ),
    "a size that is open": ("s = Reshape(x, flat) y = Reshape(s, whole)", {"flat": [-1], "whole": [-1, 4, 1, 1]}),
    "by itself": ("y = Reshape(x, whole)", {"whole": [0, 4, 1, 1]}),
    "flattened": ("s = Flatten(x) y = Unsqueeze(s, axes)", {"axes": [2, 3]}),
    "in the middle": (
        "s = Squeeze(x, axes) t = Unsqueeze(s, axes) u = Squeeze(t, axes) y = Unsqueeze(u, axes)",
        {"axes": [2]},
    ),
}


@pytest.mark.parametrize("kind", SHAPES)
def test_a_shape_that_comes_back_is_no_node(kind):
    body, constants = SHAPES[kind]
    made = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[n, 4, 1, 1] z) => (float[m, 4, 1, 1] v)'
        f" {{ x = Abs(z) {body} v = Neg(y) }}"
    )
    made.graph.initializer.extend(numpy_helper.from_array(np.array(value), name) for name, value in constants.items())
    made = onnx.shape_inference.infer_shapes(made, data_prop=True)
    after, _ = apply(made, FOLD)
    assert ops(after) == ["Abs", "Neg"]
    for batch in (0, 1, 3):
        if batch or "-1" not in str(constants):
            same_bits(made, after, z=random(batch, 4, 1, 1))


@pytest.mark.parametrize(
    "body",
    [
        "s = Squeeze(x, axes) y = Reshape(s, other)",  # of as many elements
        "s = Reshape(x, open) y = Reshape(s, apart)",  # of which two sizes are open
        "s = Transpose <perm = [0, 1, 3, 2]> (x) y = Reshape(s, whole)",
    ],
)
def test_another_shape_stays(body):
    constants = {
        "axes": [3],
        "other": [-1, 4, 2, 3],
        "open": [-1, 2, 1],
        "apart": [0, -1, 3, 1],
        "whole": [-1, 4, 3, 1],
    }
    made = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[2, c, 3, 1] z) => (float[m, k, l, i] v)'
        f" {{ x = Abs(z) {body} v = Neg(y) }}"
    )
    for name, value in constants.items():
        if f"{name})" in body:
            made.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    made = onnx.shape_inference.infer_shapes(made, data_prop=True)
    after, _ = apply(made, FOLD)
    if "open" not in body:
        same_bits(made, after, z=random(2, 4, 3, 1))
    assert len(ops(after)) == 4
