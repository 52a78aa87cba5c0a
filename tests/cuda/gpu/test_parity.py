"""What scripts/gpu_suite.py compares on a GPU: in the emulation and on the CPU it agrees."""

import inspect
import math
from pathlib import Path
from typing import Any

import gpu_suite
import numpy as np
import onnx
import pytest

from onnxfuse.cuda.elementwise.access import choose, classify
from onnxfuse.cuda.elementwise.renderer import render
from onnxfuse.program import reference
from tests.cuda.compilers import MadeUpCompiler
from tests.cuda.emulation.emulator import Emulation
from tools.gpu import conv_parity as gpu_conv_parity
from tools.gpu import machine as gpu_machine
from tools.gpu import parity as gpu_parity
from tools.gpu import report as gpu_report


def test_convolutions_of_the_parity_are_those_of_the_emulation() -> None:
    cases = list(gpu_conv_parity.conv_cases(range(2)))
    assert {case.name.split(" ")[0] for case in cases} >= {"any", "gemm", "depthwise", "direct"}
    assert list(gpu_conv_parity.check_convolutions(cases, on_gpu=False)) == []
    for case in cases[:4]:
        expected = case.expected()
        assert {result.shape for result in expected} == {case.fused.conv.output_shape(case.fused.x_shape)}


def test_convolutions_run_with_their_code_and_one_that_fails_is_found(
    compiler: MadeUpCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = list(gpu_conv_parity.conv_cases(range(3), ("gemm",)))

    def run(session: onnx.ModelProto, arrays: list[np.ndarray]) -> list[np.ndarray]:
        names = [node.name for node in session.graph.node]
        for node in session.graph.node:
            assert {"cuda_recipe", "cuda_ptx", "program"} <= {attribute.name for attribute in node.attribute}
        if "gemm 1" in names:
            raise RuntimeError("launch failed")
        results = [result for case in cases if case.name in names for result in case.expected()]
        return [result + 1 for result in results] if names == ["gemm 2"] else results

    monkeypatch.setattr(gpu_conv_parity, "new_session", lambda model, library: onnx.load_model_from_string(model))
    monkeypatch.setattr(gpu_conv_parity, "run", run)
    verdicts = {verdict.name: verdict for verdict in gpu_conv_parity.check_convolutions(cases, on_gpu=True)}
    assert [verdict.ok for verdict in verdicts.values()] == [True, False, False]
    assert "launch failed" in verdicts["gemm 1"].detail and "other bits" in verdicts["gemm 2"].detail


def test_programs_of_the_parity_are_those_of_the_emulation_and_agree_on_the_cpu() -> None:
    cases = [case for case in gpu_parity.program_cases(["f16"], 6) if "bf16" not in case.name]
    assert {"casts f16", "GELU f16", "random 5"} < {case.name for case in cases}
    verdicts = list(gpu_parity.check_programs(cases, on_gpu=False))
    assert len(verdicts) == len(cases)
    assert [verdict for verdict in verdicts if not verdict.ok] == []


@pytest.mark.parametrize("dtype", ["f64", "i64", "u64"])
def test_the_parity_finds_the_emulated_operators_right_and_a_wrong_one_wrong(dtype: str) -> None:
    """In these types the kernels and the reference are both rounded where functions are."""
    cases = [case for case in gpu_parity.program_cases([dtype], 0) if case.name.startswith(f"operators {dtype}")]
    layouts = [classify(case.program, [array.shape for array in case.inputs]) for case in cases]
    sources = [render(case.program, [layout.access]) for case, layout in zip(cases, layouts, strict=True)]
    emulation = Emulation(sources)
    for case, layout, source in zip(cases, layouts, sources, strict=True):
        expected = reference.run(case.program, case.inputs)
        results = emulation.run(source.kernels[-1], case.program, layout, case.inputs)
        shaped = [result.reshape(wanted.shape) for result, wanted in zip(results, expected, strict=True)]
        assert gpu_parity._compare(shaped, expected, case) == (True, "")
        shaped[-1] = shaped[-1].copy()
        shaped[-1][..., -1] += np.ones((), shaped[-1].dtype)
        assert not gpu_parity._compare(shaped, expected, case)[0]


def test_inputs_have_special_values_and_what_is_exact_no_slack() -> None:
    cases = {case.name: case for case in gpu_parity.program_cases(["f16"], 0)}
    first = cases["operators f16 0"]
    (x,) = (array for array in first.inputs[:1])
    wide = x.astype(np.float32)
    assert np.isnan(x).any() and np.isinf(x).any() and (np.abs(wide) == 65504).any()
    assert (np.signbit(x) & (x == 0)).any() and ((wide != 0) & (np.abs(wide) < 2**-14)).any()
    assert set(first.ulps) == {0, gpu_parity.FUNCTION_ULP + gpu_parity.REFERENCE_ULP}
    assert len(first.ulps) == len(first.program.outputs)
    assert all(np.isfinite(array).all() for array in cases["GELU f16"].inputs)


def test_without_slack_the_zeros_are_told_apart_and_nans_are_not() -> None:
    case = next(case for case in gpu_parity.large_cases(1) if case.name == "large f32")
    left = np.array([0.0, np.nan, 1.0], np.float32)
    right = np.array([-0.0, -np.nan, 1.0], np.float32)
    assert gpu_parity._compare([left], [left], case) == (True, "")
    assert not gpu_parity._compare([left], [right], case)[0]
    assert gpu_parity._compare([left[1:]], [right[1:]], case) == (True, "")


def test_large_cases_have_every_vector_and_agree_on_the_cpu() -> None:
    cases = list(gpu_parity.large_cases(1 << 10))
    vectors = set()
    for case in cases:
        layout = classify(case.program, [array.shape for array in case.inputs])
        kernels = render(case.program, [layout.access]).kernels
        kernel = choose(kernels, layout, [0] * len(layout.operands))
        vectors.add(kernel.vector)
        assert layout.count // kernel.vector >= 1 << 10
    assert vectors == {1, 2, 4, 8, 16}
    assert all(verdict.ok for verdict in gpu_parity.check_programs(cases, on_gpu=False))


def test_of_a_giant_case_some_rows_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    case = gpu_parity.giant_case(50, 7)
    assert case.rows == (0, 1, 25, 48, 49) and [len(array) for array in case.expected()] == [5]
    assert [verdict.ok for verdict in gpu_parity.check_programs([case], on_gpu=False)] == [True]
    wrong = case.inputs[0] + case.inputs[1]
    wrong[48, 3] += 1
    assert not gpu_parity._compare([case.compared(wrong)], case.expected(), case)[0]
    rows, columns = inspect.signature(gpu_parity.giant_case).parameters.values()
    assert rows.default * columns.default > 1 << 31


def test_a_machine_of_little_memory_leaves_the_giant_case_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_machine, "_gpu_memory", lambda: 8_000_000_000)
    monkeypatch.setattr(gpu_parity, "giant_case", lambda: pytest.fail("there is no room for it"))
    monkeypatch.setattr(gpu_parity, "check_programs", lambda *_, **__: iter(()))
    monkeypatch.setattr(gpu_parity, "large_cases", lambda: iter(()))
    results = gpu_report.Results()
    assert list(gpu_suite._check_large(results, math.inf)) == []
    (note,) = results.notes
    assert note == "parity: a program of more than 2^31 elements: the GPU has 8 GB of memory, and it takes 16"
    monkeypatch.setattr(gpu_suite, "why_nothing_giant", lambda: "")
    assert list(gpu_suite._check_large(results, -math.inf)) == [] and "too little time" in results.notes[1]


def test_scalars_stay_scalars_where_inputs_are_bound() -> None:
    cases = [case for case in gpu_parity.program_cases([], 40) if case.name.startswith("random")]
    scalars = [case for case in cases if case.inputs[0].shape == () and not case.has_bf16]
    assert len(scalars) > 1
    verdicts = list(gpu_parity.check_programs(scalars, on_gpu=False, graph=True))
    assert [verdict for verdict in verdicts if not verdict.ok] == []


def test_a_program_that_fails_is_found_among_others(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [case for case in gpu_parity.program_cases([], 4) if case.name.startswith("random")]
    original = gpu_parity._run

    def run(batch: Any, code: bytes, on_gpu: bool, graph: bool) -> list[np.ndarray]:
        if cases[1] in batch:
            raise RuntimeError("launch failed")
        results = original(batch, code, on_gpu, graph)
        return [np.zeros_like(result) + 77 for result in results] if batch == [cases[2]] else results

    monkeypatch.setattr(gpu_parity, "_run", run)
    verdicts = {verdict.name: verdict for verdict in gpu_parity.check_programs(cases, on_gpu=False)}
    assert {name for name, verdict in verdicts.items() if not verdict.ok} == {cases[1].name, cases[2].name}
    assert "launch failed" in verdicts[cases[1].name].detail and "output 0" in verdicts[cases[2].name].detail


def test_models_are_compared_in_float16_too_where_they_can_be_converted(
    tmp_path: Path, compiler: MadeUpCompiler
) -> None:
    text = {
        "mean": "g (float[1, 4, 24, 24] x) => (float[1, 4, 1, 1] y) { a = Neg(x) b = Abs(a) y = GlobalAveragePool(b) }",
        "range": "g (float[1] x) => (float[n] y) { z = Squeeze(x) r = Range(zero, z, one) y = Relu(r) }",
    }
    for name, lines in text.items():
        model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]> {lines}')
        scalars = (("zero", 0), ("one", 1)) if name == "range" else ()
        model.graph.initializer.extend(onnx.numpy_helper.from_array(np.float32(value), own) for own, value in scalars)
        onnx.save(model, tmp_path / f"{name}.onnx")
    found = list(
        gpu_parity.check_half_model(tmp_path / "mean.onnx", tmp_path, False, {"x": np.ones((1, 4, 24, 24), "f")})
    )
    assert [(verdict.name, verdict.ok) for verdict in found] == [("mean in float16", True)]
    assert list(gpu_parity.check_half_model(tmp_path / "range.onnx", tmp_path, False, {"x": np.ones(1, "f")})) == []
