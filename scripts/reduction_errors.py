#!/usr/bin/env python3
"""Write benchmarks/reduction_errors.md: how far single reductions and normalizations are from their float64 results.

Each operator of float32 is computed by ONNX Runtime and, forced to be fused, by the onnxfuse library, on rows of
several lengths and kinds: as they come, around a mean that is large beside what they differ by, of denormal numbers,
and with infinities and NaN among them.  An error is the largest distance from the result in float64 (NumPy), in units
of float32's precision, 2^-23, times the largest finite result of the row; that of a sum near zero is many.
"""

import math
import os
import sys
from collections.abc import Callable, Iterator
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["PYTHONSAFEPATH"] = "1"

sys.path.append(str(Path(__file__).resolve().parent.parent))  # tools/, behind the packages of this Python

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

import onnxfuse
from onnxfuse.fused.kinds import DOMAIN
from onnxfuse.fused.reduction.fuse_reductions import FuseReductions
from onnxfuse.passes import PassContext
from tools.markdown_table import table
from tools.messages import Parser

PAGE = Path(__file__).resolve().parent.parent / "benchmarks" / "reduction_errors.md"
OPSET = 23
LENGTHS = {7: 64, 768: 64, 32000: 8, 1 << 20: 2}
"""Of rows, and how many there are."""
LIMIT = 2.0
"""How many times ONNX Runtime's error ours may be."""
ROUNDINGS = {"denormal": 16.0}
"""What ours may be anyway, ONNX Runtime rounding once what it normalizes in float64: a few roundings of float32, and
more where differences have few bits."""
FEW_ROUNDINGS = 2.0

Array = np.ndarray


def _moments(x: Array) -> tuple[Array, Array]:
    mean = x.mean(-1, keepdims=True)
    return x - mean, np.square(x - mean).mean(-1, keepdims=True)


def _softmax(x: Array) -> Array:
    power = np.exp(x - x.max(-1, keepdims=True))
    return power / power.sum(-1, keepdims=True)


def _log_softmax(x: Array) -> Array:
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _log_sum_exp(x: Array) -> Array:
    most = x.max(-1, keepdims=True)
    most = np.where(np.isinf(most), 0, most)
    return np.log(np.exp(x - most).sum(-1, keepdims=True)) + most


def _normalized(x: Array) -> Array:
    distance, variance = _moments(x)
    return distance / np.sqrt(variance + 1e-5)


OPERATORS: dict[str, tuple[dict[str, Any], Callable[[Array], Array]]] = {
    "ReduceSum": ({}, lambda x: x.sum(-1, keepdims=True)),
    "ReduceMean": ({}, lambda x: x.mean(-1, keepdims=True)),
    "ReduceMax": ({}, lambda x: x.max(-1, keepdims=True)),
    "ReduceL1": ({}, lambda x: np.abs(x).sum(-1, keepdims=True)),
    "ReduceL2": ({}, lambda x: np.sqrt(np.square(x).sum(-1, keepdims=True))),
    "ReduceSumSquare": ({}, lambda x: np.square(x).sum(-1, keepdims=True)),
    "ReduceLogSumExp": ({}, _log_sum_exp),
    "Softmax": ({"axis": -1}, _softmax),
    "LogSoftmax": ({"axis": -1}, _log_softmax),
    "LayerNormalization": ({"axis": -1}, _normalized),
    "RMSNormalization": ({"axis": -1}, lambda x: x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-5)),
    "InstanceNormalization": ({}, _normalized),
    "LpNormalization": ({"axis": -1, "p": 2}, lambda x: x / np.sqrt(np.square(x).sum(-1, keepdims=True))),
    "GlobalAveragePool": ({}, lambda x: x.mean(-1, keepdims=True)),
}
_IMAGES = {"InstanceNormalization", "GlobalAveragePool"}

DATA: dict[str, Callable[[np.random.Generator, tuple[int, int]], Array]] = {
    "normal": lambda random, shape: random.standard_normal(shape),
    "around 1000": lambda random, shape: 1000 + random.standard_normal(shape) / 100,
    "denormal": lambda random, shape: random.standard_normal(shape) * 1e-39,
    "with infinities and NaN": lambda random, shape: _with_specials(random.standard_normal(shape)),
}


def _with_specials(x: Array) -> Array:
    """Every fourth row has an infinity, one of the other sign, both, or a NaN among its elements."""
    for row, places in (
        (0, [(1, math.inf)]),
        (1, [(2, -math.inf)]),
        (2, [(0, math.inf), (3, -math.inf)]),
        (3, [(4, math.nan)]),
    ):
        for place, value in places:
            x[row::4, place] = value
    return x


def model_of(operator: str) -> onnx.ModelProto:
    """A model of one node along the last axis of a matrix, or of an image with one channel a row."""
    attributes, _ = OPERATORS[operator]
    shape: list[str | int] = ["b", "c", "n"] if operator in _IMAGES else ["c", "n"]
    inputs, constants = ["x"], {}
    if operator.startswith("Reduce"):
        constants["axes"] = np.array([-1])
    if operator in ("LayerNormalization", "RMSNormalization"):
        constants["scale"] = np.ones(1, np.float32)
    if operator == "InstanceNormalization":
        constants |= {"scale": np.ones(64, np.float32), "bias": np.zeros(64, np.float32)}
        shape = ["b", 64, "n"]
    graph = helper.make_graph(
        [helper.make_node(operator, [*inputs, *constants], ["y"], **attributes)],
        operator,
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


def fused(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its node forced to be fused."""
    loaded = onnxfuse.Model.from_proto(model)
    FuseReductions().run(loaded, PassContext(everything=True))
    result = loaded.to_proto()
    if [node.domain for node in result.graph.node] != [DOMAIN]:
        raise SystemExit(f"error: {model.graph.name} is not fused")
    return result


def run(model: onnx.ModelProto, x: Array, library: bool) -> Array:
    """The result of a model."""
    options = ort.SessionOptions()
    if library:
        onnxfuse.register(options)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0]).reshape(x.reshape(-1, x.shape[-1]).shape[0], -1)


def error(found: Array, exact: Array) -> float:
    """The largest distance in float32's precision; infinite where one is a number and the other is not."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32)
    finite = np.isfinite(rounded)
    same = np.where(finite, np.isfinite(found), (found == rounded) | (np.isnan(found) & np.isnan(rounded)))
    if not same.all():
        return math.inf
    magnitude = np.max(np.abs(exact), axis=-1, keepdims=True, initial=2.0**-126, where=finite)
    distance = np.abs(np.where(finite, found, 0) - np.where(finite, exact, 0))
    return float(np.max(distance / magnitude) * 2**23)


def measure(operator: str) -> Iterator[tuple[str, int, float, float]]:
    """The kind and the length of rows, ONNX Runtime's error and ours."""
    model = model_of(operator)
    optimized = fused(model)
    for kind, make in DATA.items():
        for length, rows in LENGTHS.items():
            random = np.random.default_rng(length)
            count = 64 if operator == "InstanceNormalization" else rows
            x = make(random, (count, length)).astype(np.float32)
            with np.errstate(all="ignore"):
                exact = OPERATORS[operator][1](x.astype(np.float64))
            shaped = x[None] if operator in _IMAGES else x
            yield kind, length, error(run(model, shaped, False), exact), error(run(optimized, shaped, True), exact)


def main() -> int:
    """Exit status 1 if an error is more than LIMIT times ONNX Runtime's and a few roundings."""
    parser = Parser(description=__doc__)
    parser.add_argument("operators", nargs="*", metavar="OPERATOR", help="print those of these, without a page")
    parser.add_argument("--no-page", action="store_true", help="print, and leave the page as it is")
    arguments = parser.parse_args()
    if unknown := set(arguments.operators) - set(OPERATORS):
        parser.error(f"{unknown.pop()} is none of {', '.join(OPERATORS)}")
    rows, worse = [], []
    for operator in arguments.operators or OPERATORS:
        found = list(measure(operator))
        worse += [
            (operator, *one) for one in found if one[3] > max(LIMIT * one[2], ROUNDINGS.get(one[0], FEW_ROUNDINGS))
        ]
        for kind in DATA:
            own = [one for one in found if one[0] == kind]
            rows.append((operator, kind, *(f"{one[2]:.2g} / {one[3]:.2g}" for one in own)))
    lengths = [f"rows of {length}" for length in LENGTHS]
    text = table(("operator", "elements", *lengths), rows)
    print(text)
    for one in worse:
        print(f"{one[0]}, {one[1]}, rows of {one[2]}: {one[4]:.3g}, and ONNX Runtime's {one[3]:.3g}", file=sys.stderr)
    if not (arguments.no_page or arguments.operators):
        PAGE.write_text(_page(text), "utf-8")
    return 1 if worse else 0


def _page(text: str) -> str:
    description = (__doc__ or "").split("\n\n", 1)[1].strip()
    versions = f"ONNX Runtime {version('onnxruntime')}, NumPy {version('numpy')}"
    return (
        f"# Errors of reductions\n\nMade by `scripts/reduction_errors.py` on {date.today()}, with {versions},"
        " on the CPU.\n\n"
        f"{description}\n\nEach cell has ONNX Runtime's error and then that of the fused node; `inf` where a result is"
        f" a number and should not be, or the other way round.  Ours is at most {LIMIT:g} times ONNX Runtime's, or"
        f" {FEW_ROUNDINGS:g}, of denormal numbers {ROUNDINGS['denormal']:g}; else the command fails.\n\n{text}\n"
    )


if __name__ == "__main__":
    raise SystemExit(main())
