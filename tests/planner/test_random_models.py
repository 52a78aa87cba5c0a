"""Random models: fused with the library, fused without it, and the original give the same bits."""

import onnx
from hypothesis import HealthCheck, given, settings

from tests import fusing
from tests.passes.models import apply
from tests.random_models import RandomModel, random_models

PASSES = ("fold-constants", "slow-operators", "conv-layout", "fold-affine", "fuse-elementwise")
_SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def check(case: RandomModel, changed: onnx.ModelProto) -> None:
    """Fails if ``changed`` does not give the bits of the original, with and without library and optimizations."""
    try:
        expected = fusing.run(case.model, case.feeds, library=False)
    except RuntimeError:
        return  # ORT loses a value that only a branch of an If reads
    names = [output.name for output in case.model.graph.output]
    for library, optimize in ((False, False), (True, False), (True, True)):
        results = fusing.run(changed, case.feeds, library, optimize)
        for name, actual, wanted in zip(names, results, expected, strict=True):
            assert fusing.same_bits(actual, wanted), f"{name} differs with {library=}, {optimize=}"


@_SETTINGS
@given(random_models())
def test_fused_models_give_the_same_bits(case: RandomModel) -> None:
    check(case, fusing.fuse_everything(case.model))


@_SETTINGS
@given(random_models())
def test_the_built_in_passes_give_the_same_bits(case: RandomModel) -> None:
    check(case, apply(case.model, *PASSES, infer=False)[0])
