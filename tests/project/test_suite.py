"""What runs of the tests, and with which versions."""

import re
import tomllib
from collections import Counter
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import sampling, versions


class Case:
    """What is asked of a pytest.Item."""

    def __init__(self, nodeid: str, params: dict[str, Any] | None = None) -> None:
        self.nodeid = nodeid
        if params is not None:
            self.callspec = SimpleNamespace(params=params)


def cases(**parameters: list[Any]) -> list[Any]:
    """Of a test with these parameters."""
    combinations = [dict(zip(parameters, values, strict=True)) for values in product(*parameters.values())]
    return [Case(f"test[{number}]", params) for number, params in enumerate(combinations)]


def test_a_share_of_the_cases_has_each_value_of_each_parameter() -> None:
    objects = [object() for _ in range(7)]
    everything = cases(kind=objects, dtype=["f16", "f32", "f64"], seed=list(range(5)))
    for parts in (2, 4, 8):
        shares = [sampling.chosen(everything, part, parts) for part in range(1, parts + 1)]
        for share in shares:
            assert len(everything) // parts <= len(share) <= len(everything) // parts + 10
            assert share == [case for case in everything if case in share]
            for name in ("kind", "dtype", "seed"):
                assert len({id(case.callspec.params[name]) for case in share}) == len(
                    {id(case.callspec.params[name]) for case in everything}
                )
        times = Counter(case.nodeid for share in shares for case in share)
        assert len(times) == len(everything) and max(times.values()) <= parts


def test_seeds_are_sampled_and_a_test_never_goes_without_a_case() -> None:
    seeds = cases(seed=list(range(100)))
    assert len(sampling.chosen(seeds, 1, 4)) == 25
    alone: list[Any] = [Case("test")]
    assert [sampling.chosen(alone, part, 3) for part in (1, 2, 3)] == [alone] * 3


@pytest.mark.parametrize("pattern", sampling.SLOW)
def test_what_a_smoke_test_leaves_out_is_there(pattern: str) -> None:
    assert list(sampling.TESTS.glob(pattern))


def test_everything_that_is_installed_for_the_tests_has_a_version() -> None:
    project = tomllib.loads((sampling.TESTS.parent / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    wanted += [requirement for extra in ("cpu", "dev", "nvrtc") for requirement in extras[extra]]
    known = {name.replace("_", "-").lower() for name in versions.pinned()}
    assert {re.split(r"[>=<\[]", name)[0].replace("_", "-").lower() for name in wanted} <= known
