"""What the target cuda asks of a region: one iteration space, few operands, and registers that suffice."""

from collections.abc import Sequence

from onnxfuse.cuda.elementwise.fitting import Fit, Fitter
from onnxfuse.cuda.tuned import TunedKernels
from onnxfuse.fused.fused_node import ProgramFusion
from onnxfuse.fused.one_space import SpacesError, has_one_space
from onnxfuse.program import ProgramError
from onnxfuse.program.figures import MAX_OPERANDS


class CudaRegions:
    """Judges fusions for the GPU; ``fitter`` knows what the compiler makes of a Program, None to go without."""

    def __init__(self, fitter: Fitter | None) -> None:
        self._fitter = fitter
        self._renderer = Fitter(None, ("sm_90",), fast_math=False, tuned=TunedKernels(()))

    def check(self, fusion: ProgramFusion, has_space: bool = False) -> None:
        """Raises ProgramError, with the reason, for a fusion that has to be split.

        ``has_space`` says that all that it reads and makes is known to broadcast to one shape.
        """
        if len(fusion.inputs) + len(fusion.outputs) > MAX_OPERANDS:
            raise ProgramError(f"it has more than {MAX_OPERANDS} inputs and outputs")
        if not has_space and not has_one_space(fusion):
            raise SpacesError
        self._fit(fusion)

    def check_parts(self, fusion: ProgramFusion) -> None:
        """Raises ProgramError, with the reason, for a fusion whose parts one launch does not compute well."""
        fit = self._fitter.fit if self._fitter is not None else self._renderer.fit
        if not fit(fusion.program, [tensor.shape for tensor in fusion.inputs]).is_good:
            raise ProgramError("one kernel for all of its parts has too few registers")

    def is_good(self, fusion: ProgramFusion) -> bool:
        """Whether its kernel has registers enough."""
        fit = self._fit(fusion)
        return fit is None or fit.is_good

    def is_better(self, parts: Sequence[ProgramFusion], whole: ProgramFusion) -> bool:
        """Whether every one of the ``parts`` has a better kernel than the ``whole``.

        Where nothing is left to fuse, the whole is better unless it spills.
        """
        fit = self._fit(whole)
        ranks = [part.rank for part in map(self._fit, parts) if part is not None]
        if fit is None or (not ranks and fit.main is not None and not fit.main.spills):
            return False
        return all(rank > fit.rank for rank in ranks)

    def _fit(self, fusion: ProgramFusion) -> Fit | None:
        if self._fitter is None:
            return None
        return self._fitter.fit(fusion.program, [tensor.shape for tensor in fusion.inputs])
