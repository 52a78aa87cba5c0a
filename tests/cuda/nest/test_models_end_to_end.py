"""From ``optimize --target cuda`` to kernels that run, of models that reduce: rendered, launched by the native library,
and run in the emulation of CUDA behind the stand-in driver."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

import onnxfuse
from onnxfuse.cuda.nest.recipe import NestRecipe
from onnxfuse.cuda.rerender import source_of_nest
from onnxfuse.program import Program
from tests.cuda.command_line import bytes_attributes
from tests.cuda.compilers import MadeUpCompiler
from tests.cuda.nest.nodes import rendered_object
from tests.cuda.stand_in import AVAILABLE, REASON, StandIn, cubin
from tests.support import fusing

pytestmark = pytest.mark.skipif(not AVAILABLE, reason=REASON)

Shapes = Sequence[tuple[int, ...]]
MODELS: dict[str, tuple[str, dict[str, tuple[int, ...]], list[Shapes]]] = {
    "softmax": (
        "g (float[n, h, q, k] x, float[n, 1, 1, k] m) => (float[n, h, q, k] y) {"
        " a = Mul (x, scalar) b = Add (a, m) y = Softmax (b) }",
        {"scalar": ()},
        [((2, 3, 4, 40), (2, 1, 1, 40)), ((1, 1, 2, 7), (1, 1, 1, 7))],
    ),
    "group norm": (
        "g (float[n, 6, h, w] x) => (float[n, 6, h, w] y) {"
        " a = GroupNormalization <num_groups = 2> (x, scale, bias) b = Sigmoid (a) y = Mul (a, b) }",
        {"scale": (6,), "bias": (6,)},
        [((2, 6, 4, 5),), ((1, 6, 1, 1),)],
    ),
    "instance norm": (
        "g (float[n, 6, h, w] x) => (float[n, 6, h, w] y) { a = InstanceNormalization (x, scale, bias) y = Relu (a) }",
        {"scale": (6,), "bias": (6,)},
        [((2, 6, 4, 6),), ((3, 6, 5, 1),)],
    ),
    "layer norm": (
        "g (float[n, l, 24] x, float[n, l, 24] r) => (float[n, l, 24] y) {"
        " s = Add (x, r) a = LayerNormalization (s, scale, bias) y = Gelu (a) }",
        {"scale": (24,), "bias": (24,)},
        [((2, 3, 24), (2, 3, 24)), ((1, 1, 24), (1, 1, 24))],
    ),
    "means": (
        "g (float[n, c, h, w] x) => (float[n, 1, h, w] y) { a = Sigmoid (x) b = Mul (a, x) y = ReduceMean (b, axes) }",
        {},
        [((2, 5, 4, 8),), ((1, 40, 3, 3),)],
    ),
    "arg max": (
        "g (float[n, k] x) => (int64[n] y) { a = Mul (x, scalar) y = ArgMax <axis = -1, keepdims = 0> (a) }",
        {"scalar": ()},
        [((5, 40),), ((3, 7),)],
    ),
    "dynamic quantization": (
        "g (float[n, k] x) => (uint8[n, k] y, float s, uint8 z) { a = Relu (x) y, s, z = DynamicQuantizeLinear (a) }",
        {},
        [((5, 40),), ((3, 7),)],
    ),
}


def _model(name: str) -> onnx.ModelProto:
    text, constants, _ = MODELS[name]
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{text}')
    random = np.random.default_rng(0)
    model.graph.initializer.extend(
        numpy_helper.from_array(random.normal(size=shape).astype(np.float32), key) for key, shape in constants.items()
    )
    if name == "means":
        model.graph.initializer.append(numpy_helper.from_array(np.array([1], np.int64), "axes"))
    return model


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_reduces_runs_as_one_kernel(name: str, compiler: MadeUpCompiler, tmp_path: Path) -> None:
    original = _model(name)
    fused = onnxfuse.optimize(original, "cuda", arch="sm_90", embed=False, check=False).model
    (node,) = fused.graph.node
    assert node.op_type == "FusedReduction"
    found = bytes_attributes(node)
    program, recipe = Program.parse(found["program"].decode()), NestRecipe.parse(found["cuda_recipe"].decode())
    code = cubin(rendered_object([(program, source_of_nest(program, recipe))]), 90)
    node.attribute.append(helper.make_attribute("cuda_sm_90", code))
    fused.functions[0].attribute.append("cuda_sm_90")
    driver = StandIn(tmp_path)
    session = driver.session(fused)
    random = np.random.default_rng(1)
    for shapes in MODELS[name][2]:
        arrays = [random.normal(size=shape).astype(np.float32) for shape in shapes]
        feeds = {value.name: array for value, array in zip(original.graph.input, arrays, strict=True)}
        driver.launches()
        results = session.run(None, feeds)
        assert len(driver.launches()) == 1
        for result, expected in zip(results, fusing.run(original, feeds, library=False), strict=True):
            np.testing.assert_allclose(result, expected, 1e-4, 1e-5)


@pytest.mark.parametrize("shape", [(2, 3, 24), (1, 1, 24)])
def test_sums_that_are_computed_again_run_as_kernels(
    shape: tuple[int, ...], compiler: MadeUpCompiler, tmp_path: Path
) -> None:
    layers = " ".join(
        f"p{one} = MatMul (n{one}, w) b{one} = Add (p{one}, bias) r{one + 1} = Add (r{one}, b{one})"
        f" n{one + 1} = LayerNormalization (r{one + 1}, scale, bias)"
        for one in range(3)
    )
    original = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[n, l, 24] r0) => (float[n, l, 24] y) {'
        f" n0 = LayerNormalization (r0, scale, bias) {layers} y = MatMul (n3, w) }}"
    )
    random = np.random.default_rng(0)
    original.graph.initializer.extend(
        numpy_helper.from_array(random.normal(size=size).astype(np.float32), name)
        for name, size in (("w", (24, 24)), ("scale", (24,)), ("bias", (24,)))
    )
    fused = onnxfuse.optimize(original, "cuda", ["fuse-reductions"], arch="sm_90", embed=False, check=False).model
    nodes = [node for node in fused.graph.node if node.op_type.startswith("FusedReduction")]
    assert [len(node.output) for node in nodes] == [1, 2, 1]
    found = [bytes_attributes(node) for node in nodes]
    programs = [Program.parse(one["program"].decode()) for one in found]
    recipes = [NestRecipe.parse(one["cuda_recipe"].decode()) for one in found]
    for node, program, recipe in zip(nodes, programs, recipes, strict=True):
        code = cubin(rendered_object([(program, source_of_nest(program, recipe))]), 90)
        node.attribute.append(helper.make_attribute("cuda_sm_90", code))
    for function in fused.functions:
        function.attribute.append("cuda_sm_90")
    driver = StandIn(tmp_path)
    session = driver.session(fused)
    feeds = {"r0": random.normal(size=shape).astype(np.float32)}
    (result,) = session.run(None, feeds)
    assert len(driver.launches()) == 3
    np.testing.assert_allclose(result, fusing.run(original, feeds, library=False)[0], 1e-3, 1e-3)
