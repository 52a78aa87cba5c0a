"""The source of a kernel that a model carries, rendered again: models carry its hash, not its text."""

from collections.abc import Iterator

from onnxfuse.cuda.kernel import Source
from onnxfuse.cuda.recipe import Recipe
from onnxfuse.cuda.renderer import HEURISTIC, Tuning, render
from onnxfuse.errors import OnnxfuseError
from onnxfuse.program import Program


def source_of(program: Program, recipe: Recipe) -> Source:
    """The source with the recipe's hash.  Raises OnnxfuseError if this version of onnxfuse renders another one."""
    return render(program, [recipe.kernels[0].access], tuning_of(program, recipe))


def tuning_of(program: Program, recipe: Recipe) -> Tuning:
    """What the source with the recipe's hash was rendered with.  Raises OnnxfuseError as ``source_of`` does."""
    for tuning in _tunings(recipe):
        if render(program, [recipe.kernels[0].access], tuning).sha256 == recipe.source:
            return tuning
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
