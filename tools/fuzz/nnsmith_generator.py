"""Makes models with NNSmith, in the Python that this is started with, which has it and no onnxfuse.

Reads a Request as JSON from each line of standard input, writes the model and the inputs that NNSmith found for it, and
answers with a line: why there is no model, or nothing.
"""

import contextlib
import functools
import io
import json
import resource
import signal
import sys
import warnings
from pathlib import Path
from random import Random
from typing import Any, TypedDict

SECONDS = 120
"""After so long the process ends: neither the solver nor the search for inputs has a limit that holds."""

MOST_BYTES = 8 << 30
"""What a solver that runs away may take."""

MOST_NODES = 24
MAX_ELEMENTS = 1 << 14


class Request(TypedDict):
    """The seed of a model, and where to write it (.onnx) and its inputs (.npz)."""

    seed: int
    model: str
    inputs: str


class Generator:
    """NNSmith's generator of models that torch exports, with the operators and types that ONNX Runtime takes."""

    def __init__(self) -> None:
        import onnx
        import torch
        from nnsmith.abstract.extension import activate_ext
        from nnsmith.backends.factory import BackendFactory
        from nnsmith.materialize import Model
        from nnsmith.narrow_spec import auto_opset

        torch.set_num_threads(1)
        # NNSmith is of the time when this was the only way, and its models are not of the kind that the other takes.
        torch.onnx.export = functools.partial(torch.onnx.export, dynamo=False)
        vars(onnx).setdefault("_serialize", lambda model: model.SerializeToString())
        self._type = Model.init("onnx", backend_target="cpu")
        self._type.add_seed_setter()
        runtime = BackendFactory.init("onnxruntime", target="cpu", optmax=False)
        self._operators = auto_opset(self._type, runtime)
        activate_ext(opset=self._operators, factory=runtime)

    def make(self, request: Request) -> None:
        """One model."""
        import numpy as np
        import onnx
        from nnsmith.graph_gen import model_gen
        from nnsmith.util import set_seed

        choose = Random(request["seed"])
        set_seed(request["seed"])
        made = model_gen(
            opset=self._operators,
            method=choose.choice(("symbolic-cinit", "symbolic-cinit", "symbolic-sinit", "concolic")),
            seed=request["seed"],
            max_nodes=choose.randint(2, MOST_NODES),
            max_elem_per_tensor=MAX_ELEMENTS,
            timeout_ms=10_000,
        )
        model: Any = self._type.from_gir(made.make_concrete())
        model.refine_weights()
        inputs = model.make_oracle().input
        onnx.save(model.native_model, request["model"])
        with Path(request["inputs"]).open("wb") as file:
            np.savez(file, **inputs)


def main() -> int:
    """Answer the requests."""
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    answers, sys.stdout = sys.stdout, io.StringIO()  # NNSmith and torch print
    generator = Generator()
    for line in sys.stdin:
        signal.alarm(SECONDS)
        reason = ""
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                generator.make(json.loads(line))
            except Exception as error:  # whatever NNSmith and torch run into
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        signal.alarm(0)
        print(json.dumps(reason), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
