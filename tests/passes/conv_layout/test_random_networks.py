"""Random convolutional networks: the built-in passes change results by rounding alone."""

from __future__ import annotations

from random import Random

import numpy as np
import onnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.passes.models import apply
from tests.support import fusing
from tools.fuzz.networks import RandomNetwork, random_network

PASSES = ("fold-constants", "cancel-transposes", "slow-operators", "conv-layout", "fold-affine", "fuse-elementwise")
TOLERANCE = 2e-5  # relative to the largest value anywhere in the network, which is what rounds
UNDERFLOW = 1e-36  # denormal results lose digits


def check(case: RandomNetwork) -> None:
    """Fails if the passes change what the network computes by more than rounding."""
    whole = onnx.ModelProto()
    whole.CopyFrom(case.model)
    names = [output.name for output in case.model.graph.output]
    inner = [name for node in case.model.graph.node for name in node.output if name not in names]
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner)
    values = fusing.run(whole, case.feeds, library=False)
    if any(np.isinf(value).any() for value in values):
        return  # which of inf and NaN comes of infinite data is up to the order of sums
    scale = max(float(np.nanmax(np.abs(value), initial=0.0)) for value in values)
    optimized, _ = apply(case.model, *PASSES, infer=False)
    onnx.checker.check_model(optimized, full_check=True)
    allowed = TOLERANCE * scale + UNDERFLOW
    for optimize in (False, True):
        results = fusing.run(optimized, case.feeds, library=True, optimize=optimize)
        if optimize:  # ONNX Runtime folds a BatchNormalization of infinite scale into the Conv itself
            theirs = fusing.run(case.model, case.feeds, library=False, optimize=True)
            pairs = zip(theirs, values[: len(names)], strict=True)
            if not all(np.allclose(actual, expected, 0, allowed, equal_nan=True) for actual, expected in pairs):
                return
        for name, actual, expected in zip(names, results, values[: len(names)], strict=True):
            assert actual.shape == expected.shape
            np.testing.assert_allclose(actual, expected, rtol=0, atol=allowed, err_msg=f"{name}, {optimize=}")


_SETTINGS = settings(max_examples=100, suppress_health_check=list(HealthCheck))


@_SETTINGS
@given(st.randoms())
def test_networks(choose: Random) -> None:
    check(random_network(choose))


@_SETTINGS
@given(st.randoms())
def test_networks_with_special_constants(choose: Random) -> None:
    check(random_network(choose, special=True))
