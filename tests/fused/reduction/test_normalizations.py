"""Which normalizations of rows become one node, with what before them, and that they stay what they are."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.fused.reduction.fuse_reductions import FuseReductions
from onnxfuse.passes import PassContext
from onnxfuse.planning.inspection import inspect
from tests.fused.conv.test_cpu_convolutions import array, model, operators
from tests.support import fusing

CONSTANTS = {
    **{"two": np.float32(2), "eps": np.float32(1e-5), "one": np.float32(1), "last": np.array([-1])},
    **{"gamma": array(40) + 1, "beta": array(40), "bias": array(40) * 3, "scale": array(40) + 2},
    **{"deep": np.full((1, 1, 1, 1), 1e-5, np.float32), "ones": np.ones((3, 1, 1, 1), np.float32)},
    **{"w": array(40, 40), "wide": array(1, 40), "second": np.array([1]), "row": array(12, 40)},
}
FEEDS = {"x": array(2, 12, 40) * 7 + 1, "z": array(2, 12, 40) * 3}
HEAD = "g (float[n, l, 40] x, float[n, l, 40] z) => (float[n, l, 40] y{returned}) {{ {body} }}"
MEAN = "m = ReduceMean <axes = [-1]> (s) c = Sub(s, m)"
VARIANCE = (
    "v = ReduceMean <axes = [-1]> (p) e = Add(v, eps) d = Sqrt(e) q = Div(c, d) t = Mul(q, gamma) y = Add(t, beta)"
)
ROOT = "v = ReduceMean <axes = [2]> (p) e = Add(v, eps) d = Sqrt(e)"
FORMS = {
    "operator": "y = LayerNormalization <axis = 2, epsilon = 0.01> (s, gamma, beta)",
    "without a bias": "y = LayerNormalization (s, gamma)",
    "written out": f"{MEAN} p = Pow(c, two) {VARIANCE}",
    "with a square": f"{MEAN} p = Mul(c, c) {VARIANCE}",
    "centered twice": f"{MEAN} c2 = Sub(s, m) p = Pow(c2, two) {VARIANCE}",
    "root mean square": f"p = Mul(s, s) {ROOT} q = Div(s, d) y = Mul(gamma, q)",
    "its reciprocal": f"p = Pow(s, two) {ROOT} r = Div(one, d) q = Mul(s, r) y = Mul(q, gamma)",
}


def of_text(body: str, returned: str = "", opset: int = 17, head: str = HEAD) -> onnx.ModelProto:
    text = head.format(body=body, returned=returned)
    return model(text, opset, **{name: value for name, value in CONSTANTS.items() if re.search(rf"\b{name}\b", text)})


def fused(made: onnx.ModelProto) -> tuple[onnx.ModelProto, PassContext]:
    """The model after this pass alone."""
    return fusing.rewritten_by(FuseReductions(), made)


def check(made: onnx.ModelProto, feeds: dict[str, np.ndarray] | None = None, count: int = 1) -> list[str]:
    """So many normalizations are one node each, which computes the same everywhere.

    Returns the operators of the model, those of this pass by one name.
    """
    result, _ = fused(made)
    names = {value.name for value in made.graph.input}
    fusing.assert_same_everywhere(result, made, {k: v for k, v in (feeds or FEEDS).items() if k in names})
    found = [re.sub(r"_\d+$", "", node.op_type) for node in result.graph.node]
    assert found.count("FusedReduction") == count
    return found


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize(
    "before", ("s = Add(x, z)", "b = Add(x, bias) s = Add(z, b)", "b = Mul(x, scale) s = Sub(b, z)")
)
def test_forms(kind: str, before: str) -> None:
    assert check(of_text(f"{before} {FORMS[kind]}")) == ["FusedReduction"]


@pytest.mark.parametrize("kind", FORMS)
def test_nothing_before(kind: str) -> None:
    assert check(of_text(f"s = Relu(x) {FORMS[kind]}")) == ["FusedReduction"]
    assert check(of_text(FORMS[kind].replace("(s", "(x").replace(", s)", ", x)"))) == ["FusedReduction"]


def test_the_operator_of_the_root_mean_square() -> None:
    made = of_text("s = Add(x, z) y = RMSNormalization <epsilon = 0.001> (s, gamma)", opset=23)
    assert check(made) == ["FusedReduction"]


def test_axes_that_are_an_input() -> None:
    text = FORMS["written out"].replace("ReduceMean <axes = [-1]> (s)", "ReduceMean (s, last)")
    assert check(
        of_text("s = Add(x, z) " + text.replace("ReduceMean <axes = [-1]> (p)", "ReduceMean (p, last)"), opset=18)
    )


def test_a_mean_that_nobody_reads() -> None:
    text = "s = Add(x, z) y, mean, inverse = LayerNormalization (s, gamma, beta)"
    assert check(of_text(text)) == ["FusedReduction"]


def test_short_rows() -> None:
    body = "b = Add(x, few) s = Add(b, z) t = Add(s, x) y = LayerNormalization (t, few, few)"
    text = f"g (float[n, l, 8] x, float[n, l, 8] z) => (float[n, l, 8] y) {{ {body} }}"
    made = model(text, 17, few=array(8) + 1)
    assert check(made, {"x": array(2, 90, 8), "z": array(2, 90, 8) * 3}) == ["FusedReduction"]


def test_what_is_normalized_is_kept_where_it_is_read_elsewhere() -> None:
    """The residual stream of a transformer."""
    text = f"b = Add(x, bias) s = Add(z, b) {FORMS['operator']} r = MatMul(s, w)"
    _, context = fused(of_text(text, ", float[n, l, 40] r"))
    (region,) = context.report.fused
    assert region.ops == ["Add", "Add", "LayerNormalization"] and sorted(region.outputs) == ["s", "y"]
    assert check(of_text(text, ", float[n, l, 40] r")) == ["FusedReduction", "MatMul"]
    assert check(of_text(text.replace(" r = MatMul(s, w)", ""), ", float[n, l, 40] s")) == ["FusedReduction"]


def test_two_normalizations_of_one_tensor() -> None:
    text = f"s = Add(x, z) {FORMS['operator']} r = LayerNormalization (s, scale, bias)"
    assert check(of_text(text, ", float[n, l, 40] r")) == ["FusedReduction"]


def test_what_comes_before_and_is_read_elsewhere_is_a_result_too() -> None:
    text = f"b = Add(x, bias) s = Add(z, b) {FORMS['operator']} r = MatMul(b, w)"
    assert sorted(check(of_text(text, ", float[n, l, 40] r"))) == ["FusedReduction", "MatMul"]


def test_what_depends_on_a_kept_value_stays_behind_it() -> None:
    """Two blocks of a transformer: each begins with what the one before it ends with."""
    text = (
        "s = Add(x, z) y1 = LayerNormalization (s, gamma, beta) o = MatMul(y1, w) b = Add(o, bias) t = Add(s, b)"
        " y = LayerNormalization (t, scale, beta)"
    )
    assert check(of_text(text), count=2) == ["FusedReduction", "MatMul", "FusedReduction"]


@pytest.mark.parametrize(
    "before", ("b = Add(x, wide) s = Add(z, b)", "b = Add(x, wide) s = Mul(b, eps)", "s = Mul(x, x)")
)
def test_operands_that_broadcast(before: str) -> None:
    assert check(of_text(f"{before} {FORMS['operator']}")) == ["FusedReduction"]


def test_operands_of_another_shape() -> None:
    head = "g (float[n, l, 40] x, float[1, l, 40] z) => (float[n, l, 40] y{returned}) {{ {body} }}"
    feeds = {"x": FEEDS["x"], "z": FEEDS["z"][:1]}
    assert check(of_text(f"b = Add(z, bias) s = Add(x, b) {FORMS['operator']}", head=head), feeds) == ["FusedReduction"]
    check(of_text(f"s = Add(z, x) {FORMS['operator']}", head=head), feeds)


@pytest.mark.parametrize("sizes", [(0, 3), (1, 1), (3, 0), (7, 130)])
def test_any_sizes(sizes: tuple[int, int]) -> None:
    feeds = {"x": array(*sizes, 40), "z": array(*sizes, 40)}
    check(of_text(f"b = Add(x, bias) s = Add(z, b) {FORMS['operator']}"), feeds)


OTHERS = {
    "another axis": "s = Add(x, z) " + FORMS["written out"].replace("[-1]", "[1]"),
    "a computed scale": "s = Add(x, z) g1 = Neg(gamma) y = LayerNormalization (s, g1)",
    "a scale of one element": "s = Add(x, z) " + FORMS["root mean square"].replace("gamma", "two"),
    "a scale of two dimensions": "s = Add(x, z) " + FORMS["written out"].replace("gamma", "wide"),
    "its mean is read": "s = Add(x, z) y, mean = LayerNormalization (s, gamma) r = Relu(mean)",
    "a value inside is read": f"s = Add(x, z) {FORMS['written out']} r = Relu(d)",
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_normalizations(kind: str) -> None:
    body = OTHERS[kind]
    assert "FusedReduction" in check(of_text(body, ", float[n, k, 1] r" if "r = " in body else ""))


@pytest.mark.parametrize(
    "body",
    [FORMS["written out"].replace("eps", "deep"), FORMS["its reciprocal"].replace("one", "ones")],
    ids=["epsilon", "one"],
)
def test_constants_that_give_the_result_another_shape(body: str) -> None:
    head = HEAD.replace("(float[n, l, 40] y", "(float[a, b, c1, d1] y")
    made = of_text(f"s = Add(x, z) {body}", head=head)
    fusing.assert_same_everywhere(fused(made)[0], made, FEEDS)


def test_alone_other_types_are_left_to_onnx_runtime() -> None:
    body = "y = LayerNormalization (x, gamma)"
    made = model(f"g (double[n, 40] x) => (double[n, 40] y) {{ {body} }}", 17, gamma=array(40).astype(np.float64))
    _, context = fused(made)
    assert [refusal.reason for refusal in context.report.refusals] == ["no neighbour to fuse with"]


def test_alone_along_several_axes() -> None:
    head = "g (float[n, 12, 40] x) => (float[n, 12, 40] y{returned}) {{ {body} }}"
    assert check(of_text("y = LayerNormalization <axis = -2> (x, row)", head=head)) == ["FusedReduction"]


def test_few_elements_are_left_alone() -> None:
    body = FORMS["operator"].replace("(s", "(x")
    few = model(
        f"g (float[1, 4, 40] x) => (float[1, 4, 40] y) {{ {body} }}", 17, **{k: CONSTANTS[k] for k in ("gamma", "beta")}
    )
    _, context = fused(few)
    (refusal,) = context.report.refusals
    assert "few elements" in refusal.reason


def test_in_a_body() -> None:
    text = f"""g (float[n, l, 40] x, bool on) => (float[n, l, 40] y1) {{ y1 = If (on)
        <then_branch = t () => (float[n, l, 40] y) {{ s = Add(x, x) {FORMS["operator"]} }},
         else_branch = e () => (float[n, l, 40] f) {{ f = Neg(x) }}> }}"""
    made = of_text("", head=text.replace("{", "{{").replace("}", "}}"))
    result, _ = fused(made)
    for on in (False, True):
        fusing.assert_same_everywhere(result, made, {"x": FEEDS["x"], "on": np.array(on)})


def test_other_targets_have_no_such_node() -> None:
    made = of_text(f"s = Add(x, z) {FORMS['operator']}")
    assert "FusedReduction" in operators(onnxfuse.optimize(made, "cpu", shapes={k: v.shape for k, v in FEEDS.items()}))
    kept = operators(onnxfuse.optimize(made, "cuda", embed=False, arch="sm_90", check=False))
    assert kept == ["FusedReduction"]


def test_the_report_and_inspect_know_the_node(tmp_path: Path) -> None:
    made = of_text(f"b = Add(x, bias) s = Add(z, b) {FORMS['operator']}")
    result = onnxfuse.optimize(made, "cpu", shapes={name: value.shape for name, value in FEEDS.items()})
    (region,) = result.report.fused
    assert region.before is not None and region.after is not None
    assert (region.before.launches, region.after.launches) == (3, 1)
    path = tmp_path / "normalization.onnx"
    onnx.save(result.model, path)
    assert [found.ops for found in inspect(path).fused] == [region.ops]
