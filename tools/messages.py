"""What the scripts say on the way: progress, and what went wrong on one line."""

import sys


def say(message: str) -> None:
    """Progress, on standard error."""
    print(message, file=sys.stderr, flush=True)


def one_line(error: BaseException) -> str:
    """What an exception is and says, on one line that is not too long for a table."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
