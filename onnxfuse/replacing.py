"""Replacing a file in one step: what is written lies beside it, under another name, until it is complete."""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from onnxfuse.errors import OnnxfuseError


def place(path: Path) -> Path:
    """The file that is written where ``path`` is asked for: the same, or what it links to.

    Raises OnnxfuseError where none can be: in no directory, or in place of something that is no regular file.
    """
    with writing(path):
        if not path.name:
            raise OnnxfuseError("it names no file to write")
        try:
            found = Path(os.path.realpath(path))
        except ValueError as error:  # a null byte
            raise OnnxfuseError(f"cannot be written: {error}") from error
        if not found.parent.is_dir():
            raise OnnxfuseError(f"there is no directory {found.parent if path.is_symlink() else path.parent}")
        if os.path.lexists(found) and not stat.S_ISREG(found.lstat().st_mode):  # a link here leads to itself
            raise OnnxfuseError("it exists and is not a regular file")
        return found


def scratch_beside(path: Path) -> Path:
    """A new directory of this user alone, from where files can be renamed to ``path``.  Raises OSError."""
    return Path(tempfile.mkdtemp(prefix=".onnxfuse-", dir=path.parent))


def keep_mode(path: Path, *examples: Path) -> None:
    """Give ``path`` the permissions of the first of ``examples`` that exists."""
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
        with writing(path):
            self._scratch = scratch_beside(self._place)
            try:
                self._file = (self._scratch / "new").open("xb")
            except BaseException:
                self._remove()
                raise

    def write(self, data: bytes) -> None:
        """Replace the file by one with this content.  Raises OnnxfuseError if that fails."""
        with writing(self._path):
            with self._file as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            new = self._scratch / "new"
            keep_mode(new, self._place)
            new.replace(self._place)

    def __enter__(self) -> "Replacement":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
        self._remove()

    def _remove(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Make errors name ``path``, as OnnxfuseError of one line."""
    try:
        yield
    except OSError as error:
        raise OnnxfuseError(f"{path}: cannot be written: {error.strerror or error}") from error
    except OnnxfuseError as error:
        raise OnnxfuseError(f"{path}: {error}") from error
