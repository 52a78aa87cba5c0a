"""Replacing a file in one step: what is written lies beside it, under another name, until it is complete."""

import os
import shutil
import signal
import stat
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from onnxfuse.errors import OnnxfuseError
from onnxfuse.system import signals

_ENDING = signals("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM")
"""The signals of which the command line makes exceptions."""


def place(path: Path) -> Path:
    """The file that is written where ``path`` is asked for: the same, or what it links to.

    Raises OnnxfuseError where none can be: in no directory, or in place of something that is no regular file.
    """
    with writing(path):
        if not path.name:
            raise OnnxfuseError("it names no file to write")
        if path.exists() and not path.is_file():  # a pipe's name in /dev leads to none
            raise OnnxfuseError("it exists and is not a regular file")
        try:
            found = Path(os.path.realpath(path))
        except ValueError as error:  # a null byte
            raise OnnxfuseError(f"cannot be written: {error}") from error
        if not found.parent.is_dir():
            raise OnnxfuseError(f"there is no directory {found.parent if path.is_symlink() else path.parent}")
        if os.path.lexists(found) and not stat.S_ISREG(found.lstat().st_mode):  # a link here leads to itself
            raise OnnxfuseError("it exists and is not a regular file")
        return found


@contextmanager
def scratch(prefix: str = "onnxfuse-", parent: Path | None = None) -> Iterator[Path]:
    """A directory of this user alone, by default among the system's temporary ones, which is removed in the end."""
    directory = None
    try:
        with undisturbed():
            directory = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        yield directory
    finally:
        if directory is not None:
            _remove(directory)


@contextmanager
def scratch_beside(path: Path, asked: Path) -> Iterator[Path]:
    """A directory of this user alone, from where files can be renamed to ``path``, and which is removed in the end.

    Raises OnnxfuseError, which names the path that was ``asked`` for, if there can be none.
    """
    with ExitStack() as stack:
        with writing(asked):
            directory = stack.enter_context(scratch(".onnxfuse-", path.parent))
        yield directory


def _remove(directory: Path) -> None:
    try:
        with undisturbed():
            shutil.rmtree(directory, ignore_errors=True)
    except BaseException:  # of a signal that came before they were held back, or was held back
        shutil.rmtree(directory, ignore_errors=True)
        raise


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold signals to end back until the block is done: a second one must not stop the removal of temporary files.

    Other threads than the main one have nothing to hold back, for Python handles signals in none of them.
    """
    held: list[int] = []
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {number: found for number in _ENDING if callable(found := signal.getsignal(number))}

    def hold(number: int, _frame: FrameType | None) -> None:
        held.append(number)

    try:
        for number in handlers:
            signal.signal(number, hold)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if held:
            signal.raise_signal(held[0])


def check_beside(path: Path, target: Path, files: Iterable[Path]) -> None:
    """Raise OnnxfuseError where data cannot lie in ``files`` beside ``target``, which is written for ``path``."""
    with writing(path):
        for file in files:
            if not target.parent.samefile(path.parent):
                raise OnnxfuseError(f"its data would lie where readers of this link do not look: name {target}")
            if os.path.lexists(file) and not stat.S_ISREG(file.lstat().st_mode):
                raise OnnxfuseError(f"its data would replace {file}, which is not a regular file")


def put_in_place(places: dict[Path, Path]) -> None:
    """Rename files of one scratch directory to their places, the last of which is that of the model.

    If one fails, those before it are undone.  A file gets the permissions of what it replaces, or else of the model
    that is replaced.  Raises OSError.
    """
    *others, (model, model_place) = places.items()
    old = Path(tempfile.mkdtemp(dir=model.parent))
    for new, at in places.items():
        _keep_mode(new, at, model_place)
    try:
        for new, at in others:
            if at.exists():
                at.rename(old / at.name)
            new.rename(at)
        model.replace(model_place)
    except BaseException:
        if not model.exists():
            raise  # Interrupted just after the model was put in place.
        for new, at in others:
            if (old / at.name).exists():
                (old / at.name).replace(at)
            elif not new.exists():
                at.unlink(missing_ok=True)
        raise


def _keep_mode(path: Path, *examples: Path) -> None:
    for example in examples:
        if example.exists():
            path.chmod(stat.S_IMODE(example.stat().st_mode))
            return


class Replacement:
    """A file that takes the place of another once it is complete; until then, and on any failure, that one stays.

    The new file is opened at once, so that what cannot be written is known before there is anything to write.  It is
    removed at the end of a ``with`` block that does not ``write`` it.
    """

    def __init__(self, path: Path) -> None:
        """Raises OnnxfuseError if ``path`` cannot be written."""
        self._path = path
        self._place = place(path)
        with ExitStack() as stack:
            self._new = stack.enter_context(scratch_beside(self._place, path)) / "new"
            with writing(path):
                self._file = stack.enter_context(self._new.open("xb"))
            self._held = stack.pop_all()

    def write(self, data: bytes) -> None:
        """Replace the file by one with this content.  Raises OnnxfuseError if that fails."""
        with writing(self._path):
            with self._file as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            _keep_mode(self._new, self._place)
            self._new.replace(self._place)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._held.close()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Make errors name ``path``, as OnnxfuseError of one line."""
    try:
        yield
    except OSError as error:
        raise OnnxfuseError(f"{path}: cannot be written: {error.strerror or error}") from error
    except OnnxfuseError as error:
        raise OnnxfuseError(f"{path}: {error}") from error
