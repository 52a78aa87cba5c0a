"""Convolutions that nobody should trust, drivers that fail, and what happens without kernels."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from onnxfuse.program import ProgramBuilder
from tests.cuda.contract import SOURCE
from tests.cuda.conv.convolutions import Fused, convolution, head, raw, tail
from tests.cuda.conv.nodes import (
    NODE,
    any_kernel,
    arrays_of,
    conv_kernel,
    conv_model,
    expected,
    node_case,
    recipe,
    stub_model,
    stub_object,
)
from tests.cuda.conv.test_emulation import any_case
from tests.cuda.stand_in import AVAILABLE, LAUNCH_FAILED, REASON, StandIn, cubin
from tests.custom_ops.fused import assert_same_bits, run

pytestmark = pytest.mark.skipif(not AVAILABLE, reason=REASON)

CONV = convolution("f32", (4, 6), (3, 3), group=2, pads=(1, 1, 1, 1))
EPILOGUE, OPERANDS = tail("f32", "bias, hard swish, residual", (1, 6, 8, 8))
PROLOGUE, X_OPERANDS = head("f32", "gate", (1, 4, 8, 8))
FUSED = Fused(CONV, (1, 4, 8, 8), EPILOGUE, OPERANDS, PROLOGUE, X_OPERANDS)
TRANSPOSED = Fused(convolution("f32", (4, 6), (3, 3), strides=(2, 2), transposed=True), (1, 4, 8, 8), raw("f32"))
KERNELS = (
    conv_kernel("k", "gemm", "o;cl", tile=(8, 16, 8), split=4, vector=4),
    conv_kernel("d", "depthwise", "o;cl", tile=(1, 8, 8), block=256),
    any_kernel("o;cl"),
)
GOOD = recipe(KERNELS)

BAD_RECIPES = {
    "empty": "",
    "of elementwise kernels": GOOD.replace("onnxfuse-conv 1", "onnxfuse-cuda 2"),
    "another version": GOOD.replace("onnxfuse-conv 1", "onnxfuse-conv 2"),
    "no end of line": GOOD[:-1],
    "carriage returns": GOOD.replace("\n", "\r\n"),
    "no source": GOOD.replace(f"source {SOURCE}\n", ""),
    "short digest": GOOD.replace(SOURCE, SOURCE[1:]),
    "no kernel": GOOD[: GOOD.index("kernel")],
    "no general kernel": GOOD[: GOOD.index("kernel any")],
    "general kernel of 32 bits": GOOD.replace("index 64", "index 32"),
    "general kernel that takes not all": GOOD.replace("g;gg", "g;gl"),
    "general kernel with vectors": GOOD.replace("vector 1 index 64", "vector 2 index 64"),
    "general kernel with a tile": GOOD.replace("1x1x1", "1x1x2"),
    "name with a sign": GOOD.replace("kernel k", "kernel k-k"),
    "long name": GOOD.replace("kernel k", "kernel " + "k" * 129),
    "long name of the sum": GOOD.replace("kernel k", "kernel " + "k" * 125),
    "two kernels of one name": GOOD.replace("kernel d", "kernel k"),
    "a kernel of the sum's name": GOOD.replace("kernel d", "kernel k_sum"),
    "unknown family": GOOD.replace("family gemm", "family gem"),
    "two edges": GOOD.replace("8x16x8", "8x16"),
    "four edges": GOOD.replace("8x16x8", "8x16x8x1"),
    "edge of 0": GOOD.replace("8x16x8", "8x0x8"),
    "edge of 4097": GOOD.replace("8x16x8", "8x4097x8"),
    "edge with a leading zero": GOOD.replace("8x16x8", "8x016x8"),
    "empty edge": GOOD.replace("8x16x8", "8xx8"),
    "split of 0": GOOD.replace("split 4", "split 0"),
    "split of 65": GOOD.replace("split 4", "split 65"),
    "split of another family": GOOD.replace("family gemm", "family direct"),
    "vector of 0": GOOD.replace("vector 4", "vector 0"),
    "vector of 3": GOOD.replace("vector 4", "vector 3"),
    "vector of 16": GOOD.replace("vector 4", "vector 16"),
    "vector with 64 bits": GOOD.replace("vector 4 index 32", "vector 4 index 64"),
    "block of 0": GOOD.replace("block 256", "block 0"),
    "block of 100": GOOD.replace("block 256", "block 100"),
    "block of 2048": GOOD.replace("block 256", "block 2048"),
    "index of 16": GOOD.replace("index 32", "index 16", 1),
    "too few letters": GOOD.replace("o;cl", "o;c", 1),
    "too many letters": GOOD.replace("o;cl", "o;cll", 1),
    "letters on the other side": GOOD.replace("o;cl", "oc;l", 1),
    "no semicolon": GOOD.replace("o;cl", "ocll", 1),
    "unknown letter": GOOD.replace("o;cl", "o;ci", 1),
    "zero byte": GOOD.replace("kernel k", "kernel k\0"),
    "too many kernels": recipe([*(replace(KERNELS[1], name=f"d{number}") for number in range(15)), KERNELS[2]]).replace(
        "kernel any", f"{KERNELS[1]}\nkernel any"
    ),
    "too long": GOOD + "kernel " * 10000,
}


@pytest.mark.parametrize("text", BAD_RECIPES.values(), ids=BAD_RECIPES.keys())
def test_bad_recipes_are_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"the cuda_recipe attribute is not valid: line [0-9]+: ") as caught:
        StandIn(tmp_path).session(stub_model(FUSED, KERNELS, cuda_recipe=text))
    assert NODE in str(caught.value)


def test_more_parameters_than_a_launch_can_pass(tmp_path: Path) -> None:
    b = ProgramBuilder()
    values = [b.input("f32") for _ in range(100)]
    for value in values[1:]:
        values[0] = b.emit("add", "f32", values[0], value)
    fused = Fused(CONV, (1, 4, 8, 8), b.build([values[0]]), ((),) * 99)
    text = recipe([any_kernel(";" + "g" * 99)])
    with pytest.raises(Exception, match="line 3: the parameters are more than 4096 bytes"):
        StandIn(tmp_path).session(conv_model(fused, cuda_recipe=text))


OTHER_PROGRAM = "onnxfuse 1\ninput f64 broadcast\noutput 0\n"
BAD_ATTRIBUTES: dict[str, tuple[dict[str, Any], str]] = {
    "no operator": ({"operator": None}, "no attribute operator"),
    "another operator": ({"operator": "Gemm"}, "operator is not Conv or ConvTranspose"),
    "operator of another type": ({"operator": 1}, "no attribute operator"),
    "no kernel": ({"kernel_shape": None}, "no attribute kernel_shape"),
    "kernel of another type": ({"kernel_shape": 3}, "kernel_shape"),
    "kernel of rank 4": ({"kernel_shape": [1, 1, 1, 1]}, "kernel_shape has not 1 to 3 elements"),
    "kernel of 0": ({"kernel_shape": [3, 0]}, "kernel_shape is not from 1 to 32767"),
    "negative kernel": ({"kernel_shape": [3, -3]}, "kernel_shape is not from 1 to 32767"),
    "another kernel": ({"kernel_shape": [3, 5]}, "weight_shape does not end with kernel_shape"),
    "no weight shape": ({"weight_shape": None}, "no attribute weight_shape"),
    "weights of another rank": ({"weight_shape": [6, 2, 3]}, "weight_shape does not end with kernel_shape"),
    "weights without elements": ({"weight_shape": [0, 2, 3, 3]}, "weight_shape has no elements, or more than"),
    "negative weights": ({"weight_shape": [-6, 2, 3, 3]}, "weight_shape has no elements, or more than"),
    "immense weights": ({"weight_shape": [2**62, 2**62, 3, 3]}, "weight_shape has no elements, or more than"),
    "too many weights": ({"weight_shape": [2**20, 2**10, 3, 3]}, "weight_shape has no elements, or more than"),
    "groups that do not fit": ({"group": 4}, "weight_shape is not of the groups"),
    "group of 0": ({"group": 0}, "group is not from 1 to"),
    "negative group": ({"group": -2}, "group is not from 1 to"),
    "immense group": ({"group": 2**62}, "group is not from 1 to"),
    "group of another type": ({"group": "2"}, "no attribute group"),
    "stride of 0": ({"strides": [1, 0]}, "strides is not from 1 to 32767"),
    "too few strides": ({"strides": [1]}, "strides has 1 elements, not 2"),
    "no strides": ({"strides": None}, "no attribute strides"),
    "immense dilation": ({"dilations": [1, 2**40]}, "dilations is not from 1 to 32767"),
    "negative pad": ({"pads": [1, 1, -1, 1]}, "pads is not from 0 to 32767"),
    "too few pads": ({"pads": [1, 1]}, "pads has 2 elements, not 4"),
    "no pads": ({"pads": None}, "no attribute pads"),
    "another auto_pad": ({"auto_pad": "SAME"}, "auto_pad is not NOTSET"),
    "no auto_pad": ({"auto_pad": None}, "no attribute auto_pad"),
    "no program": ({"program": None}, "no attribute program"),
    "bad program": ({"program": "onnxfuse 2\n"}, "the program attribute is not valid: line 1: "),
    "program of another type": ({"program": OTHER_PROGRAM}, "the program is for a convolution of f64"),
    "program along an axis": (
        {"program": str(EPILOGUE).replace("input f32 broadcast", "input f32 axis 1", 1)},
        "the first input of the program is not a whole tensor",
    ),
    "program without inputs": (
        {"program": "onnxfuse 1\nconst f32 00000000\noutput 0\n"},
        "the first input of the program is not a whole tensor",
    ),
    "bad prologue": ({"prologue": ""}, "the prologue attribute is not valid: line 0: "),
    "prologue of two outputs": ({"prologue": str(PROLOGUE) + "output 0\n"}, "the prologue does not make one tensor"),
    "prologue of another type": ({"prologue": OTHER_PROGRAM}, "the prologue does not make one tensor"),
    "another number of inputs": ({"prologue": None}, "the node has 5 inputs, but its programs take 4"),
}


@pytest.mark.parametrize("name", BAD_ATTRIBUTES)
def test_bad_attributes_are_refused(name: str, tmp_path: Path) -> None:
    changes, reason = BAD_ATTRIBUTES[name]
    with pytest.raises(Exception, match="onnxfuse::FusedConv") as caught:
        StandIn(tmp_path).session(stub_model(FUSED, KERNELS, **changes))
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("padding", "reason"),
    [([2, 0], "is not less than its stride or dilation"), ([-1, 0], "output_padding is not from 0"), (None, "no attr")],
)
def test_bad_output_padding(padding: Sequence[int] | None, reason: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="onnxfuse::FusedConv") as caught:
        StandIn(tmp_path).session(conv_model(TRANSPOSED, output_padding=padding))
    assert reason in str(caught.value)


def test_more_outputs_than_the_program_has(tmp_path: Path) -> None:
    model = stub_model(FUSED, KERNELS)
    model.graph.node[0].output.append("more")
    model.graph.value_info.append(helper.make_tensor_value_info("more", onnx.TensorProto.FLOAT, None))
    with pytest.raises(Exception, match="the node has 2 outputs, but its program has 1"):
        StandIn(tmp_path).session(model)


@pytest.mark.parametrize("seed", range(60))
def test_mutated_attributes_never_crash(seed: int, tmp_path: Path) -> None:
    """Whatever a model says, the session is refused, or the run is, or it launches."""
    choose = random.Random(seed)
    stand_in = StandIn(tmp_path)
    numbers = (-(2**63), -1, 0, 1, 2, 3, 7, 100, 32768, 2**31, 2**62, 2**63 - 1)
    for _ in range(6):
        model = stub_model(choose.choice((FUSED, FUSED, TRANSPOSED)), KERNELS, cuda_recipe=None)
        node = model.graph.node[0]
        for _ in range(choose.randint(1, 2)):
            attribute = choose.choice(node.attribute)
            if attribute.type == onnx.AttributeProto.INTS and attribute.ints:
                attribute.ints[choose.randrange(len(attribute.ints))] = choose.choice(numbers)
            elif attribute.type == onnx.AttributeProto.INT:
                attribute.i = choose.choice(numbers)
            elif attribute.type == onnx.AttributeProto.STRING and not attribute.name.startswith("cuda"):
                text = bytearray(attribute.s)
                text[choose.randrange(len(text))] = choose.randrange(1, 127)
                attribute.s = bytes(text)
        arrays = arrays_of(FUSED if len(node.input) == 5 else TRANSPOSED)
        try:
            run(stand_in.session(model, severity=4), arrays)
        except Exception as error:
            assert "FusedConv" in str(error)


def other_shapes(**changes: tuple[int, ...]) -> list[np.ndarray]:
    shapes = {"x": (1, 4, 8, 8), "w": (6, 2, 3, 3), "gate": (1, 4, 1, 1), "bias": (6,), "residual": (1, 6, 8, 8)}
    return [np.ones(shape, np.float32) for shape in {**shapes, **changes}.values()]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"w": (6, 2, 3, 1)}, "the weights are of shape [6,2,3,1], not [6,2,3,3]"),
        ({"w": (8, 2, 3, 3)}, "the weights are of shape [8,2,3,3], not [6,2,3,3]"),
        ({"x": (1, 2, 8, 8)}, "input [1,2,8,8] is not for weights [6,2,3,3] in 2 groups"),
        ({"x": (1, 4, 8, 0)}, "the output for input [1,4,8,0] has no elements along dimension 3"),
        ({"gate": (1, 3, 1, 1)}, "the prologue: "),
        ({"gate": (2, 4, 1, 1)}, "the prologue: "),
        ({"bias": (5,)}, "the program: "),
        ({"residual": (2, 6, 8, 8)}, "the program: "),
        ({"residual": (1, 1, 6, 8, 8)}, "the program: "),
    ],
)
@pytest.mark.parametrize("with_kernels", [True, False])
def test_shapes_that_do_not_fit(
    changes: dict[str, tuple[int, ...]], reason: str, with_kernels: bool, tmp_path: Path
) -> None:
    """On the GPU and on the CPU alike; W need not be constant, and the kernels are made for one shape of it."""
    ranks = [len(array.shape) for array in other_shapes(**changes)]
    shapes = [[f"d{i}_{axis}" for axis in range(rank)] for i, rank in enumerate(ranks)]
    model = stub_model(FUSED, KERNELS) if with_kernels else conv_model(FUSED)
    for value, shape in zip(model.graph.input, shapes, strict=True):
        value.type.tensor_type.shape.CopyFrom(helper.make_tensor_type_proto(1, shape).tensor_type.shape)
    stand_in = StandIn(tmp_path)
    session = stand_in.session(model, severity=4)
    stand_in.launches()
    with pytest.raises(Exception, match="INVALID_ARGUMENT") as caught:
        run(session, other_shapes(**changes))
    assert NODE + reason in str(caught.value)
    assert not stand_in.launches()


def test_types_that_are_not_the_programs(tmp_path: Path) -> None:
    model = stub_model(FUSED, KERNELS)
    model.graph.input[4].type.tensor_type.elem_type = onnx.TensorProto.INT32
    session = StandIn(tmp_path).session(model)
    arrays = arrays_of(FUSED)
    with pytest.raises(Exception, match="the inputs have the ONNX element types 1, 1, 1, 1, 6") as caught:
        run(session, [*arrays[:4], arrays[4].astype(np.int32)])
    assert NODE in str(caught.value)


def test_code_without_a_sum(tmp_path: Path) -> None:
    code = cubin(stub_object(KERNELS[1:], 1), 90)
    with pytest.raises(Exception, match=f"{NODE}the attribute cuda_sm_90 holds no kernel 'k' of the recipe"):
        StandIn(tmp_path).session(stub_model(FUSED, KERNELS, cuda_sm_90=code))
    unsplit = (conv_kernel("k", "gemm", "o;cl", tile=(8, 16, 8), vector=4), *KERNELS[1:])
    code = cubin(stub_object(unsplit, 1), 90)
    with pytest.raises(Exception, match="holds no kernel 'k_sum' of the recipe"):
        StandIn(tmp_path / "second").session(stub_model(FUSED, KERNELS, cuda_sm_90=code))


def test_code_with_other_parameters_than_the_recipe(tmp_path: Path) -> None:
    text = GOOD.replace("o;cl", "o;cg", 1)
    with pytest.raises(
        Exception, match=f"{NODE}the kernel 'k' .* has other parameters than its recipe, from number 8 on"
    ):
        StandIn(tmp_path).session(stub_model(FUSED, KERNELS, cuda_recipe=text))


def test_a_sum_that_the_kernel_has_no_registers_for(tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path)
    stand_in.limit_threads(128)
    with pytest.raises(Exception, match=f"{NODE}the kernel 'k_sum' .* blocks of at most 128 threads, not of 256"):
        stand_in.session(stub_model(FUSED, KERNELS))


@pytest.mark.parametrize("after", [0, 1])
def test_a_failed_launch_names_the_node(after: int, tmp_path: Path) -> None:
    """Of the parts or of their sum; the workspace is given back."""
    stand_in = StandIn(tmp_path)
    session = stand_in.session(stub_model(FUSED, KERNELS))
    stand_in.fail("cuLaunchKernel", LAUNCH_FAILED, after)
    with pytest.raises(Exception, match="FAIL") as caught:
        run(session, arrays_of(FUSED))
    kernel = ("k on 32 blocks of 64", "k_sum on 1 blocks of 256")[after]
    assert f"{NODE}cuLaunchKernel of {kernel} threads: CUDA_ERROR_LAUNCH_FAILED" in str(caught.value)
    assert len(stand_in.scratch()) == 1
    run(session, arrays_of(FUSED))


def test_no_memory_for_the_workspace(tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path)
    session = stand_in.session(stub_model(FUSED, KERNELS))
    stand_in.out_of_memory(True)
    stand_in.launches()
    with pytest.raises(Exception, match="the shim has no memory") as caught:
        run(session, arrays_of(FUSED))
    assert "the_fused_node" in str(caught.value)
    assert not stand_in.launches()
    stand_in.out_of_memory(False)
    run(session, arrays_of(FUSED))
    assert len(stand_in.scratch()) == 1


# ------------------------------------------------------------------------------------------------------ without kernels


def check_on_the_cpu(session: ort.InferenceSession, fused: Fused, seed: int = 0) -> None:
    arrays = arrays_of(fused, seed)
    for result, wanted in zip(run(session, arrays), expected(fused, arrays), strict=True):
        assert_same_bits(result, wanted)


@pytest.mark.parametrize("seed", range(36))
def test_the_cpu_computes_any_convolution(seed: int, tmp_path: Path) -> None:
    """Every rank, type, padding and kind of Program, against ONNX Runtime's own operators."""
    fused = node_case(any_case, seed)
    stand_in = StandIn(tmp_path)
    check_on_the_cpu(stand_in.session(conv_model(fused), severity=4), fused, seed)
    assert not stand_in.launches()
