"""Conv, ConvTranspose, Gemm and MatMul with constant weights: where their channels lie, and scaling their
weights.

Every class reads the weights once, takes affine steps before or after the op into them in float64, and rounds
once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import onnx_graphsurgeon as gs

from onnxfuse.model.constants import Array, constant_value, domain_of, dtype_of, is_constant, shape_of
from onnxfuse.model.graph_ir import Node, text_attribute
from onnxfuse.passes.rules.fold_affine.affine import FOLDABLE_DTYPES, Affine, Axis
from onnxfuse.rewrite.rule import Builder, Refusal

_LARGEST_OFFSET = 128.0
"""Of the data.  (x - m) w keeps all digits where x is near m, and x w - m w only those of m w: with larger ones, as of
years or of prices that are standardized, less than five of what is about 1."""


class Linear(ABC):
    """A linear op.  Raises Refusal, with the reason, if its weights cannot be changed."""

    op_type = ""

    def __init__(self, node: Node) -> None:
        if not (len(node.inputs) > 1 and is_constant(node.inputs[1])):
            raise Refusal(f"the weights of {self.op_type} are not constant")
        self.node = node
        self.weight_tensor: gs.Tensor = node.inputs[1]
        has_bias = self.op_type != "MatMul" and len(node.inputs) > 2 and bool(node.inputs[2].name)
        self.bias_tensor: gs.Tensor | None = node.inputs[2] if has_bias else None
        if self.bias_tensor is not None and not is_constant(self.bias_tensor):
            raise Refusal(f"the bias of {self.op_type} is not constant")
        values = None if isinstance(self.weight_tensor, gs.Constant) else constant_value(self.weight_tensor)
        shape = shape_of(self.weight_tensor) if values is None else values.shape
        dtype = dtype_of(self.weight_tensor) if values is None else values.dtype
        if dtype not in FOLDABLE_DTYPES:
            raise Refusal(f"the weights of {self.op_type} are not float16, float32 or float64")
        assert shape is not None and dtype is not None
        self.shape: tuple[int, ...] = shape
        self.dtype = dtype
        self._weight: Array | None = None  # float64; None: as it is
        self._offset: Array = np.zeros(())  # float64, one value an output channel or one for all
        self._bias_scale: Array = np.ones(())

    @property
    @abstractmethod
    def output_axis(self) -> Axis:
        """The channels of the output."""

    @property
    @abstractmethod
    def input_axis(self) -> Axis:
        """The channels of the data input."""

    @abstractmethod
    def _view(self, weight: Array) -> tuple[Array, int, int]:
        """The weight as an array some axes of which may be split by groups, and which axes of that view are
        the groups'.

        Returns a view of shape (groups, a, b, rest) in which outputs and inputs are axes ``out`` and ``in``
        (1 or 2), and these two numbers.
        """

    def refuses_shift_before(self) -> str | None:
        """Why an offset of the data is not one of the output, None if it is."""
        return None

    def apply_after(self, step: Affine) -> None:
        """Takes in a step on the output."""
        with _refusing():
            if np.any(step.scale != 1):
                self._weight = self._scaled(step.scale, outputs=True)
            self._bias_scale = self._bias_scale * step.scale
            self._offset = self._offset * step.scale + step.offset

    def apply_before(self, step: Affine) -> None:
        """Takes in a step on the data.  Offsets need ``refuses_shift_before`` to be None.

        Raises Refusal for large ones.
        """
        if step.shifts and np.abs(step.offset).max(initial=0.0) > _LARGEST_OFFSET:
            raise Refusal(f"an offset of more than {_LARGEST_OFFSET:.0f} would cancel where the data is as large")
        with _refusing():
            if step.shifts:
                view, outputs, inputs = self._view(self._current())
                offsets = np.broadcast_to(step.offset, (self.input_axis.size,)).reshape(view.shape[0], -1)
                spread = [1] * view.ndim
                spread[0], spread[inputs] = offsets.shape
                axes = tuple(axis for axis in range(1, view.ndim) if axis != outputs)
                self._offset = self._offset + self._gain() * (view * offsets.reshape(spread)).sum(axis=axes).reshape(-1)
            if np.any(step.scale != 1):
                self._weight = self._scaled(step.scale, outputs=False)

    def new_weight(self) -> Array | None:
        """The weights, rounded to their type; None if they do not change.  Raises Refusal if they do not fit
        it.
        """
        if self._weight is None:
            return None
        view, outputs, _ = self._view(self._weight)
        axes = tuple(axis for axis in range(1, view.ndim) if axis != outputs)
        largest = np.abs(view).max(axis=axes, initial=0.0)
        # A channel that still holds a normal number loses at most half an ulp of that in its denormal ones;
        # one that held none before, the remains of weight decay, has nothing to lose.
        before = np.abs(self._view(self._original())[0]).max(axis=axes, initial=0.0)
        tiny = float(np.finfo(self.dtype).smallest_normal)
        if np.any((largest > 0) & (largest < tiny) & (before >= tiny)):
            raise Refusal(f"the scaled weights of {self.op_type} would be denormal")
        return self._round(self._weight, "weights")

    def new_bias(self) -> Array | None:
        """The bias, one value an output channel, rounded; None if it stays as it is.  Raises Refusal on
        overflow.
        """
        if not np.any(self._offset != 0) and (self.bias_tensor is None or np.all(self._bias_scale == 1)):
            return None
        with _refusing():
            bias = self._bias() * self._bias_scale + self._offset
        return self._round(np.broadcast_to(bias, (self.output_axis.size,)), "bias")

    def set_constants(self, builder: Builder, node: Node, weight: Array | None, bias: Array | None) -> None:
        """Give ``node``, which is the op or one made like it, a new weight and a new bias; None leaves what it has."""
        hint = self.weight_tensor.name
        for place, value, name in ((1, weight, f"{hint}_folded"), (2, bias, f"{hint}_bias_folded")):
            if value is not None:
                builder.set_input(node, place, builder.initializer(value, name))

    def copied_bytes(self) -> int:
        """By how much new weights make the model larger: nothing, unless others read the old ones too."""
        shared = any(reader is not self.node for reader in self.weight_tensor.outputs)
        return int(np.prod(self.shape)) * self.dtype.itemsize if shared and self._weight is not None else 0

    def _gain(self) -> float:
        """What the op multiplies its product by."""
        return 1.0

    def _bias(self) -> Array:
        """The present bias in float64, of shape () or (outputs,)."""
        if self.bias_tensor is None:
            return np.zeros(())
        values = constant_value(self.bias_tensor)
        assert values is not None
        return values.astype(np.float64)

    def _original(self) -> Array:
        values = constant_value(self.weight_tensor)
        assert values is not None
        return values

    def _current(self) -> Array:
        if self._weight is None:
            values = self._original()
            if not np.all(np.isfinite(values)):
                raise Refusal(f"the weights of {self.op_type} are not finite")
            return values.astype(np.float64)
        return self._weight

    def _scaled(self, scale: Array, *, outputs: bool) -> Array:
        weight = self._current()
        if scale.ndim == 0:
            return weight * scale
        view, output_place, input_place = self._view(weight)
        spread = [1] * view.ndim
        place = output_place if outputs else input_place
        spread[0], spread[place] = view.shape[0], view.shape[place]
        return (view * scale.reshape(spread)).reshape(weight.shape)

    def _round(self, values: Array, what: str) -> Array:
        with np.errstate(over="ignore"):
            rounded = values.astype(self.dtype)
        if not np.all(np.isfinite(rounded)):
            raise Refusal(f"the new {what} of {self.op_type} would overflow {self.dtype}")
        return rounded


@contextmanager
def _refusing() -> Iterator[None]:
    """Turns floating-point overflow, underflow and invalid operations inside a with block into a Refusal."""
    try:
        with np.errstate(over="raise", under="raise", invalid="raise"):
            yield
    except FloatingPointError:
        raise Refusal("the new weights would overflow or underflow") from None


def auto_pad(node: Node) -> str:
    """How a convolution pads its input; NOTSET: as ``pads`` tells."""
    return text_attribute(node, "auto_pad", "NOTSET")


def pads(node: Node) -> bool:
    """Whether a convolution pads its input by numbers of its own; ``auto_pad`` may make it pad as well."""
    return auto_pad(node) == "NOTSET" and any(node.attrs.get("pads", ()))


class Grouped(Linear):
    """A convolution, whose weights are of ``groups`` along their first axis."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.groups = int(node.attrs.get("group", 1))
        if len(self.shape) < 3 or self.groups < 1 or self.shape[0] % self.groups:
            raise Refusal(f"the weights of {self.op_type} do not fit its groups")


class Conv(Grouped):
    """Weights (outputs, inputs / groups, *kernel)."""

    op_type = "Conv"

    def values(self) -> tuple[Array, Array]:
        """Weight and bias in float64, the bias of shape () or (outputs,).  Raises Refusal for weights that are not
        finite.
        """
        return self._current(), self._bias() * self._bias_scale + self._offset

    def add(self, weight: Array, bias: Array) -> None:
        """Takes in another convolution of the same data, with the same kernel and groups, the result of which is
        added.
        """
        with _refusing():
            self._weight = self._current() + weight
            self._offset = self._offset + bias

    @property
    def output_axis(self) -> Axis:
        """The channels of the output."""
        return Axis(self.shape[0], len(self.shape), 1)

    @property
    def input_axis(self) -> Axis:
        """The channels of the data."""
        return Axis(self.shape[1] * self.groups, len(self.shape), 1)

    def _view(self, weight: Array) -> tuple[Array, int, int]:
        groups = self.groups
        return weight.reshape(groups, self.shape[0] // groups, self.shape[1], *self.shape[2:]), 1, 2

    def refuses_shift_before(self) -> str | None:
        """Padding."""
        if auto_pad(self.node) not in ("NOTSET", "VALID") or pads(self.node):
            return "Conv pads its input with zeros, which an offset before it does not shift"
        return None


class ConvTranspose(Grouped):
    """Weights (inputs, outputs / groups, *kernel)."""

    op_type = "ConvTranspose"

    @property
    def output_axis(self) -> Axis:
        """The channels of the output."""
        return Axis(self.shape[1] * self.groups, len(self.shape), 1)

    @property
    def input_axis(self) -> Axis:
        """The channels of the data."""
        return Axis(self.shape[0], len(self.shape), 1)

    def _view(self, weight: Array) -> tuple[Array, int, int]:
        groups = self.groups
        return weight.reshape(groups, self.shape[0] // groups, self.shape[1], *self.shape[2:]), 2, 1

    def refuses_shift_before(self) -> str | None:
        """Always: even without padding."""
        return "the sums of ConvTranspose have fewer terms at the border, where an offset before it adds less"


class Gemm(Linear):
    """alpha · A · B + beta · C with weights B: (inputs, outputs), or the other way round with transB."""

    op_type = "Gemm"

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        if len(self.shape) != 2:
            raise Refusal("the weights of Gemm are not a matrix")
        self.transposed = bool(node.attrs.get("transB", 0))
        if self.bias_tensor is not None:
            bias = constant_value(self.bias_tensor)
            assert bias is not None
            columns = self.output_axis.size
            if bias.shape not in ((), (1,), (1, 1), (columns,), (1, columns)):
                raise Refusal("the bias of Gemm differs from row to row")

    @property
    def output_axis(self) -> Axis:
        """The channels of the output."""
        return Axis(self.shape[0 if self.transposed else 1], 2, 1)

    @property
    def input_axis(self) -> Axis:
        """The channels of the data."""
        return Axis(self.shape[1 if self.transposed else 0], 2, 0 if self.node.attrs.get("transA", 0) else 1)

    def _view(self, weight: Array) -> tuple[Array, int, int]:
        return weight[np.newaxis], *((1, 2) if self.transposed else (2, 1))

    def _gain(self) -> float:
        return float(self.node.attrs.get("alpha", 1.0))

    def _bias(self) -> Array:
        return super()._bias().reshape(-1) * float(self.node.attrs.get("beta", 1.0))


class MatMul(Linear):
    """Weights on the right, (…, inputs, outputs).  It has no bias: a node after it adds the offset."""

    op_type = "MatMul"

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        if len(self.shape) < 2:
            raise Refusal("the weights of MatMul are a vector")

    @property
    def output_axis(self) -> Axis:
        """The columns of the product, along its last axis."""
        shape = self.node.inputs[0].shape
        if shape is None:
            return Axis(self.shape[-1], None, -1)
        rank = max(len(shape), len(self.shape)) if len(shape) > 1 else len(self.shape) - 1
        return Axis(self.shape[-1], rank, rank - 1)

    @property
    def input_axis(self) -> Axis:
        """The last axis of the data."""
        shape = self.node.inputs[0].shape
        rank = None if shape is None else len(shape)
        return Axis(self.shape[-2], rank, -1 if rank is None else rank - 1)

    def _view(self, weight: Array) -> tuple[Array, int, int]:
        # Batches of matrices share their inputs and outputs; they are the kernel's place in the view.
        moved = np.moveaxis(weight, (-2, -1), (0, 1))
        return moved[np.newaxis], 2, 1

    def _scaled(self, scale: Array, *, outputs: bool) -> Array:
        weight = self._current()
        if scale.ndim == 0:
            return weight * scale
        return weight * (scale if outputs else scale[:, np.newaxis])

    def refuses_shift_before(self) -> str | None:
        """Batches of weights."""
        return None if len(self.shape) == 2 else "MatMul has a batch of weights, so the offset is no bias"


_CLASSES: tuple[type[Linear], ...] = (Conv, ConvTranspose, Gemm, MatMul)
LINEAR_OPS: dict[str, type[Linear]] = {kind.op_type: kind for kind in _CLASSES}


def reads_as_data(node: Node, tensor: gs.Tensor) -> bool:
    """Whether ``node`` is a linear op that reads ``tensor`` as its data, and as nothing else."""
    return (
        node.op in LINEAR_OPS
        and domain_of(node) == ""
        and node.inputs[0] is tensor
        and not any(other is tensor for other in list(node.inputs)[1:])
    )
