"""Scores that are multiplied by a number for each head: cosine attention, as Swin Transformer V2 and XCiT have it."""

import onnx
import pytest

from tests.fused.attention.test_attention_windows import BIASED, feeds, windowed
from tests.fused.attention.test_fuse_attention import blocks, check, fused
from tests.fused.conv.test_cpu_convolutions import array
from tests.support import fusing

FACTORS = {"f": array(4, 1, 1) * 3}


@pytest.mark.parametrize("order", ("Mul(s, f)", "Mul(f, s)"))
@pytest.mark.parametrize("shape", ((4, 1, 1), (1, 4, 1, 1)))
@pytest.mark.parametrize("after", ("t = Relu(r)", "t = Add(r, bias)", BIASED.replace("Add(s,", "Add(r,")))
def test_queries_are_scaled(order: str, shape: tuple[int, ...], after: str) -> None:
    made = windowed(f"r = {order} {after}", f=FACTORS["f"].reshape(shape))
    if "Relu" in after:  # which no attention has
        result, _ = fused(made)
        assert [node.op_type for node in result.graph.node][1:3] == ["MatMul", "Mul"]
        fusing.assert_same_everywhere(result, made, feeds())
    else:
        operators = check(made, feeds())
        assert operators.count("Mul") == 1 and operators[-1] == "FusedAttention"


def test_factors_that_are_computed() -> None:
    made = windowed("r = Mul(s, g) t = Add(r, bias)", more=", float[4, 1, 1] g")
    check(made, {**feeds(), "g": array(4, 1, 1)})


@pytest.mark.parametrize("shape", ((4, 6, 1), (4, 1, 6), (6,), (6, 4, 1, 1)))
def test_other_factors_stay(shape: tuple[int, ...]) -> None:
    made = windowed("r = Mul(s, f) t = Add(r, bias)", batch="6", f=array(*shape))
    result, _ = fused(made)
    assert not blocks(result)
    fusing.assert_same_everywhere(result, made, feeds())


def test_scores_that_are_read_elsewhere_stay() -> None:
    made = windowed("r = Mul(s, f) t = Add(r, bias)", **FACTORS)
    made.graph.output.append(onnx.helper.make_tensor_value_info("s", onnx.TensorProto.FLOAT, list("efgh")))
    result, _ = fused(made)
    assert not blocks(result)
    fusing.assert_same_everywhere(result, made, feeds())
