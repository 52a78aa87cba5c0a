"""Inputs that are made up are realistic, and the same each time."""

import numpy as np
import onnx

from onnxfuse.check.input_shapes import Sizes, resolve_shapes
from onnxfuse.check.made_up_inputs import make_inputs
from onnxfuse.run.inputs import InputSpec

F32 = onnx.TensorProto.FLOAT
I64 = onnx.TensorProto.INT64


def test_made_up_images_look_like_pages() -> None:
    for shape, kind in (((1, 3, 64, 48), F32), ((2, 64, 48, 3), F32), ((1, 1, 5, 7), onnx.TensorProto.UINT8)):
        spec = InputSpec("image", kind, shape)
        image = make_inputs([spec], {"image": shape}, "image", 16).feeds["image"]
        assert image.shape == shape and image.dtype == spec.dtype
        assert 0.1 < np.mean(image < image.mean()) < 0.6
    assert make_inputs([InputSpec("x", F32, (2, 9))], {"x": (2, 9)}, "image", 16).feeds["x"].min() >= 0


def test_dynamic_dimensions_get_sensible_sizes() -> None:
    specs = [
        InputSpec("image", F32, ("batch", "c", "h", "w")),
        InputSpec("photo", F32, (None, None, None, 3)),
        InputSpec("tokens", F32, ("batch", "seq_len")),
        InputSpec("state", F32, (2, None, 128)),
        InputSpec("anything", F32, None),
    ]
    assert resolve_shapes(specs, {}, Sizes(batch=2)) == {
        "image": (2, 3, 64, 64),
        "photo": (2, 64, 64, 3),
        "tokens": (2, 32),
        "state": (2, 2, 128),
        "anything": (2,),
    }
    assert resolve_shapes(specs[:1] + specs[2:3], {"image": (5, 1, 8, 8)}, Sizes())["tokens"] == (5, 32)
    wide = [InputSpec("small", F32, ("n", "h")), InputSpec("wide", F32, ("n", 1 << 15, "h", "w"))]
    for batch, size in ((1, 32), (2, 16)):
        sizes = {"small": (batch, size), "wide": (batch, 1 << 15, size, size)}
        assert resolve_shapes(wide, {}, Sizes(batch=batch)) == sizes
        assert resolve_shapes(wide[::-1], {}, Sizes(batch=batch)) == sizes
    many = InputSpec("x", onnx.TensorProto.INT64, ("c", "h", None, "a", "b", "d"))
    assert max(resolve_shapes([many], {}, Sizes())["x"]) <= 8


def test_made_up_values_are_realistic_and_the_same_each_time() -> None:
    specs = [
        InputSpec("x", F32, (1000,)),
        InputSpec("b", onnx.TensorProto.BOOL, (100,)),
        InputSpec("pixels", onnx.TensorProto.UINT8, (8, 8, 3)),
        InputSpec("attention_mask", onnx.TensorProto.INT64, (4, 9)),
        InputSpec("h", onnx.TensorProto.BFLOAT16, (5,)),
    ]
    shapes = {spec.name: spec.shape for spec in specs}
    for kind in ("normal", "uniform", "spread"):
        first, second = (make_inputs(specs, shapes, kind, 16).feeds for _ in range(2))
        for spec in specs:
            assert first[spec.name].dtype == spec.dtype and first[spec.name].shape == spec.shape
            np.testing.assert_array_equal(first[spec.name], second[spec.name])
        assert np.isfinite(first["x"]).all()
        assert set(np.unique(first["attention_mask"])) <= {0, 1}
        assert len(np.unique(first["pixels"])) > 50
