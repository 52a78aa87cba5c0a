"""Attention for the tests of CUDA: nodes of made-up values, their reference, and kernels run in the emulation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from onnxfuse.cuda.attention.arguments import pack, splits, sum_blocks, tiles, workspace_bytes
from onnxfuse.cuda.attention.case import AttentionCase
from onnxfuse.cuda.attention.fitting import candidates
from onnxfuse.cuda.attention.kernel import AttentionKernel, AttentionSource
from onnxfuse.cuda.attention.layout import lay_out
from onnxfuse.cuda.attention.renderer import render_attention
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program.figures import ATTENTION_SUM_BLOCK
from tests.cuda.emulation.emulator import Emulation, aligned

MULTIPROCESSORS = 8
"""Of the device that is emulated."""


@dataclass(frozen=True)
class Node:
    """An attention of made-up values.

    ``form`` says how Q, K and V lie: ``packed`` as one projection, ``merged`` as [batch, length, heads · size],
    ``split`` as [batch, length, heads, size], or ``first`` as [batch, heads, length, size].
    """

    dtype: str = "f32"
    batch: int = 2
    heads: int = 4
    key_heads: int = 4
    queries: int = 5
    keys: int = 7
    size: int = 16
    value_size: int = 16
    form: str = "merged"
    out_first: bool = False
    mask: tuple[int, ...] | None = None
    choices: tuple[int, ...] | None = None
    windows: int = 0
    fills: bool = False
    fill: float = -np.inf
    scale: float = 0.25
    zeros: bool = False
    nan_as_zero: bool = False
    hide: float = 0.3
    hidden: float = -np.inf
    seed: int = 0

    @property
    def case(self) -> AttentionCase:
        """What is known of it, all sizes included."""
        reads = "m" * (self.mask is not None) + "c" * (self.choices is not None) or "-"
        return AttentionCase(self.dtype, reads, self.zeros, self.size, self.value_size)

    @property
    def attributes(self) -> dict[str, int | list[int]]:
        """Those of the node."""
        first, packed = int(self.form == "first"), self.form == "packed"
        total = self.heads + 2 * self.key_heads
        found: dict[str, int | list[int]] = {
            "heads": [self.heads, self.key_heads],
            "input_heads": [total] * 3 if packed else [self.heads, self.key_heads, self.key_heads],
            "first_head": [0, self.heads, self.heads + self.key_heads] if packed else [0, 0, 0],
            "heads_first": [first, first, first, int(self.out_first)],
            "scale_bits": int(np.float32(self.scale).view(np.uint32)),
        }
        if self.choices is not None:
            found |= {"fill_bits": int(np.float32(self.fill).view(np.uint32)), "fills": int(self.fills)}
        flags = {"nan_as_zero": self.nan_as_zero, "masked_as_zero": self.zeros, "windows": self.windows}
        return found | {name: int(value) for name, value in flags.items() if value}

    def operands(self) -> "Operands":
        """Made-up values."""
        numpy_type = DTYPES[self.dtype].numpy
        rng = np.random.default_rng(self.seed)

        def values(heads: int, length: int, size: int) -> np.ndarray:
            return rng.normal(size=(self.batch, heads, length, size)).astype(numpy_type)

        q = values(self.heads, self.queries, self.size)
        k = values(self.key_heads, self.keys, self.size)
        v = values(self.key_heads, self.keys, self.value_size)
        mask = choices = None
        if self.mask is not None:
            mask = rng.normal(size=self.mask).astype(numpy_type)
            mask[rng.random(self.mask) < self.hide] = self.hidden
        if self.choices is not None:
            choices = (rng.random(self.choices) < self.hide) == self.fills
        return Operands(self, q, k, v, mask, choices)


@dataclass
class Operands:
    """Q, K, V as [batch, heads, length, size], and the masks."""

    node: Node
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    mask: np.ndarray | None
    choices: np.ndarray | None
    _packed: np.ndarray | None = field(default=None, repr=False)

    def inputs(self) -> list[np.ndarray]:
        """The tensors of the node."""
        form = self.node.form
        found = [self.q, self.k, self.v]
        if form == "packed":
            parts = [np.moveaxis(one, 1, 2) for one in found]
            joined = np.ascontiguousarray(np.concatenate(parts, 2))
            found = [_merged(joined)] * 3
        elif form in ("merged", "split"):
            found = [np.ascontiguousarray(np.moveaxis(one, 1, 2)) for one in found]
            found = [_merged(one) if form == "merged" else one for one in found]
        return [*found, *(one for one in (self.mask, self.choices) if one is not None)]

    def expected(self, precision: type = np.float64) -> np.ndarray:
        """The result, [batch, heads, queries, size of V], in float64."""
        node = self.node
        group = node.heads // node.key_heads
        q, k, v = (one.astype(precision) for one in (self.q, self.k, self.v))
        k, v = (np.repeat(one, group, 1) for one in (k, v))
        with np.errstate(all="ignore"):
            scores = q @ np.swapaxes(k, -1, -2) * precision(np.float32(node.scale))
            if self.choices is not None:
                scores = np.where(self.choices == node.fills, precision(np.float32(node.fill)), scores)
            if self.mask is not None:
                mask = self.mask.astype(precision)
                scores = scores + (np.tile(mask, (node.batch // node.windows, 1, 1, 1)) if node.windows else mask)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights = weights / weights.sum(-1, keepdims=True)
            if node.nan_as_zero:
                weights = np.where(np.isnan(weights), 0, weights)
            if node.zeros:
                weights = np.where(self._left(scores.shape), weights, 0)
            return np.asarray(weights @ v)

    def _left(self, shape: tuple[int, ...]) -> np.ndarray:
        """Whether masks leave something of a row."""
        node = self.node
        if self.choices is not None:
            left = np.broadcast_to(self.choices != node.fills, shape)
        elif self.mask is not None:
            least = np.finfo(self.mask.dtype).min if node.dtype != "bf16" else np.float32(-3.3895314e38)
            mask = np.tile(self.mask, (node.batch // node.windows, 1, 1, 1)) if node.windows else self.mask
            left = np.broadcast_to(~(mask.astype(np.float64) <= float(least)), shape)
        else:
            left = np.ones(shape, bool)
        return left.any(-1, keepdims=True)

    def in_order(self, result: np.ndarray) -> np.ndarray:
        """A result of the node as [batch, heads, queries, size of V]."""
        node = self.node
        if node.out_first:
            return result
        return np.moveaxis(result.reshape(node.batch, node.queries, node.heads, node.value_size), 1, 2)


def _merged(heads: np.ndarray) -> np.ndarray:
    return heads.reshape(*heads.shape[:2], heads.shape[2] * heads.shape[3])


@cache
def source_of(case: AttentionCase, place: int = 0) -> AttentionSource:
    """The source with the tilings at this place of those that are tried."""
    return render_attention(case, list(candidates(case))[place])


def run_kernel(
    emulation: Emulation,
    kernel: AttentionKernel,
    attributes: Mapping[str, object],
    inputs: Sequence[np.ndarray],
    shifts: Sequence[int] = (),
    multiprocessors: int = MULTIPROCESSORS,
) -> np.ndarray:
    """The result.  ``shifts`` moves each tensor by so many elements from an address that is aligned to 16 bytes."""
    layout = lay_out(attributes, [array.shape for array in inputs])
    memories: list[np.ndarray] = []
    for place, array in enumerate(inputs):
        dtype = "bool" if array.dtype == np.bool_ else kernel.dtype
        memory = aligned(dtype, array.size, shifts[place] if shifts else 0)
        memory[...] = array.reshape(-1)
        memories.append(memory)
    out = aligned(kernel.dtype, int(np.prod(layout.shape)), shifts[-1] if shifts else 0)
    masked = "m" in kernel.reads
    addresses = [memory.ctypes.data for memory in memories[:3]]
    addresses += [memories[3].ctypes.data if masked else 0]
    addresses += [memories[3 + masked].ctypes.data if "c" in kernel.reads else 0, out.ctypes.data]
    parts = splits(kernel, layout, multiprocessors)
    size = workspace_bytes(layout, parts[0])
    workspace = np.full(size + 16, 0xA5, np.uint8)
    place = workspace.ctypes.data + -workspace.ctypes.data % 16
    arguments = pack(attributes, layout, addresses, parts, place)
    operands = [(f"in{i}", memory.ctypes.data, memory.nbytes) for i, memory in enumerate(memories)]
    results = [("out", out.ctypes.data, out.nbytes)]
    blocks = tiles(kernel, layout) * parts[0]
    if parts[0] == 1:
        emulation.launch(kernel.name, arguments, blocks, kernel.block, [*operands, *results])
    else:
        emulation.launch(kernel.name, arguments, blocks, kernel.block, [*operands, ("out_parts", place, size)])
        own = [("parts", place, size), *results]
        emulation.launch(kernel.sum_name, arguments, sum_blocks(layout), ATTENTION_SUM_BLOCK, own)
    return out.reshape(layout.shape)
