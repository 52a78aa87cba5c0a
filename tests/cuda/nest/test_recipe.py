"""The launch recipe of Programs that reduce, and what is known of their rows."""

import math
from dataclasses import replace

import pytest

from onnxfuse.cuda.nest.arguments import grid_of, pack, parameter_bytes, workspace_bytes
from onnxfuse.cuda.nest.kernel import NestAccess, NestKernel
from onnxfuse.cuda.nest.layout import accepts, lay_out
from onnxfuse.cuda.nest.recipe import NestRecipe
from onnxfuse.cuda.nest.renderer import case_of, render_nest
from onnxfuse.cuda.recipe import RecipeError
from onnxfuse.program import Program, ProgramBuilder, ProgramError
from onnxfuse.program.figures import MAX_KERNELS, MAX_PARAMETER_BYTES
from tests.cuda.nest.programs import chains

SOURCE = "0123456789abcdef" * 4
LAST = "kernel b along rows threads 32 items 0 vector 1 block 128 index 64 steps 0 access gg:g:gs\n"
FIRST = "kernel a along rows threads 32 items 4 vector 4 block 128 index 32 steps 0 access ls:l:ls\n"
TEXT = f"onnxfuse-cuda-rows 1\nsource {SOURCE}\n{FIRST}{LAST}"


def test_text_is_read_and_written_back() -> None:
    recipe = NestRecipe.parse(TEXT)
    assert str(recipe) == TEXT
    assert recipe.kernels[0] == NestKernel("a", "rows", 32, 4, 4, 128, 32, 0, NestAccess("ls", "l", "ls"))
    assert recipe.kernels[0].capacity == 512 and recipe.kernels[1].capacity == 0


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("rows 1", "rows 2", "line 1: such a recipe begins with 'onnxfuse-cuda-rows 1'"),
        ("kernel a", "kernel 1", "line 3: '1' is not the name of a kernel"),
        ("along rows threads 32 items 4", "along rooms threads 32 items 4", "line 3: .* is not a kernel"),
        ("threads 32 items 4", "threads 24 items 4", "line 3: 24 threads do not share a block of 128 along rows"),
        ("threads 32 items 4", "threads 64 items 4", "line 3: 64 threads do not share a block"),
        ("threads 32 items 4", "threads 0 items 4", "line 3: 0 threads do not share a block"),
        ("along rows threads 32 items 4", "along columns threads 8 items 4", "line 3: 8 threads do not share a block"),
        ("items 4", "items 65", "line 3: more than 64 items"),
        ("vector 4", "vector 3", "line 3: 3 is not the length of a vector"),
        ("block 128 index 32", "block 100 index 32", "line 3: a block of 100 threads"),
        ("index 32", "index 16", "line 3: indices of 16 bits"),
        ("steps 0 access ls", "steps 2 access ls", "line 3: a kernel in steps that keeps rows"),
        ("steps 0 access ls", "steps 17 access ls", "line 3: more than 64 items or 16 steps"),
        ("ls:l:ls", "ls:l:lx", "line 3: .* is not a kernel"),
        ("ls:l:ls", "ls:l", "line 3: .* is not a kernel"),
        ("ls:l:ls", "ls:l:gs", "line 3: access 'ls:l:gs' cannot be by vectors"),
        ("ls:l:ls", "ls::ls", "line 4: 'gg:g:gs' is of other operands than 'ls::ls'"),
        ("kernel b", "kernel a", "two kernels have the same name"),
        ("index 64", "index 32", "the last kernel does not accept everything"),
        ("gg:g:gs", "gl:g:gs", "the last kernel does not accept everything"),
        (FIRST + LAST, "", "0 kernels; there are 1 to 16"),
        (FIRST, FIRST + " ", "line 4: .* is not a kernel"),
    ],
)
def test_what_is_wrong_is_named(old: str, new: str, problem: str) -> None:
    assert old in TEXT
    with pytest.raises(RecipeError, match=problem):
        NestRecipe.parse(TEXT.replace(old, new, 1))


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("name", chains("f32"))
def test_rendered_recipes_are_valid(dtype: str, name: str) -> None:
    chain = chains(dtype)[name]
    for shapes in (
        chain.shapes(96),
        [[size if size else "n" for size in shape] for shape in chain.shapes(0)],
        [None] * len(chain.program.inputs),
    ):
        source = render_nest(case_of(chain.program, shapes))
        recipe = NestRecipe.of(source)
        assert NestRecipe.parse(str(recipe)) == recipe and len(recipe.kernels) <= MAX_KERNELS
        for kernel in source.kernels:
            assert parameter_bytes(kernel) <= MAX_PARAMETER_BYTES


def test_parameters_have_the_size_that_is_foretold() -> None:
    chain = chains("f32")["layer norm, residual, gelu"]
    layout = lay_out(chain.program, chain.shapes(64))
    for kernel in render_nest(case_of(chain.program, chain.shapes(64))).kernels:
        arguments = pack(kernel, layout, grid_of(kernel, layout, 8), [0] * 6)
        assert sum(map(len, arguments)) == parameter_bytes(kernel)


def test_the_shortest_row_that_fits_has_the_fewest_threads() -> None:
    chain = chains("f32")["log softmax"]
    kernels = render_nest(case_of(chain.program, [("m", "n")])).kernels
    taken = []
    for length in (4, 32, 33, 128, 129, 132, 512, 4096, 16384, 16388, 5, 500, 16383):
        layout = lay_out(chain.program, [(4096, length)])
        kernel = next(
            one
            for one in kernels
            if accepts(one, layout, [0, 0]) and not (one.steps and grid_of(one, layout, 132).splits == 1)
        )
        taken.append((kernel.threads, kernel.items, kernel.vector))
    assert taken == [
        *[(8, 1, 4)] * 2,
        (32, 4, 1),
        (32, 1, 4),
        (32, 16, 1),
        *[(32, 4, 4)] * 2,
        (256, 4, 4),
        (1024, 4, 4),
        (512, 0, 4),
        (32, 4, 1),
        (32, 4, 4),
        (1024, 16, 1),
    ]


def test_few_long_rows_are_shared() -> None:
    chain = chains("f32")["log softmax"]
    kernels = [one for one in render_nest(case_of(chain.program, [("m", "n")])).kernels if one.steps]
    assert [(one.steps, one.vector) for one in kernels] == [(3, 1)]
    for rows, length, splits in (
        (1, 1 << 20, 128),
        (4, 1 << 20, 66),
        (4, 20000, 9),
        (64, 1 << 20, 4),
        (200, 1 << 20, 1),
    ):
        layout = lay_out(chain.program, [(rows, length)])
        grid = grid_of(kernels[0], layout, 132)
        assert grid.splits == splits
        assert (grid.splits - 1) * grid.chunk < length <= grid.splits * grid.chunk
        assert workspace_bytes(chain.program, layout, grid) == (16 * splits * rows if splits > 1 else 0)


def test_wide_spaces_have_wide_indices() -> None:
    chain = chains("f32")["log softmax"]
    source = render_nest(case_of(chain.program, [("m", "n")]))
    layout = lay_out(chain.program, [(1 << 16, 1 << 16)])
    assert [kernel.index for kernel in source.kernels if accepts(kernel, layout, [0, 0])] == [64]


def test_operands_that_do_not_fit_are_refused() -> None:
    b = ProgramBuilder()
    values = [b.input("f32") for _ in range(40)]
    total = values[0]
    for value in values[1:]:
        total = b.emit("add", "f32", total, value)
    program = b.build([b.reduce("reduce_sum", total, [-1])])
    with pytest.raises(ProgramError, match=r"41 operands take .* bytes of kernel parameters"):
        render_nest(case_of(program, [("n", "m")] * 40))


@pytest.mark.parametrize(
    ("shapes", "problem"),
    [
        ([(3,), (2, 4)], "do not broadcast"),
        ([()], "1 shapes for 2 inputs"),
        ([(4,), (0, 4)], "has no rows and an output has elements"),
        ([(), ()], "line 4: shape .* has no axis -1"),
        ([(2, 1), (2, 4)], "has not all elements"),
    ],
)
def test_shapes_that_do_not_fit(shapes: list[tuple[int, ...]], problem: str) -> None:
    text = (
        "onnxfuse 2\ninput f32 broadcast\ninput f32 broadcast\nreduce_sum f32 0 -1\nadd f32 2 1\noutput 3\noutput 2\n"
    )
    with pytest.raises(ProgramError, match=problem):
        lay_out(Program.parse(text), shapes)


def test_dimensions_collapse_apart() -> None:
    """Those of rows and those that count them, each among themselves."""
    program = Program.parse("onnxfuse 2\ninput f32 broadcast\nreduce_max f32 0 -3,-2\noutput 1\n")
    layout = lay_out(program, [(5, 3, 4, 8)])
    assert (layout.rows, layout.length, layout.kept, layout.reduced) == (40, 12, (8, 5), (12,))
    assert [operand.kept for operand in layout.operands] == [(1, 96), (1, 8)]
    assert case_of(program, [(5, 3, 4, 8)]).along == "columns"
    assert math.prod(layout.output_shapes[0]) == 40


def test_a_kernel_that_is_replaced_has_another_hash() -> None:
    chain = chains("f32")["l2 normalize"]
    one, other = (render_nest(case_of(chain.program, chain.shapes(length))) for length in (64, 768))
    assert one.sha256 != other.sha256
    assert {kernel.name for kernel in one.kernels}.isdisjoint(kernel.name for kernel in other.kernels)
    assert replace(one.kernels[0]) == one.kernels[0]
