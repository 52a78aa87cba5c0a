"""Sums between regions that reduce: which are computed again where they are read, and the same results."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.fused.kinds import DOMAIN
from onnxfuse.fused.reduction.fuse_reductions import FuseReductions
from onnxfuse.passes import PassContext
from onnxfuse.program.figures import MAX_OPERANDS
from tests.fused.reduction.models import model
from tests.support import fusing

SIZE = 12


def constants(count: int) -> dict[str, np.ndarray]:
    """A matrix, a bias and a scale for each layer."""
    random = np.random.default_rng(0)
    shapes = {"w": (SIZE, SIZE), "c": (SIZE,), "g": (SIZE,)}
    return {
        f"{name}{layer}": (random.standard_normal(shape) / 4).astype(np.float32)
        for layer in range(count)
        for name, shape in shapes.items()
    }


def layer(place: int, norm: str = "LayerNormalization<axis = -1>(r{0}, g{0})") -> str:
    """A product, its bias, the sum with what comes in, and the normalization of that."""
    before = "x" if place == 0 else f"n{place - 1}"
    text = f"p{place} = MatMul({before}, w{place}) b{place} = Add(p{place}, c{place}) r{place} = Add({{1}}, b{place}) "
    return text.format(None, "x" if place == 0 else f"r{place - 1}") + f"n{place} = {norm.format(place)} "


def text(nodes: str, sizes: str = "b, s", outputs: str = "y") -> str:
    """A graph from x of these sizes."""
    made = ", ".join(f"float[{sizes}, {SIZE}] {name}" for name in outputs.split())
    return f"g (float[{sizes}, {SIZE}] x) => ({made}) {{ {nodes} }}"


def fused(proto: onnx.ModelProto, target: str = "cuda") -> tuple[list[int], PassContext]:
    """How many results each region has, in order; the model computes what it did."""
    loaded = onnxfuse.Model.from_proto(proto)
    context = PassContext(target=target)
    FuseReductions().run(loaded, context)
    result = loaded.to_proto()
    onnx.checker.check_model(result, full_check=True)
    for shape in ((2, 3), (1, 1)):
        random = np.random.default_rng(1)
        feeds = {one.name: random.standard_normal((*shape, SIZE)).astype(np.float32) for one in proto.graph.input}
        for actual, wanted in zip(fusing.run(result, feeds, True), fusing.run(proto, feeds, False), strict=True):
            np.testing.assert_allclose(actual, wanted, 1e-5, 1e-5)
    return [len(node.output) for node in result.graph.node if node.domain == DOMAIN], context


def repeated(context: PassContext) -> int:
    """How many sums are."""
    return sum(rewrite.rule == "repeat-sums" for rewrite in context.report.rewrites)


def last(count: int) -> str:
    return f"y = MatMul(n{count - 1}, w0)"


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 7])
def test_every_second_sum_of_residuals_is_written(count: int) -> None:
    proto = model(text("".join(map(layer, range(count))) + last(count)), **constants(count))
    found, context = fused(proto)
    read = [1 if place % 2 == 0 else 2 for place in range(count - 1)]
    assert found == [*read, 1] and repeated(context) == count // 2


def test_normalizations_by_a_mean_of_squares() -> None:
    norm = "Mul(q{0}, g{0})"
    steps = (
        "z{0} = Mul(r{0}, r{0}) m{0} = ReduceMean<keepdims = 1>(z{0}, axes) v{0} = Sqrt(m{0}) q{0} = Div(r{0}, v{0}) "
    )
    nodes = "".join(
        layer(place, norm).replace(f"n{place} =", steps.format(place) + f"n{place} =") for place in range(4)
    )
    found, _ = fused(model(text(nodes + last(4)), axes=np.array([-1]), **constants(4)))
    assert found == [1, 2, 1, 1]


KEPT = {
    "what is returned": (layer(0) + layer(1) + "y = Identity(n1)", "r0"),
    "read by two": (layer(0) + layer(1) + layer(2).replace("Add(r1", "Add(r0") + last(3), ""),
    "read by another node": (layer(0) + layer(1) + "e = MatMul(r0, w0) y = MatMul(e, n1t)", ""),
    "what is normalized": (
        layer(0) + "p1 = MatMul(n0, w1) r1 = Add(p1, n0) n1 = LayerNormalization<axis = -1>(r1, g1) " + last(2),
        "",
    ),
    "three tensors": (
        layer(0).replace("r0 = Add(x, b0)", "u = MatMul(x, w1) t = Add(x, u) r0 = Add(t, b0)") + layer(1) + last(2),
        "",
    ),
}


@pytest.mark.parametrize("case", KEPT)
def test_sums_that_are_written(case: str) -> None:
    nodes, returned = KEPT[case]
    known = constants(3)
    if "n1t" in nodes:
        nodes = nodes.replace(
            "y = MatMul(e, n1t)", "h = Transpose<perm = [0, 2, 1]>(n1) k = MatMul(h, e) y = MatMul(x, k)"
        )
    proto = model(text(nodes, outputs=f"y {returned}".strip()), **known)
    found, context = fused(proto)
    assert repeated(context) == 0 and found[0] == (1 if case == "what is normalized" else 2)


def test_wider_operands_are_not_read_twice() -> None:
    nodes = (
        "p = MatMul(x, w0) s = Add(x, p) r = Cast<to = 10>(s) n = LayerNormalization<axis = -1>(r, h)"
        " o = Cast<to = 1>(n) q = MatMul(o, w1) f = Cast<to = 10>(q) t = Add(r, f)"
        " m = LayerNormalization<axis = -1>(t, h) k = Cast<to = 1>(m) y = MatMul(k, w0)"
    )
    proto = model(text(nodes), h=np.ones(SIZE, np.float16), **constants(2))
    loaded = onnxfuse.Model.from_proto(proto)
    context = PassContext(target="cuda")
    FuseReductions().run(loaded, context)
    assert repeated(context) == 0 and len(context.report.fused) == 2


def test_the_cpu_writes_all() -> None:
    proto = model(text("".join(map(layer, range(4))) + last(4)), **constants(4))
    _, context = fused(proto, "cpu")
    assert repeated(context) == 0


def test_a_region_that_has_no_room_reads_the_sum() -> None:
    """Copies that no region takes are removed again."""
    names = [f"x{place}" for place in range(MAX_OPERANDS)]
    sums = " ".join(f"s{place + 1} = Add(s{place}, {name})" for place, name in enumerate(names))
    nodes = (
        f"{layer(0)} p1 = MatMul(n0, w1) s0 = Add(p1, r0) {sums}"
        f" n1 = LayerNormalization<axis = -1>(s{len(names)}, g1) {last(2)}"
    )
    graph = text(nodes).replace("g (", "g (" + "".join(f"float[b, s, {SIZE}] {name}, " for name in names))
    loaded = onnxfuse.Model.from_proto(model(graph, **constants(2)))
    FuseReductions().run(loaded, PassContext(target="cuda"))
    assert not any("_again" in node.name for node in loaded.graph.nodes)
    fused(model(graph, **constants(2)))


def test_what_is_computed_again_counts_once_in_the_report() -> None:
    proto = model(text("".join(map(layer, range(4))) + last(4), "2, 5"), **constants(4))
    report = onnxfuse.optimize(proto, "cuda", ["fuse-reductions"], embed=False, check=True).report
    written = 2 * 5 * SIZE * 4
    assert report.before is not None and report.after is not None
    # Of each layer the product, its bias, the sum and what is normalized, and then the products, these and one sum.
    assert report.before.bytes_between.constant() == (4 + 4 + 4 + 4) * written
    assert report.after.bytes_between.constant() == (4 + 4 + 1) * written
