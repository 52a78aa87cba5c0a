"""Small models for the tests of passes, and running them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from onnxfuse.fused.choices import policy_named
from onnxfuse.fused.conv.cpu_convolutions import CpuChooser
from onnxfuse.model.graph import Model
from onnxfuse.passes import Pass, PassContext, resolve
from onnxfuse.shapes import inference


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> onnx.NodeProto:
    """A node; ``inputs`` and ``outputs`` are names with spaces between, ``-`` a missing one."""
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op, names, outputs.split(), name=attrs.pop("name", f"{op}_{outputs.split()[0]}"), **attrs)


def model(
    nodes: Iterable[onnx.NodeProto],
    inputs: Mapping[str, Sequence[Any]],
    outputs: Iterable[str] = ("y",),
    constants: Mapping[str, Any] | None = None,
    opset: int = 17,
    dtype: Any = np.float32,
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """A model with inputs of ``dtype``; arrays of Python numbers become constants of ``dtype`` too."""
    onnx_dtype = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    constants = {
        name: value if isinstance(value, np.ndarray) else np.array(value, dtype)
        for name, value in (constants or {}).items()
    }
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(name, onnx_dtype, list(shape)) for name, shape in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    inferred = onnx.shape_inference.infer_shapes(made)
    for mine, theirs in zip(made.graph.output, inferred.graph.output, strict=True):
        mine.CopyFrom(theirs)
        if not mine.type.HasField("tensor_type"):
            mine.type.tensor_type.elem_type = onnx_dtype
        if not mine.type.tensor_type.HasField("shape"):
            for _ in next(iter(inputs.values())):
                mine.type.tensor_type.shape.dim.add()
    return made


def apply(
    proto: onnx.ModelProto,
    *passes: Pass | str,
    infer: bool = True,
    conv: str = "auto",
    target: str = "cpu",
    prefer_nhwc: bool = False,
    fast_math: bool = False,
) -> tuple[onnx.ModelProto, PassContext]:
    """Runs passes (objects, or names) on a copy of the model; returns the result, which has been checked."""
    chooser = CpuChooser(policy_named(conv)) if target == "cpu" else None
    context = PassContext(target=target, convolutions=chooser, prefer_nhwc=prefer_nhwc, fast_math=fast_math)
    work = onnx.ModelProto()
    work.CopyFrom(proto)
    loaded = Model.from_proto(work)
    if infer:
        inference.infer(loaded)
    for item in passes:
        for found in resolve([item]) if isinstance(item, str) else [item]:
            found.run(loaded, context)
    result = loaded.to_proto()
    onnx.checker.check_model(result)
    return result, context


def ops(proto: onnx.ModelProto) -> list[str]:
    """The op types of the main graph."""
    return [item.op_type for item in proto.graph.node]


def reasons(context: PassContext) -> str:
    """Every refusal, as one text."""
    return "\n".join(f"{item.rule}: {item.node}: {item.reason}" for item in context.report.refusals)


def run(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs in ONNX Runtime, which is told to optimize nothing."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def random(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    """Normally distributed numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def assert_close(before: onnx.ModelProto, after: onnx.ModelProto, feeds: Mapping[str, np.ndarray], ulps: float) -> None:
    """The outputs agree within ``ulps`` units in the last place of the largest value of each."""
    for expected, actual in zip(run(before, feeds), run(after, feeds), strict=True):
        assert expected.dtype == actual.dtype and expected.shape == actual.shape
        scale = float(np.abs(expected).max(initial=0.0)) or 1.0
        allowed = ulps * float(np.finfo(expected.dtype).eps) * max(scale, 1.0)
        np.testing.assert_allclose(actual.astype(np.float64), expected.astype(np.float64), rtol=0, atol=allowed)
