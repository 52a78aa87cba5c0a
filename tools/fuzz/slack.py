"""What a random model leaves open, as a model: the original with noise of the size of what may legally differ.

A chain of forty operators can amplify the last bit of a tanh without end, so no tolerance fits all random models.
Instead, where a result differs, the original runs again, several times, with random noise after each node whose
result is not settled: the rounding of functions, of sums in another order, of 16-bit floats (which a fused node
computes in float and rounds once), the sign of Max(0, -0), integers made of NaN.  A difference within what the noise
does is explained; any other is a finding, unless a result in float64 shows that ONNX Runtime's own is as far off
(``fuzz_check.against_float64``).
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnxfuse.check.comparison import tolerance
from onnxfuse.model.elementwise_operators import ELEMENTWISE, Slack, operators_that
from onnxfuse.run.sessions import Session, Value
from tools.fuzz.graph import EXACT_OPS

HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
FLOAT = (TensorProto.FLOAT, TensorProto.DOUBLE, *HALF)
INTEGER_LIMITS: dict[int, int] = {
    TensorProto.INT8: 7, TensorProto.INT16: 15, TensorProto.INT32: 31, TensorProto.INT64: 63,
    TensorProto.UINT8: 8, TensorProto.UINT16: 16, TensorProto.UINT32: 32, TensorProto.UINT64: 64,
}  # fmt: skip
FUNCTION_NOISE: dict[int, tuple[float, float]] = {TensorProto.FLOAT: (1e-5, 2e-6), TensorProto.DOUBLE: (1e-12, 1e-13)}
"""Relative and absolute: what ONNX Runtime's own functions are off by, and ours, together."""

HALF_NOISE: dict[int, tuple[float, float]] = {
    TensorProto.FLOAT16: (2.0**-10, 2.0**-24),
    TensorProto.BFLOAT16: (2.0**-7, 0.0),
}
SUM_NOISE: dict[int, float] = {TensorProto.FLOAT: 4e-6, TensorProto.DOUBLE: 1e-14}
"""Relative to the sum of the magnitudes that are added."""

SUMS = operators_that(lambda row: Slack.SUM in row.slack) | {
    *("Conv", "ConvTranspose", "Gemm", "MatMul", "ReduceSum", "ReduceMean", "ReduceL2", "AveragePool"),
    "GlobalAveragePool",
}
REORDERED = operators_that(lambda row: Slack.ANY_SUM in row.slack)
"""Sums whose order is open where no rule rewrites anything."""

CANCELLING = operators_that(lambda row: Slack.CANCELS in row.slack) | {
    *("Attention", "Einsum", "GRU", "GroupNormalization", "InstanceNormalization", "LSTM", "LayerNormalization"),
    *("LpPool", "MeanVarianceNormalization", "RMSNormalization", "RNN", "Resize"),
}
OF_GREATEST = {"ReduceMax": 9, "ReduceMin": 9, "GlobalMaxPool": 9, "Hardmax": 13}
"""Which ONNX Runtime finds in vectors: whether a NaN hides it depends on where that is.  With the opset from
which a noisy model can choose: from 9 on it knows IsNaN and Where, and from 13 on a Hardmax has one axis."""

_LARGE = 1e38
"""What is computed with numbers beyond may be infinite."""

ZERO_SIGNS = operators_that(lambda row: Slack.ZERO_SIGN in row.slack)

VARIANTS, RUNS = (1, 10), (32, 6)
"""How many noisy models and how often each runs, without and with 16-bit floats."""

ATTEMPTS = 25
"""How often as many run, before a difference counts as unexplained: a rare case may need its luck."""

BANK = "slack bank"
BANK_SIZE = 1 << 18
"""Random numbers as an input: from opset 22 on ONNX Runtime has no operator that makes them."""


def unexplained(
    model: onnx.ModelProto,
    feeds: Mapping[str, Value],
    results: Iterable[tuple[str, np.ndarray, np.ndarray, bool]],
    rewritten: bool,
    attempts: int = ATTEMPTS,
) -> list[str]:
    """The outputs that differ by more than the model leaves open.

    ``results`` are the name, the original's value, the other value, and whether it should be equal to the last bit;
    ``rewritten`` if sums may have been rewritten, by us or by ONNX Runtime, whose results without its own rewriting are
    as good.
    """
    results, random = list(results), np.random.default_rng(0)
    samples: dict[str, list[np.ndarray]] = {name: [expected] for name, expected, _, _ in results}
    half = _has_half(model)
    if found := [name for name, expected, actual, _ in results if expected.shape != actual.shape]:
        return found
    if rewritten:
        plain = Session(model.SerializeToString(), threads=1, optimized=False)
        for values, value in zip(samples.values(), plain.run(dict(feeds), list(samples)), strict=True):
            values.append(value)
    for seed in range(attempts * VARIANTS[half]):
        loose = loosen(model, Random(seed), rewritten)
        session = Session(loose.SerializeToString(), threads=1, optimized=False)
        banked = any(info.name == BANK for info in loose.graph.input)  # a model may have no inputs
        for _ in range(RUNS[half]):
            bank = {BANK: random.uniform(-1, 1, BANK_SIZE).astype(np.float32)} if banked else {}
            for (name, *_), value in zip(results, session.run({**feeds, **bank}, list(samples)), strict=True):
                samples[name].append(value)
        if (seed + 1) % VARIANTS[half] == 0:
            left = [
                name
                for name, expected, actual, exact in results
                if all(sample.shape == expected.shape for sample in samples[name])  # or the shape itself is open
                and not _is_within(np.stack(samples[name]), expected, actual, exact)
            ]
            if not left:
                break
    return left


def _is_within(samples: np.ndarray, expected: np.ndarray, actual: np.ndarray, exact: bool) -> bool:
    """Whether every element lies among those of the noisy runs, or beyond them by no more than they spread."""
    if exact:
        settled = (bits(samples) == bits(samples[:1])).all(axis=0)
        if np.any(settled & (bits(expected) != bits(actual))):
            return False
    with np.errstate(all="ignore"):
        numbers, value = samples.astype(np.float64), actual.astype(np.float64)
        finite = np.isfinite(numbers)
        low = np.min(np.where(finite, numbers, np.inf), axis=0, initial=np.inf)
        high = np.max(np.where(finite, numbers, -np.inf), axis=0, initial=-np.inf)
        limits = tolerance(expected.dtype)
        scale = np.max(np.abs(numbers), where=finite, initial=0.0)
        margin = (high - low) + limits.absolute * scale + limits.relative * np.maximum(np.abs(low), np.abs(high))
        inside = finite.any(axis=0) & (value >= low - margin) & (value <= high + margin)
        # One that is no number must be so in a noisy run; where they disagree anything may come of it.
        same_kind = ((numbers == value) | (np.isnan(numbers) & np.isnan(value))).any(axis=0)
        mixed = finite.any(axis=0) & ~finite.all(axis=0)
        return bool(np.all(inside | same_kind | mixed))


def bits(array: np.ndarray) -> np.ndarray:
    """Integers that are equal where two values are, to the last bit, one NaN as good as another."""
    array = np.ascontiguousarray(array)
    if array.dtype.kind in "iub":
        return array
    bits = array.view(f"u{array.dtype.itemsize}")
    return np.where(np.isnan(array), np.zeros((), bits.dtype) - 1, bits)


def _has_half(model: onnx.ModelProto) -> bool:
    text = model.SerializeToString()
    inferred = onnx.shape_inference.infer_shapes(onnx.ModelProto.FromString(text))
    return any(kind in HALF for kind in _types(inferred.graph, {}).values())


def _types(graph: onnx.GraphProto, outer: Mapping[str, int]) -> dict[str, int]:
    types = dict(outer)
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    for info in (*graph.input, *graph.value_info, *graph.output):
        types[info.name] = info.type.tensor_type.elem_type
    for node in graph.node:
        if node.op_type == "Constant":
            types[node.output[0]] = next(
                (attribute.t.data_type for attribute in node.attribute if attribute.name == "value"),
                types.get(node.output[0], TensorProto.FLOAT),
            )
    return types


def loosen(model: onnx.ModelProto, choose: Random, rewritten: bool) -> onnx.ModelProto:
    """The model with noise; ``choose`` says which 16-bit floats are kept as float."""
    loose = onnx.shape_inference.infer_shapes(onnx.ModelProto.FromString(model.SerializeToString()))
    opset = next(entry.version for entry in loose.opset_import if entry.domain in ("", "ai.onnx"))
    _Loosener(choose, opset, rewritten).graph(loose.graph, {}, ChainMap())
    if opset >= 22:
        loose.graph.input.append(helper.make_tensor_value_info(BANK, TensorProto.FLOAT, [BANK_SIZE]))
    return loose


class _Loosener:
    def __init__(self, choose: Random, opset: int, rewritten: bool) -> None:
        self.choose = choose
        self.opset = opset
        self.rewritten = rewritten
        self.leaves_exact = choose.random() < 0.5
        self.count = 0
        self.nodes: list[onnx.NodeProto] = []

    def graph(self, graph: onnx.GraphProto, outer: Mapping[str, int], wide: MutableMapping[str, str]) -> None:
        """Adds noise to the nodes of a graph.  ``wide`` names the float version of 16-bit tensors that have one."""
        types = _types(graph, outer)
        before, self.nodes = self.nodes, []
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    inner = wide.new_child() if isinstance(wide, ChainMap) else wide
                    self.graph(attribute.g, types, inner)
            self.node(node, types, wide)
        del graph.node[:]
        graph.node.extend(self.nodes)
        self.nodes = before

    def new(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A new node; its result."""
        self.count += 1
        name = f"slack {self.count}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def number(self, value: float, kind: int, dims: Sequence[int] = ()) -> str:
        """A constant of one element."""
        self.count += 1
        name = f"slack {self.count}"
        tensor = helper.make_tensor(name, kind, dims, [value])
        self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        return name

    def vector(self, values: Sequence[int]) -> str:
        """A constant of 64-bit integers."""
        self.count += 1
        name = f"slack {self.count}"
        self.nodes.append(helper.make_node("Constant", [], [name], value_ints=list(values)))
        return name

    def node(self, node: onnx.NodeProto, types: dict[str, int], wide: MutableMapping[str, str]) -> None:
        """Copies a node, with what it leaves open."""
        changed = onnx.NodeProto.FromString(node.SerializeToString())
        kind = types.get(node.output[0], TensorProto.UNDEFINED)
        is_open = node.domain in ("", "ai.onnx") and kind in FLOAT
        # A fused node computes in float where the model has 16-bit floats.
        half = any(types.get(name) in HALF for name in node.input) and node.op_type in ELEMENTWISE
        if half and self.choose.random() < 0.7 and all(types.get(name) for name in node.input if name):
            for index, name in enumerate(node.input):
                if types.get(name) in HALF and not (node.op_type == "CastLike" and index == 1):
                    changed.input[index] = wide.get(name) or self.new("Cast", name, to=TensorProto.FLOAT)
            work = TensorProto.FLOAT if kind in HALF and "Cast" not in node.op_type else kind
        else:
            work = kind
        is_order = node.op_type in ("Max", "Min", "Clip") and kind == TensorProto.INT64 and self.opset >= 12
        if not is_open and not is_order and not (node.op_type in ("Cast", "CastLike") and kind in INTEGER_LIMITS):
            self.nodes.append(changed)
            return
        self.count += 1
        result = raw = changed.output[0] = f"slack {self.count}"
        self.nodes.append(changed)
        if is_order:
            result = self.ordered(node, result)
            self.nodes.append(helper.make_node("Identity", [result], [node.output[0]]))
            return
        if kind in INTEGER_LIMITS:
            result = self.converted(changed.input[0], result, types.get(node.input[0], 0), kind)
            self.nodes.append(helper.make_node("Identity", [result], [node.output[0]]))
            return
        if node.op_type == "LRN":
            raw = result = self.kept_in_window(changed, raw)
        if work in HALF:
            result = self.new("Cast", raw, to=TensorProto.FLOAT)
        coarse = HALF_NOISE[kind][0] if kind in HALF else 0.0
        result = self.loosened(changed, result, TensorProto.FLOAT if work in HALF else work, coarse)
        if kind in HALF and node.op_type in ("Cast", "CastLike") and self.choose.random() < 0.5:
            # ONNX Runtime itself leaves out pairs of casts, and with them the rounding.
            wide[node.output[0]] = self.new("Cast", changed.input[0], to=TensorProto.FLOAT)
        elif kind in HALF and work not in HALF:
            wide[node.output[0]] = result
        elif kind in HALF:
            relative, absolute = HALF_NOISE[kind]
            rounded = half or self.rewritten  # or kept in float by a rewritten model
            result = self.noise(result, TensorProto.FLOAT, relative, absolute) if rounded else result
        if kind in HALF:
            self.nodes.append(helper.make_node("Cast", [result], [node.output[0]], to=kind))
        else:
            self.nodes.append(helper.make_node("Identity", [result], [node.output[0]]))

    def loosened(self, node: onnx.NodeProto, result: str, kind: int, coarse: float) -> str:
        """A float or double result with the noise of its operator; ``coarse`` is the precision of 16-bit floats."""
        op = node.op_type
        if op in SUMS and (self.rewritten or op in REORDERED):
            bound = self.new("Cast", self.magnitudes(node), to=kind)
            size = max(SUM_NOISE[kind], coarse)
            result = self.new(
                "Add", result, self.new("Mul", bound, self.some(result, kind, size, self.gate(result, kind)))
            )
            if op == "Conv" and self.rewritten and self.opset >= 9:  # infinite: open by docs/results.md
                finite = self.new("Less", self.new("Abs", result), self.number(_LARGE, kind))  # false for NaN
                chosen = self.new("Less", self.random(result, kind, 1.0), self.number(0, kind))
                result = self.new("Where", self.new("Or", finite, chosen), result, self.number(0, kind))
        elif op == "MeanVarianceNormalization":
            result = self.noise(self.of_equal_elements(node, result, kind), kind, *FUNCTION_NOISE[kind])
        elif self.opset >= OF_GREATEST.get(op, np.inf):
            result = self.hidden(node, result, kind)
        elif op not in EXACT_OPS or (coarse and op in CANCELLING):
            relative, absolute = FUNCTION_NOISE[kind]
            result = self.noise(result, kind, relative, max(absolute, coarse if op in CANCELLING else 0.0))
        elif op == "Sign" and coarse and self.opset >= 11:  # of NaN it is 0 in 16 bits, and NaN in float
            zero = self.number(0.0, kind)
            chosen = self.new("Less", self.random(result, kind, 1.0), zero)
            result = self.new("Where", self.new("And", self.new("IsNaN", result), chosen), zero, result)
        elif self.rewritten and op in ("Mul", "Div"):
            result = self.noise(result, kind, 4e-6 if kind == TensorProto.FLOAT else 1e-14, 0.0)
        if op in ZERO_SIGNS:
            # By a factor that is 1 but for zeros: ONNX Runtime's Where does not keep the sign of -0.
            other = self.new("Cast", self.new("Cast", result, to=TensorProto.BOOL), to=kind)
            zero = self.new("Sub", self.number(1.0, kind), other)
            factor = self.new("Add", other, self.new("Mul", zero, self.random(result, kind, 1.0)))
            result = self.new("Mul", result, factor)
        return result

    def of_equal_elements(self, node: onnx.NodeProto, result: str, kind: int) -> str:
        """The result of MeanVarianceNormalization, or by chance what else it may be of equal elements that are finite.

        By the operator's function they become 0 over 0 + 1e-9, for which ONNX Runtime divides by 0; and where the mean
        is off by its last bit, all are as far from it as the deviation is, 1 or less.
        """
        axes = next((helper.get_attribute_value(one) for one in node.attribute if one.name == "axes"), [0, 2, 3])
        old = {} if self.opset >= 18 else {"axes": axes}
        given = [] if old else [self.vector(axes)]
        mean, greatest, least = (
            self.new(reduce, node.input[0], *given, **old) for reduce in ("ReduceMean", "ReduceMax", "ReduceMin")
        )
        zero, size = self.number(0, kind), self.new("Abs", mean)
        is_finite = self.new("Less", size, self.number(_LARGE, kind))  # false where one is NaN
        is_equal = self.new("And", is_finite, self.new("Not", self.new("Less", least, greatest)))
        chosen = self.new("And", is_equal, self.new("Less", self.random(mean, kind, 1.0), zero))
        off = self.new("Sign", self.new("Relu", self.random(mean, kind, 1.0)))
        off = self.new("Mul", off, self.new("Sign", self.new("Mul", size, self.random(mean, kind, 1.0))))
        return self.new("Where", chosen, off, result)

    def hidden(self, node: onnx.NodeProto, result: str, kind: int) -> str:
        """What is made of the greatest or least element, or by chance any, where a NaN is among the elements."""
        flags = self.new("Cast", self.new("IsNaN", self.new("Cast", node.input[0], to=kind)), to=kind)
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        if node.op_type == "Hardmax":
            axes = [attributes.get("axis", -1)]
            given = [self.vector(axes)] if self.opset >= 18 else []
            among = self.new("ReduceMax", flags, *given, **({} if given else {"axes": axes}))
            other = self.new("Cast", self.new("Greater", self.random(result, kind, 1.0), self.number(0, kind)), to=kind)
        else:
            op = "GlobalMaxPool" if node.op_type == "GlobalMaxPool" else "ReduceMax"
            among = self.new(op, flags, *node.input[1:], **attributes)
            other = self.number(np.nan, kind)
        chosen = self.new("Greater", self.random(result, kind, 1.0), self.number(0, kind))
        return self.new("Where", self.new("And", self.new("Cast", among, to=TensorProto.BOOL), chosen), other, result)

    def magnitudes(self, node: onnx.NodeProto) -> str:
        """The node applied to the magnitudes of its inputs: what the rounding of its sum is relative to."""
        inputs = [name and self.new("Abs", name) for name in node.input]
        if node.op_type == "BatchNormalization":
            inputs[3] = self.new("Neg", inputs[3])
        elif node.op_type.startswith("Reduce") and len(node.input) > 1:
            inputs[1] = node.input[1]
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        return self.new("Add" if node.op_type == "Sub" else node.op_type, *inputs, **attributes)

    def random(self, like: str, kind: int, size: float) -> str:
        """Numbers between -size and size."""
        if self.opset < 22:
            seed = float(self.choose.randrange(1 << 20))
            return self.new("RandomUniformLike", like, low=-size, high=size, dtype=kind, seed=seed)
        start = self.number(self.choose.randrange(BANK_SIZE // 2), TensorProto.INT64, [1])
        count = self.new("Reshape", self.new("Size", like), self.number(1, TensorProto.INT64, [1]))
        numbers = self.new("Slice", BANK, start, self.new("Add", start, count))
        shaped = self.new("Reshape", numbers, self.new("Shape", like), allowzero=1)
        return self.new("Mul", self.new("Cast", shaped, to=kind), self.number(size, kind))

    def noise(self, value: str, kind: int, relative: float, absolute: float) -> str:
        """``value`` off by so much; infinities stay."""
        gate = self.gate(value, kind)
        factor = self.new("Add", self.some(value, kind, relative, gate), self.number(1.0, kind))
        scaled = self.new("Mul", value, factor)
        return self.new("Add", scaled, self.some(value, kind, absolute, gate)) if absolute else scaled

    def gate(self, like: str, kind: int) -> str:
        """Half of it 0, the rest up to 1 and mostly small: a result may be exact, or off by its last bit alone.  All of
        it is 0 for half of the nodes of every second model: what nodes make of equal elements shows there."""
        if self.leaves_exact and self.choose.random() < 0.5:
            return self.number(0, kind)
        gate = self.new("Relu", self.random(like, kind, 1.0))
        return self.new("Mul", gate, self.new("Mul", gate, gate))

    def some(self, like: str, kind: int, size: float, gate: str) -> str:
        """Numbers between -size and size, 0 where the gate is."""
        return self.new("Mul", gate, self.random(like, kind, size))

    def ordered(self, node: onnx.NodeProto, result: str) -> str:
        """The larger or smaller of 64-bit integers; any, where ONNX Runtime's vector code takes the wrong one.

        It does so where they are 2³¹ to 2³² apart.
        """
        limit = self.number(1 << 30, TensorProto.INT64)
        for name in filter(None, node.input):
            is_large = self.new("Less", limit, self.new("Abs", name))
            number = self.new("Cast", self.random(result, TensorProto.FLOAT, 2.0**40), to=TensorProto.INT64)
            result = self.new("Where", is_large, number, result)
        return result

    def kept_in_window(self, node: onnx.NodeProto, result: str) -> str:
        """The result of LRN, or by chance that of its definition: ONNX Runtime slides a sum along the channels.

        So it carries an infinity or a NaN to all channels behind.
        """
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        size = attributes["size"]
        axes = [self.vector([1])] if self.opset >= 13 else []
        old = {} if self.opset >= 13 else {"axes": [1]}
        squares = self.new("Unsqueeze", self.new("Mul", node.input[0], node.input[0]), *axes, **old)
        window = {
            "kernel_shape": [size, 1, 1],
            "pads": [size // 2, 0, 0, (size - 1) // 2, 0, 0],
            "count_include_pad": 1,
        }
        mean = self.new("Squeeze", self.new("AveragePool", squares, **window), *axes, **old)
        scaled = self.new("Mul", mean, self.number(attributes.get("alpha", 1e-4), TensorProto.FLOAT))
        base = self.new("Add", scaled, self.number(attributes.get("bias", 1.0), TensorProto.FLOAT))
        power = self.new("Pow", base, self.number(attributes.get("beta", 0.75), TensorProto.FLOAT))
        defined = self.new("Div", node.input[0], power)
        chosen = self.new("Greater", self.random(result, TensorProto.FLOAT, 1.0), self.number(0, TensorProto.FLOAT))
        return self.new("Where", chosen, result, defined)

    def converted(self, source: str, result: str, source_kind: int, kind: int) -> str:
        """The integers that floats become; any, where the type does not hold the number."""
        if source_kind not in FLOAT or self.opset < 11:
            return result
        wide = self.new("Cast", source, to=TensorProto.DOUBLE)
        limit = self.number(2.0 ** INTEGER_LIMITS[kind] - 1, TensorProto.DOUBLE)
        inside = self.new("Less", self.new("Abs", wide), limit)  # false for NaN
        if kind in (TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64):
            inside = self.new("And", inside, self.new("Less", self.number(-1.0, TensorProto.DOUBLE), wide))
        number = self.random(wide, TensorProto.FLOAT, 2.0 ** INTEGER_LIMITS[kind])
        any_number = self.new("Cast", number, to=TensorProto.INT64)
        chosen = self.new("Where", inside, self.new("Cast", result, to=TensorProto.INT64), any_number)
        return self.new("Cast", chosen, to=kind)
