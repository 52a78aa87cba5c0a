"""The optimized file in onnx's ReferenceEvaluator, which knows nothing of ONNX Runtime or of the onnxfuse library."""

import pickle
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from onnx.reference import ReferenceEvaluator

from onnxfuse.check.comparison import Numbers, compare_values
from onnxfuse.check.numerics import coarsest_type
from onnxfuse.files.model_io import read_proto
from onnxfuse.run.inputs import InputSet
from onnxfuse.run.sessions import Session, SessionError, Value

if TYPE_CHECKING:
    from tools.parity.roundings import Judge

ROUNDINGS = "roundings: "
"""Begins what is said of a difference that is none but for these."""

LARGEST = 64 << 20
"""Files of more bytes than this are not tried."""


def against_reference(
    original: Path,
    optimized: Path,
    inputs: InputSet,
    seconds: float,
    tolerance: float = 1.0,
    judge: "Judge | None" = None,
) -> str:
    """``equal`` within ``tolerance`` times the default error; ``roundings: …`` if that is what a difference is, as
    ``judge`` says; ``DIFFERS: …``; or why there is nothing to compare.

    The optimized model in ReferenceEvaluator is held against the original in ONNX Runtime, and if that
    differs, against the original in ReferenceEvaluator: the two have their own roundings, and bugs.
    """
    if optimized.stat().st_size > LARGEST or seconds <= 0:
        return "too large"
    ours = _evaluate(optimized, inputs, seconds)
    if isinstance(ours, str):
        return ours
    numbers = Numbers(coarsest_type(read_proto(original)))
    names = [output.name for output in read_proto(original).graph.output]

    @cache
    def unoptimized() -> dict[str, Value]:
        values = _onnxruntime(original, inputs, optimized=False)
        return {} if isinstance(values, str) else dict(zip(names, values, strict=True))

    reason, excuses = "", [""]
    for expected in (_onnxruntime(original, inputs), _evaluate(original, inputs, seconds)):
        if isinstance(expected, str):
            return f"no reference: {expected}"
        differing = [
            (name, left, right)
            for name, left, right in zip(names, expected, ours, strict=True)
            if not compare_values(name, left, right, numbers).within(tolerance)
        ]
        if not differing:
            return "equal"
        reason = f"output {differing[0][0]}: {compare_values(*differing[0], numbers).reason}"
        if judge is not None and not all(excuses):
            excuses = [judge.excuse(name, left, right, numbers, unoptimized) for name, left, right in differing]
    return f"{ROUNDINGS}{reason}; {excuses[0]}" if all(excuses) else f"DIFFERS: {reason}"


def _onnxruntime(path: Path, inputs: InputSet, optimized: bool = True) -> list[Value] | str:
    try:
        return Session(path, optimized=optimized).run(inputs.feeds)
    except SessionError as error:
        return str(error)


def _evaluate(path: Path, inputs: InputSet, seconds: float) -> list[Value] | str:
    """The outputs, from a process that is ended after ``seconds``; or in a word why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        feeds, outputs = Path(folder) / "feeds", Path(folder) / "outputs"
        feeds.write_bytes(pickle.dumps(inputs.feeds))
        command = [sys.executable, __file__, str(path), str(feeds), str(outputs)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds)
        except subprocess.TimeoutExpired:
            return "too slow"
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
            return f"unsupported ({lines[-1][:80]})"
        values: list[Value] = pickle.loads(outputs.read_bytes())
        return values


def main() -> int:
    """Evaluate the model, feeds and outputs being files."""
    path, feeds, outputs = map(Path, sys.argv[1:])
    values = ReferenceEvaluator(str(path)).run(None, pickle.loads(feeds.read_bytes()))
    outputs.write_bytes(pickle.dumps([value if isinstance(value, list) else np.asarray(value) for value in values]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
