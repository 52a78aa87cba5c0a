"""Optimized models in the oldest ONNX Runtime and the one that is installed: without the library, with it, and written
anew by a tool that knows no overloads; and in onnx's ReferenceEvaluator."""

import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import portability
import pytest
from onnx.reference import ReferenceEvaluator

import onnxfuse
from onnxfuse.check.comparison import Numbers
from onnxfuse.cuda.compile import compiler as compilers
from onnxfuse.run.inputs import InputSet
from onnxfuse.zoo.manifest import StoredModel
from onnxfuse.zoo.model_inputs import input_sets
from tests.cuda.compilers import MadeUpCompiler
from tests.support import many_functions
from tools.parity.roundings import Judge

REAL = ("ch_ppocr_mobile_v2.0_cls", "ch_PP-OCRv4_det", "light_shufflenet")


@pytest.fixture(scope="module", params=["oldest", "installed"])
def place(request: pytest.FixtureRequest) -> Iterator[portability.Elsewhere]:
    """ONNXFUSE_ORT_OLDEST is the Python of an environment with ONNX Runtime 1.20."""
    python = sys.executable if request.param == "installed" else os.environ.get("ONNXFUSE_ORT_OLDEST")
    if not python:
        pytest.skip("ONNXFUSE_ORT_OLDEST is not set")
    with portability.Elsewhere(python) as found:
        yield found


def optimized(original: Path, folder: Path, target: str = "cpu") -> Path:
    """``folder``, with what is made of a model."""
    options = {"arch": "sm_80", "embed": False} if target == "cuda" else {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compilers, "find_compiler", MadeUpCompiler)
        patch.setenv("XDG_CACHE_HOME", str(folder))
        onnxfuse.optimize(original, target, check=False, output=folder / "fused.onnx", **options)  # type: ignore[arg-type]
    portability.with_plain_names(folder / "fused.onnx", folder / "plain_names.onnx")
    return folder


def saved(model: onnx.ModelProto, folder: Path) -> tuple[Path, InputSet]:
    onnx.save(model, folder / "original.onnx")
    return folder / "original.onnx", InputSet("", dict(many_functions.feeds(model)))


MADE: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "regions": (lambda: many_functions.regions(120), "cpu"),
    "regions for cuda": (lambda: many_functions.regions(120), "cuda"),
    "attentions": (many_functions.attentions, "cpu"),
    "attentions for cuda": (many_functions.attentions, "cuda"),
}

Case = tuple[Path, InputSet, Path]


@pytest.fixture(scope="module")
def case(
    real_model: Callable[[str], Path], manifest: dict[str, StoredModel], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Case]:
    """Gives a model by its name, its inputs and a folder with what is made of it."""

    @cache
    def get(name: str) -> Case:
        folder = tmp_path_factory.mktemp("case")
        if name in MADE:
            make, target = MADE[name]
            original, feeds = saved(make(), folder)
            return original, feeds, optimized(original, folder, target)
        original = real_model(name)
        return original, input_sets(manifest[name], original)[-1], optimized(original, folder)

    return get


@pytest.mark.parametrize("name", [*MADE, *REAL])
def test_models_run_everywhere(place: portability.Elsewhere, name: str, case: Callable[[str], Case]) -> None:
    original, feeds, folder = case(name)
    assert portability.answer(place, original, folder, feeds, 1.0) == portability.EQUAL


@pytest.mark.parametrize("name", MADE)
def test_models_run_in_the_reference_evaluator(name: str, case: Callable[[str], Case]) -> None:
    original, inputs, folder = case(name)
    models = original, folder / "fused.onnx"
    (expected,), (actual,) = (ReferenceEvaluator(str(path)).run(None, inputs.feeds) for path in models)
    np.testing.assert_allclose(actual, expected, 1e-5, 1e-6)


SENSITIVE = """<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) <float large = {16777216.0}> {
    a = Add (x, large) b = Sub (a, large) y = Mul (b, b) }"""


def test_what_is_but_rounding_is_told_from_what_is_wrong(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(SENSITIVE)
    x = np.array([0.6, 1.4, 2.6, 3.4], np.float32)
    onnx.save(model, tmp_path / "original.onnx")
    inputs = InputSet("", {"x": x})
    expected, numbers = np.square(x + np.float32(1 << 24) - np.float32(1 << 24)), Numbers(np.dtype(np.float32))
    judge = Judge(tmp_path / "original.onnx", inputs)
    nearer = judge.excuse("y", expected, np.square(x), numbers, dict)
    assert nearer.endswith("the optimized model is nearer")
    assert not judge.excuse("y", expected, 3 * expected, numbers, dict)
    noise = {"y": 2 * expected}
    assert "optimizations change it as much" in judge.excuse("y", expected, 3 * expected, numbers, lambda: noise)
    text = f"{portability.ROUNDINGS}without the library: output y: {nearer}"
    assert portability.is_rounded(text) and not portability.is_wrong(text) and not portability.is_nothing(text)
    assert "| here | 0 | 1 | 0 | 0 |" in portability.page([portability.Row("m", 2, {"here": text})], "cpu")


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    model = many_functions.regions(2)
    original, feeds = saved(model, tmp_path)
    optimized(original, tmp_path)
    with portability.Elsewhere(sys.executable) as place:
        assert portability.answer(place, original, tmp_path, feeds, 1.0) == portability.EQUAL
        other = onnx.load(tmp_path / "plain_names.onnx")
        other.functions[0].node[-1].op_type = "Exp"
        onnx.save(other, tmp_path / "plain_names.onnx")
        wrong = portability.answer(place, original, tmp_path, feeds, 1.0)
        assert wrong.startswith("without overloads: output x2: ")
        (tmp_path / "fused.onnx").write_bytes(b"")
        assert portability.answer(place, original, tmp_path, feeds, 1.0).startswith("without the library: ")
        lost = portability.answer(place, tmp_path / "missing", tmp_path, feeds, 1.0)
        assert lost.startswith(portability.ORIGINAL) and not portability.is_wrong(lost) and portability.is_wrong(wrong)
    with portability.Elsewhere("/bin/true") as place:
        assert "ended with status 0" in portability.answer(place, original, tmp_path, feeds, 1.0)
    rows = [portability.Row("m", 2, {"here": wrong, "there": portability.EQUAL})]
    text = portability.page(rows, "cpu")
    assert "| here | 0 | 0 | 0 | 1 |" in text and "| there | 1 | 0 | 0 | 0 |" in text and "x2" in text
