"""FusedAttention nodes of the CUDA provider: rendered kernels behind the stand-in driver, and errors."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from onnxfuse.cuda.attention.kernel import AttentionKernel
from tests.cuda.attention.launches import (
    NODE,
    attention_model,
    check_launches,
    feeds,
    recipe,
    rendered_model,
    stub_object,
)
from tests.cuda.attention.nodes import Node, source_of
from tests.cuda.launch.test_overlap import bound
from tests.cuda.stand_in import AVAILABLE, REASON, StandIn, cubin
from tests.custom_ops.fused import run

pytestmark = pytest.mark.skipif(not AVAILABLE, reason=REASON)

MULTIPROCESSORS = 8
NODES = {
    "many rows": Node(queries=70, keys=33, mask=(2, 1, 70, 33)),
    "few rows": Node(queries=3, keys=33, mask=(2, 1, 1, 33)),
    "one projection": Node(form="packed", queries=9, keys=9, mask=(1, 1, 9, 9)),
    "decoding": Node(
        form="first", out_first=True, batch=1, heads=4, key_heads=2, queries=1, keys=600, mask=(1, 1, 1, 600)
    ),
    "odd sizes": Node(form="split", queries=5, keys=9, size=7, value_size=5, mask=(2, 4, 5, 9)),
    "large heads": Node(queries=2, keys=3, size=300, value_size=40, mask=(2, 1, 2, 3)),
    "windows": Node(batch=6, windows=3, queries=4, keys=4, mask=(3, 1, 4, 4)),
    "choices": Node(choices=(1, 1, 5, 7), fill=-65504.0, fills=True),
    "half precision": Node("f16", queries=20, keys=300, mask=(2, 1, 1, 300), batch=2, heads=2, key_heads=2),
}


@pytest.mark.parametrize("name", NODES)
def test_the_results_are_the_reference(name: str, tmp_path: Path) -> None:
    node = NODES[name]
    operands = node.operands()
    inputs = operands.inputs()
    source = source_of(node.case)
    stand_in = StandIn(tmp_path, [(9, 0, MULTIPROCESSORS)])
    session = stand_in.session(rendered_model(node, inputs, source))
    stand_in.use_stream(0)
    stand_in.scratch()
    (result,) = run(session, feeds(node, inputs))
    calls = stand_in.launches()
    tolerance = 1e-5 if node.dtype == "f32" else 2e-3
    np.testing.assert_allclose(operands.in_order(result).astype(float), operands.expected(), tolerance, tolerance)
    shapes = [array.shape for array in inputs]
    kernel = check_launches(calls, stand_in.scratch(), node.attributes, shapes, source.kernels, MULTIPROCESSORS)
    assert (len(calls) > 1) == (name in ("decoding", "half precision"))
    assert (kernel.rows == 64) == (name in ("many rows", "one projection"))
    assert (kernel.vector == 1) == (name in ("odd sizes", "large heads"))
    assert (kernel.family == "any") == (name == "large heads")


def test_a_graph_captures_it(tmp_path: Path) -> None:
    node = NODES["decoding"]
    inputs = node.operands().inputs()
    stand_in = StandIn(tmp_path, [(9, 0, MULTIPROCESSORS)])
    stand_in.check_captured(stand_in.session(rendered_model(node, inputs, source_of(node.case))), inputs)


@pytest.mark.parametrize("behind", [0, 16, -16])
def test_overlapping_memory(behind: int, tmp_path: Path) -> None:
    """An input in the memory of the output is copied."""
    node = NODES["few rows"]
    inputs = node.operands().inputs()
    stand_in = StandIn(tmp_path, [(9, 0, MULTIPROCESSORS)])
    session = stand_in.session(rendered_model(node, inputs, source_of(node.case)))
    results = run(session, inputs)
    for place in range(len(inputs)):
        memory, expected = bound(session, inputs, {place: 256 + behind}, [256], results)
        np.testing.assert_array_equal(memory, expected, err_msg=f"input {place}")
    assert stand_in.calls("cuMemcpyDtoDAsync")
    stand_in.scratch()


@pytest.mark.parametrize("shape", ["no keys", "no queries", "no batch"])
def test_nothing_to_attend_to(shape: str, tmp_path: Path) -> None:
    sizes = {"no keys": {"keys": 0}, "no queries": {"queries": 0}, "no batch": {"batch": 0}}[shape]
    node = replace(Node(), **sizes)
    inputs = node.operands().inputs()
    stand_in = StandIn(tmp_path, [(9, 0, MULTIPROCESSORS)])
    session = stand_in.session(rendered_model(node, inputs, source_of(Node().case)))
    (result,) = run(session, inputs)
    assert result.shape == (node.batch, node.queries, 64) and not result.any()
    assert len(stand_in.launches()) == (shape == "no keys")


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_without_kernels_the_cpu_computes(dtype: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    node = Node(dtype, mask=(2, 1, 5, 7), choices=(5, 7))
    operands = node.operands()
    stand_in = StandIn(tmp_path)
    (result,) = run(stand_in.session(attention_model(node, operands.inputs())), operands.inputs())
    tolerance = {"f32": 1e-5, "f16": 2e-3, "bf16": 2e-2}[dtype]
    np.testing.assert_allclose(operands.in_order(result).astype(float), operands.expected(), tolerance, tolerance)
    assert not stand_in.launches()
    assert "it carries no CUDA kernels" in capfd.readouterr().err


PLAIN = Node(mask=(2, 1, 5, 7))
MANY = AttentionKernel("k", "simt", "f32", "m", False, 64, 32, 64, 64, 128, 4, 2)
ANY = AttentionKernel("any", "any", "f32", "m", False, 4, 1, 0, 128, 128, 1, 1)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("attention 1", "attention 2", "line 1: the first line is not 'onnxfuse-cuda-attention 1'"),
        ("kernel k ", "kernel 1 ", "line 3: the kernel's name is not an identifier"),
        ("kernel k ", "kernel " + 126 * "k" + " ", "line 3: the kernel's name is not an identifier"),
        ("kernel any ", "kernel k_sum ", "line 4: the kernel's name is taken"),
        ("family simt", "family sims", "line 3: the family is not tensor, simt or any"),
        ("type f32 reads m zeros 0 rows 64", "type f64 reads m zeros 0 rows 64", "line 3: the type is not f32"),
        ("type f32 reads m zeros 0 rows 4 ", "type f16 reads m zeros 0 rows 4 ", "line 4: the type is not that of"),
        ("reads m", "reads -", "line 3: it does not read what the node does"),
        ("reads m", "reads mc", "line 3: it does not read what the node does"),
        ("zeros 0", "zeros 1", "line 3: its zeros are not the node's"),
        ("rows 64", "rows 0", "line 3: the sizes are not numbers up to 1024"),
        ("keys 32", "keys 1025", "line 3: the sizes are not numbers up to 1024"),
        ("columns 64", "columns -1", "line 3: the sizes are not numbers up to 1024"),
        ("size 64", "size 0", "line 3: a size of 0 is that of the family any"),
        ("size 0", "size 64", "line 4: a size of 0 is that of the family any"),
        ("block 128 vector 4", "block 129 vector 4", "line 3: the block is not a multiple of 32 up to 1024"),
        ("vector 4", "vector 3", "line 3: the vector is not 1, 2, 4 or 8"),
        ("vector 1 ", "vector 2 ", "line 4: the vector is not 1, 2, 4 or 8, or 1 of any"),
        ("split 2", "split 65", "line 3: the split is not from 1 to 64"),
        ("split 2", "split 0", "line 3: the split is not from 1 to 64"),
        (" split 2", "", "line 3: expected 'kernel <name> family"),
        (str(ANY) + "\n", "", "line 3: the last kernel does not take heads of every size"),
    ],
)
def test_hostile_recipes_are_refused(old: str, new: str, problem: str, tmp_path: Path) -> None:
    text = recipe([MANY, ANY])
    assert old in text
    code = cubin(stub_object(("k", "k_sum", "any")), 90)
    more = {"cuda_recipe": text.replace(old, new, 1), "cuda_sm_90": code}
    with pytest.raises(Exception, match=problem) as caught:
        StandIn(tmp_path).session(attention_model(PLAIN, PLAIN.operands().inputs(), **more))
    assert NODE in str(caught.value) and "the cuda_recipe attribute is not valid" in str(caught.value)


def test_kernels_of_another_type_are_not_launched(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    node = replace(PLAIN, dtype="f16")
    operands = node.operands()
    code = cubin(stub_object(("k", "k_sum", "any")), 90)
    model = attention_model(node, operands.inputs(), cuda_recipe=recipe([MANY, ANY]), cuda_sm_90=code)
    stand_in = StandIn(tmp_path)
    (result,) = run(stand_in.session(model), operands.inputs())
    np.testing.assert_allclose(operands.in_order(result).astype(float), operands.expected(), 2e-3, 2e-3)
    assert not stand_in.launches()
    assert "of another type than its kernels" in capfd.readouterr().err


def test_shapes_that_do_not_fit_fail(tmp_path: Path) -> None:
    inputs = PLAIN.operands().inputs()
    code = cubin(stub_object(("k", "k_sum", "any")), 90)
    session = StandIn(tmp_path).session(
        attention_model(PLAIN, inputs, cuda_recipe=recipe([MANY, ANY]), cuda_sm_90=code)
    )
    with pytest.raises(Exception, match="do not fit each other"):
        run(session, [*inputs[:2], inputs[2][:, :3], inputs[3]])
