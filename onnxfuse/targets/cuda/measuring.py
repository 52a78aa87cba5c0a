"""Choosing convolutions by measuring them, on the GPU of this machine, while the graph is planned."""

from collections.abc import Callable, Sequence

from onnxfuse.cuda.compile.compiler import CompilerCache
from onnxfuse.cuda.conv.case import ConvCase
from onnxfuse.cuda.conv.choice import CHANNELS_LAST, RuleChooser
from onnxfuse.cuda.conv.fitting import ConvFitter, tilings_of
from onnxfuse.cuda.conv.spec import Convolution
from onnxfuse.cuda.conv.tuning import Baseline, ConvTuner
from onnxfuse.cuda.conv.tunings import TuningKey, Tunings, key_of
from onnxfuse.cuda.pycuda_tools import open_gpu
from onnxfuse.errors import OnnxfuseError
from onnxfuse.fused.choices import ConvChoice, ConvPolicy
from onnxfuse.targets.cuda.baseline import OrtBaseline

TO_BE_MEASURED = ConvChoice(True, "to be measured")
Say = Callable[[str], None]


class MeasuringChooser:
    """Measures what it is asked about, once, and then chooses as the RuleChooser does.

    What is measured is added to ``tunings``, by which that one chooses, and to ``measured``.
    """

    def __init__(
        self,
        policy: ConvPolicy,
        tunings: Tunings,
        architectures: tuple[str, ...],
        compiler: CompilerCache,
        options: tuple[str, ...],
        fast_math: bool,
        progress: Say,
        warn: Say,
        baseline: Callable[[], Baseline] = OrtBaseline,
        prefer_nhwc: bool = False,
    ) -> None:
        self.measured = Tunings()
        fitter = ConvFitter(compiler, options, architectures, fast_math, tunings)
        self._rule = RuleChooser(policy, tunings, architectures, fast_math, fitter, prefer_nhwc)
        self._policy = policy
        self._tunings = tunings
        self._compiler = compiler
        self._options = options
        self._fast_math = fast_math
        self._progress = progress
        self._warn = warn
        self._baseline = baseline
        self._seen: set[TuningKey] = set()

    def might(self, conv: Convolution) -> ConvChoice:
        """Every convolution, unless none were asked for, or ONNX Runtime's are not in the layout that is measured."""
        choice = self._rule.might(conv)
        return choice if self._policy is ConvPolicy.NONE or choice is CHANNELS_LAST else TO_BE_MEASURED

    def prepare(self, cases: Sequence[ConvCase]) -> None:
        """Nothing: what is measured is compiled case by case, all tilings of one at once."""

    def choose(self, case: ConvCase) -> ConvChoice:
        """The choice by what was measured, or by the rule where that did not work, of which a warning tells."""
        key = key_of(case, "", self._fast_math)
        if key not in self._seen and self._policy is not ConvPolicy.NONE and tilings_of(case):
            self._seen.add(key)
            self._progress(f"measuring convolution {len(self._seen)}: {key.convolution}")
            try:
                self._measure(case)
            except OnnxfuseError as error:
                self._warn(f"a convolution was not measured: {error}")
        return self._rule.choose(case)

    def _measure(self, case: ConvCase) -> None:
        with open_gpu() as gpu:
            tuner = ConvTuner(gpu, self._compiler, self._options, self._fast_math, self._baseline())
            entry = tuner.measure(case)
        if entry is not None:
            self._tunings.add(entry)
            self.measured.add(entry)
