"""scripts/gpu_suite.py without a GPU: its report, its limits, what it does when things fail, and a dry run."""

import json
import math
import os
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import gpu_suite
import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.cuda.arch import COMMON
from onnxfuse.cuda.elementwise.access import expected_access
from onnxfuse.cuda.options import CudaOptions
from onnxfuse.errors import OnnxfuseError
from onnxfuse.program import reference
from onnxfuse.run import runtime
from tests.cuda.gpu.test_chains import script
from tools.gpu import attention as gpu_attention
from tools.gpu import chains as gpu_chains
from tools.gpu import convolutions as gpu_convolutions
from tools.gpu import kernels as gpu_kernels
from tools.gpu import limits as gpu_limits
from tools.gpu import machine as gpu_machine
from tools.gpu import models as gpu_models
from tools.gpu import parity as gpu_parity
from tools.gpu import parts as gpu_parts
from tools.gpu import products as gpu_products
from tools.gpu import reduction_chains as gpu_reduction_chains
from tools.gpu import reductions as gpu_reductions
from tools.gpu import report as gpu_report
from tools.gpu import transposes as gpu_transposes
from tools.gpu.attention import Attending
from tools.gpu.chains import CHAINS, Chain
from tools.gpu.products import Multiplying
from tools.gpu.reduction_chains import Reducing

SUITE = Path(gpu_suite.__file__)


@pytest.mark.parametrize(
    ("says", "status", "found"),
    [
        ("echo '= ERROR SUMMARY: 0 errors'", 0, "exit status 0: ERROR SUMMARY: 0 errors"),
        ("echo '= ERROR SUMMARY: 3 errors'", 9, "exit status 9: ERROR SUMMARY: 3 errors; it said nothing"),
        ("echo 'add f32: wrong' >&2", 1, "exit status 1: no summary; add f32: wrong"),
    ],
)
def test_a_sanitizer_that_fails_is_an_error(
    says: str, status: int, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = script(tmp_path, f"{says}; exit {status}")
    monkeypatch.setattr(gpu_suite.shutil, "which", lambda name: tool)
    monkeypatch.setattr(gpu_suite, "_comparisons", lambda *_: iter(()))
    results = gpu_report.Results()
    gpu_suite._check(results, [], [], time.monotonic() + 600, on_gpu=True)
    assert results.sanitizer == found
    assert results.errors == ([f"parity: compute-sanitizer: {found}"] if status else [])


def _results() -> gpu_report.Results:
    """Made-up measurements, some of which miss their targets."""
    results = gpu_report.Results(machine={"GPU": "made-up | GPU"}, seconds=12.0)
    results.kernels = list(gpu_kernels.jobs())
    for job in results.kernels:
        job.seconds = {"copy": 0.95e-4, "kernel": 1e-4, "torch": 1.1e-4, "jax": 0.9e-4, "ort": 9e-4, "onnxfuse": 1.5e-4}
    results.reductions = list(gpu_reductions.jobs())[:1]
    results.reductions[0].seconds = dict(results.kernels[0].seconds)
    results.transposes = list(gpu_transposes.jobs())[:2]
    for job in results.transposes:
        job.seconds = {"copy": 1e-4, "kernel": 1.25e-4, "ort": 5e-4}
    results.transposes[1].seconds["kernel"] = 2e-4
    results.parts = list(gpu_parts.jobs())[:2]
    for job in results.parts:
        job.seconds = {"copy": 0.9e-4, "kernel": 1e-4, "ort": 3e-4}
    results.attention = list(gpu_attention.jobs())[:5]
    for job in results.attention:
        job.seconds = {"ort": 3e-4, "torch": 1e-4, "onnxfuse": 1e-4}
    results.products = list(gpu_products.jobs())[:4]
    for job in results.products:
        job.seconds = {"copy": 0.95e-4, "kernel": 1e-4, "ort": 2e-4}
    results.kernels[0].errors["cupy"] = "No module named 'cupy'"
    seconds = {"ort": 2e-3, "onnxfuse": 1e-3, "ort, graph": 1.5e-3, "onnxfuse, graph": 1e-3}
    results.models = [
        gpu_models.ModelTimes(
            "ch_det",
            1,
            {},
            "float32",
            dict(seconds),
            launches={"ort": 90, "onnxfuse": 30},
            copies={"ort": 2, "onnxfuse": 3},
            elementwise={"ort": 60, "onnxfuse": 15},
        ),
        gpu_models.ModelTimes(
            "other", 16, {}, seconds={"ort": 1e-3, "onnxfuse": 2e-3}, errors={"ort, graph": "not captured"}
        ),
        gpu_models.ModelTimes("yolo", 1, {}, "float16", {"ort": 1.8e-3, "onnxfuse": 2e-3}),
    ]
    ours = dict.fromkeys((gpu_convolutions.DENSE, gpu_convolutions.PRODUCT), 3e-5)
    ours |= {gpu_convolutions.DEPTHWISE: 1e-5, gpu_convolutions.POINTWISE: 2e-5}
    for layer, job in gpu_convolutions.jobs():
        job.seconds = {"ort": 2.4e-5, "tail": 2.2e-5, "fused": ours[layer.kind]}
        results.convolutions.append(job)
    dense = [job for job in results.convolutions if job.kind == gpu_convolutions.DENSE]
    dense[-1].seconds["ort"] = 2.1e-5
    results.convolutions[0].errors["ort, prefer_nhwc=1"] = "no such kernel"
    results.parity = [gpu_parity.Verdict("program", "add f32", True), gpu_parity.Verdict("model", "other", False, "x")]
    results.sanitizer = "exit status 0: ERROR SUMMARY: 0 errors"
    return results


def test_targets_are_held_against_the_worst() -> None:
    found = {target.name: target for target in gpu_report.targets(_results())}
    assert [(target.measured, target.met) for target in found.values()] == [
        (pytest.approx(0.95), True),
        (pytest.approx(1.1), True),
        (pytest.approx(0.9), False),
        (pytest.approx(6), True),
        (pytest.approx(1.5), True),
        (pytest.approx(0.5), False),
        (pytest.approx(2.4), True),
        (pytest.approx(1.2), True),
        (pytest.approx(1.0818, abs=1e-4), True),
        (pytest.approx(2.1 / 2.2), False),
        (pytest.approx(2.4 / 2.2), True),
        (pytest.approx((1.5 * 0.9) ** 0.5), False),
        (pytest.approx(0.9), False),
        (pytest.approx(0.95), True),
        (pytest.approx(1.1), True),
        (pytest.approx(0.9), False),
        (pytest.approx(6), True),
        (pytest.approx(0.5), False),
        (pytest.approx(2.5), True),
        (pytest.approx(0.9), True),
        (pytest.approx(3), True),
        (pytest.approx(0.95), True),
        (pytest.approx(2), True),
        (1.0, True),
        (1.0, False),
        (pytest.approx(0.25), True),
        (1.0, False),
        (1.0, False),
    ]
    assert found["any zoo model against ORT CUDA"].where == "other, float32, batch 16"
    assert found["convolutional models, batch 1"].where == "yolo, float16, batch 1"
    assert found["3x3 dense convolutions with tail"].where.endswith("512 at 7x7, Relu, float16, batch 16")


def test_nothing_measured_is_said_to_be_nothing_measured() -> None:
    results = gpu_report.Results(kernels=list(gpu_kernels.jobs()))
    results.convolutions = [job for _, job in gpu_convolutions.jobs()]
    assert all(target.measured is None and target.met is None for target in gpu_report.targets(results))
    assert gpu_report.markdown(results).count("not measured") == len(gpu_report.targets(results))


def test_the_report_is_json_markdown_and_plots(tmp_path: Path) -> None:
    gpu_report.write(_results(), tmp_path / "new")
    data = json.loads((tmp_path / "new" / "results.json").read_text())
    assert len(data["kernels"]) == 80 and data["targets"][0]["met"] is True
    text = (tmp_path / "new" / "results.md").read_text()
    assert "**missed**" in text and "No module named 'cupy'" in text and "90 → 30" in text
    assert "no such kernel" in text and "| PP-OCR det | depthwise 5x5, 256 at 40x40, HardSwish |" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") - line.count("\\|") for line in lines if "made-up" not in line}) <= 7
    for name in ("bandwidth.svg", "models.svg"):
        assert f"![{name}]({name})" in text
        ElementTree.parse(tmp_path / "new" / name)


def test_a_dry_run_measures_nothing_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(gpu_chains.onnx_model(CHAINS[0], "float32"), tmp_path / "chain.onnx")
    models = [(tmp_path / "chain.onnx", {"x0": np.ones((1, 64, 256), np.float32)})]
    monkeypatch.setattr(gpu_suite, "find_models", lambda *_: models)
    shares = {"parity": 0.3, "kernels": 0.1, "reductions": 0.1, "attention": 0.1, "convolutions": 0.1, "models": 0.3}
    shares["transposes"] = shares["parts"] = shares["products"] = 0.1
    monkeypatch.setattr(gpu_suite, "SHARES", shares)
    tried: list[Chain | Reducing | Attending | Multiplying | gpu_transposes.Subject | gpu_parts.Subject] = []
    monkeypatch.setattr(gpu_reductions, "try_on_cpu", tried.append)
    monkeypatch.setattr(gpu_kernels, "try_on_cpu", tried.append)
    monkeypatch.setattr(gpu_transposes, "try_on_cpu", tried.append)
    monkeypatch.setattr(gpu_parts, "try_on_cpu", tried.append)
    monkeypatch.setattr(gpu_attention, "try_on_cpu", tried.append)
    monkeypatch.setattr(gpu_products, "try_on_cpu", tried.append)
    monkeypatch.setattr(gpu_models, "onnxfuse", _without_embedding())
    monkeypatch.setattr(gpu_parity, "onnxfuse", _without_embedding())
    assert gpu_suite.main(["--dry-run", "--out", str(tmp_path / "out")]) == 0
    data = json.loads((tmp_path / "out" / "results.json").read_text())
    suites = gpu_reduction_chains, gpu_transposes, gpu_parts, gpu_attention, gpu_products
    subjects = [one.SUBJECTS for one in suites]
    measured = {target["name"] for target in data["targets"] if target["measured"] is not None}
    assert measured == {"launches in fused parts of a model, share of the original's"}
    assert (
        "dry run" in data["machine"]
        and data["errors"] == []
        and tried == [own for all_own in (CHAINS, *map(dict.values, subjects)) for own in all_own]
    )
    assert {verdict["kind"] for verdict in data["parity"]} == {"program", "model"}
    assert all(verdict["ok"] for verdict in data["parity"])
    assert [model["launches"] for model in data["models"]] == [{"ort": 3, "onnxfuse": 1}] * 2
    assert [model["copies"] for model in data["models"]] == [{"ort": 0, "onnxfuse": 0}] * 2


def _without_embedding() -> types.SimpleNamespace:
    """The package, whose ``optimize`` leaves machine code out, which takes time to make."""

    def optimize(*arguments: Any, **options: Any) -> Any:
        return onnxfuse.optimize(*arguments, **{**options, "embed": False})

    return types.SimpleNamespace(optimize=optimize)


def test_a_part_that_fails_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("of no use")

    ran: list[str] = []
    monkeypatch.setattr(gpu_suite, "find_models", lambda *_: [])
    run = {"parity": fail, "kernels": lambda *_: ran.append("kernels"), "models": lambda *_: ran.append("models")}
    run["convolutions"] = run["kernels"]
    monkeypatch.setattr(gpu_suite, "_RUN", run)
    assert gpu_suite.main(["--dry-run", "--out", str(tmp_path), "--only", "parity,models"]) == 1
    assert ran == ["models"]
    empty, failed = json.loads((tmp_path / "results.json").read_text())["errors"]
    assert failed == "parity: ValueError: of no use" and empty.startswith("models: there are none of the zoo's in ")


@pytest.mark.parametrize("name", gpu_transposes.SUBJECTS)
def test_transposes_can_be_measured(name: str) -> None:
    """What is timed is what its name says, and where dimensions are long enough it turns tiles."""
    subject = gpu_transposes.SUBJECTS[name]
    gpu_transposes.try_on_cpu(subject)
    job = gpu_kernels.Measured(name, "float16", 64, 0)
    access = expected_access(gpu_transposes.program_of(subject, job.dtype), [subject.shape(64, job.dtype)])
    assert access.transposes == name.startswith(("matrix", "channels last, 64", "channels first", "keys"))


@pytest.mark.parametrize("name", gpu_parts.SUBJECTS)
def test_parts_can_be_measured(name: str) -> None:
    """All parts are one launch; the Concat of several activations is written in runs, or lies in one piece."""
    subject = gpu_parts.SUBJECTS[name]
    gpu_parts.try_on_cpu(subject)
    case = gpu_parts.case_of(gpu_kernels.Measured(name, "float16", 1, 0))
    results = reference.run(case.program, case.arrays)
    for result, wanted in zip(results, case.wanted, strict=True):
        np.testing.assert_array_equal(result, wanted)
    job = next(job for job in gpu_parts.jobs() if job.chain == name)
    source = gpu_parts.case_of(job).fit(CudaOptions(COMMON[-1:], embed=False)).source
    member = source.kernels[source.joint[0].members[0]]
    assert member.access.outputs == ("p" if name.endswith("channels") else "l") and member.vector == 4


def test_without_a_gpu_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_machine, "why_no_cuda", lambda: "there is no CUDA GPU here")
    monkeypatch.setenv(gpu_suite.REQUIRE_GPU, "")
    monkeypatch.delenv(gpu_suite.REQUIRE_GPU)
    assert gpu_suite.main(["--out", str(tmp_path / "out")]) == 2
    assert os.environ[gpu_suite.REQUIRE_GPU] == "1"
    assert capsys.readouterr().err == "gpu_suite.py: error: there is no CUDA GPU here\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_all_that_is_missing_is_said_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU without a CUDA compiler and PyCUDA, and with an ONNX Runtime whose CUDA provider does not load."""

    def none() -> None:
        raise OnnxfuseError("no CUDA compiler")

    for name in ("pycuda", "pycuda.driver"):
        monkeypatch.setitem(sys.modules, name, None)
    for module in (gpu_machine, runtime):
        monkeypatch.setattr(module, "why_no_cuda", lambda: "")
    monkeypatch.setattr(gpu_machine, "find_compiler", none)
    monkeypatch.setattr(runtime, "load_cuda_libraries", lambda: None)
    found = gpu_machine.missing(["parity", "kernels"])
    assert found[0] == "no CUDA compiler" and "could not load its CUDA provider" in found[1]
    assert found[2].startswith("PyCUDA cannot be used") and len(found) == 3
    assert len(gpu_machine.missing(["parity"])) == 2
    assert gpu_machine.describe(dry_run=True)["CUDA compiler"] == "none (no CUDA compiler)"


def test_what_there_was_no_time_for_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = [(tmp_path / "a.onnx", {}), (tmp_path / "b.onnx", {})]
    monkeypatch.setattr(gpu_suite, "find_models", lambda *_: models)
    monkeypatch.setattr(gpu_parity, "program_cases", lambda *_, **__: [])
    verdicts = [gpu_parity.Verdict("program", "one", True), gpu_parity.Verdict("program", "two", True)]
    monkeypatch.setattr(gpu_parity, "check_programs", lambda *_: iter(verdicts))
    assert gpu_suite.main(["--dry-run", "--out", str(tmp_path), "--only", "parity,models", "--seconds", "0"]) == 1
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["errors"] == ["parity: out of time after 1 comparisons"]
    assert found["notes"] == [
        "parity: too little time is left for a, b",
        "models: too little time is left for 4, each batch size and type counted",
    ]


def _slow(*_: object) -> Iterator[gpu_parity.Verdict]:
    yield gpu_parity.Verdict("model", "a", True)
    time.sleep(30)


def test_a_model_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_models, "MOST_SECONDS", 0.05)
    monkeypatch.setattr(gpu_models, "LEAST_SECONDS", 0)
    monkeypatch.setattr(gpu_parity, "check_model", _slow)
    models = [(tmp_path / "a.onnx", {}), (tmp_path / "b.onnx", {})]
    results = gpu_report.Results()
    gpu_suite._check_models(results, models, math.inf, on_gpu=False)
    assert [verdict.ok for verdict in results.parity] == [True, True]
    assert [note.partition(" after ")[0] for note in results.notes] == [
        "parity: a was given up",
        "parity: b was given up",
    ]
    monkeypatch.setattr(gpu_models, "prepare", lambda *_: time.sleep(30))
    for model in gpu_models.measure_all(models, math.inf, lambda message: None, on_gpu=False):
        assert set(model.errors) == {"time"} and not model.seconds


def test_a_limit_ends_with_what_it_limits() -> None:
    with gpu_limits.at_most(0.05):
        pass
    time.sleep(0.1)
    with pytest.raises(gpu_limits.OutOfTime), gpu_limits.at_most(0.05):
        try:
            time.sleep(30)
        except Exception:
            pytest.fail("it is none")


def test_a_suite_that_does_not_end_is_ended_with_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    status: list[int] = []

    def end(code: int) -> None:
        status.append(code)
        ended.set()

    monkeypatch.setattr(gpu_suite.os, "_exit", end)
    monkeypatch.setattr(gpu_suite, "GRACE_SECONDS", 0.05)
    monkeypatch.setattr(gpu_suite, "find_models", lambda *_: [])

    def hang(results: gpu_report.Results, *_: object) -> None:
        results.notes.append("so far")
        assert ended.wait(30)
        found = json.loads((tmp_path / "results.json").read_text())
        assert found["notes"] == ["so far"] and found["errors"] == ["the suite did not end within 0 s, and was made to"]

    monkeypatch.setitem(gpu_suite._RUN, "kernels", hang)
    gpu_suite.main(["--dry-run", "--only", "kernels", "--seconds", "0", "--out", str(tmp_path)])
    assert status == [1]


def _like_a_user() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}


def test_started_as_a_script_a_dry_run_has_no_problem(tmp_path: Path) -> None:
    """With the library of the installed package, and not the checkout's modules, which have none."""
    arguments = ["--dry-run", "--only", "parity", "--models", str(tmp_path), "--out", str(tmp_path / "out")]
    command = [sys.executable, str(SUITE), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=_like_a_user(), cwd=SUITE.parent.parent)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert found["errors"] == [] and [verdict for verdict in found["parity"] if not verdict["ok"]] == []
    assert "Problems" not in (tmp_path / "out" / "results.md").read_text()


def test_without_pytest_it_says_so() -> None:
    code = (
        "import importlib.util, runpy; find = importlib.util.find_spec;"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'pytest' else find(name, *rest);"
        f"runpy.run_path({str(SUITE)!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=_like_a_user())
    assert done.returncode == 2
    assert done.stderr == "gpu_suite.py: error: pytest is not installed: take 'pip install pytest'\n"


@pytest.mark.parametrize("name", ["768 to 2048, gated", "4096 to 4096, a sum, 4 rows"])
def test_products_of_few_rows_are_one_node(name: str) -> None:
    gpu_products.try_on_cpu(gpu_products.SUBJECTS[name])


def test_a_part_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        gpu_suite.main(["--dry-run", "--only", "parity,speed"])
    said = capsys.readouterr().err
    assert (
        "no part 'speed'; the parts are parity, kernels, reductions, transposes, parts, attention, products, "
        "convolutions, models" in said
    )


def test_models_are_found_by_their_names(tmp_path: Path) -> None:
    model = gpu_chains.onnx_model(CHAINS[0], "float32", (1, 64, 256))
    onnx.save(model, tmp_path / "unknown.onnx")
    assert gpu_suite.find_models(tmp_path, "*") == []
