"""scripts/parity.py on a zoo of two small models: what it writes, what it catches, and what it reduces faults to."""

import json
import re
from pathlib import Path

import numpy as np
import onnx
import parity
import pytest
from onnx import parser

import onnxfuse
from onnxfuse.check.parity import compare
from onnxfuse.check.region_parity import compare_regions
from onnxfuse.fused.kinds import KINDS
from onnxfuse.run.inputs import InputSet
from onnxfuse.zoo.manifest import StoredModel
from tests.support.fusing import fuse_everything, fused_nodes
from tools.parity import bisection as parity_bisect
from tools.parity import page as parity_page
from tools.parity import worker as parity_worker
from tools.parity.reference import against_reference

ROOT = Path(__file__).resolve().parents[2]

MANIFEST = """
[models.gated]
task = "gates"
recipe = "small:gated"
licence = "MIT"
scores = "y"
sizes = [{ n = 300 }, { n = 2 }]
inputs.x = { dtype = "float32", shape = ["n", 64], range = [-3.0, 3.0] }

[models.looped]
task = "a loop"
recipe = "small:looped"
licence = "MIT"
inputs.x = { dtype = "float32", shape = [500], range = [-3.0, 3.0] }
"""

RECIPES = '''
import onnx

def gated(path):
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[n, 64] x) => (float[n, 64] y) <float half = {0.5}> {
        a = Mul(x, half) b = Sigmoid(a) c = Mul(x, b) s = Softmax(c) d = Sub(s, half) e = Exp(d) y = Neg(e) }"""
    onnx.save(onnx.parser.parse_model(text), path)

def looped(path):
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[500] x) => (float[500] y)
        <int64 n = {3}, bool on = {1}> {
        y = Loop(n, on, x) <body = b (int64 i, bool c, float[500] v) => (bool d, float[500] w) {
            d = Identity(c) e = Exp(v) f = Sigmoid(e) w = Sub(f, v) }> }"""
    onnx.save(onnx.parser.parse_model(text), path)
'''


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "models"
    (folder / "recipes").mkdir(parents=True)
    run = (ROOT / "models" / "recipes" / "common_run.py").read_text()
    (folder / "recipes" / "common_run.py").write_text(run)
    (folder / "recipes" / "small.py").write_text(RECIPES)
    (folder / "manifest.toml").write_text(MANIFEST)
    return folder / "manifest.toml"


def run_script(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["parity.py", *arguments])
    return parity.main()


def test_it_compares_times_and_profiles(
    zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results"
    arguments = ("--manifest", str(zoo), "--out", str(out), "--regions", "--seconds", "0.1", "--jobs", "2")
    arguments = (*arguments, "--note", "A quiet machine.")
    status = run_script(monkeypatch, *arguments)
    content = json.loads((out / "results.json").read_text())
    gated, looped = content["models"]
    assert status == 0, [item["reason"] for item in content["models"]]
    assert gated["fused"] == 1 and looped["fused"] == 1
    assert gated["top1"] > 0.9 and looped["top1"] is None
    assert gated["outputs"] == 4 and len(gated["regions"]) == 2  # two sizes, with and without the library
    assert gated["launches"][1] < gated["launches"][0] and gated["nodes"] == [7, 1]
    assert looped["launches"][0] >= 9  # the nodes of the body, three times
    assert gated["time"]["low"] <= gated["time"]["ratio"] <= gated["time"]["high"]
    assert gated["shares"][1]["normalization, reduction"] > 0 and looped["shares"][1]["fused region"] > 0
    assert gated["reference"] == "equal"
    page = (out / "index.html").read_text()
    assert page.count("<svg") == 3 and "<script" not in page and not re.search(r"(src|href)=", page)
    assert re.findall(r"<tr><td>(\w+)</td>.*?>pass<", page) == ["gated", "looped"]
    summary = (out / "summary.md").read_text()
    assert "- 2 of 2 models pass, with 2 fused nodes.\n" in summary and "\n- A quiet machine.\n" in summary
    assert re.findall(r"^\| (\w+) \|.*\| pass \|$", summary, re.MULTILINE) == ["gated", "looped"]
    printed = capsys.readouterr().out
    assert "2 of 2 models pass, 2 regions fused" in printed and "geometric mean" in printed
    assert not (out / "reproducers").exists()


def test_the_time_of_every_kind_of_fused_node_counts_as_its_work() -> None:
    """Whatever its number: none is taken for an elementwise operator of ONNX Runtime's."""
    for kind in KINDS:
        assert {parity_worker.work_of(kind.operator(number)) for number in (1, 2, 200)} == {kind.work}
        assert kind.work in parity_worker.KINDS
    assert parity_worker.work_of("FusedNhwcConv_3") == parity_worker.work_of("Conv") == "convolution"
    assert parity_worker.work_of("Mul") == "elementwise"
    assert {*parity_worker.KINDS, "elementwise"} == {*parity_page.COLOURS}


def test_usage_errors(zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    common = ("--manifest", str(zoo), "--out", str(tmp_path / "results"))
    assert run_script(monkeypatch, *common, "--models", "nothing") == 2
    (tmp_path / "results").write_text("a file")
    assert run_script(monkeypatch, *common, "--models", "gated") == 2


def test_a_process_that_dies_is_a_failure_of_its_model_alone(
    zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    crash = tmp_path / "worker.py"
    crash.write_text("import os, sys\nos.kill(os.getpid(), 9) if 'looped' in sys.argv[1] else None\nimport runpy\n")
    crash.write_text(crash.read_text() + f"runpy.run_path({parity_worker.__file__!r}, run_name='__main__')\n")
    monkeypatch.setattr(parity_worker, "__file__", str(crash))
    out = tmp_path / "results"
    assert run_script(monkeypatch, "--manifest", str(zoo), "--out", str(out), "--seconds", "0") == 1
    gated, looped = json.loads((out / "results.json").read_text())["models"]
    assert gated["ok"] and not looped["ok"] and "the process ended early (status -9" in looped["reason"]
    assert "FAILED looped" in capsys.readouterr().out


# --- faults, put in by changing the program of a fused node ----------------------------------------------------------


def model(body: str, tmp_path: Path) -> tuple[Path, onnx.ModelProto]:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[n, 8] x) => (float[n, 8] y) {{ {body} }}'
    path = tmp_path / "original.onnx"
    proto = parser.parse_model(text)
    onnx.save(proto, path)
    return path, fuse_everything(proto)


def break_program(fused: onnx.ModelProto, old: str, new: str) -> list[str]:
    """Change the programs that have ``old`` in them; the names of their nodes."""
    broken = []
    for node in fused_nodes(fused):
        for attribute in node.attribute:
            if attribute.name == "program" and old.encode() in attribute.s:
                attribute.s = attribute.s.replace(old.encode(), new.encode())
                broken.append(node.name or node.overload)
    return broken


INPUTS = [InputSet("ones", {"x": np.linspace(-2, 2, 24, dtype=np.float32).reshape(3, 8)})]
BODY = "a = Exp(x) b = Neg(a) s = Softmax(b) c = Abs(s) d = Sqrt(c) e = Sigmoid(d) t = Softmax(e) y = Tanh(t)"


def test_a_fault_is_reduced_to_the_region_that_has_it(tmp_path: Path) -> None:
    original, fused = model(BODY, tmp_path)
    (guilty,) = break_program(fused, "sqrt", "neg")
    optimized = tmp_path / "optimized.onnx"
    onnx.save(fused, optimized)
    said = parity_bisect.bisect(original, optimized, INPUTS, "cpu", tmp_path / "r")
    assert guilty in said and "differs alone" in said
    # The reproducer shows the fault by itself.
    result = compare(tmp_path / "r/original.onnx", tmp_path / "r/optimized.onnx", inputs=tmp_path / "r/inputs.npz")
    assert not result.ok
    kinds = [node.op_type for node in onnx.load(tmp_path / "r/original.onnx").graph.node]
    assert set(kinds) <= {"Abs", "Sqrt", "Sigmoid", "Constant"}


def test_a_fault_of_the_lowering_is_reduced_to_one_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, fused = model(BODY, tmp_path)
    break_program(fused, "sqrt", "neg")
    optimized = tmp_path / "optimized.onnx"
    onnx.save(fused, optimized)

    def fuse_and_break(shorter: onnx.ModelProto) -> onnx.ModelProto | None:
        again = fuse_everything(shorter)
        break_program(again, "sqrt", "neg")
        return again

    monkeypatch.setattr(parity_bisect, "_fuse", fuse_and_break)
    said = parity_bisect.bisect(original, optimized, INPUTS, "cpu", tmp_path / "r")
    assert "reduced to 2 of its 3 nodes" in said
    kinds = [node.op_type for node in onnx.load(tmp_path / "r/original.onnx").graph.node]
    assert kinds == ["Abs", "Sqrt"]


def test_a_fault_of_a_rewrite_names_the_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, fused = model(BODY, tmp_path)
    node = next(node for node in fused.graph.node if node.op_type == "Softmax")
    node.attribute.add(name="axis", type=onnx.AttributeProto.INT, i=0)  # as a wrong rewrite would
    optimized = tmp_path / "optimized.onnx"
    onnx.save(fused, optimized)
    assert parity_bisect.bisect(original, optimized, INPUTS, "cpu", tmp_path / "r") == "it does not show when run again"
    optimize = onnxfuse.optimize

    def wrong(source: Path, target: str, passes: tuple[str, ...], output: Path, **options: bool) -> None:
        optimize(source, target, passes, output=output, **options)
        if "fold-affine" in passes:
            onnx.save(fused, output)

    monkeypatch.setattr(onnxfuse, "optimize", wrong)
    said = parity_bisect.bisect(original, optimized, INPUTS, "cpu", tmp_path / "r")
    assert said == "the model differs after fold-affine"


def test_fewest_finds_what_is_needed() -> None:
    for needed in ({3}, {1, 8}, {0, 5, 9}, set(range(10))):
        found = parity_bisect.fewest(list(range(10)), lambda items, needed=needed: needed <= set(items))
        assert set(found) == needed
    assert parity_bisect.fewest([1, 2, 3], lambda items: True) == []


def test_unfused_is_the_original(tmp_path: Path) -> None:
    original, fused = model(BODY, tmp_path)
    plain = parity_bisect.unfused(fused, lambda node: True)
    assert not fused_nodes(plain) and not plain.functions
    onnx.checker.check_model(plain, full_check=True)
    onnx.save(plain, tmp_path / "plain.onnx")
    assert compare(original, tmp_path / "plain.onnx", inputs=INPUTS).worst().max_abs == 0  # type: ignore[union-attr]


def test_the_reference_sees_a_wrong_function_body(tmp_path: Path) -> None:
    original, fused = model(BODY, tmp_path)
    optimized = tmp_path / "optimized.onnx"
    onnx.save(fused, optimized)
    assert against_reference(original, optimized, INPUTS[0], 60) == "equal"
    for function in fused.functions:
        for node in function.node:
            node.op_type = "Neg" if node.op_type == "Sqrt" else node.op_type
    onnx.save(fused, optimized)
    assert against_reference(original, optimized, INPUTS[0], 60).startswith("DIFFERS: output y")
    assert against_reference(original, optimized, INPUTS[0], 0) == "too large"


# --- regions run alone ----------------------------------------------------------------------------------------------


def regions_of(text: str, feeds: dict[str, np.ndarray], tmp_path: Path) -> list[bool]:
    fused = fuse_everything(parser.parse_model(text))
    onnx.save(fused, tmp_path / "m.onnx")
    found = compare_regions(
        tmp_path / "m.onnx", fused, InputSet("", dict(feeds)), ("CPUExecutionProvider",), lambda message: None
    )
    return [region.ok for region in found]


def test_regions_that_take_nothing_but_graph_inputs(tmp_path: Path) -> None:
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (float[n] y, float[n] z) { y = Exp(x) z = Neg(x) }'
    )
    assert regions_of(text, {"x": np.ones(3, np.float32)}, tmp_path) == [True, True]


def test_regions_of_scalars(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x, float s) => (float[n] y) { y = Mul(x, s) }'
    feeds = {"x": np.ones(3, np.float32), "s": np.array(2, np.float32)}
    assert regions_of(text, feeds, tmp_path) == [True]


def test_regions_rounded_to_a_coarse_type_inside(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[n] x) => (float[n] y) {
        a = Sigmoid(x) b = Cast<to=16>(a) c = Cast<to=1>(b) y = Mul(c, c) }"""
    values = np.linspace(-9, 9, 200_000, dtype=np.float32)
    assert regions_of(text, {"x": values}, tmp_path) == [True]


def test_the_page_escapes_what_a_model_says() -> None:
    hostile = StoredModel("<script>", "<b>", "MIT", {}, recipe="a:b")
    item = parity_worker.empty_result(hostile, "</p><script>")
    item["regions"] = [{"name": "<i>", "excess": 1e-3, "max_ulp": 3, "ok": False, "note": ""}]
    item["shares"] = [{"elementwise": 3.0}, {"fused region": 1.0}]
    item["time"] = {"ratio": 2.0, "low": 1.9, "high": 2.1, "before_ms": 2.0, "after_ms": 1.0}
    content = {"target": "cpu", "machine": "m", "system": "s", "versions": "v", "date": "d", "models": [item]}
    page = parity_page.render(content)
    assert "<script" not in page and "<b>MIT" not in page and "<i>" not in page
    assert page.count("<svg") == 3


def test_a_models_tolerance_counts_against_the_reference_too(tmp_path: Path) -> None:
    paths = [tmp_path / f"{factor}.onnx" for factor in ("1.0", "1.001")]
    for path in paths:
        text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[n, 8] x) => (float[n, 8] y)
            <float factor = {{{path.stem}}}> {{ y = Mul(x, factor) }}"""
        onnx.save(parser.parse_model(text), path)
    assert against_reference(*paths, INPUTS[0], 60).startswith("DIFFERS: output y")
    assert against_reference(*paths, INPUTS[0], 60, tolerance=1e4) == "equal"
