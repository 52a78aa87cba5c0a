"""The native library: where its file is, whether it is that of this package, and copies of it for other programs."""

import ctypes
import importlib.util
import shutil
from functools import cache
from pathlib import Path

from onnxfuse.errors import OnnxfuseError
from onnxfuse.system import LIBRARY

_LIBRARY = Path("lib") / LIBRARY
_BESIDE = {"onnxfuse.h": "onnxfuse.h", "LICENSE": "onnxfuse-LICENSE"}
"""What goes with the library, by its name in the package: the name of the copy."""


@cache
def custom_ops_library() -> str:
    """The absolute path of the native library, for ``RegisterCustomOpsLibrary`` in any language.

    Raises OnnxfuseError if the package was not built, or if the file is not of the package's version or not for this
    machine.
    """
    # An editable install reads the .py files from the checkout but keeps what CMake built in site-packages; the
    # package's search path has both.
    spec = importlib.util.find_spec("onnxfuse")
    folders = [] if spec is None else spec.submodule_search_locations or []
    for folder in folders:
        path = Path(folder) / _LIBRARY
        if path.is_file():
            _check_version(path)
            return str(path.resolve())
    if any((Path(folder).parent / "pyproject.toml").is_file() for folder in folders):
        raise OnnxfuseError(
            f"{_LIBRARY.name} is not in {folders[0]}, a checkout: run 'pip install .' there, and Python elsewhere"
            " or with PYTHONSAFEPATH=1, so that the installed package is imported"
        )
    raise OnnxfuseError(f"{_LIBRARY.name} is not in the installed package, {', '.join(folders)}: install it again")


def _check_version(path: Path) -> None:
    """Functions and formats that the two share change with the version.  Raises OnnxfuseError if it is another."""
    from onnxfuse import __version__

    try:
        entry = getattr(ctypes.CDLL(str(path)), "onnxfuse_version", None)
    except OSError as error:
        raise OnnxfuseError(f"{path} cannot be loaded here ({error}): install onnxfuse for this machine") from error
    found = "an earlier version"
    if entry is not None:
        entry.restype = ctypes.c_char_p
        found = entry().decode(errors="replace")
    if found != __version__:
        raise OnnxfuseError(f"{path} is of {found}, the Python package of {__version__}: install onnxfuse again")


def export_library(folder: str | Path) -> list[Path]:
    """Copy the native library into ``folder``, which is made if there is none, with ``onnxfuse.h``, which registers it
    from C and C++, and its licence.  Return the paths of the copies, the library's first.

    Files of those names that are there are replaced, each at once: a program that has the earlier library loaded keeps
    it.  Raises OnnxfuseError if there is no library, OSError if the folder cannot be written.
    """
    library = Path(custom_ops_library())
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    copies = [(library, target / library.name)]
    copies += [(library.with_name(name), target / copy) for name, copy in _BESIDE.items()]
    for source, copy in copies:
        unfinished = copy.with_name(f".{copy.name}.new")
        shutil.copyfile(source, unfinished)
        unfinished.replace(copy)
    return [copy for _, copy in copies]
