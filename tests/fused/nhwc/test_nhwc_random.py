"""Random convolutional networks with the channels last wherever they can be: the same results up to rounding."""

from collections import Counter
from random import Random

import numpy as np
import onnx
import pytest

import onnxfuse
from tests.fused.nhwc.test_nhwc import _every_kernel_is_worth_it, operators  # noqa: F401  (a fixture for all tests)
from tests.support import fusing
from tools.fuzz.networks import BLOCKS, random_network

MOSTLY_LAST = ("conv", "conv", "depthwise", "pool", "pool", "activation", "concat", "residual", "gate", "parts")
"""Of networks whose tensors mostly have the channels last."""

TOLERANCE = 2e-5  # relative to the largest value anywhere in the network, which is what rounds


@pytest.mark.parametrize("blocks", [MOSTLY_LAST, BLOCKS], ids=["channels last", "any"])
def test_networks(blocks: tuple[str, ...]) -> None:
    found: Counter[str] = Counter()
    for seed in range(60):
        network = random_network(Random(seed), blocks=blocks)
        whole = onnx.ModelProto()
        whole.CopyFrom(network.model)
        names = [output.name for output in network.model.graph.output]
        inner = [name for node in network.model.graph.node for name in node.output if name not in names]
        whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner)
        values = fusing.run(whole, network.feeds, library=False)
        allowed = TOLERANCE * max(float(np.abs(value).max(initial=0.0)) for value in values)
        result = onnxfuse.optimize(network.model, "cpu", conv="all", check=False).model
        onnx.checker.check_model(result, full_check=True)
        for library in (False, True):
            for own, wanted in zip(fusing.run(result, network.feeds, library), values[: len(names)], strict=True):
                np.testing.assert_allclose(own, wanted, rtol=0, atol=allowed, err_msg=f"seed {seed}", strict=True)
        found.update(operators(result))
    assert found["FusedNhwcConv"] > 100 and found["FusedNhwcPool"] > (10 if blocks is MOSTLY_LAST else 0)
