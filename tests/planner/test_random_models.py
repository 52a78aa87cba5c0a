"""Random models: fused with the library, fused without it, and the original give the same bits."""

from hypothesis import HealthCheck, given, settings

from tests import fusing
from tests.random_models import RandomModel, random_models


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(random_models())
def test_fused_models_give_the_same_bits(case: RandomModel) -> None:
    expected = fusing.run(case.model, case.feeds, library=False)
    fused = fusing.fuse_everything(case.model)
    names = [output.name for output in case.model.graph.output]
    for library in (False, True):
        for name, actual, wanted in zip(names, fusing.run(fused, case.feeds, library), expected, strict=True):
            assert fusing.same_bits(actual, wanted), f"{name} differs with library={library}"
    optimized = fusing.run(fused, case.feeds, library=True, optimize=True)
    assert all(fusing.same_bits(actual, wanted) for actual, wanted in zip(optimized, expected, strict=True))
