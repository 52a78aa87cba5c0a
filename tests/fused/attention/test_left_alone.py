"""What is no attention that the node computes, and is left alone."""

import numpy as np
import pytest

from tests.fused.attention.test_fuse_attention import DIRECT, KEYS, blocks, fused, of_text, projected
from tests.fused.conv.test_cpu_convolutions import array

ELSEWHERE = "e = ReduceMax <keepdims = 0> ({0}) o1 = Transpose <perm = [0, 2, 1, 3]> (o) o2 = Add(o1, e)"
LEFT = {
    "the scores are read elsewhere": (projected(after=ELSEWHERE.format("s")), "read elsewhere"),
    "so are they scaled": (projected(after=ELSEWHERE.format("t")), "read elsewhere"),
    "a mask of unknown heads": (projected("t = Add(s, z)", more=", float[n, h, 1, l] z"), "whether the mask leaves"),
    "choices of unknown heads": (
        projected("t = Where(z, s, c)", more=", bool[n, h, 1, l] z"),
        "whether the mask leaves",
    ),
    "a mask of five dimensions": (
        projected("t = Add(s, z)", more=", float[1, n, 1, 1, l] z"),
        "whether the mask leaves",
    ),
    "a mask of unknown dimensions": (
        projected(
            "r = NonZero(x) i = Transpose(r) e = Cast <to = 1> (i) z = Reshape(e, b) t = Add(s, z)", more=", int64[k] b"
        ),
        "whether the mask leaves",
    ),
    "keys that are no transpose": (
        of_text(DIRECT.format(keys="kt = Reshape(k, other)", after="y = MatMul(p, v)"), other=np.array([0, 6, 8, -1])),
        "not the transpose of K",
    ),
    "keys transposed elsewise": (
        of_text(DIRECT.format(keys="kt = Transpose <perm = [1, 0, 3, 2]> (k)", after="y = MatMul(p, v)")),
        "not the transpose of K",
    ),
    "an unknown number of heads": (
        of_text(DIRECT.format(keys=KEYS, after="y = MatMul(p, v)").replace("n, 6,", "n, hd,")),
        "number of heads is not known",
    ),
    "other heads of V": (
        of_text(DIRECT.format(keys=KEYS, after="y = MatMul(p, v)").replace("float[n, 6, m, 5]", "float[n, 1, m, 5]")),
        "differs between K and V",
    ),
    "many rows of heads that are neither split nor joined": (
        of_text(DIRECT.format(keys=KEYS, after="y = MatMul(p, v)").replace("float[n, 6, 7,", "float[n, 6, 64,")),
        "ONNX Runtime is as fast",
    ),
    "perhaps many such rows": (
        of_text(DIRECT.format(keys=KEYS, after="y = MatMul(p, v)").replace("float[n, 6, 7,", "float[n, 6, l,")),
        "ONNX Runtime is as fast",
    ),
    "double": (
        of_text(DIRECT.format(keys=KEYS, after="y = MatMul(p, v)").replace("float", "double")),
        "there are kernels for f32",
    ),
}


@pytest.mark.parametrize("kind", LEFT)
def test_left_alone(kind: str) -> None:
    made, reason = LEFT[kind]
    result, context = fused(made)
    assert not blocks(result)
    (refusal,) = context.report.refusals
    assert refusal.rule == "fuse-attention" and reason in refusal.reason


@pytest.mark.parametrize(
    "text",
    [
        "g (float[n, 9] x) => (float[n, 9] y) { y = Softmax(x) }",
        "g (float[n, 9] x) => (float[n, 9] y) { s = MatMul(x, w) p = Softmax(s) y = MatMul(p, w) }",
        DIRECT.format(keys=KEYS, after="y = MatMul(p, v)").replace("axis = 3", "axis = 2").replace("{{", "{"),
    ],
)
def test_what_is_no_attention_is_left_alone(text: str) -> None:
    result, context = fused(of_text(text, w=array(9, 9)))
    assert not blocks(result) and not context.report.refusals
