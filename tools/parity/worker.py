"""What scripts/parity.py does with one model, in a process that may crash without harm to the others."""

import json
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # tools/, behind the packages of this Python

import numpy as np
import onnx

import onnxfuse
from onnxfuse.bench import time_in_turns
from onnxfuse.bench_turns import ratio_with_spread
from onnxfuse.check.parity import PROVIDERS, ParityResult, compare
from onnxfuse.check.region_parity import compare_regions
from onnxfuse.errors import OnnxfuseError
from onnxfuse.files.model_io import read_proto
from onnxfuse.fused import kinds
from onnxfuse.run.inputs import InputSet
from onnxfuse.run.sessions import Session, SessionError, Value, has_fused_nodes
from onnxfuse.zoo.fetching import fetch
from onnxfuse.zoo.manifest import StoredModel, read_manifest
from onnxfuse.zoo.model_inputs import input_sets
from tools.parity.bisection import bisect
from tools.parity.reference import against_reference

KINDS = {
    "convolution": ("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "NhwcFusedConv"),
    "matrix product": ("MatMul", "Gemm", "FusedMatMul", "FusedGemm", "MatMulInteger", "QGemm", "QLinearMatMul"),
    "fused region": (),
    "attention": ("Attention", "MultiHeadAttention", "GroupQueryAttention", "PackedMultiHeadAttention"),
    "normalization, reduction": (
        "LayerNormalization", "SkipLayerNormalization", "SimplifiedLayerNormalization", "InstanceNormalization",
        "GroupNormalization", "RMSNormalization", "LRN", "Softmax", "LogSoftmax", "ReduceMean", "ReduceSum",
        "ReduceMax", "ReduceMin", "ReduceL2", "ArgMax", "SkipSimplifiedLayerNormalization", "ReduceSumSquare",
    ),
    "pooling, resizing": ("MaxPool", "AveragePool", "GlobalAveragePool", "Resize", "Upsample", "GlobalMaxPool", "Pad"),
    "layout": (
        "Transpose", "Reshape", "Concat", "Split", "Slice", "Gather", "Squeeze", "Unsqueeze", "Flatten", "Expand",
        "ReorderInput", "ReorderOutput", "Tile", "Shape", "DepthToSpace", "Identity", "GatherND", "ConstantOfShape",
    ),
    "recurrent, control": ("LSTM", "GRU", "RNN", "Loop", "If", "Scan"),
}  # fmt: skip
"""What the share of time is told by; whatever is not listed is elementwise."""

_OF_OPERATOR = {op: kind for kind, ops in KINDS.items() for op in ops}


def work_of(operator: str) -> str:
    """What the time of an operator counts as, as ONNX Runtime's profile names it; fused ones have any number."""
    fused = kinds.kind_of(operator)
    return _OF_OPERATOR.get(operator, "elementwise") if fused is None else fused.work


@dataclass(frozen=True)
class Request:
    """What to do.

    ``scratch`` is a folder that may be filled, ``result`` the file to write, ``made`` the folder, if any, that keeps
    large models.
    """

    name: str
    manifest: str
    target: str
    regions: bool
    seconds: float
    threads: int
    reference_seconds: float
    reproducers: str
    scratch: str
    result: str
    made: str | None = None


def empty_result(model: StoredModel, reason: str) -> dict[str, Any]:
    """The result of a model of which nothing is known but why."""
    return {
        "name": model.name,
        "task": model.task,
        "source": model.source,
        "ok": False,
        "reason": reason,
        "outputs": 0,
        "error": {"max_abs": 0.0, "max_rel": 0.0, "max_ulp": 0},
        "top1": None,
        "fused": 0,
        "nodes": [0, 0],
        "launches": [0, 0],
        "time": None,
        "shares": [{}, {}],
        "reference": "-",
        "sets": [],
        "regions": [],
        "warnings": [],
        "reproducer": None,
    }


def examine(model: StoredModel, manifest: dict[str, StoredModel], request: Request) -> dict[str, Any]:
    """Optimize a model and compare, time and profile it; every field of the result is JSON."""
    scratch = Path(request.scratch)
    result = empty_result(model, "")
    optimized = scratch / "optimized" / f"{model.name}.onnx"
    optimized.parent.mkdir()
    try:
        recipes = Path(request.manifest).resolve().parent / "recipes"
        original = fetch(
            model.name,
            manifest,
            folder=scratch,
            made=None if request.made is None else Path(request.made),
            recipes=recipes,
        )
        sets = input_sets(model, original)
        shapes = {name: tuple(shape) for name, shape in sets[0].shapes().items()}
        report = onnxfuse.optimize(original, request.target, shapes=shapes, check=False, output=optimized).report
    except OnnxfuseError as error:
        result["reason"] = str(error)
        return result
    if report.before is not None and report.after is not None:
        result["nodes"] = [report.before.nodes, report.after.nodes]
    result["fused"] = len(report.fused)
    try:
        _compare(model, original, optimized, sets, request, result)
    except (OnnxfuseError, SessionError) as error:
        result["ok"], result["reason"] = False, str(error)
    if not result["ok"]:
        folder = Path(request.reproducers) / model.name
        try:
            result["reproducer"] = bisect(original, optimized, sets, request.target, folder)
        except (OnnxfuseError, SessionError, OSError, ValueError) as error:  # protobuf's limit is a ValueError
            result["reproducer"] = f"no reproducer: {error}"
    return result


def _compare(
    model: StoredModel,
    original: Path,
    optimized: Path,
    sets: list[InputSet],
    request: Request,
    result: dict[str, Any],
) -> None:
    proto, providers = read_proto(optimized), PROVIDERS[request.target]
    parity = compare(original, optimized, inputs=sets, target=request.target, regions=request.regions)
    if request.regions and has_fused_nodes(proto):
        for inputs in sets[1:]:
            parity.regions += compare_regions(optimized, proto, inputs, providers, lambda text: None)
    _judge(model, parity, result)
    _time(original, optimized, sets, request, result, proto)
    result["top1"] = _top1(model, original, optimized, sets, request.target)
    result["reference"] = against_reference(original, optimized, sets[-1], request.reference_seconds, model.tolerance)
    if result["reference"].startswith("DIFFERS"):
        result["ok"], result["reason"] = False, f"in ReferenceEvaluator: {result['reference']}"


def _judge(model: StoredModel, parity: ParityResult, result: dict[str, Any]) -> None:
    """Pass or fail, by the manifest's tolerance."""
    outputs = list(parity.outputs())
    result["outputs"] = len(outputs)
    result["error"] = {
        "max_abs": max((found.max_abs for found in outputs), default=0.0),
        "max_rel": max((found.max_rel for found in outputs), default=0.0),
        "max_ulp": max((found.max_ulp for found in outputs), default=0),
    }
    result["sets"] = [found.to_json() for found in parity.sets]
    result["regions"] = [region.to_json() for region in parity.regions]
    result["warnings"] = parity.warnings
    outside = [found for found in outputs if not found.within(model.tolerance)]
    bad = [region for region in parity.regions if not region.ok]
    result["ok"] = not outside and not bad
    if not result["ok"]:
        result["reason"] = parity.failure() or f"output {outside[0].name!r}: {outside[0].reason}"


def _time(
    original: Path,
    optimized: Path,
    sets: list[InputSet],
    request: Request,
    result: dict[str, Any],
    proto: onnx.ModelProto,
) -> None:
    providers, feeds, library = PROVIDERS[request.target], sets[0].feeds, has_fused_nodes(proto)
    if request.seconds > 0:
        timed: dict[str, Any] = {"providers": providers, "threads": request.threads, "spinning": False, "tf32": True}
        before = Session(original, **timed)
        after = Session(optimized, library=library, **timed)
        blocks = time_in_turns(lambda: before.run(feeds), lambda: after.run(feeds), request.seconds)
        ratio, low, high = ratio_with_spread(blocks)
        quartiles = [float(np.percentile(blocks[:, index], 25)) * 1000 for index in (0, 1)]
        result["time"] = {"ratio": ratio, "low": low, "high": high, "before_ms": quartiles[0], "after_ms": quartiles[1]}
    profiles = [profile(path, feeds, providers, used) for path, used in ((original, False), (optimized, library))]
    result["launches"] = [found[0] for found in profiles]
    result["shares"] = [found[1] for found in profiles]


def profile(
    path: Path, feeds: dict[str, Value], providers: tuple[str, ...], library: bool
) -> tuple[int, dict[str, float]]:
    """How many kernels one run launches, and the time of each kind of operator in the fastest run, in microseconds.

    Kernels inside a body count once for each time they run; the node that holds the body is left out.
    """
    runs = 6
    with tempfile.TemporaryDirectory() as folder:
        session = Session(path, providers=providers, library=library, threads=1, profile=Path(folder) / "profile")
        for _ in range(runs):
            session.run(feeds)
        events = json.loads(session.end_profiling().read_text(encoding="utf-8"))
    kernels = [event for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")]
    kernels = [event for event in kernels if event["args"]["op_name"] not in ("If", "Loop", "Scan")]
    size = len(kernels) // runs
    whole = [kernels[start : start + size] for start in range(size, size * runs, size)]  # the first run warms up
    fastest = min(whole, key=lambda run: sum(event["dur"] for event in run), default=[])
    times: Counter[str] = Counter()
    for event in fastest:
        times[work_of(event["args"]["op_name"])] += event["dur"]
    return size, dict(times)


def _top1(model: StoredModel, original: Path, optimized: Path, sets: list[InputSet], target: str) -> float | None:
    """The share of answers (largest score along the last axis) that both models give alike."""
    if not model.scores:
        return None
    providers = PROVIDERS[target]
    first = Session(original, providers=providers)
    second = Session(optimized, providers=providers, library=has_fused_nodes(read_proto(optimized)))
    same = []
    for inputs in sets:
        left, right = (np.asarray(session.run(inputs.feeds, [model.scores])[0]) for session in (first, second))
        same.append((left.argmax(-1) == right.argmax(-1)).reshape(-1))
    return float(np.concatenate(same).mean())


def main() -> int:
    """Do what the argument says, a request in JSON."""
    request = Request(**json.loads(sys.argv[1]))
    manifest = read_manifest(Path(request.manifest))
    result = examine(manifest[request.name], manifest, request)
    file = Path(request.result)
    unfinished = file.with_suffix(".part")
    unfinished.write_text(json.dumps(result), encoding="utf-8")
    unfinished.replace(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
