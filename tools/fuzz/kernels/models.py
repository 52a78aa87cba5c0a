"""Random models of operators that have kernels, in ONNX Runtime and perhaps here, with whatever attributes they take.

Attention in all its forms, normalizations, Softmax and reductions over any axes, convolutions, pools, Resize, Einsum,
products of few rows with matrices of few bits, recurrent networks, optional inputs and outputs, sequences, functions
with attributes; of tensors down to a pixel, and now and then without elements. No shape is worked out here: each node
runs alone in ONNX Runtime as it is added, on the values that the model has there, and is left out if that refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import numpy as np
import onnx

from onnxfuse.run.sessions import Value
from tools.fuzz.kernels import few_rows as fuzz_kernel_few_rows
from tools.fuzz.kernels import images as fuzz_kernel_images
from tools.fuzz.kernels import others as fuzz_kernel_others
from tools.fuzz.kernels import rows as fuzz_kernel_rows
from tools.fuzz.kernels.graph import OLDEST_OPSET, Kernels, elementwise

_SINCE = {"attention": 23, "optional": 18, "function": 17}
"""The opsets of what is not in the oldest."""

EMITTERS: dict[str, Callable[[Kernels], object]] = {
    emitter.__name__: emitter
    for part in (fuzz_kernel_rows, fuzz_kernel_images, fuzz_kernel_few_rows, fuzz_kernel_others)
    for emitter in part.EMITTERS
}
"""What adds an operator, or a pattern of several, by name."""


def random_kernels(choose: Random, emitters: Sequence[str] | None = None) -> tuple[onnx.ModelProto, dict[str, Value]]:
    """A model of one to a few operators with elementwise nodes around them; ``emitters`` names the kinds."""
    names = list(EMITTERS) if emitters is None else list(emitters)
    while True:
        own = [choose.choice(names) for _ in range(choose.choice((1, 1, 2, 3, 5)))]
        graph = Kernels(choose, max(_SINCE.get(name, OLDEST_OPSET) for name in own))
        with np.errstate(all="ignore"):
            for name in own:
                if graph.chance(3):
                    elementwise(graph)
                EMITTERS[name](graph)
                for _ in range(graph.any_of((0, 1, 1, 3))):
                    elementwise(graph)
        if (found := graph.finish()) is not None:
            return found
