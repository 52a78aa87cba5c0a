"""Shapes of inputs, and sizes of dimensions, that the user gives."""

import onnx
import pytest

from onnxfuse.check.input_shapes import Sizes, resolve_shapes
from onnxfuse.errors import OnnxfuseError
from onnxfuse.run.given_shapes import fit_shapes, parse_shapes, symbol_sizes
from onnxfuse.run.inputs import InputSpec

F32 = onnx.TensorProto.FLOAT
I64 = onnx.TensorProto.INT64


def test_shapes_are_parsed_with_any_name() -> None:
    assert parse_shapes(["x=1x3", "a=b=2", "2x2=4x5", "scalar="]) == {
        "x": (1, 3),
        "a=b": (2,),
        "2x2": (4, 5),
        "scalar": (),
    }
    for bad in ("x", "=1", "x=1x", "x=-1", "x=1,2", "x=ax2", "x=1 x 2", "x=²"):
        with pytest.raises(OnnxfuseError, match="--shape"):
            parse_shapes([bad])
    with pytest.raises(OnnxfuseError, match="twice"):
        parse_shapes(["x=1", "x=2"])


def test_shapes_must_fit_the_model() -> None:
    specs = [InputSpec("x", F32, ("n", 3)), InputSpec("z", F32, ("n",))]
    assert fit_shapes(specs, {"x": (2, 3), "z": (2,)}) == {"x": (2, 3), "z": (2,)}
    for bad in ({"x": (2, 4)}, {"x": (2,)}, {"y": (1,)}, {"x": (2, 3), "z": (4,)}):
        with pytest.raises(OnnxfuseError):
            fit_shapes(specs, bad)


def test_sizes_of_dimensions_are_given_by_name() -> None:
    specs = [InputSpec("ids", I64, ("batch", "seq")), InputSpec("past", F32, ("batch", 4, "past + seq", 8))]
    specs += [InputSpec("batch_free", F32, (4,)), InputSpec("any", F32, None)]
    whole = fit_shapes(specs, {"batch": (2,), "seq": (5,), "past + seq": (9,)})
    assert whole["ids"] == (2, 5) and whole["past"] == (2, 4, 9, 8)
    assert not {"batch_free", "any"} & set(whole)
    assert symbol_sizes(specs, whole) == {"batch": 2, "seq": 5, "past + seq": 9}
    part = fit_shapes(specs, {"batch": (2,)})
    assert part == {"batch": (2,)}
    resolved = resolve_shapes(specs, part, Sizes(length=7))
    assert resolved["ids"] == (2, 7) and resolved["past"][0] == 2
    assert fit_shapes(specs, {"ids": (2, 5), "past + seq": (9,)})["past"] == (2, 4, 9, 8)
    for bad, message in (
        (
            {"heads": (2,)},
            r"no input or dimension 'heads'; its inputs are: ids, past, .*; its named dimensions: batch, past \+",
        ),
        ({"batch": (2, 3)}, "dimension 'batch' has one size, not 2x3"),
        ({"batch": ()}, "dimension 'batch' has one size, not none"),
        ({"ids": (2, 5), "batch": (3,)}, "both 3 and 2"),
    ):
        with pytest.raises(OnnxfuseError, match=message):
            fit_shapes(specs, bad)


def test_a_name_of_both_is_that_of_the_input() -> None:
    specs = [InputSpec("n", F32, ("n", 3)), InputSpec("y", F32, ("n",))]
    assert fit_shapes(specs, {"n": (4, 3)}) == {"n": (4, 3), "y": (4,)}
    with pytest.raises(OnnxfuseError, match="does not fit input n"):
        fit_shapes(specs, {"n": (4,)})
