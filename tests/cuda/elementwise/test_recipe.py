"""The launch recipe: what is written can be read, and what cannot be launched is refused."""

import pytest

from onnxfuse.cuda.kernel import Access, Kernel
from onnxfuse.cuda.recipe import Recipe, RecipeError, accepts_everything
from onnxfuse.program import ProgramError

HASH = "0123456789abcdef" * 4
FAST = "kernel fast vector 4 block 256 index 32 access ls:l"
TURNS = "kernel turns vector 4 block 256 index 32 access ts:l tile 32"
LAST = "kernel last vector 1 block 128 index 64 access gg:w"


def _text(*lines: str, header: str = "onnxfuse-cuda 2", source: str = HASH) -> str:
    return "\n".join([header, f"source {source}", *lines]) + "\n"


def test_what_is_written_can_be_read() -> None:
    recipe = Recipe.parse(_text(FAST, LAST))
    assert recipe.source == HASH
    assert recipe.kernels[0] == Kernel("fast", 4, 256, 32, Access("ls", "l"))
    assert not accepts_everything(recipe.kernels[0])
    assert accepts_everything(recipe.kernels[1])
    assert str(recipe) == _text(FAST, LAST)
    assert Recipe.parse(str(recipe)) == recipe
    recipe = Recipe.parse(_text(TURNS, LAST))
    assert recipe.kernels[0] == Kernel("turns", 4, 256, 32, Access("ts", "l"), 32)
    assert str(recipe) == _text(TURNS, LAST)


def test_a_program_without_inputs_has_a_recipe() -> None:
    assert Recipe.parse(_text("kernel k vector 1 block 32 index 64 access :w")).kernels[0].access == Access("", "w")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1"),
        (_text(LAST)[:-1], "not ended"),
        (_text(LAST, header="onnxfuse-cuda 3"), "line 1"),
        ("onnxfuse-cuda 2\n", "line 2"),
        (_text(LAST, source=HASH.upper()), "line 2"),
        (_text(LAST, source=HASH[1:]), "line 2"),
        (_text(), "0 kernels"),
        (_text(*[LAST.replace("last", f"k{number}") for number in range(17)]), "17 kernels"),
        (_text(FAST), "does not accept everything"),
        (_text(LAST, LAST), "same name"),
        (_text(FAST.replace("fast", "9lives"), LAST), "line 3: '9lives'"),
        (_text(FAST.replace("fast", "a;b"), LAST), "line 3"),
        (_text(FAST.replace("fast", "k" * 129), LAST), "line 3"),
        (_text(FAST.replace("vector 4", "vector 3"), LAST), "line 3: 3"),
        (_text(FAST.replace("vector 4", "vector 04"), LAST), "line 3"),
        (_text(FAST.replace("vector 4", "vector +4"), LAST), "line 3"),
        (_text(FAST.replace(" block", " unroll 2 block"), LAST), "line 3"),
        (_text(FAST.replace("block 256", "block 100"), LAST), "100 threads"),
        (_text(FAST.replace("block 256", "block 2048"), LAST), "2048 threads"),
        (_text(FAST.replace("index 32", "index 16"), LAST), "16 bits"),
        (_text(FAST.replace("ls:l", "lx:l"), LAST), "line 3"),
        (_text(FAST.replace("ls:l", "ls:i"), LAST), "line 3"),
        (_text(FAST.replace("ls:l", "ls:w"), LAST), "by vectors"),
        (_text(FAST.replace("ls:l", "lss:l"), LAST), "other operands"),
        (_text(FAST.replace("ls:l", "ls:"), LAST), "line 3"),
        (_text(FAST.replace("ls:l", "lsl"), LAST), "line 3"),
        (_text(FAST + " tile 32", LAST), "not by tiles of 32"),
        (_text(TURNS.replace(" tile 32", ""), LAST), "not by tiles of 0"),
        (_text(TURNS.replace("tile 32", "tile 16"), LAST), "not by tiles of 16"),
        (_text(TURNS.replace("tile 32", "tile 0"), LAST), "line 3"),
        (_text(TURNS.replace("tile 32", "tile"), LAST), "line 3"),
        (_text(TURNS.replace("tile 32", "tiles 32"), LAST), "line 3"),
        (_text(TURNS + " 32", LAST), "line 3"),
        (_text(TURNS.replace("ts:l", "tl:l"), LAST), "cannot be by tiles"),
        (_text(TURNS.replace("ts:l", "ts:w").replace("vector 4", "vector 1"), LAST), "cannot be by tiles"),
        (_text(TURNS.replace("index 32", "index 64"), LAST), "cannot be by tiles"),
        (_text(TURNS.replace("ts:l", "gs:t"), LAST), "line 3"),
        (_text(FAST + " ", LAST), "line 3"),
        (_text(FAST.replace(" ", "  "), LAST), "line 3"),
        (_text("", LAST), "line 3"),
    ],
)
def test_what_cannot_be_launched_is_refused(text: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Recipe.parse(text)


def test_the_error_is_that_of_programs() -> None:
    assert issubclass(RecipeError, ProgramError)
