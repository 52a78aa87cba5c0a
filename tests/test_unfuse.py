"""``unfuse``: plain nodes in place of fused ones, whatever the model is, and files that are sound."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

import onnxfuse
from onnxfuse.cli.cli import main
from onnxfuse.errors import OnnxfuseError
from onnxfuse.model.protos import onnx_graphs
from onnxfuse.run.sessions import Session
from tests.support import fusing, many_functions

X = np.linspace(-3, 3, 48, dtype=np.float32).reshape(2, 24)

BODIES = """<ir_version: 8, opset_import: ["" : 17], producer_name: "test">
documented (float[n, 24] x, bool c) => (float[n, 24] y) {
    [first] a = Sin(x) [second] b = Mul(a, half)
    [choice] y = If(c) <then_branch = t () => (float[n, 24] u) { d = Abs(b) e = Sin(d) u = Mul(e, w) },
        else_branch = f () => (float[n, 24] v) { [Abs_1__1] k = Abs(b) v = Exp(k) }>
}"""


def bodies() -> onnx.ModelProto:
    model = parser.parse_model(BODIES)
    model.graph.doc_string = "what it does"
    helper.set_model_props(model, {"author": "somebody", "onnxfuse": "is no key of ours"})
    weights = {"half": np.full(24, 0.5, np.float32), "w": np.linspace(0, 1, 24, dtype=np.float32)}
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    return model


def nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    return (node for graph in onnx_graphs(model.graph) for node in graph.node)


def assert_plain(model: onnx.ModelProto) -> None:
    """It has none of our domain, and nodes of one name in no graph."""
    assert not model.functions and {opset.domain for opset in model.opset_import} <= {"", "ai.onnx.ml"}
    assert all(node.domain in ("", "ai.onnx.ml") and not node.overload for node in nodes(model))
    assert not any(node.metadata_props for node in nodes(model))
    for graph in onnx_graphs(model.graph):
        names = [node.name for node in graph.node if node.name]
        assert len(set(names)) == len(names)
    onnx.checker.check_model(model, full_check=True)


def fused(model: onnx.ModelProto | Path, output: Path | None = None) -> onnx.ModelProto:
    result = onnxfuse.optimize(model, "cpu", check=False, output=output).model
    assert any(node.domain == "onnxfuse" for node in nodes(result))
    return result


def test_bodies_and_all_else_of_a_model() -> None:
    model = bodies()
    optimized = fused(model)
    content = optimized.SerializeToString(deterministic=True)
    plain = onnxfuse.unfuse(optimized)
    assert optimized.SerializeToString(deterministic=True) == content
    assert_plain(plain)
    assert (plain.graph.name, plain.graph.doc_string) == ("documented", "what it does")
    assert plain.producer_name == "test" and plain.metadata_props == model.metadata_props
    assert list(plain.graph.input) == list(model.graph.input)
    for flag in (True, False):
        feeds = {"x": X, "c": np.array(flag)}
        for one, other in zip(fusing.run(plain, feeds, False), fusing.run(model, feeds, False), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("made", [many_functions.attentions, lambda: many_functions.regions(60)])
def test_many_functions(made: Callable[[], onnx.ModelProto]) -> None:
    model = made()
    plain = onnxfuse.unfuse(fused(model).SerializeToString())
    assert_plain(plain)
    fusing.assert_same_everywhere(plain, model, many_functions.feeds(model))


def test_a_model_without_fused_nodes_stays_as_it_is() -> None:
    model = bodies()
    assert onnxfuse.unfuse(model) == model


@pytest.mark.parametrize("name", ["ch_ppocr_mobile_v2.0_cls", "ch_PP-OCRv4_det"])
def test_real_models(name: str, real_model: Callable[[str], Path], tmp_path: Path) -> None:
    """With all kinds of convolutions with the channels last, whose functions put weights in order."""
    original = real_model(name)
    fused(original, tmp_path / "fused.onnx")
    plain = onnxfuse.unfuse(tmp_path / "fused.onnx", output=tmp_path / "plain.onnx")
    assert_plain(plain)
    shape = (1, 3, 48, 192) if "cls" in name else (1, 3, 64, 96)
    feeds = {"x": np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)}
    (expected,), (actual,) = (Session(path).run(feeds) for path in (original, tmp_path / "plain.onnx"))
    fusing.assert_close(actual, expected)


def test_what_a_cuda_model_carries_goes() -> None:
    """The model's wish for sessions with the channels last goes with the nodes that it was for."""
    optimized = onnxfuse.optimize(bodies(), "cuda", check=False, arch="sm_80", embed=False).model
    entry = optimized.metadata_props.add()
    entry.key, entry.value = "onnxfuse.prefer_nhwc", "1"
    plain = onnxfuse.unfuse(optimized)
    assert_plain(plain)
    assert [entry.key for entry in plain.metadata_props] == ["author", "onnxfuse"]


def test_functions_of_the_model_that_call_fused_nodes_go_too() -> None:
    optimized = fused(many_functions.regions(1))
    (node,) = (node for node in optimized.graph.node if node.domain == "onnxfuse")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("onnxfuse", 1)]
    caller = helper.make_function("my", "F", list(node.input), list(node.output), [node], opsets)
    other = helper.make_function("my", "G", ["a"], ["b"], [helper.make_node("Abs", ["a"], ["b"])], opsets[:1])
    node.CopyFrom(helper.make_node("F", node.input, node.output, domain="my"))
    optimized.functions.extend([caller, other])
    optimized.opset_import.append(helper.make_opsetid("my", 1))
    plain = onnxfuse.unfuse(optimized)
    assert not [node for node in plain.graph.node if node.domain]
    assert "onnxfuse" not in {opset.domain for opset in plain.opset_import}


# --- files ---


def external(path: Path) -> Path:
    """A model whose weights lie in another file."""
    model = many_functions.named(
        "g (float[n, 512] x) => (float[n, 512] y) { a = Mul(x, w) b = Sin(a) y = Add(b, x) }",
        w=np.arange(512, dtype=np.float32),
    )
    onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.weights", size_threshold=0)
    return path


def test_external_data(tmp_path: Path) -> None:
    original = external(tmp_path / "m.onnx")
    (tmp_path / "elsewhere").mkdir()
    fused(original, tmp_path / "fused.onnx")
    plain = tmp_path / "elsewhere" / "plain.onnx"
    onnxfuse.unfuse(tmp_path / "fused.onnx", output=plain)
    assert sorted(path.name for path in plain.parent.iterdir()) == ["plain.onnx", "plain.onnx.data"]
    assert_plain(onnx.load(plain))
    feeds = {"x": np.ones((2, 512), np.float32)}
    np.testing.assert_array_equal(Session(plain).run(feeds)[0], Session(original).run(feeds)[0])


def test_the_input_may_be_overwritten_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = external(tmp_path / "m.onnx")
    fused(path, tmp_path / "fused.onnx")
    given = str(tmp_path / "fused.onnx")
    assert main(["unfuse", given, given]) == 2
    assert capsys.readouterr().err == (
        f"onnxfuse: error: {given}: the output is the input; allow that with --overwrite (overwrite=True)\n"
    )
    assert main(["unfuse", given, given, "--overwrite"]) == 0
    assert capsys.readouterr() == ("3 nodes, none of them fused\n", "")
    assert_plain(onnx.load(given))


def wrong(model: onnx.ModelProto, what: str) -> onnx.ModelProto:
    if what == "function":
        del model.functions[0]
    elif what == "opset":
        model.functions[0].opset_import[0].version -= 1
    elif what == "calls itself":
        (node,) = (node for node in model.graph.node if node.domain == "onnxfuse")
        model.functions[0].node[0].CopyFrom(node)
    else:
        model.graph.initializer[0].dims[0] += 1
    return model


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("function", "'node_2_fused' (FusedElementwise) has no function that says what it stands for"),
        ("opset", "the function onnxfuse.FusedElementwise is of opset 16, and the model of 17"),
        ("calls itself", ""),
        ("weights", ""),
        ("no model", "not an ONNX model, or a damaged or truncated one"),
        ("nothing", "no such file"),
    ],
)
def test_what_cannot_be_unfused_is_one_line(
    what: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, output = tmp_path / "given.onnx", tmp_path / "out.onnx"
    if what == "no model":
        given.write_bytes(b"\x08\x0a\x3a\xff\xff")
    elif what != "nothing":
        model = many_functions.named(
            "g (float[n, 24] x) => (float[n, 24] y) { a = Mul(x, w) b = Sin(a) y = Add(b, x) }", w=X[0]
        )
        onnx.save(wrong(fused(model), what), given)
    output.write_text("old")
    assert main(["unfuse", str(given), str(output)]) == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith("onnxfuse: error: ") and err.count("\n") == 1 and message in err
    assert output.read_text() == "old" and {path.name for path in tmp_path.iterdir()} <= {"given.onnx", "out.onnx"}


def test_what_fails_while_it_is_written_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    optimized = fused(many_functions.regions(2))
    output = tmp_path / "out.onnx"
    output.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OnnxfuseError, match="No space left"):
        onnxfuse.unfuse(optimized, output=output)
    assert [path.name for path in tmp_path.iterdir()] == ["out.onnx"] and output.read_text() == "old"


def test_bad_arguments() -> None:
    for given in (3, None):
        with pytest.raises(OnnxfuseError, match="a model is given by its path"):
            onnxfuse.unfuse(given)  # type: ignore[arg-type]
    with pytest.raises(OnnxfuseError, match="the output is given by its path"):
        onnxfuse.unfuse(bodies(), output=3)  # type: ignore[arg-type]
