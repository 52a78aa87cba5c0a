"""Text for people."""


def plural(number: int, noun: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def printable(text: str) -> str:
    """``text`` with characters that a terminal would act on replaced by their escapes."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def is_utf8(text: str) -> bool:
    """Whether a path or an argument is text in UTF-8: Python has other bytes as surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
