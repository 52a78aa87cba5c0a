"""Which convolutions the rule takes where no GPU has measured them, and the tilings that come first."""

from dataclasses import replace

import pytest

from onnxfuse.cuda.conv.candidates import candidates
from onnxfuse.cuda.conv.case import ConvCase
from onnxfuse.cuda.conv.choice import BY_RULE, CHANNELS_LAST, FEW_CHANNELS, NOT_BY_RULE, RuleChooser, about_layout
from onnxfuse.cuda.conv.spec import Convolution
from onnxfuse.fused.choices import ASKED_FOR, ConvPolicy
from onnxfuse.program import Program

TAIL = Program.parse("onnxfuse 1\ninput f32 broadcast\nrelu f32 0\noutput 1\n")


def pointwise(inputs: int, outputs: int, **changes: object) -> Convolution:
    made = Convolution(False, "f32", inputs, outputs, 1, (1, 1), (1, 1), (1, 1), (0, 0, 0, 0), "NOTSET", (0, 0))
    return replace(made, **changes)  # type: ignore[arg-type]


DEPTHWISE = pointwise(24, 24, group=24, kernel=(3, 3), pads=(1, 1, 1, 1))


def case(conv: Convolution, height: int | None = 56, width: int | None = 56, tf32: bool = False) -> ConvCase:
    return ConvCase(conv, (1, conv.in_channels, height, width), TAIL, (), tf32=tf32)


@pytest.mark.parametrize(
    ("inputs", "outputs", "fused"),
    [
        *[(24, 144, True), (144, 24, True), (64, 384, True), (16, 32, True), (64, 128, True)],
        *[(96, 576, False), (192, 192, False), (384, 64, False), (160, 960, False)],
    ],
)
def test_pointwise_ones_of_few_channels(inputs: int, outputs: int, fused: bool) -> None:
    chosen = RuleChooser(architectures=("sm_90",)).choose(case(pointwise(inputs, outputs)))
    assert chosen == (FEW_CHANNELS if fused else NOT_BY_RULE)


def test_of_several_architectures_the_one_counts_that_computes_least_for_a_byte() -> None:
    conv = pointwise(64, 384)
    for names, expected in (
        (("sm_90",), FEW_CHANNELS),
        (("sm_80",), NOT_BY_RULE),
        (("sm_90", "sm_80"), NOT_BY_RULE),
        ((), NOT_BY_RULE),
    ):
        assert RuleChooser(architectures=names).choose(case(conv)) == expected
        assert RuleChooser(architectures=names).might(conv) == expected
    assert RuleChooser(architectures=("sm_75", "sm_120")).choose(case(pointwise(24, 144))) == FEW_CHANNELS


@pytest.mark.parametrize(
    "conv",
    [
        pointwise(24, 144, dtype="f16"),
        pointwise(24, 144, strides=(2, 2)),
        pointwise(24, 144, pads=(1, 1, 1, 1)),
        pointwise(24, 144, group=2),
        pointwise(24, 144, transposed=True),
        pointwise(24, 144, kernel=(1, 3)),
        pointwise(24, 144, kernel=(1,), strides=(1,), dilations=(1,), pads=(0, 0), output_padding=(0,)),
    ],
    ids=["float16", "strided", "padded", "in groups", "transposed", "wider", "of signals"],
)
def test_what_was_not_measured_is_left_alone(conv: Convolution) -> None:
    assert RuleChooser(architectures=("sm_90",)).might(conv) == NOT_BY_RULE


def test_products_of_vectors_and_of_tf32_are_left_alone() -> None:
    chooser, conv = RuleChooser(architectures=("sm_90",)), pointwise(96, 24)
    assert chooser.choose(case(conv, 1, 1)) == NOT_BY_RULE
    assert chooser.choose(case(conv, tf32=True)) == NOT_BY_RULE
    assert chooser.choose(case(conv, None, None)) == FEW_CHANNELS


def test_with_prefer_nhwc_only_depthwise_ones_are_taken() -> None:
    chooser = RuleChooser(architectures=("sm_90",), prefer_nhwc=True)
    assert chooser.might(pointwise(24, 144)) == chooser.choose(case(pointwise(24, 144))) == CHANNELS_LAST
    assert chooser.might(DEPTHWISE) == chooser.choose(case(DEPTHWISE)) == BY_RULE
    everything = RuleChooser(ConvPolicy.ALL, architectures=("sm_90",), prefer_nhwc=True)
    assert everything.choose(case(pointwise(24, 144))) == ASKED_FOR


def test_users_hear_of_the_other_layout_where_it_may_be_faster() -> None:
    dense, depthwise, few = NOT_BY_RULE.reason, BY_RULE.reason, FEW_CHANNELS.reason
    assert "12 of 16 convolutions" in about_layout([*[dense] * 12, *[few] * 4], prefer_nhwc=False)
    for reasons in ([dense] * 7, [*[dense] * 12, depthwise], [*[dense] * 4, *[few] * 12], []):
        assert about_layout(reasons, prefer_nhwc=False) == ""
    assert "onnxfuse.InferenceSession sets" in about_layout([depthwise], prefer_nhwc=True)


@pytest.mark.parametrize(
    ("channels", "size", "tile", "split"),
    [
        ((48, 48), (160, 160), (64, 64, 16), 1),
        ((16, 32), (320, 320), (32, 64, 16), 1),
        ((24, 144), (40, 40), (32, 32, 16), 1),
        ((64, 384), (14, 14), (32, 32, 16), 1),
        ((480, 80), (10, 10), (32, 32, 16), 8),
        ((960, 160), (7, 7), (32, 32, 16), 16),
        ((192, 32), (28, 28), (32, 32, 16), 4),
    ],
)
def test_the_first_tiling_is_the_fastest_on_an_h100(
    channels: tuple[int, int], size: tuple[int, int], tile: tuple[int, int, int], split: int
) -> None:
    (first, *_) = candidates(pointwise(*channels), (1, channels[0], *size))[0]
    assert (first.tile, first.split) == (tile, split)
