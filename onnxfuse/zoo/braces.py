"""Names that stand for several, as shells write them: ``past.{0..2}.{key,value}``."""

import re
from itertools import product

_BRACES = re.compile(r"\{([^{}]*)\}")
_RUN = re.compile(r"(\d+)\.\.(\d+)")
MOST = 4096
"""Names that one may stand for: more is a mistake in the manifest."""


def expanded(name: str) -> list[str]:
    """The names that ``name`` stands for, the last braces varying fastest; ``[name]`` where it has none.

    ``{a,b}`` is each of the parts, ``{0..11}`` each number from the first to the last.  Raises ValueError for braces
    with one part alone, for a run that goes down, and for more than MOST names.
    """
    pieces = _BRACES.split(name)
    choices = [[piece] if index % 2 == 0 else _choices(name, piece) for index, piece in enumerate(pieces)]
    count = 1
    for parts in choices:
        count *= len(parts)
    if count > MOST:
        raise ValueError(f"{name!r} stands for {count} names, and {MOST} are the most")
    return ["".join(parts) for parts in product(*choices)]


def _choices(name: str, text: str) -> list[str]:
    if run := _RUN.fullmatch(text):
        first, last = map(int, run.groups())
        if first > last:
            raise ValueError(f"{{{text}}} in {name!r} goes down")
        return [str(number) for number in range(first, min(last, first + MOST) + 1)]
    parts = text.split(",")
    if len(parts) < 2:
        raise ValueError(f"{{{text}}} in {name!r} is neither a list nor a run of numbers")
    return parts
