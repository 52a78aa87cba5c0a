"""``inspect`` shows what ``optimize`` does with the same options, whichever they are."""

import json
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import onnxfuse
from onnxfuse.cli.cli_arguments import make_parser
from onnxfuse.planning.inspection import inspect
from onnxfuse.targets.request import request

NOT_INSPECTED = {"embed", "keep_source", "tune"}
"""What is written, and what is measured: neither is a plan."""

TEXT = """<ir_version: 9, opset_import: ["" : 20]>
g (float[n, 8, h, w] x) => (float[n, 8, h, w] y, float[m] z, float[n, k] s) {
    e = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 8> (x, w1) r = HardSwish(e)
    t = Sigmoid(r) y = Mul(t, r)
    d = Div(x, three) u = Add(d, x) o = Shape(u) p = Gather(o, zero) q = Mul(p, count) v = Reshape(u, flat) c = Abs(v)
    z = Exp(c) f = Flatten(u) l = ReduceMean(f, last) i = Sub(f, l) s = Mul(i, i) }"""

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"shapes": {"x": (2, 8, 16, 16)}},
    {"shapes": {"x": (1, 8, 4, 4)}, "static": True},
    {"fast_math": True},
    {"conv": "all"},
    {"conv": "none"},
    {"passes": "fold-shapes,fuse-elementwise"},
    {"passes": ["fuse-reductions"]},
)
CUDA_OPTIONS: tuple[dict[str, Any], ...] = (
    {"arch": "sm_90"},
    {"arch": "sm_90", "prefer_nhwc": True, "conv": "all"},
    {"arch": "sm_90", "tf32": True, "fast_math": True, "conv": "all"},
)


def model() -> onnx.ModelProto:
    made = parser.parse_model(TEXT)
    for name, value in (
        ("w1", np.ones((8, 1, 3, 3), np.float32)),
        ("three", np.float32(3)),
        ("zero", np.int64(0)),
        ("count", np.int64(8)),
        ("flat", np.array([-1])),
        ("last", np.array([1])),
    ):
        made.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return made


@pytest.mark.parametrize(("target", "all_options"), [("cpu", OPTIONS), ("cuda", CUDA_OPTIONS)])
def test_plans_are_the_same(target: str, all_options: tuple[dict[str, Any], ...], tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    plans = []
    for options in all_options:
        report = onnxfuse.optimize(path, target, check=False, embed=target == "cpu", **options).report.to_json()
        for region in report["fused"]:
            region.pop("cuda", None)  # of compiled kernels
        plan = inspect(path, target, **options).to_json()["plan"]
        assert plan == {what: report[what] for what in plan}, options
        plans.append(plan)
    assert plans[0]["fused"] and len(set(map(json.dumps, plans))) >= 3  # the options do something


def test_every_option_of_a_plan_is_one_of_both() -> None:
    options = set(signature(request).parameters) - {"target"}
    assert options <= set(signature(onnxfuse.optimize).parameters)
    assert signature(onnxfuse.optimize).parameters["target"].default == signature(inspect).parameters["target"].default
    assert options - NOT_INSPECTED == set(signature(inspect).parameters) - {"path", "target", "progress"}


def test_the_command_line_has_them_all() -> None:
    found = {}
    for words in (["optimize", "IN", "OUT"], ["inspect", "MODEL"]):
        found[words[0]] = set(vars(make_parser().parse_args(words)))
    of_plans = {"target", "shape", "static", "passes", "fast_math", "conv", "arch", "tuning", "tf32", "prefer_nhwc"}
    assert of_plans <= found["optimize"] & found["inspect"]
    assert len(of_plans) == len(set(signature(inspect).parameters) - {"path", "progress"})
