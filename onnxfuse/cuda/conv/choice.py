"""Which convolutions get kernels of onnxfuse's own, and why.

The other candidate is always ONNX Runtime's convolution, which is cuDNN's, with its elementwise neighbours fused among
themselves.  Where a tuning file has times of both for an architecture that the model is made for, ours is taken if it
is faster on every one of them.  Else a rule chooses, which has to be right on a GPU that nobody has measured.

The rule takes depthwise convolutions of float32 and float16 in two spatial dimensions, by argument and by what others
have published.  Such a convolution does a few operations for every element that it loads, so what counts is memory:
with a tail after it, ONNX Runtime writes and reads its result once more, and a kernel that reads and writes once may
use half of the bandwidth and is not slower.  And cuDNN is no hard opponent there: PyTorch uses it for
depthwise convolutions in float16 only, where its kernels were measured to be faster than a plain loop over the filter,
and a loop of its own for float32 (pull requests 22302 and 58749 of pytorch/pytorch, issue 15513: "Cudnn kernels for
other cases are not very fast").  For all others cuDNN is hard to beat, and the saved passes are a small share of the
time, so they are left to it until a GPU has said otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from onnxfuse.cuda.conv.case import ConvCase
from onnxfuse.cuda.conv.fitting import ConvFitter, tilings_of
from onnxfuse.cuda.conv.spec import Convolution
from onnxfuse.cuda.conv.tunings import OURS, TuningEntry, Tunings
from onnxfuse.errors import OnnxfuseError


class ConvPolicy(Enum):
    """What the user asks for: the rule and the tuning file, every convolution that can be, or none."""

    AUTO = "auto"
    ALL = "all"
    NONE = "none"


def policy_named(name: str) -> ConvPolicy:
    """The policy of this name.  Raises OnnxfuseError for one that is unknown."""
    try:
        return ConvPolicy(name)
    except ValueError:
        known = ", ".join(policy.value for policy in ConvPolicy)
        raise OnnxfuseError(f"unknown choice of convolutions {name!r}; there are {known}") from None


@dataclass(frozen=True)
class ConvChoice:
    """Whether a convolution becomes a fused node, and why; ``reason`` continues a sentence about it."""

    fused: bool
    reason: str


BY_RULE = ConvChoice(True, "depthwise: memory is what counts, and the fused kernel goes through it once")
NOT_BY_RULE = ConvChoice(False, "cuDNN is hard to beat at what is not depthwise, and no tuning file says otherwise")
ASKED_FOR = ConvChoice(True, "all were asked for")
SWITCHED_OFF = ConvChoice(False, "none were asked for")
MEASURED = ConvChoice(True, "measured to be faster with some neighbours")
NO_KERNEL = "there is no kernel for it but the one that takes anything, which is slow"

_IF_GOOD = (BY_RULE, ASKED_FOR)
"""Choices that nothing has measured: the compiler may have something against them."""
_RULE_DTYPES = ("f32", "f16")


class ConvChooser(Protocol):
    """Chooses between a fused convolution and ONNX Runtime's."""

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
    ) -> None:
        self._policy = policy
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
        if is_known_to_win(conv):
            return BY_RULE
        return MEASURED if self._tunings.mentions(conv) else NOT_BY_RULE

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
        entries = [self._tunings.find(case, name, self._fast_math) for name in self._architectures]
        found = [entry for entry in entries if entry is not None]
        if found:
            return _measured(found)
        return BY_RULE if is_known_to_win(case.conv) else NOT_BY_RULE


def _measured(entries: Sequence[TuningEntry]) -> ConvChoice:
    """Fused if it is faster on every architecture; the reason is the least favourable one."""
    worst = min(entries, key=lambda entry: (entry.winner == OURS, entry.ratio() or 0.0))
    ratio, fused = worst.ratio(), worst.winner == OURS
    times = "no kernel of onnxfuse computes it" if ratio is None else f"ONNX Runtime takes {ratio:.2f} times as long"
    return ConvChoice(fused, f"measured on {worst.gpu}: {times}")


def is_known_to_win(conv: Convolution) -> bool:
    """Whether the rule takes a convolution, given elementwise work around it."""
    return conv.depthwise and conv.rank == 2 and conv.dtype in _RULE_DTYPES
