"""Random models: DAGs of elementwise nodes and their neighbours, with what a file may have that is odd and legal."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
import onnx
from onnx import helper

from onnxfuse.model.dtypes import DTYPES
from onnxfuse.model.protos import onnx_graphs
from tools.fuzz import neighbours as fuzz_neighbours
from tools.fuzz import operators as fuzz_operators
from tools.fuzz.bodies import FUNCTION_DOMAIN, call, control_flow
from tools.fuzz.graph import ALL, FIRST_BFLOAT16, Graph, Style, Tensor

OLDEST_OPSET, NEWEST_OPSET = 7, 26
"""The oldest opset that onnxfuse reads, and the newest that ONNX Runtime 1.31 takes."""

AXES = ("n", "c", "h", "w")
SIZES = {"n": (2, 1, 3, 0), "c": (3, 4, 1), "h": (5, 1, 7), "w": (6, 1, 17, 2, 0)}
LONG = (300, 2000)
"""Sizes that one axis of a few models has, so that tensors are cut into tiles."""


@dataclass(frozen=True)
class RandomModel:
    """A model, inputs for it, and inputs of other sizes, which it need not take: a constant may fix a size."""

    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]
    resized: dict[str, np.ndarray]


def random_model(choose: Random, max_nodes: int = 60, exact: bool = False) -> RandomModel:
    """A model of 1 to about ``max_nodes`` nodes; unused results become outputs, and some used ones.

    With ``exact`` every operator is one whose result is settled to the last bit, in types that are computed as such.
    """
    opset = choose.choice((choose.randint(OLDEST_OPSET, NEWEST_OPSET), choose.randint(13, 21), 17))
    types = [kind for kind in ALL if not (kind == "bf16" and opset < FIRST_BFLOAT16) and not (exact and "f16" in kind)]
    style = Style(
        opset=opset,
        types=(*choose.choices(("f32", choose.choice(types)), k=choose.randint(1, 2)), choose.choice(types), "bool"),
        exact=exact,
        specials=choose.random() < 0.4,
        odd=choose.random() < 0.5,
    )
    maker = _Maker(choose, style)
    for _ in range(choose.randint(1, 4)):
        maker.input()
    wanted = choose.choice((choose.randint(1, 8), choose.randint(1, 30), choose.randint(1, max_nodes)))
    for _ in range(4 * wanted):
        if len(maker.nodes) >= wanted:
            break
        maker.fill(maker)
    return maker.finish()


class _Maker(Graph):
    """The main graph."""

    def __init__(self, choose: Random, style: Style) -> None:
        super().__init__(choose, style)
        self.sizes = {axis: choose.choice((sizes[0], choose.choice(sizes))) for axis, sizes in SIZES.items()}
        self.other_sizes = {axis: choose.choice(sizes) for axis, sizes in SIZES.items()}
        if self.chance(20):
            self.sizes["w"] = choose.choice(LONG)
        self.resized: dict[str, np.ndarray] = {}
        self.neighbours = self.any_of((0, 1, 2, 4))
        self.bodies = self.chance(4)
        self.operators = [self.any_of(fuzz_operators.EMITTERS) for _ in range(6)] if self.chance(3) else []

    def fill(self, graph: Graph) -> None:
        """Adds nodes of one kind; what an exact model must not have is left out."""
        kind = self.choose.randrange(20)
        if kind < self.neighbours:
            self.any_of(fuzz_neighbours.EMITTERS)(graph)
        elif kind == 19 and self.bodies:
            control_flow(graph, self.fill)
        elif kind == 18 and self.bodies and graph.depth == 0 and self.chance(3):
            call(graph)
        else:
            self.any_of(self.operators or fuzz_operators.EMITTERS)(graph)

    def input(self) -> None:
        """An input of any rank, with fixed, symbolic, unknown or no dimensions."""
        rank = self.choose.randint(0, 4)
        dims = [self.any_of(("one", "fixed", "symbol", "symbol", "unknown")) for _ in range(rank)]
        names = AXES[4 - rank :]
        pairs = list(zip(dims, names, strict=True))
        shape = tuple(1 if dim == "one" else self.sizes[name] for dim, name in pairs)
        resized = tuple(
            self.other_sizes[name] if dim in ("symbol", "unknown") else size
            for (dim, name), size in zip(pairs, shape, strict=True)
        )
        declared = [
            {"symbol": name, "unknown": None}.get(dim, size) for (dim, name), size in zip(pairs, shape, strict=True)
        ]
        dtype = self.any_of(self.style.types)
        pattern = self.any_of(("in{}", "in {}é")) if self.style.odd else "in{}"
        name = pattern.format(len(self.feeds))
        info = helper.make_tensor_value_info(name, DTYPES[dtype].onnx, None if self.chance(20) else declared)
        self.inputs.append(info)
        self.feeds[name] = self.array(dtype, shape)
        self.resized[name] = self.array(dtype, resized)
        self.tensors.append(Tensor(name, dtype, shape))

    def finish(self) -> RandomModel:
        """The model."""
        names = set(self.feeds)
        made = [tensor for tensor in self.tensors if tensor.name not in names]
        wanted = [tensor for tensor in made if tensor.name not in self.used or self.chance(8)]
        if not wanted or self.chance(15):
            wanted.append(self.any_of([tensor for tensor in self.tensors if tensor.name in names]))
        self.choose.shuffle(wanted)
        outputs = [self._declare(tensor) for tensor in wanted]
        hints = [self._declare(tensor) for tensor in made if tensor not in wanted and self.chance(6)]
        graph = helper.make_graph(
            self.nodes, self.any_of(("random", "")) or "g", self.inputs, outputs, self.initializers, value_info=hints
        )
        opsets = [helper.make_opsetid(self.any_of(("", "", "ai.onnx")) if self.style.odd else "", self.opset)]
        if self.functions:
            opsets.append(helper.make_opsetid(FUNCTION_DOMAIN, 1))
        model = helper.make_model(graph, opset_imports=opsets, functions=self.functions, ir_version=self._ir_version())
        if model.ir_version < 4:
            known = {info.name for info in self.inputs}
            for tensor in self.initializers:
                if tensor.name not in known:
                    model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        if any(node.op_type == "PRelu" for graph in onnx_graphs(model.graph) for node in graph.node):
            self.resized = {}  # of another size the slope might not broadcast to the input, which goes unnoticed
        return RandomModel(model, self.feeds, {**self.feeds, **self.resized})

    def _ir_version(self) -> int:
        if self.opset <= 8 and not self.bodies and self.chance(4):
            return 3
        return 10 if self.functions else int(self.any_of((8, 10, 11, 13)))

    def _declare(self, tensor: Tensor) -> onnx.ValueInfoProto:
        dims = [f"{tensor.name}_{axis}" for axis in range(len(tensor.shape))]
        return helper.make_tensor_value_info(tensor.name, DTYPES[tensor.dtype].onnx, dims)
