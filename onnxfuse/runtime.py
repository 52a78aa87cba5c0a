"""ONNX Runtime with the onnxfuse operators: where their library is, and sessions that know them."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfuse.errors import OnnxfuseError

if TYPE_CHECKING:
    import onnxruntime

DOMAIN = "onnxfuse"
"""The domain of the fused nodes."""

_LIBRARY = Path("lib") / "libonnxfuse_ops.so"


def custom_ops_library() -> str:
    """The absolute path of the native library, for ``RegisterCustomOpsLibrary`` in any language.

    Raises OnnxfuseError if the package was not built.
    """
    # An editable install reads the .py files from the checkout but keeps what CMake built in site-packages; the
    # package's search path has both.
    spec = importlib.util.find_spec("onnxfuse")
    folders = [] if spec is None else spec.submodule_search_locations or []
    for folder in folders:
        path = Path(folder) / _LIBRARY
        if path.is_file():
            return str(path.resolve())
    raise OnnxfuseError(
        f"{_LIBRARY.name} is not in the installed package: run 'pip install .' in the checkout of onnxfuse"
    )


def load_onnxruntime() -> Any:
    """The ``onnxruntime`` module.  Raises OnnxfuseError, naming the extra to install, where none works."""
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise OnnxfuseError(f"ONNX Runtime cannot be imported: {error}") from error
        raise OnnxfuseError(
            "ONNX Runtime is not installed: take 'pip install onnxfuse[cpu]', or onnxfuse[cuda] for a CUDA GPU"
        ) from error
    except ImportError as error:
        raise OnnxfuseError(f"ONNX Runtime cannot be imported: {error}") from error
    if not hasattr(onnxruntime, "InferenceSession"):
        raise OnnxfuseError("ONNX Runtime is broken: its packages overwrote each other; keep one of them")
    return onnxruntime


def register(session_options: "onnxruntime.SessionOptions") -> None:
    """Make the onnxfuse operators known to sessions that are created with ``session_options``."""
    session_options.register_custom_ops_library(custom_ops_library())


def InferenceSession(  # noqa: N802 - the name that users of ONNX Runtime know
    path_or_bytes: str | bytes | Path,
    sess_options: "onnxruntime.SessionOptions | None" = None,
    providers: Sequence[str | tuple[str, dict[Any, Any]]] | None = None,
    **kwargs: Any,
) -> "onnxruntime.InferenceSession":
    """A plain ``onnxruntime.InferenceSession`` with the onnxfuse operators registered.

    The arguments are those of ``onnxruntime.InferenceSession``; ``sess_options`` gets the library registered, and
    ``providers`` defaults to what ONNX Runtime has available.  Raises OnnxfuseError if ONNX Runtime is not installed.
    """
    ort = load_onnxruntime()
    options = ort.SessionOptions() if sess_options is None else sess_options
    register(options)
    if providers is None:
        providers = ort.get_available_providers()
    model = str(path_or_bytes) if isinstance(path_or_bytes, Path) else path_or_bytes
    return ort.InferenceSession(model, sess_options=options, providers=providers, **kwargs)
