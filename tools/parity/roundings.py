"""Whether what differs is a rounding: no further from the original's result than that is from another of its own."""

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

from onnxfuse.check.comparison import Numbers, compare_values
from onnxfuse.check.float64_reference import Float64Model, describe_off, is_within, off
from onnxfuse.files.model_io import read_stored
from onnxfuse.run.inputs import InputSet
from onnxfuse.run.sessions import Value

SECONDS = 120.0
"""What a result in float64 may take."""

NOISE = 3
"""How many times as large a difference may be as one between two results of the original."""


class Judge:
    """Of the outputs of a model on some inputs; computes nothing before it is asked."""

    def __init__(self, original: Path, inputs: InputSet) -> None:
        self._original = original
        self._inputs = inputs

    @cached_property
    def _exact(self) -> Mapping[str, Value]:
        proto, stored = read_stored(self._original)
        model = Float64Model(proto, self._original.absolute().parent, SECONDS, stored)
        return model.outputs(self._inputs.feeds) or {}

    def excuse(
        self,
        name: str,
        expected: Value,
        actual: Value,
        numbers: Numbers,
        unoptimized: Callable[[], Mapping[str, Value]],
    ) -> str:
        """Why an output may differ from the original's, or nothing.

        ``unoptimized`` gives the original's outputs without ONNX Runtime's optimizations, as far as they are known.
        """
        exact = self._exact.get(name)
        ours, theirs = (off(name, value, exact, numbers) for value in (actual, expected))
        if ours is not None and theirs is not None and is_within(ours, theirs):
            return describe_off(ours, theirs)
        other = unoptimized().get(name)
        if other is None:
            return ""
        found, noise = (compare_values(name, expected, value, numbers) for value in (actual, other))
        return (
            f"ONNX Runtime's own optimizations change it as much: {noise.reason}"
            if is_within(found, noise, NOISE)
            else ""
        )
