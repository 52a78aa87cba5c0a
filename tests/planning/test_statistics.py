"""Static counts, on graphs small enough to count by hand."""

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from onnx import numpy_helper, parser

import onnxfuse
from onnxfuse.files.model_io import load_again, load_proto
from onnxfuse.planning.example_counts import counts_for
from onnxfuse.planning.outlines import outline
from onnxfuse.planning.statistics import Statistics, collect
from onnxfuse.report.byte_counts import Bytes, bytes_saved, format_bytes, short_names, traffic_of_nodes
from tests.support.parity_models import chain

OPSETS = '"": 17, "local": 1, "foreign": 1'


def counts(text: str) -> Statistics:
    return collect(load_proto(parser.parse_model(f"<ir_version: 8, opset_import: [{OPSETS}]> {text}")))


def test_a_chain() -> None:
    found = collect(load_proto(chain()))
    # Mul reads x and scale (16 bytes) and writes a; Add reads a and half (4); Sigmoid; Mul reads c and b.
    assert (found.nodes, found.launches, found.intermediate_tensors) == (4, 4, 3)
    assert found.bytes_total.terms == {(): 20, ("batch", "width"): 9 * 16}
    assert found.bytes_elementwise.terms == found.bytes_total.terms


def test_a_fused_chain_reads_and_writes_once() -> None:
    model = onnxfuse.optimize(chain(), check=False).model
    found = collect(load_proto(model))
    assert (found.nodes, found.launches, found.intermediate_tensors) == (1, 1, 0)
    assert found.bytes_total.terms[("batch", "width")] == 2 * 16


def test_what_launches_nothing() -> None:
    found = counts(
        "g (float[n, 4] x) => (float[m] y) <int64[1] k = {-1}, int64[1] one = {1}> {"
        " s = Shape(x) t = Mul(s, one) r = Reshape(x, k) i = Identity(r) c = Constant <value = float {2}> ()"
        " y = Mul(i, c) }"
    )
    assert found.nodes == 6 and found.launches == 1


def test_what_depends_on_constants_alone_is_computed_once() -> None:
    found = counts(
        "g (float[n, 4] x) => (float[n, 4] y, float[4] z) <float[4] k = {1, 2, 3, 4}> {"
        " a = Exp(k) b = Neg(a) y = Mul(x, b) r = RandomNormalLike(k) z = Abs(r) }"
    )
    assert (found.launches, found.operators) == (3, {"Mul": 1, "RandomNormalLike": 1, "Abs": 1})


def test_operators_of_onnx_runtime_are_told_from_fused_nodes_of_the_same_name() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[64, 64] x) => (float[64, 64] y) { y = com.microsoft.FusedMatMul(x, x) }"""
    model = parser.parse_model(text)
    report = onnxfuse.optimize(model, check=False).report
    assert report.describe_launches() == "Launches: 1 FusedMatMul of ONNX Runtime."
    assert "Found fused" not in report.describe_fusion()
    assert [step.op for step in outline(load_proto(model))] == ["FusedMatMul of ONNX Runtime"]


def test_launches_by_operator() -> None:
    text = "g (float[4] x, float[4] w) => (float[4] y) { a = Exp(x) b = Neg(a) c = local.twice(b) y = Exp(c) }"
    found = counts(f'{text} <domain: "local", opset_import: ["": 17]> twice (a) => (d) {{ c = Relu(a) d = Relu(c) }}')
    assert found.operators == {"Exp": 2, "Neg": 1, "twice": 2}
    report = onnxfuse.optimize(chain(), check=False).report
    assert report.after is not None and report.after.to_json()["operators"] == {"FusedElementwise": 1}
    assert report.describe_launches() == "Launches: 1 FusedElementwise."


def test_bodies_and_functions_count_once_where_they_stand() -> None:
    found = counts(
        "g (float[4] x, bool b) => (float[4] y) {"
        " z = If (b) <then_branch = t () => (float[4] p) { p = Abs(x) },"
        " else_branch = e () => (float[4] q) { u = Neg(x) q = Exp(u) }>"
        " v = local.twice(z) y = local.twice(v) }"
        ' <domain: "local", opset_import: ["": 17]> twice (a) => (d) { c = Relu(a) d = Relu(c) }'
    )
    assert found.nodes == 1 + 3 + 4  # If, its bodies, two calls of two nodes
    assert found.launches == 3 + 4


def test_a_tensor_read_twice_is_read_once_and_a_zero_sized_one_not_at_all() -> None:
    assert counts("g (float[10] x) => (float[10] y) { y = Mul(x, x) }").bytes_total.terms == {(): 80}
    assert counts("g (float[0] x) => (float[0] y) { y = Abs(x) }").bytes_total.terms == {}


def test_types_have_their_sizes_and_unknown_ones_are_counted_apart() -> None:
    found = counts("g (float16[10] x) => (bool[10] y) { y = Greater(x, x) }")
    assert found.bytes_total.terms == {(): 30}
    assert counts("g (float[4] x) => (float[2] y) { u = foreign.Op(x) y = Abs(u) }").bytes_total.unknown == 2


def test_sizes_can_be_put_in() -> None:
    found = Bytes(unknown=1)
    found.terms.update({("n", "n", "w"): 4, ("n",): 2, (): 1})
    assert found.at({"n": 3}).terms == {("w",): 36, (): 7}
    assert found.at({"n": 0, "w": 5}).terms == {(): 1} and found.at({}).unknown == 1


def test_a_part_that_is_known_is_a_lower_bound() -> None:
    found = Bytes()
    found.terms.update({(): 86_000_000})
    assert found.at_least() == "86.0 MB"
    found.terms.update({("?", "?"): 8})
    assert found.at_least() == "≥ 86.0 MB"


def test_shapes_that_a_model_computes_are_followed_for_given_inputs() -> None:
    body = "s = Shape(x) h = Slice(s, zero, two) t = Concat<axis=0>(h, minus) r = Reshape(x, t) q = Shape(r) "
    text = "g (float[n, 4, 3] x) => (float[a, b, c] y) {" + body + "u = Expand(r, q) a = Abs(u) y = Neg(a) }"
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 13]>\n{text}')
    for name, values in (("zero", [0]), ("two", [2]), ("minus", [-1])):
        model.graph.initializer.append(numpy_helper.from_array(np.array(values), name))
    assert collect(load_proto(model)).is_symbolic()
    shapes = {"x": (5, 4, 3)}
    one, made = counts_for([load_again(each, shapes) for each in (model, onnxfuse.optimize(model).model)], shapes)
    assert one.bytes_elementwise.terms == {(): 4 * 60 * 4} and made.bytes_elementwise.terms == {(): 2 * 60 * 4}
    (alone,) = counts_for([load_again(onnxfuse.optimize(model).model, shapes)], shapes)
    assert alone == made


@pytest.mark.parametrize(("left", "names"), [(["batch"], {}), (["a" * 11, "d0"], {"a" * 11: "d1"})])
def test_long_names_of_dimensions_get_short_ones(left: list[str], names: dict[str, str]) -> None:
    assert short_names(left) == names


@pytest.mark.parametrize(
    ("terms", "unknown", "text"),
    [
        ({}, 0, "0 B"),
        ({(): 12_345_678}, 0, "12.3 MB"),
        ({(): 12_300_000, ("batch",): 4096}, 0, "12.3 MB + 4.1 kB·batch"),
        ({("h", "h", "w"): 4}, 0, "4 B·h²·w"),
        ({("floor(h/2)",): 8}, 0, "8 B·(floor(h/2))"),
        ({("a",): 5, ("b",): 4, ("c",): 3, ("d",): 2, ("e",): 1}, 0, "5 B·a + 4 B·b + 3 B·c + 2 more terms"),
        ({(): 7}, 1, "7 B + 1 tensor of unknown size"),
    ],
)
def test_polynomials_read_well(terms: dict[tuple[str, ...], int], unknown: int, text: str) -> None:
    found = Bytes(unknown=unknown)
    found.terms.update(terms)
    assert str(found) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_949, "99.9 kB"),
        (99_960, "100 kB"),
        (999_600, "1.0 MB"),
    ],
)
def test_bytes_for_people(number: int, text: str) -> None:
    assert format_bytes(number) == text
    assert format_bytes(10**20).endswith(" PB")


def test_bytes_saved_by_a_region() -> None:
    x, a, y = (gs.Variable(name, np.dtype(np.float32), ["n", 8]) for name in "xay")
    nodes = [gs.Node("Abs", inputs=[x], outputs=[a]), gs.Node("Neg", inputs=[a], outputs=[y])]
    assert bytes_saved(nodes, [x], [y]).terms == {("n",): 64}


def test_nodes_that_do_not_run_move_nothing() -> None:
    x, a, b, y = (gs.Variable(name, np.dtype(np.float32), ["n", 4]) for name in "xaby")
    nodes = [gs.Node("Abs", inputs=[x], outputs=[a]), gs.Node("Identity", inputs=[a], outputs=[b])]
    nodes.append(gs.Node("Neg", inputs=[b], outputs=[y]))
    assert bytes_saved(nodes, [x], [y], {"Identity"}).terms == {("n",): 32}
    traffic = traffic_of_nodes(nodes, [y], {"Identity"})
    assert (traffic.launches, traffic.buffers, traffic.bytes.terms) == (2, 1, {("n",): 64})


def test_bytes_between_launches_count_each_tensor_once_and_those_of_products_apart() -> None:
    found = counts(
        "g (float[4, 8] x, float[8, 8] w) => (float[4, 8] y, float[4, 8] z) <int64[1] k = {-1}> {"
        " p = MatMul(x, w) r = Reshape(p, k) a = Exp(r) b = Neg(r) c = Add(a, b) y = Tanh(p) z = Abs(p) u = Abs(c) }"
    )
    assert found.bytes_between.terms == {(): 4 * 32 * 4}  # p, a, b and c
    assert found.bytes_of_products.terms == found.bytes_at_products.terms == {(): 32 * 4}
    found = counts("g (float[4, 4] x) => (float[4, 4] y) { a = Exp(x) r = Identity(a) b = Neg(x) y = MatMul(r, b) }")
    assert (
        found.bytes_at_products.terms == found.bytes_between.terms == {(): 2 * 64} and not found.bytes_of_products.terms
    )
