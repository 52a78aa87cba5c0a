"""Two tensors that are added to the scores of an attention."""

import numpy as np
import onnx
import pytest

from tests.fused.attention.test_fuse_attention import FEEDS, check, fused, of_text, projected
from tests.fused.conv.test_cpu_convolutions import array
from tests.support import fusing

MORE = ", float[1, 4, l, l] z, float[n, 1, 1, l] hidden"
MASKS = {"z": array(1, 4, 9, 9) * 3, "hidden": np.where(array(2, 1, 1, 9) > 0.3, np.float32(-3.4e38), np.float32(0))}


@pytest.mark.parametrize("outer", ("Add(u, hidden)", "Add(hidden, u)"))
@pytest.mark.parametrize("inner", ("r = Div(s, c) u = Add(r, z)", "r = Div(s, c) u = Add(z, r)", "u = Add(s, z)"))
def test_a_bias_and_a_mask(inner: str, outer: str) -> None:
    made = projected(f"{inner} t = {outer}", more=MORE)
    assert check(made, {**FEEDS, **MASKS}) == ["MatMul", "Add", "FusedAttention"]


def test_a_mask_that_is_a_sum_itself() -> None:
    made = projected("a = Add(z, z) b = Add(a, a) u = Add(s, z) t = Add(b, u)", more=MORE)
    assert check(made, {**FEEDS, **MASKS})[-2:] == ["Add", "FusedAttention"]


def test_a_mask_of_another_size_than_the_bias() -> None:
    made = projected(
        "u = Add(s, m2) t = Add(u, hidden)", more=", float[a, 1, 1, l] hidden", joined=np.array([0, -1, 24])
    )
    for batch in (1, 2):
        feeds = {"x": array(batch, 9, 24), "hidden": array(2 if batch == 2 else 3, 1, 1, 9)}
        check(made, feeds)


LAYERS = """g (float[n, 4, l, 6] q, float[n, 4, m, 6] k, float[n, 4, m, 5] v, float[1, 4, l, m] z,
    float[n, 1, 1, m] hidden) => (float[n, l, i] y, float[n, l, j] y2) {{
    kt = Transpose <perm = [0, 1, 3, 2]> (k) s = MatMul(q, kt) {} p = Softmax <axis = -1> (t)
    o = MatMul(p, v) o2 = Transpose <perm = [0, 2, 1, 3]> (o) y = Reshape(o2, joined)
    kt2 = Transpose <perm = [0, 1, 3, 2]> (k) s2 = MatMul(q, kt2) {} p2 = Softmax <axis = -1> (t2)
    o4 = MatMul(p2, v) o5 = Transpose <perm = [0, 2, 1, 3]> (o4) y2 = Reshape(o5, joined) }}"""


def layers(scores: str, again: str) -> onnx.ModelProto:
    """Two attentions, with what is done to the scores of each."""
    return of_text(LAYERS.format(scores, again), joined=np.array([0, 0, 20]))


def layer_feeds() -> dict[str, np.ndarray]:
    heads = {"q": array(2, 4, 7, 6), "k": array(2, 4, 9, 6), "v": array(2, 4, 9, 5)}
    return {**heads, "z": array(1, 4, 7, 9), "hidden": array(2, 1, 1, 9)}


def test_layers_share_one_sum() -> None:
    made = layers("u = Add(s, z) t = Add(u, hidden)", "u2 = Add(z, s2) t2 = Add(hidden, u2)")
    assert check(made, layer_feeds(), count=2).count("Add") == 1


def test_sums_that_are_read_elsewhere_stay() -> None:
    made = layers("u = Add(s, z) t = Add(u, hidden)", "t2 = Add(u, s2)")
    result, _ = fused(made)
    assert [node.op_type for node in result.graph.node].count("Add") == 2
    fusing.assert_same_everywhere(result, made, layer_feeds())


def test_a_mask_that_the_scores_make() -> None:
    made = layers("r = Relu(s) u = Add(s, z) t = Add(u, r)", "t2 = Add(s2, z)")
    result, _ = fused(made)
    fusing.assert_same_everywhere(result, made, layer_feeds())


def test_other_types_are_left_alone() -> None:
    made = projected("u = Add(s, z) t = Add(u, hidden)", more=MORE.replace("float", "double"))
    for tensor in (*made.graph.input, *made.graph.output):
        tensor.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for tensor in made.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            values = onnx.numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    result, _ = fused(made)
    assert [node.op_type for node in result.graph.node] == [node.op_type for node in made.graph.node]


CHOSEN = ", float[1, 4, l, l] z, bool[n, 1, 1, l] hides"
CHOSEN_FEEDS = {**FEEDS, "z": array(1, 4, 9, 9) * 3, "hides": array(2, 1, 1, 9) > 0.3}
FILLS = {"fill": np.float32(-3.4e38)}


@pytest.mark.parametrize("chosen", ("Where(hides, fill, u)", "Where(hides, u, fill)"))
@pytest.mark.parametrize("biased", ("r = Div(s, c) u = Add(r, z)", "u = Add(z, s)"))
def test_a_choice_behind_a_bias(biased: str, chosen: str) -> None:
    """As in DeBERTa: the bias is chosen by the same condition, in a node of its own."""
    made = projected(f"{biased} t = {chosen}", more=CHOSEN, **FILLS)
    assert check(made, CHOSEN_FEEDS) == ["MatMul", "Where", "FusedAttention"]


@pytest.mark.parametrize("fill", (-np.inf, 0.0))
def test_a_choice_behind_a_bias_that_hides_everything(fill: float) -> None:
    made = projected("u = Add(s, z) t = Where(hides, fill, u)", more=CHOSEN, fill=np.float32(fill))
    check(made, {**CHOSEN_FEEDS, "hides": np.ones((2, 1, 1, 9), bool)})


def test_a_bias_that_is_read_elsewhere_is_chosen_behind_it() -> None:
    made = projected("u = Add(s, z) t0 = Where(hides, fill, u) f = ReduceMean <keepdims = 1> (u) t = Add(t0, f)",
                     more=CHOSEN, **FILLS)  # fmt: skip
    result, _ = fused(made)
    fusing.assert_same_everywhere(result, made, CHOSEN_FEEDS)
