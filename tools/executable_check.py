"""The check of optimized models that run without ONNX Runtime as well: the same bits come out."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from onnxfuse.errors import OnnxfuseError
from onnxfuse.fused.kinds import DOMAIN
from onnxfuse.run.executable import Executable
from onnxfuse.run.sessions import Value
from tools.fuzz import slack as fuzz_slack


def differs_alone(
    optimized: onnx.ModelProto, feeds: Sequence[Mapping[str, Value]], expected: Sequence[Sequence[Value]]
) -> str:
    """How results in an Executable differ from those in a session; empty if they do not, or it takes no such model."""
    if not runs_alone(optimized):
        return ""
    try:
        executable = Executable(optimized, threads=2)
        results = [executable.run(None, inputs) for inputs in feeds]
    except OnnxfuseError as error:
        return f"it does not run: {error}"
    pairs = [pair for two in zip(expected, results, strict=True) for pair in zip(*two, strict=True)]
    same = all(same_bits(np.asarray(session), alone) for session, alone in pairs)
    return "" if same else "results are not the same bits"


def runs_alone(optimized: onnx.ModelProto) -> bool:
    """Whether the model is one for an Executable."""
    computed = {name for node in optimized.graph.node for name in node.output}
    all_fused = all(node.domain == DOMAIN for node in optimized.graph.node)
    return all_fused and all(output.name in computed for output in optimized.graph.output)


def same_bits(expected: np.ndarray, actual: np.ndarray) -> bool:
    """Equal bit for bit, one NaN as good as another."""
    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        return False
    return bool(np.array_equal(fuzz_slack.bits(expected), fuzz_slack.bits(actual)))
