"""Text for people."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

_SHORT = 3


def plural(number: int, noun: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def printable(text: str) -> str:
    """``text`` with characters that a terminal would act on replaced by their escapes."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """``, did you mean 'optimize'?`` for what looks like one of the known words, else nothing; nor for short words, of
    which many look alike."""
    near = get_close_matches(given, list(known), 1) if len(given) > _SHORT else []
    return f", did you mean {near[0]!r}?" if near else ""


def is_utf8(text: str) -> bool:
    """Whether a path or an argument is text in UTF-8: Python has other bytes as surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def listed(items: Sequence[str], most: int = 4) -> str:
    """The first of some items, with commas between, and whether there are more."""
    return ", ".join(items[:most]) + (", …" if len(items) > most else "")


def describe_guess(names: list[str]) -> str:
    """One sentence for the inputs whose sizes are made up; empty for none."""
    if not names:
        return ""
    return f"Sizes of {listed(names)} are guesses: give those that matter with --shape (shapes=)."
