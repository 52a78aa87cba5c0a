"""The source of a kernel that a model carries, rendered again: models carry its hash, not its text."""

from collections.abc import Iterator

from onnxfuse.cuda.kernel import Source
from onnxfuse.cuda.recipe import Recipe
from onnxfuse.cuda.renderer import HEURISTIC, Tuning, render
from onnxfuse.errors import OnnxfuseError
from onnxfuse.program import Program


def source_of(program: Program, recipe: Recipe) -> Source:
    """The source with the recipe's hash.  Raises OnnxfuseError if this version of onnxfuse renders another one."""
    access = recipe.kernels[0].access
    for tuning in _tunings(recipe):
        source = render(program, [access], tuning)
        if source.sha256 == recipe.source:
            return source
    raise OnnxfuseError(
        f"the CUDA source with sha256 {recipe.source[:16]}… was rendered by another version of onnxfuse; "
        "'onnxfuse optimize --target cuda' renders and compiles anew"
    )


def _tunings(recipe: Recipe) -> Iterator[Tuning]:
    """What the main kernel may have been rendered with."""
    main = recipe.kernels[0]
    yield HEURISTIC
    yield Tuning(main.vector, main.unroll)
    yield Tuning(main.vector, main.unroll, main.block)
