"""A cache on disk of what takes long to make: machine code, and the choices of the tuner.

It lies in ``onnxfuse/cuda`` among the user's caches (``system.caches``).  An entry is one file, which is written
whole under another name and renamed, so any number of processes may share the cache; one that was damaged does not have
the checksum that it begins with and counts as absent.  A cache that cannot be read or written is no error: everything
is made anew.
"""

import os
import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from onnxfuse.system import caches

LIMIT = 512 << 20
"""Bytes that the cache may take; beyond, the entries that were used longest ago are removed."""

_SUFFIX = ".entry"
_CHECKSUM = 32


def default_folder() -> Path:
    """Where the cache lies unless told otherwise."""
    try:
        base = caches()
    except RuntimeError:  # this user has no home, as in some containers
        base = Path(os.devnull)  # in which nothing can be written, and that is no error
    return base / "onnxfuse" / "cuda"


class Cache:
    """Entries of bytes by keys, which are file names of letters and digits."""

    def __init__(self, folder: Path | None = None, limit: int = LIMIT) -> None:
        self._folder = default_folder() if folder is None else folder
        self._limit = limit

    def load(self, key: str) -> bytes | None:
        """The entry, or None."""
        path = self._folder / (key + _SUFFIX)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        if sha256(content[_CHECKSUM:]).digest() != content[:_CHECKSUM]:
            return None
        with suppress(OSError):
            os.utime(path)  # it was used
        return content[_CHECKSUM:]

    def store(self, key: str, entry: bytes) -> None:
        """Keep ``entry``, in place of an older one."""
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._folder, prefix=".write-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(sha256(entry).digest() + entry)
                Path(name).replace(self._folder / (key + _SUFFIX))
            except BaseException:
                with suppress(OSError):
                    Path(name).unlink()
                raise

    def prune(self) -> None:
        """Remove the entries that were used longest ago until the rest is within the limit."""
        entries = []
        with suppress(OSError):
            for path in self._folder.iterdir():
                with suppress(OSError):  # another process has removed it
                    status = path.stat()
                    entries.append((status.st_mtime, status.st_size, path))
        excess = sum(size for _, size, _ in entries) - self._limit
        for _, size, path in sorted(entries):
            if excess <= 0:
                return
            with suppress(OSError):
                path.unlink()
            excess -= size
