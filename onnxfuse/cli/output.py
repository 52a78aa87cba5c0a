"""What the command line writes: to streams that may be closed, full or no terminal."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import TYPE_CHECKING, TextIO

from onnxfuse.wording import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_PIPED_WIDTH = 200  # a table that goes to a file or another program is not folded to the width of a terminal
_LEAST_WIDTH = 40  # of a terminal; in none, as COLUMNS=0 has it, rich writes nothing


def open_missing_streams() -> None:
    """Make a stream that was closed /dev/null: else the next file that is opened would get its number, and be written
    to by whoever writes to the stream."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115 - for as long as the process lives
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names in a model may not exist in the terminal's encoding


def fail(message: str) -> None:
    """One line on standard error; a message may hold names from a hostile model."""
    say(f"onnxfuse: error: {' '.join(message.split())}")


def say(message: str) -> None:
    """A line on standard error.  Where nobody can be told the work goes on all the same."""
    try:
        print(printable(message), file=sys.stderr, flush=True)
    except OSError:
        _mute(sys.stderr)


@contextmanager
def _writing_to_stdout() -> Iterator[None]:
    """A full disk is an error, a reader that has left is none; neither is for Python to find when it ends."""
    try:
        yield
    except BrokenPipeError:
        _mute(sys.stdout)
    except OSError:
        _mute(sys.stdout)
        raise


def flush() -> None:
    """Write what is buffered now, so that what goes wrong is an error of ours."""
    with _writing_to_stdout():
        sys.stdout.flush()


def _mute(stream: TextIO) -> None:
    """The stream goes nowhere from now on."""
    try:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, stream.fileno())
        os.close(devnull)
    except (OSError, ValueError):  # it is no file
        pass


class Progress:
    """Says on standard error what is being done: one line that changes on a terminal, a line a step
    elsewhere."""

    def __enter__(self) -> Callable[[str], None]:
        from rich.text import Text

        console = _terminal(stderr=True)
        if not (sys.stderr.isatty() and console.is_terminal):  # with FORCE_COLOR anything is one for rich
            self._status = None
            return say
        status = self._status = console.status("", spinner="dots")
        status.start()
        return lambda message: status.update(Text(printable(message)))

    def __exit__(self, *_unused: object) -> None:
        if self._status is not None:
            self._status.stop()


def _terminal(stderr: bool = False) -> "Console":
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False)
    console.width = max(console.width, _LEAST_WIDTH)
    return console


def print_content(content: "RenderableType") -> None:
    """Tables and text, as wide as the terminal."""
    from rich.console import Console

    if sys.stdout.isatty():
        _terminal().print(content)
        return
    console = Console(width=_PIPED_WIDTH, highlight=False)
    with console.capture() as capture:
        console.print(content)
    write("\n".join(line.rstrip() for line in capture.get().splitlines()))


def print_json(content: object) -> None:
    """What JSON takes."""
    import json

    write(json.dumps(content, indent=2))


def write(text: str) -> None:
    """Text as it is, with a line's end."""
    with _writing_to_stdout():
        print(text, end="" if text.endswith("\n") else "\n")
