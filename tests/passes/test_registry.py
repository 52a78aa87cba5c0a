"""Registering, ordering and finding passes."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import onnx
import pytest

from onnxfuse.errors import OnnxfuseError
from onnxfuse.passes import REGISTRY, Pass, PassContext, RewriteRule, default_registry, register_pass, resolve
from tests.passes.models import apply, model, node, ops

BUILTIN = [
    "inline-functions",
    "widen-float16",
    "fold-constants",
    "fold-shapes",
    "cancel-transposes",
    "slow-operators",
    "conv-layout",
    "fold-affine",
    "fuse-attention",
    "split-conv-bias",
    "fuse-conv",
    "channels-last",
    "fuse-elementwise",
]


def nothing(model, context):
    """Does nothing at all.

    At some length.
    """


class NegToAbs(RewriteRule):
    """Replaces Neg by Abs."""

    name = "neg-to-abs"

    def pattern(self, op, x):
        return op.Neg(x)

    def rewrite(self, match, builder):
        return builder.op("Abs", match["x"])


class AbsToTanh(NegToAbs):
    name = "abs-to-tanh"

    def pattern(self, op, x):
        return op.Abs(x)

    def rewrite(self, match, builder):
        return builder.op("Tanh", match["x"])


def registry(*points: EntryPoint):
    return default_registry(lambda: points)


@pytest.fixture
def module(monkeypatch):
    made = ModuleType("onnxfuse_test_plugin")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, "onnxfuse.passes")


def test_the_built_in_order():
    assert registry().names()[0] == "inline-functions"
    assert [name for name in registry().names() if name in BUILTIN] == BUILTIN


def test_added_passes_run_before_the_fusion():
    made = registry()
    made.add(nothing, name="mine")
    names = made.names()
    assert names.index("fold-affine") < names.index("mine") < names.index("fuse-attention")


@pytest.mark.parametrize(
    ("order", "earlier", "later"),
    [
        ({"before": ["fold-constants"]}, "mine", "fold-constants"),
        ({"before": "fold-constants"}, "mine", "fold-constants"),
        ({"after": ["fuse-elementwise"]}, "fuse-elementwise", "mine"),
        ({"after": ["fold-constants"], "before": ["fold-affine"]}, "mine", "fold-affine"),
    ],
)
def test_before_and_after(order, earlier, later):
    made = registry()
    made.add(nothing, name="other")
    made.add(nothing, name="mine", **order)
    names = made.names()
    assert names.index(earlier) < names.index(later)
    assert names.index("fold-affine") < names.index("other") < names.index("fuse-elementwise")


def test_contradictions_and_unknown_neighbours_are_errors():
    made = registry()
    made.add(nothing, name="mine", before=["fold-constants"], after=["fuse-elementwise"])
    with pytest.raises(OnnxfuseError, match=r"contradict each other: .*mine"):
        made.resolve()
    made = registry()
    made.add(nothing, name="mine", after=["theirs"])
    with pytest.raises(OnnxfuseError, match="'mine' is ordered relative to 'theirs'"):
        made.resolve()


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(OnnxfuseError, match=r"unknown pass 'fold'; the passes are inline-func.*fuse-elementwise"):
        registry().resolve(["fold"])


def test_named_passes_run_in_the_order_given():
    assert [item.name for item in registry().resolve(["fold-affine", "fold-constants"])] == [
        "fold-affine",
        "fold-constants",
    ]


def test_what_was_a_pass_names_the_one_that_does_it_now():
    registry = default_registry(lambda: [])
    for names in (["fuse-normalization"], ["fuse-normalization", "fuse-reductions"], ["fuse-reductions"]):
        assert [one.name for one in registry.resolve(names)] == ["fuse-reductions"]
    registry.add(lambda model, context: None, name="mine", before="fuse-normalization", after="fuse-conv")
    order = registry.names()
    assert order.index("fuse-conv") < order.index("mine") < order.index("fuse-reductions")


def test_every_way_to_register():
    class Object:
        name = "an-object"
        description = "described"

        def run(self, model, context):
            pass

    made = registry()
    made.add(nothing)
    made.add(Object)
    made.add(Object(), name="another")
    made.add(NegToAbs)
    made.add(AbsToTanh())
    made.add([NegToAbs, AbsToTanh()], name="group", description="two rules")
    names = ["nothing", "an-object", "another", "neg-to-abs", "abs-to-tanh", "group"]
    found = made.resolve(names)
    assert all(isinstance(item, Pass) for item in found)
    assert [item.name for item in found] == names
    assert [item.description for item in found][:2] == ["Does nothing at all.", "described"]
    assert found[3].description == "Replaces Neg by Abs." and found[5].description == "two rules"
    proto = model([node("Neg", "x", "y")], {"x": [2]})
    assert ops(apply(proto, found[5])[0]) == ["Tanh"]


def test_bad_registrations():
    made = registry()
    with pytest.raises(OnnxfuseError, match="is registered already"):
        made.add(nothing, name="fold-affine")
    with pytest.raises(OnnxfuseError, match="no pass"):
        made.add(3, name="three")
    with pytest.raises(OnnxfuseError, match="needs a name"):
        made.add([NegToAbs])
    with pytest.raises(OnnxfuseError, match="1 is no rewrite rule"):
        made.add([NegToAbs, 1], name="group")
    with pytest.raises(OnnxfuseError, match="the name of a pass is a text, not 5"):
        made.add(nothing, name=5)
    with pytest.raises(OnnxfuseError, match="before= names passes, which 5 does not"):
        made.add(nothing, name="mine", before=[5])


def test_the_decorator_registers_in_the_registry_of_optimize():
    @register_pass(name="test-decorated", before=["fold-constants"])
    def decorated(model, context):
        context.report.add_warning("ran")

    try:
        names = [item.name for item in resolve(["test-decorated"])]
        assert names == ["test-decorated"]
        context = PassContext()
        resolve(["test-decorated"])[0].run(None, context)
        assert context.report.warnings == ["ran"]
    finally:
        REGISTRY.remove("test-decorated")


def test_entry_points_give_functions_rules_and_modules(module):
    module.nothing = nothing
    module.Rule = NegToAbs
    made = registry(point("a-function", "onnxfuse_test_plugin:nothing"), point("a-rule", "onnxfuse_test_plugin:Rule"))
    names = made.names()
    assert {"a-function", "a-rule"} < set(names)
    assert [item.name for item in made.resolve(["a-rule"])] == ["a-rule"]
    made = registry(point("whole", "onnxfuse_test_plugin"))
    assert "whole" not in made.names()


def test_an_entry_point_that_cannot_be_loaded_is_named():
    made = registry(point("broken", "no_such_module_of_onnxfuse:Pass"))
    with pytest.raises(OnnxfuseError, match=r"entry point 'broken'.*no_such_module_of_onnxfuse") as caught:
        made.resolve()
    assert "\n" not in str(caught.value)
    # What does not need it still works.
    assert made.resolve(["fold-constants"])[0].name == "fold-constants"


def test_what_an_entry_point_names_may_have_registered_itself(module):
    made = registry(point("mine", "onnxfuse_test_plugin:nothing"))
    made.add(nothing, name="mine")
    module.nothing = nothing
    assert made.names().count("mine") == 1


def test_the_command_line_runs_a_pass_of_an_installed_package(tmp_path):
    """A package as pip installs it: a module, and metadata with an entry point."""
    (tmp_path / "my_rules.py").write_text(
        "from onnxfuse import RewriteRule\n\n\n"
        "class ReluTwice(RewriteRule):\n"
        '    """Drops the second of two Relu."""\n\n'
        '    name = "relu-twice"\n\n'
        "    def pattern(self, op, x):\n        return op.Relu(op.Relu(x))\n\n"
        '    def rewrite(self, match, builder):\n        return builder.op("Relu", match["x"])\n'
    )
    metadata = tmp_path / "my_rules-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-rules\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[onnxfuse.passes]\nrelu-twice = my_rules:ReluTwice\n")
    source, result = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(model([node("Relu", "x", "a"), node("Relu", "a", "y")], {"x": [2, 3]}), source)
    command = [sys.executable, "-m", "onnxfuse", "optimize", source, result, "--passes", "relu-twice"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert ops(onnx.load(result)) == ["Relu"]
    done = subprocess.run([*command[:-1], "relu-thrice"], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and "relu-twice" in done.stderr and len(done.stderr.strip().splitlines()) == 1
