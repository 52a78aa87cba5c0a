"""GatherND by constants that take all elements in their order is a Reshape; any other stays."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.models import apply, assert_close, model, node, ops, random


def places(shape, depth, *out):
    """All places along the first dimensions of a shape, in their order, as the indices of a result (*out, …)."""
    return np.stack(np.unravel_index(np.arange(np.prod(shape[:depth])), shape[:depth]), -1).reshape(*out, depth)


def gathered(shape, indices, **attributes):
    return model([node("GatherND", "x i", "y", **attributes)], {"x": shape}, constants={"i": indices})


@pytest.mark.parametrize(
    ("shape", "indices"),
    [
        *[((1, 7), places((1, 7), 2, 1, 1, 1, 7)), ((2, 3, 4), places((2, 3, 4), 2, 6)), ((5,), places((5,), 1, 5))],
        *[((2, 3), places((2, 3), 2, 6) - [2, 3]), ((1, 1), places((1, 1), 2, 1))],
    ],
)
def test_all_in_their_order(shape, indices):
    proto = gathered(shape, indices)
    result, _ = apply(proto, "fold-shapes")
    assert ops(result) in (["Reshape"], ["Unsqueeze"])
    assert_close(proto, result, {"x": random(*shape)}, 0)


@pytest.mark.parametrize(
    ("shape", "indices", "attributes"),
    [
        ((2, 3), places((2, 3), 2, 6)[::-1].copy(), {}),
        ((2, 3), places((2, 3), 2, 6)[:5], {}),
        ((2, 3), np.tile(places((2, 3), 2, 6)[:1], (6, 1)), {}),
        ((2, 3, 4), places((3,), 1, 3)[None].repeat(2, 0), {"batch_dims": 1}),
        (("n", 3), places((2, 3), 2, 6), {}),
    ],
)
def test_what_stays(shape, indices, attributes):
    proto = gathered(shape, indices, **attributes)
    result, _ = apply(proto, "fold-shapes")
    assert ops(result) == ["GatherND"]
