"""Which convolutions and matrix products get kernels of onnxfuse's own, and why.

The other candidate is always ONNX Runtime's convolution, which is cuDNN's, with its elementwise neighbours fused among
themselves.  Where a tuning file has times of both for an architecture that the model is made for, ours is taken if it
is faster on every one of them.  Else a rule chooses, which has to be right on a GPU that nobody has measured.

The rule takes two kinds in two spatial dimensions.  First, depthwise convolutions of float32 and float16, by argument
and by what others have published.  Such a convolution does a few operations for every element that it loads, so what
counts is memory: with a tail after it, ONNX Runtime writes and reads its result once more, and a kernel that reads and
writes once may use half of the bandwidth and is not slower.  And cuDNN is no hard opponent there: PyTorch uses it for
depthwise convolutions in float16 only, where its kernels were measured to be faster than a plain loop over the filter,
and a loop of its own for float32 (pull requests 22302 and 58749 of pytorch/pytorch, issue 15513: "Cudnn kernels for
other cases are not very fast").  Second, pointwise convolutions of float32 with so few channels that the passes over
memory take longer than the sums: of 15 such layers on an H100 the fused kernel was faster at all, 1.1 to 2.2 times,
than ONNX Runtime's convolution in TF32 with a fused tail (benchmarks/h100/pointwise.md).  How few depends on how many
operations a GPU does while it moves a byte.  For all others cuDNN is hard to beat, and the saved passes are a small
share of the time, so they are left to it until a GPU has said otherwise.  So are all products, which are cuBLAS's.
"""

from collections.abc import Sequence
from typing import Protocol

from onnxfuse.cuda.conv.case import ConvCase
from onnxfuse.cuda.conv.fitting import ConvFitter, tilings_of
from onnxfuse.cuda.conv.spec import Convolution
from onnxfuse.cuda.conv.tunings import OURS, TuningEntry, Tunings
from onnxfuse.fused.choices import ASKED_FOR, SWITCHED_OFF, ConvChoice, ConvPolicy

BY_RULE = ConvChoice(True, "depthwise: memory is what counts, and the fused kernel goes through it once")
FEW_CHANNELS = ConvChoice(True, "pointwise with few channels: memory is what counts, and it goes through it once")
NOT_BY_RULE = ConvChoice(False, "cuDNN is hard to beat at it, and no tuning file says otherwise")
PRODUCT = ConvChoice(
    False, "cuBLAS is hard to beat at a product: --tune measures it, and no tuning file says otherwise"
)
CHANNELS_LAST = ConvChoice(False, "with prefer_nhwc ONNX Runtime's has its channels last, which makes it faster")
MEASURED = ConvChoice(True, "measured to be faster with some neighbours")
NO_KERNEL = "there is no kernel for it but the one that takes anything, which is slow"

_IF_GOOD = (BY_RULE, FEW_CHANNELS, ASKED_FOR)
"""Choices that nothing has measured: the compiler may have something against them."""
_RULE_DTYPES = ("f32", "f16")
_OPERATIONS_A_BYTE = {"sm_90": 10.5}
_ANY_OPERATIONS_A_BYTE = 5.3
"""Operations of a pointwise convolution for each byte that ONNX Runtime moves, up to which the fused kernel is taken.

On an H100 that is measured, at batch 1, with tensors in the level 2 cache; where they are in memory, it is about what
half of the peak of float32 does while that moves a byte.  Elsewhere it is the latter for the GPU of least such, a B200:
some 75 TFLOP/s at 8 TB/s, of which copies reach 7 (for an A100 it is 7).
"""
_FEW_CONVOLUTIONS = 8
"""With fewer no layout is worth a word."""


def about_layout(reasons: Sequence[str], prefer_nhwc: bool) -> str:
    """A sentence for users on the layout of convolutions, by the reasons of their choices; empty where there is none.

    ``prefer_nhwc``: the model is written for it.
    """
    if prefer_nhwc:
        return (
            "Written for sessions with prefer_nhwc, an option of the CUDA provider that onnxfuse.InferenceSession sets."
        )
    theirs = reasons.count(NOT_BY_RULE.reason)
    if len(reasons) < _FEW_CONVOLUTIONS or 2 * theirs < len(reasons) or BY_RULE.reason in reasons:
        return ""
    return (
        f"ONNX Runtime computes {theirs} of {len(reasons)} convolutions, none depthwise: --prefer-nhwc may be faster."
    )


class CaseChooser(Protocol):
    """Chooses between a fused convolution and ONNX Runtime's, case by case."""

    def might(self, conv: Convolution) -> ConvChoice:
        """Whether any fusion of a convolution may be chosen; if not, nothing has to be planned for it."""

    def prepare(self, cases: Sequence[ConvCase]) -> None:
        """Compile at once what ``choose`` would compile for several cases, one after the other."""

    def choose(self, case: ConvCase) -> ConvChoice:
        """The choice for a convolution with all that its kernel would take in."""


class RuleChooser:
    """Chooses by the user's word, by tuned times for the ``architectures``, or by the rule.

    With a ``fitter`` what was not measured is compiled, and left to ONNX Runtime where no tiling is good.
    """

    def __init__(
        self,
        policy: ConvPolicy = ConvPolicy.AUTO,
        tunings: Tunings | None = None,
        architectures: Sequence[str] = (),
        fast_math: bool = False,
        fitter: ConvFitter | None = None,
        prefer_nhwc: bool = False,
    ) -> None:
        """``prefer_nhwc``: the sessions will have this option."""
        self._policy = policy
        self._prefer_nhwc = prefer_nhwc
        self._most = min((_operations_a_byte(name) for name in architectures), default=_ANY_OPERATIONS_A_BYTE)
        self._tunings = Tunings() if tunings is None else tunings
        self._architectures = tuple(architectures)
        self._fast_math = fast_math
        self._fitter = fitter

    def might(self, conv: Convolution) -> ConvChoice:
        """Whether a convolution may be fused with some neighbours."""
        if self._policy is ConvPolicy.NONE:
            return SWITCHED_OFF
        if self._policy is ConvPolicy.ALL:
            return ASKED_FOR
        if self._has_channels_first(conv):
            return CHANNELS_LAST
        if (choice := self._by_rule(conv)).fused:
            return choice
        return MEASURED if self._tunings.mentions(conv) else choice

    def prepare(self, cases: Sequence[ConvCase]) -> None:
        """Compile the first tilings of those that nothing has measured."""
        if self._fitter is not None:
            self._fitter.prepare([case for case in cases if self._without_compiling(case) in _IF_GOOD])

    def choose(self, case: ConvCase) -> ConvChoice:
        """The choice, with the measured ratio if there is one."""
        choice = self._without_compiling(case)
        problem = "" if self._fitter is None or choice not in _IF_GOOD else self._fitter.fit(case).problem
        return ConvChoice(False, problem) if problem else choice

    def _without_compiling(self, case: ConvCase) -> ConvChoice:
        if self._policy is ConvPolicy.NONE:
            return SWITCHED_OFF
        if not tilings_of(case):
            return ConvChoice(False, NO_KERNEL)
        if self._policy is ConvPolicy.ALL:
            return ASKED_FOR
        if self._has_channels_first(case.conv):
            return CHANNELS_LAST
        entries = [self._tunings.find(case, name, self._fast_math) for name in self._architectures]
        found = [entry for entry in entries if entry is not None]
        if found:
            return _measured(found)
        choice = self._by_rule(case.conv)
        if choice is FEW_CHANNELS and (case.tf32 or all(size == 1 for size in case.x_shape[2:])):
            return NOT_BY_RULE  # not measured, and products of vectors, which are slower
        return choice

    def _has_channels_first(self, conv: Convolution) -> bool:
        """Whether its kernels have, where ONNX Runtime's will have the channels last."""
        return self._prefer_nhwc and not conv.depthwise and not conv.channels_last

    def _by_rule(self, conv: Convolution) -> ConvChoice:
        if conv.channels_last:
            return PRODUCT
        if conv.depthwise and conv.rank == 2 and conv.dtype in _RULE_DTYPES:
            return BY_RULE
        return FEW_CHANNELS if _is_pointwise(conv) and _operations(conv) <= self._most else NOT_BY_RULE


def _operations_a_byte(architecture: str) -> float:
    return _OPERATIONS_A_BYTE.get(architecture, _ANY_OPERATIONS_A_BYTE)


def _is_pointwise(conv: Convolution) -> bool:
    """Whether each position of the result is a product of a matrix of float32 and the same position."""
    apart = conv.group > 1 or conv.transposed or conv.dtype != "f32" or any(conv.pads or ())
    return conv.rank == 2 and not apart and set(conv.kernel) == set(conv.strides) == {1}


def _operations(conv: Convolution) -> float:
    """Operations of a pointwise convolution for each byte of its X and its result, the latter in three passes: written,
    then read and written with its tail."""
    inputs, outputs = conv.in_channels, conv.out_channels
    return 2 * inputs * outputs / (conv.itemsize * (inputs + 3 * outputs))


def _measured(entries: Sequence[TuningEntry]) -> ConvChoice:
    """Fused if it is faster on every architecture; the reason is the least favourable one."""
    worst = min(entries, key=lambda entry: (entry.winner == OURS, entry.ratio() or 0.0))
    ratio, fused = worst.ratio(), worst.winner == OURS
    times = "no kernel of onnxfuse computes it" if ratio is None else f"ONNX Runtime takes {ratio:.2f} times as long"
    return ConvChoice(fused, f"measured on {worst.gpu}: {times}")
