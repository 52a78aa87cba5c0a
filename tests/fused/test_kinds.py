"""Kinds of fused nodes: no planner makes one that has no kernels on the target."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import numpy_helper, parser

from onnxfuse.fused.kinds import DOMAIN, KINDS
from onnxfuse.fused.target import CPU, TARGETS
from onnxfuse.model.graph import Model
from onnxfuse.passes import PassContext, default_registry

TEXT = """<ir_version: 9, opset_import: ["" : 20]>
g (float[1, 4, 6, 6] x, float[6] s) => (float[1, 4, 4, 4] y, float[1, 4, 6, 6] z) {
    c = Conv (x, w) d = Mul (c, c) y = Tanh (d)
    l = LayerNormalization (x, s) a = Mul (l, l) b = Add (a, x) z = Softmax (b) }"""


def fused(monkeypatch: pytest.MonkeyPatch, *kinds: str) -> set[str]:
    """The operators of what a target that has kernels of these kinds gets."""
    own = frozenset(kind for kind in KINDS if kind.name in kinds)
    monkeypatch.setitem(TARGETS, "toy", replace(CPU, name="toy", kinds=own))
    proto = parser.parse_model(TEXT)
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((4, 4, 3, 3), np.float32), "w"))
    model = Model.from_proto(proto)
    for one in default_registry(lambda: ()).resolve():
        one.run(model, PassContext(target="toy", everything=True))
    return {node.op for graph in model.graphs() for node in graph.nodes if node.domain == DOMAIN}


def test_a_target_gets_the_kinds_that_it_has_kernels_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fused(monkeypatch) == set()
    assert fused(monkeypatch, "FusedConv", "FusedReduction") == {"FusedConv", "FusedReduction"}
    assert fused(monkeypatch, "FusedElementwise") == {"FusedElementwise", "FusedElementwise_2"}
