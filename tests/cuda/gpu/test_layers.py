"""Layers and models that scripts/gpu_suite.py times, without a GPU."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import onnxfuse
from tests.cuda.compilers import MadeUpCompiler
from tools.gpu import convolutions as gpu_convolutions
from tools.gpu import half as gpu_half
from tools.gpu import models as gpu_models


@pytest.mark.parametrize("dtype", gpu_convolutions.DTYPES)
@pytest.mark.parametrize("layer", gpu_convolutions.LAYERS[::4], ids=lambda layer: layer.name)
def test_a_layer_is_one_fused_node_and_runs(
    layer: gpu_convolutions.Layer, dtype: str, compiler: MadeUpCompiler
) -> None:
    small = replace(layer, size=(8, 12))
    model = gpu_convolutions.layer_model(small, 1, dtype)
    onnx.checker.check_model(model, full_check=True)
    feeds = gpu_convolutions.feeds(model)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rows = (1, 12, layer.channels[1])
    shape = rows if layer.kind == gpu_convolutions.PRODUCT else (1, layer.channels[1], *small.output_size)
    for result in session.run(None, feeds):
        assert result.shape == shape and result.dtype == dtype
    fused = onnxfuse.optimize(model, "cuda", embed=False, check=False, conv="all").model
    assert [node.op_type for node in fused.graph.node] == ["FusedConv"] * gpu_convolutions.COPIES


def test_the_layers_are_those_of_the_table() -> None:
    jobs = [job for _, job in gpu_convolutions.jobs()]
    assert len({job.name for job in jobs}) == len(jobs) == 18 * 4 + 3 * 6
    kinds = {(job.kind, job.network.split(" ")[0]) for job in jobs}
    assert kinds == {
        *(("depthwise", "MobileNetV3"), ("depthwise", "PP-OCR"), ("pointwise", "MobileNetV3"), ("pointwise", "PP-OCR")),
        ("dense", "ResNet-50"),
        ("product", "BERT-base"),
    }
    assert {layer.kernel for layer in gpu_convolutions.LAYERS if layer.kind == "depthwise"} == {3, 5}


@pytest.mark.parametrize(
    ("channels", "size", "batch", "dtype", "count"),
    [
        ((16, 32), (8, 8), 1, "float32", 8),  # small: as often as any
        ((16, 64), (512, 512), 1, "float32", 4),  # 64 MiB a tensor, and 256 MiB in all
        ((16, 64), (512, 512), 1, "float16", 8),
        ((64, 16), (512, 512), 16, "float32", 1),  # more than that once
    ],
)
def test_large_layers_are_in_their_model_fewer_times(
    channels: tuple[int, int], size: tuple[int, int], batch: int, dtype: str, count: int
) -> None:
    layer = replace(gpu_convolutions.LAYERS[0], channels=channels, size=size)
    assert gpu_convolutions.copies(layer, batch, dtype) == count


def test_a_layer_is_measured_and_what_fails_is_written_down() -> None:
    layer, job = next(gpu_convolutions.jobs())
    small = replace(layer, size=(8, 8), channels=(4, 4))
    gpu_convolutions.measure(small, job, on_gpu=False)
    assert set(job.seconds) == {"ort", "tail", "fused"} and not job.errors
    assert job.choice in ("tail", "fused") and job.ratio is not None
    _, broken = next(gpu_convolutions.jobs())
    gpu_convolutions.measure(replace(small, tail="NoSuchOperator"), broken, on_gpu=False)
    assert set(broken.errors) == {"ort", "tail", "fused"} and not broken.seconds and broken.ratio is None


def test_the_kernels_of_all_layers_are_compiled_at_once(
    compiler: MadeUpCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    todo = [(layer, job) for layer, job in gpu_convolutions.jobs() if layer.kind == "depthwise"][:3]
    monkeypatch.setattr(gpu_convolutions, "measure", lambda layer, job, tune: pytest.fail("it is late"))
    gpu_convolutions.measure_all(todo, -math.inf, lambda message: None)
    assert len({source for source, _ in compiler.calls if "convolve_depthwise" in source}) == 3


def test_a_model_in_half_precision_runs(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1, 2, 4, 4] x) => (float[1, 2, 8, 8] y)'
        " <float[2, 2, 1, 1] w = {1, 2, 3, 1e6}, float[4] s = {1, 1, 2, 2}, float[0] r = {}>"
        " { c = Conv (x, w) k = Constant <value = float {0.5}> () m = Mul (c, k) i = Cast <to = 7> (m)"
        " f = Cast <to = 1> (i) a = Add (m, f) y = Resize (a, r, s) }"
    )
    onnx.save(model, tmp_path / "m.onnx")
    half = onnx.load(gpu_half.half_model(tmp_path / "m.onnx", tmp_path / "half.onnx"))
    onnx.checker.check_model(half, full_check=True)
    feeds = gpu_half.half_values({"x": np.ones((1, 2, 4, 4), np.float32)})
    session = ort.InferenceSession(half.SerializeToString(), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, feeds)
    assert result.dtype == np.float16 and np.isfinite(result[0, 0]).all() and result[0, 0, 0, 0] == 2.5


def test_batches_repeat_the_inputs() -> None:
    feeds = {"x": np.ones((1, 3)), "y": np.zeros((1, 2, 2))}
    assert {name: array.shape for name, array in gpu_models.with_batch(feeds, 16).items()} == {
        "x": (16, 3),
        "y": (16, 2, 2),
    }
    with pytest.raises(ValueError, match="batch"):
        gpu_models.with_batch({"x": np.ones(())}, 16)
