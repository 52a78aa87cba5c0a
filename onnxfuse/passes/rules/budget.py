"""How much larger folding may make a model whose weights are shared."""

from onnxfuse.rewrite.rule import Refusal

_LIMIT = 4 << 20  # bytes in all: more than the shared kernels of real models, less than anyone would notice


class CopyBudget:
    """Counts the copies of weights that other nodes go on reading."""

    def __init__(self) -> None:
        self._left = _LIMIT

    @property
    def left(self) -> int:
        """The bytes that may still be taken."""
        return self._left

    def take(self, size: int) -> None:
        """Accounts for ``size`` bytes.  Raises Refusal if that is too much."""
        if size > self._left:
            raise Refusal(f"the weights are shared, and another copy of {size} bytes is too much")
        self._left -= size
