"""The versions of the packages that the tests use, and those of constraints.txt."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

CONSTRAINTS = Path(__file__).parent.parent / "constraints.txt"


@cache
def pinned() -> dict[str, str]:
    """The versions of constraints.txt by the names of the packages, as that file has them."""
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


@cache
def others() -> dict[str, str]:
    """Of the installed packages the versions that are not those of constraints.txt."""
    found = {}
    for name, wanted in pinned().items():
        try:
            installed = version(name)
        except PackageNotFoundError:
            continue
        if installed != wanted:
            found[name] = installed
    return found


def describe() -> str:
    """The packages with other versions than constraints.txt has; nothing if there are none."""
    return ", ".join(f"{name} {installed} ({pinned()[name]})" for name, installed in others().items())


def need(*names: str) -> None:
    """Skips a test whose results depend on these packages where they are not those of constraints.txt."""
    different = {name: others()[name] for name in names if name in others()}
    if different:
        wanted = ", ".join(f"{name} {installed}, not {pinned()[name]}" for name, installed in different.items())
        pytest.skip(f"the expected results are of other versions: {wanted}")
