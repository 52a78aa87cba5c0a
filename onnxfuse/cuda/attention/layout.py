"""Where a launch of attention finds Q, K, V, the masks and the result, as the native library does: for the tests.

``custom_ops/nodes/attention/attention_layout.cc`` has the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

Shape = tuple[int, ...]


@dataclass(frozen=True)
class HeadStrides:
    """How many ``batches`` of ``length`` rows of ``size`` elements there are, and how many elements they are apart."""

    batches: int
    length: int
    size: int
    begin: int = 0
    batch: int = 0
    head: int = 0
    row: int = 0


@dataclass(frozen=True)
class AttentionLayout:
    """The operands of a launch; strides of ``mask`` and ``choices`` are for batch, head, query and key."""

    q: HeadStrides
    k: HeadStrides
    v: HeadStrides
    out: HeadStrides
    mask: Sequence[int]
    mask_batch: int
    choices: Sequence[int]
    heads: int
    key_heads: int
    shape: Shape

    @property
    def group(self) -> int:
        """Heads of Q that share one of K and V."""
        return self.heads // self.key_heads

    @property
    def rows(self) -> int:
        """Rows of Q that share keys."""
        return self.q.length * self.group

    @property
    def batch(self) -> int:
        """Batches of the result."""
        return self.out.batches


def lay_out(attributes: Mapping[str, object], shapes: Sequence[Shape]) -> AttentionLayout:
    """The layout of a node with these attributes for inputs of these shapes, which fit it."""
    numbers = {name: list(value) for name, value in attributes.items() if isinstance(value, (list, tuple))}
    first = numbers["heads_first"]
    heads, key_heads = numbers["heads"]
    views = []
    for place in range(3):
        view = _view(shapes[place], numbers["input_heads"][place], bool(first[place]))
        views.append(replace(view, begin=numbers["first_head"][place] * view.head))
    chosen = "fill_bits" in attributes
    masked = len(shapes) - 3 - chosen
    windows = int(str(attributes.get("windows", 0)))
    others = list(shapes[3:])
    batches = [view.batches for view in views]
    batches += [shape[0] for i, shape in enumerate(others) if len(shape) == 4 and not (windows and masked and i == 0)]
    batch = next((count for count in batches if count != 1), 1)
    for shape in others:
        if len(shape) > 1:
            views[0] = _spread(views[0], shape[-2])
        if shape:
            views[1] = _spread(views[1], shape[-1])
    q, k, v = views
    out: Shape = (batch, heads, q.length, v.size) if first[3] else (batch, q.length, heads * v.size)
    window = windows or batch
    scores = (batch, heads, q.length, k.length)
    mask = _broadcast(others[0], (window, *scores[1:])) if masked else (0,) * 4
    choices = _broadcast(others[-1], scores) if chosen else (0,) * 4
    q, k, v = (replace(view, batch=0 if view.batches == 1 else view.batch) for view in views)
    result = _view(out, heads, bool(first[3]))
    return AttentionLayout(q, k, v, result, mask, window, choices, heads, key_heads, out)


def _view(shape: Shape, heads: int, first: bool) -> HeadStrides:
    if len(shape) == 3:
        batch, length, size = shape[0], shape[1], shape[2] // heads
    elif first:
        batch, length, size = shape[0], shape[2], shape[3]
    else:
        batch, length, size = shape[0], shape[1], shape[-1]
    head, row = (length * size, size) if first else (size, heads * size)
    return HeadStrides(batch, length, size, 0, heads * length * size, head, row)


def _spread(view: HeadStrides, length: int) -> HeadStrides:
    """What has one row serves for as many as the mask has."""
    return replace(view, length=length, row=0) if view.length == 1 and length != 1 else view


def _broadcast(shape: Shape, scores: Shape) -> tuple[int, ...]:
    strides, stride = [], 1
    for size in reversed(shape):
        strides.append(0 if size == 1 else stride)
        stride *= size
    return tuple([*strides, *[0] * (4 - len(shape))][::-1])
