"""A fused convolution as chooser, renderer and tuner see it: what it computes, and what is known of its shapes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from onnxfuse.cuda.conv.arguments import ConvLayout, layout_access, resolve
from onnxfuse.cuda.conv.kernel import ConvAccess
from onnxfuse.cuda.conv.spec import Convolution
from onnxfuse.cuda.strided import Dim
from onnxfuse.program import Program

Shape = tuple[Dim, ...]
Shapes = tuple[Shape | None, ...]

_SOME_BATCH = 2
_SOME_SIZE = 64


@dataclass(frozen=True)
class ConvCase:
    """A convolution, its Programs, and the shapes of X and of what the Programs read besides their first input.

    A dimension may be a name or None; a shape is None if not even the rank is known.  ``prologue`` is None where
    nothing stands before the convolution.  ``tf32`` allows kernels of float32 to round X and W to TF32.
    """

    conv: Convolution
    x_shape: Shape
    epilogue: Program
    epilogue_shapes: Shapes
    prologue: Program | None = None
    prologue_shapes: Shapes = ()
    tf32: bool = False

    @cached_property
    def access(self) -> ConvAccess:
        """The letters if dimensions that are not known to be 1 are more than 1.

        A kernel of these letters also serves a size of 1 at run time.  Raises ProgramError for shapes that do not fit.
        """
        return layout_access(self.layout(self.sizes(_SOME_BATCH, _SOME_SIZE + max(self._reach))))

    def sizes(self, batch: int, size: int) -> tuple[int, ...]:
        """The shape of X with ``batch`` and ``size`` for the batch and the spatial sizes that are not known."""
        given = [dim if isinstance(dim, int) else None for dim in self.x_shape]
        first = batch if given[0] is None else given[0]
        if self.conv.channels_last:
            return (first, *(size if dim is None else dim for dim in given[1:-1]), self.conv.in_channels)
        return (first, self.conv.in_channels, *(size if dim is None else dim for dim in given[2:]))

    def operand_shapes(self, x_shape: Sequence[int]) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """The shapes of the operands of the prologue and of the epilogue for an X of this shape."""
        prologue = () if self.prologue is None else self.prologue.inputs[1:]
        y_shape = self.conv.output_shape(x_shape)
        return (
            [_filled(shape, spec.axis, x_shape) for spec, shape in zip(prologue, self.prologue_shapes, strict=True)],
            [
                _filled(shape, spec.axis, y_shape)
                for spec, shape in zip(self.epilogue.inputs[1:], self.epilogue_shapes, strict=True)
            ],
        )

    def layout(self, x_shape: Sequence[int]) -> ConvLayout:
        """How the operands lie for an X of this shape.  Raises ProgramError for shapes that do not fit."""
        prologue, epilogue = self.operand_shapes(x_shape)
        return resolve(self.conv, x_shape, self.epilogue, epilogue, self.prologue, prologue)

    @property
    def _reach(self) -> list[int]:
        """What the dilated kernel spans, for a size that it fits into."""
        return [dilation * size for dilation, size in zip(self.conv.dilations, self.conv.kernel, strict=True)]


def _filled(shape: Shape | None, axis: int | None, space: Sequence[int]) -> tuple[int, ...]:
    """The operand's shape in a space of known sizes: 1 where it is known to be 1, else the space's own size."""
    if shape is None:
        return tuple(space)
    if axis is not None:
        return (1 if shape and shape[0] == 1 else space[axis],)
    start = len(space) - len(shape)
    return tuple(1 if dim == 1 else space[start + index] for index, dim in enumerate(shape))
