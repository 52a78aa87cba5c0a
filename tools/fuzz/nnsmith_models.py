"""Models that somebody else's generator makes, NNSmith's, through the optimizer."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxfuse.zoo.fetching import cache, environment_python
from onnxfuse.zoo.manifest import Environment
from tools.fuzz.check import PIPELINES
from tools.fuzz.graphs import Tally
from tools.fuzz.shrink import Feeds
from tools.messages import say
from tools.other_process import OtherProcess

ALL_PASSES = "default"
OTHERS = tuple(pipeline for pipeline in PIPELINES if pipeline != ALL_PASSES)
REQUIREMENTS = (
    *("nnsmith==0.1.0", "z3-solver==5.4.1.0", "hydra-core==1.3.8"),
    *("torch==2.13.0", "onnxscript==0.7.2", *(f"{name}=={version(name)}" for name in ("onnx", "onnxruntime", "numpy"))),
)
MADE, NOT_MADE = "made by NNSmith", "not made by NNSmith"

_PROGRAM = Path(__file__).resolve().parent / "nnsmith_generator.py"


def environment() -> str:
    """The Python of the environment with NNSmith in the cache, which is set up at first use."""
    return environment_python(Environment("nnsmith", REQUIREMENTS), say)


class Generator:
    """NNSmith, in a process that is there until it is closed."""

    def __init__(self, python: str, folder: Path) -> None:
        self._folder = folder
        # It keeps what it has found out of torch's exporter beside its environment, and looks into sets of types.
        own = {"XDG_CACHE_HOME": str(cache().parent / "nnsmith"), "PYTHONHASHSEED": "0"}
        self._process = OtherProcess([python, str(_PROGRAM)], {**os.environ, **own})

    def __enter__(self) -> Generator:
        return self

    def __exit__(self, *_unused: object) -> None:
        self._process.close()

    def make(self, seed: int) -> tuple[onnx.ModelProto, Feeds] | str:
        """The model of a seed and its inputs, or why there is none."""
        model, inputs = self._folder / "model.onnx", self._folder / "inputs.npz"
        if reason := self._process.ask({"seed": seed, "model": str(model), "inputs": str(inputs)}):
            return reason
        with np.load(inputs) as values:
            return onnx.load(model), dict(values)


def run_seeds(seeds: range, begin: Callable[[int], None], request: dict[str, Any]) -> dict[str, Any]:
    """Check the models of ``seeds``; the counts as JSON takes them.

    ``request`` names the folder of reproducers, and the Python that has NNSmith.
    """
    tally = Tally(request)
    with tempfile.TemporaryDirectory() as folder, Generator(request["python"], Path(folder)) as generator:
        for seed in seeds:
            begin(seed)
            made = generator.make(seed)
            if isinstance(made, str):
                tally.counts[NOT_MADE] += 1
                continue
            tally.counts[MADE] += 1
            for pipeline in (ALL_PASSES, OTHERS[seed % len(OTHERS)]):
                tally.check(seed, made[0], [made[1]], pipeline)
    return tally.result(seeds)
