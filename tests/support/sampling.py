"""Which of the cases of a test with parameters run.

A test with the mark ``sampled(n)`` runs one in n of its cases, and with the option ``--share k/n`` every test does, for
each k others.  They are the same in every run, and have each value of each parameter.  With ``--exhaustive`` all run.
With ``--quick`` one in eight run, and none of the files of SLOW.
"""

import zlib
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatch
from itertools import groupby
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
SLOW = {
    "cuda/*": "what CUDA kernels compile to and compute",
    "custom_ops/library/test_allocations.py": "the library's allocations",
    "custom_ops/library/test_cpp.py": "the C++ tests",
    "custom_ops/library/test_instruction_sets.py": "smaller instruction sets, and the oldest ONNX Runtime",
    "passes/conv_layout/test_random_networks.py": "random networks",
    "fused/*/*_random.py": "random models",
    "commands/test_bench_peers.py": "scripts/bench.py",
    "commands/test_conformance.py": "the cases of onnx's backend test",
    "commands/test_fuzz.py": "scripts/fuzz.py",
    "*/test_parity*.py": "scripts/parity.py",
    "commands/test_portability.py": "other versions of ONNX Runtime",
}
"""What --quick leaves out: files, and what they are about."""
QUICK_PARTS = 8


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("sampling")
    group.addoption("--exhaustive", action="store_true", help="all cases of every test, where a part stands for them")
    group.addoption("--share", metavar="K/N", default="1/1", help="one in N of the cases of every test")
    group.addoption("--quick", action="store_true", help="a smoke test: few cases of what is not slow")


def is_left_out(path: Path, config: pytest.Config) -> bool:
    """Whether nothing of the file runs."""
    return config.getoption("quick") and any(fnmatch(str(path), str(TESTS / pattern)) for pattern in SLOW)


def summary(config: pytest.Config) -> str:
    """What did not run; nothing if everything did."""
    if not config.getoption("quick"):
        return ""
    return f"--quick ran one in {QUICK_PARTS} cases of a test, and nothing of: {'; '.join(SLOW.values())}"


def sample(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the cases that do not run."""
    if config.getoption("exhaustive"):
        return
    part, parts = map(int, config.getoption("share").split("/"))
    parts *= QUICK_PARTS if config.getoption("quick") else 1
    kept: list[pytest.Item] = []
    for _, group in groupby(items, lambda item: item.nodeid.partition("[")[0]):
        cases = list(group)
        mark = cases[0].get_closest_marker("sampled")
        kept += chosen(cases, part, parts * (mark.args[0] if mark else 1))
    if len(kept) < len(items):
        running = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in running])
        items[:] = kept


def chosen(cases: Sequence[pytest.Item], part: int, parts: int) -> list[pytest.Item]:
    """One in ``parts`` of the cases of a test, and what it takes for each value of each parameter to be among them.

    A parameter that has more values than that are cases, as a seed, is not looked at.
    """
    shuffled = sorted(cases, key=lambda case: zlib.crc32(case.nodeid.encode()))
    kept = shuffled[part - 1 :: parts] or shuffled[:1]
    values = {case: _values(case) for case in cases}
    everything = {value for own in values.values() for value in own}
    count = Counter(name for name, _ in everything)
    missing = {(name, value) for name, value in everything if count[name] <= len(kept)}
    missing -= {value for case in kept for value in values[case]}
    for case in shuffled:
        if missing & values[case]:
            kept.append(case)
            missing -= values[case]
    running = set(kept)
    return [case for case in cases if case in running]


def _values(case: pytest.Item) -> set[tuple[str, int]]:
    """The parameters of a case, each with the identity of its value, an object which cases share."""
    callspec = getattr(case, "callspec", None)
    return set() if callspec is None else {(name, id(value)) for name, value in callspec.params.items()}
