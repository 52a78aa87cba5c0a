"""The source of a kernel that a model carries, rendered again: models carry its hash, not its text."""

from collections.abc import Iterator

from onnxfuse.cuda.attention.kernel import AttentionSource
from onnxfuse.cuda.attention.recipe import HEADER, AttentionRecipe
from onnxfuse.cuda.attention.renderer import source_with as source_with_attention
from onnxfuse.cuda.conv.candidates import candidates
from onnxfuse.cuda.conv.case import ConvCase
from onnxfuse.cuda.conv.fitting import tilings_of
from onnxfuse.cuda.conv.kernel import ConvSource
from onnxfuse.cuda.conv.recipe import ConvRecipe
from onnxfuse.cuda.conv.renderer import render_conv
from onnxfuse.cuda.elementwise.parts import part_of
from onnxfuse.cuda.elementwise.renderer import HEURISTIC, Tuning, render, render_parts
from onnxfuse.cuda.kernel import Source
from onnxfuse.cuda.nest.kernel import NestSource
from onnxfuse.cuda.nest.recipe import NestRecipe
from onnxfuse.cuda.nest.renderer import source_with
from onnxfuse.cuda.parts_recipe import PartsRecipe
from onnxfuse.cuda.recipe import Recipe
from onnxfuse.errors import OnnxfuseError
from onnxfuse.program import Program


def source_of(program: Program, recipe: Recipe) -> Source:
    """The source with the recipe's hash.  Raises OnnxfuseError if this version of onnxfuse renders another one."""
    return render(program, [recipe.kernels[0].access], tuning_of(program, recipe))


def source_of_parts(program: Program, recipe: PartsRecipe) -> Source:
    """The same of a Program in several parts."""
    parts = [part_of(program, part.outputs) for part in recipe.parts]
    mains = [recipe.kernels[part.first] for part in recipe.parts]
    places = [
        [member - part.first for member, part in zip(one.members, recipe.parts, strict=True)] for one in recipe.joint
    ]
    for tuning in (HEURISTIC, *(Tuning(vector) for vector in (8, 4, 2, 1))):
        accesses, tunings = [main.access for main in mains], [tuning] * len(parts)
        source = render_parts(program, parts, accesses, tunings, lambda own: places)
        if source.sha256 == recipe.source:
            return source
    raise _other_version(recipe.source)


def tuning_of(program: Program, recipe: Recipe) -> Tuning:
    """What the source with the recipe's hash was rendered with.  Raises OnnxfuseError as ``source_of`` does."""
    for tuning in _tunings(recipe):
        if render(program, [recipe.kernels[0].access], tuning).sha256 == recipe.source:
            return tuning
    raise _other_version(recipe.source)


def source_of_conv(case: ConvCase, recipe: ConvRecipe) -> ConvSource:
    """The source of a fused convolution with the recipe's hash.  Raises OnnxfuseError as above."""
    unknown = (None,) * len(case.x_shape)
    access = recipe.kernels[0].access
    for tilings in [*tilings_of(case), *candidates(case.conv, unknown, case.tf32), ()]:
        source = render_conv(case.conv, case.epilogue, case.prologue, access, tilings)
        if source.sha256 == recipe.source:
            return source
    raise _other_version(recipe.source)


def source_of_nest(program: Program, recipe: NestRecipe) -> NestSource:
    """The same of a Program that reduces, whose kernels the recipe describes."""
    source = source_with(program, recipe.kernels)
    if source.sha256 != recipe.source:
        raise _other_version(recipe.source)
    return source


def source_of_attention(recipe: AttentionRecipe) -> AttentionSource:
    """The same of an attention."""
    source = source_with_attention(recipe.kernels)
    if source.sha256 != recipe.source:
        raise _other_version(recipe.source)
    return source


def _other_version(sha256: str) -> OnnxfuseError:
    return OnnxfuseError(
        f"the CUDA source with sha256 {sha256[:16]}… was rendered by another version of onnxfuse; "
        "'onnxfuse optimize --target cuda' renders and compiles anew"
    )


def _tunings(recipe: Recipe) -> Iterator[Tuning]:
    """What the main kernel may have been rendered with."""
    main = recipe.kernels[0]
    yield HEURISTIC
    yield Tuning(main.vector)
    yield Tuning(main.vector, main.block)


def source_of_recipe(
    recipe: str, program: str, case: ConvCase | None
) -> Source | ConvSource | NestSource | AttentionSource:
    """The source of a fused node's kernels by the text of its recipe, and of its Program if it has one; ``case`` is
    what a convolution computes.

    Raises OnnxfuseError if another version rendered it, or it is none.
    """
    if recipe.startswith(HEADER):
        return source_of_attention(AttentionRecipe.parse(recipe))
    if case is not None:
        return source_of_conv(case, ConvRecipe.parse(recipe))
    parsed = Program.parse(program)
    if parsed.reductions:
        return source_of_nest(parsed, NestRecipe.parse(recipe))
    if recipe.startswith(PartsRecipe.header):
        return source_of_parts(parsed, PartsRecipe.parse(recipe))
    return source_of(parsed, Recipe.parse(recipe))
