"""What the scripts say on the way: progress, and what went wrong on one line."""

import argparse
import sys
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """That of a script's arguments, whose help begins with the script's own words.  Bad usage is one line on standard
    error, and exit status 2.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, **options})

    def error(self, message: str) -> NoReturn:
        """Ends the process."""
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())} (see '{self.prog} --help')\n")


def say(message: str) -> None:
    """Progress, on standard error."""
    print(message, file=sys.stderr, flush=True)


def one_line(error: BaseException) -> str:
    """What an exception is and says, on one line that is not too long for a table."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
