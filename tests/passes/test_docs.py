"""The example of docs/passes.md, run as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from onnxfuse.passes import REGISTRY, PassContext, resolve
from onnxfuse.passes.registry import _BUILTIN
from tests.passes.models import apply, assert_close, model, node, ops, random, reasons

DOCS = Path(__file__).parents[2] / "docs" / "passes.md"


@pytest.fixture
def example():
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    try:
        exec(compile(code, str(DOCS), "exec"), {"__name__": "example"})
        yield code
    finally:
        for name in ("silu-from-exp", "count-nodes"):
            REGISTRY.remove(name)


def silu(dtype=np.float32):
    nodes = [node("Neg", "x", "n"), node("Exp", "n", "e"), node("Add", "e one", "s"), node("Div", "x s", "y")]
    return model(nodes, {"x": [2, 3]}, constants={"one": 1.0}, dtype=dtype)


def test_the_rule_rewrites_and_refuses(example):
    after, _ = apply(silu(), "silu-from-exp")
    assert ops(after) == ["Sigmoid", "Mul"]
    assert_close(silu(), after, {"x": random(2, 3)}, 4)
    after, context = apply(silu(np.float64), "silu-from-exp")
    assert "Div" in ops(after) and "x is of type float64" in reasons(context)


def test_the_pass_is_ordered_and_reports(example):
    names = REGISTRY.names()
    assert names.index("silu-from-exp") < names.index("count-nodes") < names.index("fuse-elementwise")
    lines = []
    from onnxfuse.model.graph import Model

    (found,) = resolve(["count-nodes"])
    found.run(Model.from_proto(silu()), PassContext(progress=lines.append))
    assert lines == ["4 nodes"] and found.description == "Says how many nodes there are."


def test_the_pass_table_names_the_built_in_passes_in_their_order():
    table, _, _ = DOCS.read_text(encoding="utf-8").partition("\n## ")
    assert re.findall(r"^\| `([a-z0-9-]+)` \|", table, re.MULTILINE) == list(_BUILTIN)
