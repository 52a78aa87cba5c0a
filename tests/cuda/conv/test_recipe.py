"""The launch recipe of a convolution: what is written can be read, and what cannot be launched is refused."""

import pytest

from onnxfuse.cuda.conv.kernel import ConvAccess, ConvKernel
from onnxfuse.cuda.conv.recipe import ConvRecipe, accepts_everything
from onnxfuse.cuda.recipe import RecipeError

HASH = "0123456789abcdef" * 4
FAST = "kernel fast family gemm tile 64x32x16 block 128 split 4 vector 4 index 32 access o;cl"
LAST = "kernel last family any tile 1x1x1 block 256 split 1 vector 1 index 64 access g;gg"


def _text(*lines: str, header: str = "onnxfuse-conv 1", source: str = HASH) -> str:
    return "\n".join([header, f"source {source}", *lines]) + "\n"


def test_what_is_written_can_be_read() -> None:
    recipe = ConvRecipe.parse(_text(FAST, LAST))
    assert recipe.source == HASH
    assert recipe.kernels[0] == ConvKernel("fast", "gemm", (64, 32, 16), 128, 4, 4, 32, ConvAccess("o", "cl"))
    assert not accepts_everything(recipe.kernels[0])
    assert accepts_everything(recipe.kernels[1])
    assert str(recipe) == _text(FAST, LAST)


def test_a_convolution_without_operands_has_a_recipe() -> None:
    recipe = ConvRecipe.parse(_text(LAST.replace("g;gg", ";")))
    assert recipe.kernels[0].access == ConvAccess("", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1"),
        (_text(LAST)[:-1], "not ended"),
        (_text(LAST, header="onnxfuse-cuda 2"), "line 1"),
        ("onnxfuse-conv 1\n", "line 2"),
        (_text(LAST, source=HASH.upper()), "line 2"),
        (_text(), "0 kernels"),
        (_text(*[LAST.replace("last", f"k{number}") for number in range(17)]), "17 kernels"),
        (_text(FAST.replace("o;cl", "g;gg")), "does not accept everything"),
        (_text(LAST.replace("index 64", "index 32")), "does not accept everything"),
        (_text(LAST.replace("g;gg", "g;gl")), "does not accept everything"),
        (_text(LAST, LAST), "same name"),
        (_text(FAST, LAST.replace("last", "fast_sum")), "same name"),
        (_text(FAST.replace("fast", "9lives"), LAST), "line 3: '9lives'"),
        (_text(FAST.replace("fast", "k" * 125), LAST), "line 3"),
        (_text(FAST.replace("gemm", "winograd"), LAST), "line 3"),
        (_text(FAST.replace("64x32x16", "64x32"), LAST), "line 3"),
        (_text(FAST.replace("64x32x16", "64x32x0"), LAST), "line 3"),
        (_text(FAST.replace("64x32x16", "64x32x4097"), LAST), "line 3"),
        (_text(FAST.replace("block 128", "block 100"), LAST), "100 threads"),
        (_text(FAST.replace("block 128", "block 2048"), LAST), "2048 threads"),
        (_text(FAST.replace("split 4", "split 65"), LAST), "65 parts"),
        (_text(FAST.replace("gemm", "direct"), LAST), "4 parts"),
        (_text(FAST.replace("vector 4", "vector 3"), LAST), "line 3: 3"),
        (_text(FAST.replace("vector 4", "vector 16"), LAST), "line 3: 16"),
        (_text(FAST.replace("index 32", "index 64"), LAST), "line 3: 4"),
        (_text(FAST.replace("index 32", "index 16"), LAST), "16 bits"),
        (_text(LAST.replace("1x1x1", "2x1x1")), "family any"),
        (_text(FAST.replace("o;cl", "o;ci"), LAST), "line 3"),
        (_text(FAST.replace("o;cl", "ocl"), LAST), "line 3"),
        (_text(FAST.replace("o;cl", "oc;l"), LAST), "other operands"),
        (_text(FAST + " ", LAST), "line 3"),
        (_text(FAST.replace("split 4 ", ""), LAST), "line 3"),
        (_text(FAST.replace("split", "parts"), LAST), "line 3"),
        (_text("", LAST), "line 3"),
    ],
)
def test_what_cannot_be_launched_is_refused(text: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        ConvRecipe.parse(text)
