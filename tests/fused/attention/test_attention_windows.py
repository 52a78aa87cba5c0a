"""Attention of windows of images, with a mask that differs between the windows: Swin Transformer's."""

import numpy as np
import onnx
import pytest

from tests.fused.attention.test_fuse_attention import blocks, check, fused, of_text
from tests.fused.conv.test_cpu_convolutions import array
from tests.support import fusing

TEXT = """g (float[{batch}, 4, 6, 5] q, float[{batch}, 4, 6, 5] k, float[{batch}, 4, 6, 5] v{more}) =>
    (float[a, b, c1] y) {{
    kt = Transpose <perm = [0, 1, 3, 2]> (k) s = MatMul(q, kt) {scores} p = Softmax <axis = -1> (t)
    o = MatMul(p, v) o2 = Transpose <perm = [0, 2, 1, 3]> (o) y = Reshape(o2, joined) }}"""
BIASED = "u = Add(s, bias) s5 = Reshape(u, apart) m = Add(s5, mask) t = Reshape(m, together)"
CONSTANTS = {
    **{"apart": np.array([-1, 3, 4, 6, 6]), "together": np.array([-1, 4, 6, 6]), "joined": np.array([0, 0, 20])},
    **{"bias": array(1, 4, 6, 6), "mask": np.where(array(1, 3, 1, 6, 6) > 0, np.float32(-100), np.float32(0))},
}


def windowed(scores: str = BIASED, batch: str = "n", more: str = "", **constants: np.ndarray) -> onnx.ModelProto:
    return of_text(TEXT.format(scores=scores, batch=batch, more=more), **{**CONSTANTS, **constants})


def feeds(images: int = 2) -> dict[str, np.ndarray]:
    return {name: array(3 * images, 4, 6, 5) * size for name, size in (("q", 3), ("k", 3), ("v", 1))}


@pytest.mark.parametrize("images", (1, 2, 5))
@pytest.mark.parametrize("fixed", (False, True))
def test_a_bias_and_a_mask_of_windows(images: int, fixed: bool) -> None:
    made = windowed(batch=str(3 * images) if fixed else "n")
    assert check(made, feeds(images))[-1] == "FusedAttention"
    (block,) = blocks(fused(made)[0])
    assert {entry.name: entry.i for entry in block.attribute}["windows"] == 3


SCORES = {
    "no bias": "s5 = Reshape(s, apart) m = Add(s5, mask) t = Reshape(m, together)",
    "the mask first": "u = Add(bias, s) s5 = Reshape(u, apart) m = Add(mask, s5) t = Reshape(m, together)",
    "a scale": "r = Mul(s, c) u = Add(r, bias) s5 = Reshape(u, apart) m = Add(s5, mask) t = Reshape(m, together)",
    "the mask twice": "u = Add(s, bias) s5 = Reshape(u, apart) l = Add(s5, mask) m = Add(l, mask)"
    " t = Reshape(m, together)",
    "a bias of three dimensions": "u = Add(s, bias3) s5 = Reshape(u, apart) m = Add(s5, mask) t = Reshape(m, together)",
    "a mask of four dimensions": "u = Add(s, bias) s5 = Reshape(u, apart) m = Add(s5, mask4) t = Reshape(m, together)",
    "a mask of each head": "s5 = Reshape(s, apart) m = Add(s5, heads) t = Reshape(m, together)",
}


@pytest.mark.parametrize("kind", SCORES)
def test_forms(kind: str) -> None:
    more = {"bias3": array(4, 6, 6), "mask4": array(3, 1, 6, 6), "heads": array(1, 3, 4, 1, 6)}
    check(windowed(SCORES[kind], **more), feeds())


def test_a_mask_that_is_computed() -> None:
    made = windowed(BIASED.replace("mask", "given"), more=", float[1, 3, 1, 6, 6] given")
    check(made, {**feeds(), "given": array(1, 3, 1, 6, 6) * 5})


LEFT = {
    "a mask of images": (BIASED, {"mask": array(2, 3, 1, 6, 6)}),
    "windows of another number": (BIASED.replace("together", "others"), {"others": np.array([-1, 4, 12, 3])}),
    "heads told apart": (BIASED, {"apart": np.array([-1, 3, 2, 12, 6]), "mask": array(1, 3, 1, 12, 6)}),
    "one mask for all windows": (BIASED, {"mask": array(1, 1, 1, 6, 6)}),
}


@pytest.mark.parametrize("kind", LEFT)
def test_what_is_left_alone(kind: str) -> None:
    scores, constants = LEFT[kind]
    made = windowed(scores, **constants)
    if kind == "windows of another number":  # then keys are others too
        made.graph.node[-4].input[0] = "m6"
        made.graph.node.insert(len(made.graph.node) - 4, onnx.helper.make_node("Reshape", ["t", "again"], ["m6"]))
        made.graph.initializer.append(onnx.numpy_helper.from_array(np.array([-1, 4, 6, 6]), "again"))
    result, _ = fused(made)
    assert not any(entry.name == "windows" for block in blocks(result) for entry in block.attribute)
    fusing.assert_same_everywhere(result, made, feeds())


def test_scores_that_are_read_elsewhere_stay() -> None:
    made = windowed()
    made.graph.output.append(onnx.helper.make_tensor_value_info("m", onnx.TensorProto.FLOAT, list("abcde")))
    result, _ = fused(made)
    assert not blocks(result)
    fusing.assert_same_everywhere(result, made, feeds())
