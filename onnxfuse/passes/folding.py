"""Evaluates constant nodes, as ONNX Runtime would when the model runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx_graphsurgeon.exporters.onnx_exporter import OnnxExporter

from onnxfuse.errors import OnnxfuseError
from onnxfuse.model.constants import Array
from onnxfuse.model.graph_ir import Node
from onnxfuse.run.runtime import load_onnxruntime

_IR_VERSION = 10  # read by every supported version of ONNX Runtime

# Without ONNX Runtime only what has one possible result is evaluated: moving data, and integers.
_EXACT_NAMES = (
    "Cast Concat ConstantOfShape Expand Flatten Gather GatherElements GatherND Identity Range Reshape Shape "
    "Size Slice Split Squeeze Tile Transpose Unsqueeze Where Equal Not And Or"
)
_EXACT_OPS = frozenset(_EXACT_NAMES.split())


class Evaluator:
    """Runs nodes on constants.  ``opsets`` are the model's."""

    def __init__(self, opsets: Mapping[str, int]) -> None:
        self._opsets = [onnx.helper.make_opsetid("", opsets.get("", 1))]

    @cached_property
    def _runtime(self) -> Any:
        """ONNX Runtime, whose import takes longer than most passes; None where it is not installed."""
        with suppress(OnnxfuseError):
            return load_onnxruntime()
        return None

    def evaluate(self, nodes: Sequence[Node], known: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, str]]:
        """The values of all outputs of ``nodes``, which are in topological order, by name.

        All run in one session; where that fails, each runs in its own, and the second result tells, by the
        name of a node's first output, why it has none.
        """
        together = self._together(nodes, known)
        if together is not None:
            return together, {}
        values = dict(known)
        results: dict[str, Array] = {}
        failures: dict[str, str] = {}
        for node in nodes:
            if any(tensor.name and tensor.name not in values for tensor in node.inputs):
                failures[node.outputs[0].name] = "an input of it could not be evaluated"
                continue
            try:
                found = self._run([node], values) if self._runtime is not None else self._reference(node, values)
            except Exception as error:  # nor do those of the reference evaluator
                failures[node.outputs[0].name] = f"it cannot be evaluated ({_first_line(error)})"
                continue
            results.update(found)
            values.update(found)
        return results, failures

    def _together(self, nodes: Sequence[Node], known: Mapping[str, Array]) -> dict[str, Array] | None:
        """All nodes in one session; None without ONNX Runtime, or if it does not take one of them."""
        if self._runtime is None:
            return None
        try:
            return self._run(nodes, known)
        except Exception:  # ONNX Runtime's exceptions share no base class below Exception
            return None

    def _run(self, nodes: Sequence[Node], known: Mapping[str, Array]) -> dict[str, Array]:
        options = self._runtime.SessionOptions()
        options.graph_optimization_level = self._runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        model, feeds = self._model(nodes, known)
        session = self._runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        names = [info.name for info in model.graph.output]
        return dict(zip(names, session.run(names, feeds), strict=True))

    def _reference(self, node: Node, known: Mapping[str, Array]) -> dict[str, Array]:
        if node.op not in _EXACT_OPS:
            raise NotImplementedError("ONNX Runtime is not installed")
        from onnx.reference import ReferenceEvaluator

        model, feeds = self._model([node], known)
        names = [info.name for info in model.graph.output]
        results = ReferenceEvaluator(model).run(names, feeds)
        return {name: np.asarray(result) for name, result in zip(names, results, strict=True)}

    def _model(self, nodes: Sequence[Node], known: Mapping[str, Array]) -> tuple[onnx.ModelProto, dict[str, Array]]:
        produced = [tensor.name for node in nodes for tensor in node.outputs if tensor.name]
        read = dict.fromkeys(tensor.name for node in nodes for tensor in node.inputs if tensor.name)
        feeds = {name: known[name] for name in read if name in known}
        inputs = [
            onnx.helper.make_tensor_value_info(
                name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), list(value.shape)
            )
            for name, value in feeds.items()
        ]
        outputs = [onnx.ValueInfoProto(name=name) for name in produced]
        graph = onnx.helper.make_graph([OnnxExporter.export_node(node) for node in nodes], "fold", inputs, outputs)
        return onnx.helper.make_model(graph, opset_imports=self._opsets, ir_version=_IR_VERSION), feeds


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
