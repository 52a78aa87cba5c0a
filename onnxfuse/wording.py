"""Text for people."""


def plural(number: int, noun: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def printable(text: str) -> str:
    """``text`` with characters that a terminal would act on replaced by their escapes."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
