"""What the command line writes: to streams that may be closed, full or no terminal."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import TYPE_CHECKING, TextIO

from onnxfuse.wording import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.status import Status

_PIPED_WIDTH = 200  # a table that goes to a file or another program is not folded to the width of a terminal
_LONG_SECONDS = 2.0
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
    """Says on standard error what is being done: on a terminal one line that changes, and a line for each step that
    took more than two seconds; elsewhere nothing.

    ``verbosity`` above 0 makes it a line for each step with its seconds, wherever it goes, below 0 nothing at all.
    """

    def __init__(self, verbosity: int = 0) -> None:
        self._status: Status | None = None
        self._console: Console | None = None
        self._verbosity = verbosity
        self._step = ""
        self._since = 0.0

    def __enter__(self) -> Callable[[str], None]:
        if self._verbosity >= 0 and sys.stderr.isatty():
            console = _terminal(stderr=True)
            if console.is_terminal:
                self._console = console
                self._status = console.status("", spinner="dots")
                self._status.start()
        return self._begin

    def _begin(self, step: str) -> None:
        self._end()
        self._step, self._since = step, time.monotonic()
        if self._status is not None:
            from rich.text import Text

            self._status.update(Text(printable(step)))

    def _end(self) -> None:
        """Say how long the step took, if it is one to tell of."""
        took = time.monotonic() - self._since
        if not self._step or not (self._verbosity > 0 or (self._console is not None and took > _LONG_SECONDS)):
            return
        line = f"{printable(self._step)}: {took:.1f} s"
        if self._console is None:
            say(line)
        else:
            self._console.print(line, markup=False, style="dim")

    def __exit__(self, kind: type[BaseException] | None, *_unused: object) -> None:
        if kind is None:
            self._end()
        if self._status is not None:
            self._status.stop()


def _terminal(stderr: bool = False) -> "Console":
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False)
    console.width = max(console.width, _LEAST_WIDTH)
    return console


def print_content(content: "RenderableType") -> None:
    """Tables and text, as wide as the terminal; elsewhere a text is one line, however long."""
    from rich.console import Console, Group
    from rich.text import Text

    if sys.stdout.isatty():
        _terminal().print(content)
        return
    console = Console(width=_PIPED_WIDTH, highlight=False)
    with console.capture() as capture:
        for part in content.renderables if isinstance(content, Group) else [content]:
            console.print(part, soft_wrap=isinstance(part, Text))
    write("\n".join(line.rstrip() for line in capture.get().splitlines()))


def print_json(content: object) -> None:
    """What JSON takes."""
    import json

    write(json.dumps(content, indent=2))


def write(text: str) -> None:
    """Text as it is, with a line's end."""
    with _writing_to_stdout():
        print(text, end="" if text.endswith("\n") else "\n")
