"""What a fused convolution is measured against: ONNX Runtime's, with the elementwise work around it fused.

The session has the convolution several times, each on an X of its own, and is captured as a CUDA graph, so that what is
timed is the device and not the host that enqueues it.
"""

import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxfuse.cuda.conv.case import ConvCase
from onnxfuse.errors import OnnxfuseError
from onnxfuse.fused.kinds import DOMAIN, ELEMENTWISE, OPSET_VERSION
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program import Program
from onnxfuse.run.runtime import CUDA_PROVIDER, load_cuda_libraries, load_onnxruntime, register, with_kernels
from onnxfuse.run.sessions import one_line

COPIES = 32
"""So many that a run takes longer than the host takes to replay a graph, some 50 us on an H100's host."""
_MOST_BYTES = 1 << 29
_ROUNDS = 5
_SECONDS_A_ROUND = 0.02
_MOST_RUNS = 1000
_OPSET = 22


class OrtBaseline:
    """ONNX Runtime on the GPU, or with ``on_gpu=False`` on the CPU."""

    def __init__(self, on_gpu: bool = True) -> None:
        self._ort: Any = load_onnxruntime()
        self._on_gpu = on_gpu
        self.version: str = self._ort.__version__
        if on_gpu:
            load_cuda_libraries()

    def seconds(self, case: ConvCase, x_shape: Sequence[int], values: Sequence[np.ndarray]) -> float:
        """How long one convolution takes; ``values`` are X, W and the operands.  Raises OnnxfuseError."""
        copies = max(1, min(COPIES, _MOST_BYTES // max(1, values[0].nbytes)))
        model = baseline_model(case, x_shape, values[1:], copies)
        feeds = {f"x{index}": values[0] for index in range(copies)}
        try:
            try:
                return self._time(model, feeds, graph=self._on_gpu) / copies
            except Exception:  # whatever does not go into a graph
                return self._time(model, feeds, graph=False) / copies
        except Exception as error:  # ONNX Runtime's exceptions share no base class below Exception
            raise OnnxfuseError(f"ONNX Runtime does not run the convolution: {one_line(error)}") from error

    def _time(self, model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], graph: bool) -> float:
        session, device = self._session(model, graph), "cuda" if self._on_gpu else "cpu"
        binding = session.io_binding()
        kept = [self._ort.OrtValue.ortvalue_from_numpy(array, device, 0) for array in feeds.values()]
        for name, value in zip(feeds, kept, strict=True):
            binding.bind_ortvalue_input(name, value)
        names = [output.name for output in session.get_outputs()]
        for name in names:
            binding.bind_output(name, device, 0)
        session.run_with_iobinding(binding)
        for name, value in zip(names, binding.get_outputs(), strict=True):  # a graph needs outputs that stay in place
            binding.bind_ortvalue_output(name, value)
        session.run_with_iobinding(binding)
        quick = self._ort.RunOptions()
        if self._on_gpu:
            quick.add_run_config_entry("disable_synchronize_execution_providers", "1")

        def a_round(count: int) -> float:
            binding.synchronize_outputs()
            started = time.perf_counter()
            for _ in range(count):
                session.run_with_iobinding(binding, quick)
            binding.synchronize_outputs()
            return time.perf_counter() - started

        a_round(2)
        count = max(1, min(_MOST_RUNS, int(_SECONDS_A_ROUND / max(a_round(1), 1e-6))))
        return median(a_round(count) / count for _ in range(_ROUNDS))

    def _session(self, model: onnx.ModelProto, graph: bool) -> Any:
        options = self._ort.SessionOptions()
        options.log_severity_level = 4
        register(options)
        content: str | bytes = model.SerializeToString()
        providers: list[Any] = ["CPUExecutionProvider"]
        if self._on_gpu:
            content, _ = with_kernels(content, options)
            providers.insert(0, (CUDA_PROVIDER, {"enable_cuda_graph": str(int(graph))}))
        session = self._ort.InferenceSession(content, options, providers=providers)
        if self._on_gpu and CUDA_PROVIDER not in session.get_providers():
            raise OnnxfuseError("ONNX Runtime could not load its CUDA provider")
        return session


def baseline_model(
    case: ConvCase, x_shape: Sequence[int], constants: Sequence[np.ndarray], copies: int
) -> onnx.ModelProto:
    """A model of ``copies`` equal convolutions, of inputs x0, x1, …, with W and the operands as constants.

    Raises OnnxfuseError for a type that cannot be bound to the GPU.
    """
    conv = case.conv
    if "bf16" in (conv.dtype, *(case.epilogue.dtype(output) for output in case.epilogue.outputs)):
        raise OnnxfuseError("ONNX Runtime's Python interface cannot bind bfloat16")
    names = [f"c{index}" for index in range(len(constants))]
    before = len(case.prologue.inputs) - 1 if case.prologue else 0
    head, tail = names[1 : 1 + before], names[1 + before :]
    nodes: list[onnx.NodeProto] = []
    inputs, outputs = [], []
    for copy in range(copies):
        value = f"x{copy}"
        inputs.append(helper.make_tensor_value_info(value, DTYPES[conv.dtype].onnx, list(x_shape)))
        if case.prologue is not None:
            nodes.append(_elementwise(case.prologue, [value, *head], [f"p{copy}"]))
            value = f"p{copy}"
        nodes.append(_convolution(case, [value, names[0]], f"a{copy}"))
        results = [f"y{copy}_{index}" for index in range(len(case.epilogue.outputs))]
        nodes.append(_elementwise(case.epilogue, [f"a{copy}", *tail], results))
        for name, output in zip(results, case.epilogue.outputs, strict=True):
            kind = DTYPES[case.epilogue.dtype(output)].onnx
            outputs.append(helper.make_tensor_value_info(name, kind, list(conv.output_shape(x_shape))))
    tensors = [numpy_helper.from_array(array, name) for name, array in zip(names, constants, strict=True)]
    graph = helper.make_graph(nodes, "baseline", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(DOMAIN, OPSET_VERSION)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _elementwise(program: Program, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.NodeProto:
    return helper.make_node(ELEMENTWISE.name, inputs, outputs, name=outputs[0], domain=DOMAIN, program=str(program))


def _convolution(case: ConvCase, inputs: Sequence[str], output: str) -> onnx.NodeProto:
    conv = case.conv
    if conv.channels_last and conv.transposed:
        return helper.make_node("MatMul", inputs, [output], name=output)
    if conv.channels_last:
        return helper.make_node("Gemm", inputs, [output], name=output, transB=1)  # as models have it, of two dimensions
    attributes: dict[str, Any] = {
        "kernel_shape": conv.kernel,
        "strides": conv.strides,
        "dilations": conv.dilations,
        "group": conv.group,
        "auto_pad": conv.auto_pad,
    }
    if conv.pads is not None:
        attributes["pads"] = conv.pads
    if conv.transposed:
        attributes["output_padding"] = conv.output_padding
    operator = "ConvTranspose" if conv.transposed else "Conv"
    return helper.make_node(operator, inputs, [output], name=output, **attributes)
