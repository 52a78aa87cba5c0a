"""torch.compile (Inductor): the module that a model was exported from, or a chain or reduction written in torch.

Weights are frozen, so that Inductor packs them; of the documented settings the fastest is taken: as it is, with
max-autotune, and for images with channels last.
"""

import copy
import hashlib
import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tools.bench.peers.job import CannotRunError, Job, Prepared
from tools.gpu.reduction_chains import CONSTANTS_OF, SUBJECTS

_TRY_SECONDS = 1.0

Function = Callable[..., Any]
CHANNELS = torch.from_numpy(np.linspace(0.5, 1.5, 64).astype(np.float32).reshape(-1, 1, 1))


def _scale_relu_add(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * 0.7) + 0.3


def _affine_hard_swish(x: torch.Tensor) -> torch.Tensor:
    y = x * CHANNELS + (CHANNELS - 1)
    return y * (y + 3.0).clamp(0.0, 6.0) / 6.0


def _ten_mul_add(x: torch.Tensor) -> torch.Tensor:
    for step in range(5):
        x = x * (0.9 + 0.05 * step) + (0.1 - 0.03 * step)
    return x


def _tanh_gelu(x: torch.Tensor) -> torch.Tensor:
    return x * (torch.tanh((x + x.pow(3.0) * 0.044715) * 0.7978845608) + 1.0) * 0.5


def _silu_residual(x: torch.Tensor) -> torch.Tensor:
    return x * (x * torch.sigmoid(x)) + x


CHAINS: dict[str, Function] = {
    "scale, relu, add": _scale_relu_add,
    "per-channel affine + hardswish (6 ops)": _affine_hard_swish,
    "ten alternating mul/add": _ten_mul_add,
    "tanh-GELU (8 ops)": _tanh_gelu,
    "SiLU gate + residual": _silu_residual,
}


def prepare(job: Job) -> Prepared:
    """The compiled function on tensors that share the inputs' memory."""
    torch.set_grad_enabled(False)
    torch._inductor.config.freezing = True
    inputs = [torch.from_numpy(array) for array in job.feeds().values()]
    torch.set_num_threads(1)  # as in the export: other sums give other statistics
    if job.reducing:
        function: Function = _reducing(job.reducing)
    else:
        function = CHAINS[job.chain] if job.chain else _module(job)
    torch.set_num_threads(job.threads)
    variants: dict[str, tuple[Function, list[torch.Tensor], dict[str, bool]]] = {"frozen": (function, inputs, {})}
    if isinstance(function, torch.nn.Module):
        variants["frozen, max-autotune"] = (function, inputs, {"max_autotune": True})
        if any(isinstance(part, torch.nn.Conv2d) for part in function.modules()):
            nhwc = copy.deepcopy(function).to(memory_format=torch.channels_last)
            values = [x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x for x in inputs]
            variants["frozen, channels last"] = (nhwc, values, {})
    key = hashlib.sha256(Path(job.static).read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    choice = Path(job.cache) / f"{key}.json"
    if not choice.is_file():
        choice.parent.mkdir(parents=True, exist_ok=True)
        choice.write_text(json.dumps(_fastest(variants)), encoding="utf-8")
    name = str(json.loads(choice.read_text(encoding="utf-8")))
    run = _compiled(*variants[name])
    last = run()

    def once() -> None:
        nonlocal last
        last = run()

    def outputs() -> list[np.ndarray]:
        values = last if isinstance(last, tuple | list) else (last,)
        return [value.contiguous().numpy() for value in values]

    return Prepared(once, outputs, name)


def _reducing(name: str) -> Function:
    """A subject of tools/gpu/reduction_chains.py on those inputs whose size is open; what else it reads is constant, as
    in its ONNX model."""
    subject = SUBJECTS[name]
    special = {"relu": torch.relu, "sigmoid": torch.sigmoid, "erf": torch.erf, "amax": torch.amax, "concat": torch.cat}
    op = subject.ops(torch, torch.float32, special)
    constants = [torch.from_numpy(array) for array in subject.arrays(CONSTANTS_OF, "float32")]

    def run(*inputs: torch.Tensor) -> Any:
        given = iter(inputs)
        pairs = zip(subject.inputs, constants, strict=True)
        return subject.build(op, *(next(given) if 0 in shape else constant for shape, constant in pairs))

    return run


def _module(job: Job) -> torch.nn.Module:
    """The module that the recipe exports, with its weights, in inference mode."""
    if not job.recipe:
        raise CannotRunError("no torch module: the model comes as ONNX")
    sys.path.insert(0, job.recipes)
    common: Any = importlib.import_module("common_torch")
    found: list[torch.nn.Module] = []

    def keep(path: Path, module: torch.nn.Module, inputs: dict[str, torch.Tensor], *_: object, **__: object) -> None:
        torch.manual_seed(0)
        found.append(common.calibrate(common.initialize(module), tuple(inputs.values())))

    original, common.export = common.export, keep
    try:
        name, _, function = job.recipe.partition(":")
        getattr(importlib.import_module(name), function)(Path())
    finally:
        common.export = original
    return found[0].eval()


def _compiled(function: Function, inputs: list[torch.Tensor], options: dict[str, bool]) -> Callable[[], Any]:
    torch._dynamo.reset()
    compiled = torch.compile(function, dynamic=False, options=options or None)
    compiled(*inputs)
    return lambda: compiled(*inputs)


def _fastest(variants: dict[str, tuple[Function, list[torch.Tensor], dict[str, bool]]]) -> str:
    if len(variants) == 1:
        return next(iter(variants))
    best: dict[str, float] = {}
    for name, variant in variants.items():
        try:
            run = _compiled(*variant)
        except Exception as error:  # a variant that Inductor cannot compile is no candidate
            print(f"{name}: {error}", file=sys.stderr)
            continue
        times: list[float] = []
        end = time.perf_counter() + _TRY_SECONDS
        while time.perf_counter() < end or len(times) < 3:
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        best[name] = min(times)
    if not best:
        raise CannotRunError("Inductor compiles no variant of it")
    return min(best, key=lambda name: best[name])
