"""ONNX Runtime with the onnxfuse operators: where their library is, and sessions that know them."""

import importlib.util
import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from onnxfuse.errors import OnnxfuseError
from onnxfuse.run.library import custom_ops_library
from onnxfuse.run.model_operators import OF_FLOATS, PLAIN, names_of, operators

if TYPE_CHECKING:
    import onnxruntime

CUDA_PROVIDER = "CUDAExecutionProvider"
TENSORRT_PROVIDER = "TensorrtExecutionProvider"
"""In every ONNX Runtime for GPUs, but it needs libraries that do not come with it, and takes nodes from CUDA."""
EXTERNAL_DATA_FOLDER = "session.model_external_initializers_file_folder_path"
"""Session option: where the external data of a model lies that is given as bytes."""
OPERATORS = "onnxfuse.operators"
"""Session option: the list of the operators that the library is to register; some of each kind by default."""

_registered: "WeakKeyDictionary[onnxruntime.SessionOptions, str]" = WeakKeyDictionary()
"""The options that have the library, which ONNX Runtime refuses twice, and the list of what is registered.

An entry in the options themselves would have to be read, and ONNX Runtime throws where there is none: that is slow, and
loads half a megabyte of its tables for exceptions.
"""


def load_onnxruntime() -> Any:
    """The ``onnxruntime`` module.  Raises OnnxfuseError, naming the package to install, where none works."""
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise OnnxfuseError(f"ONNX Runtime cannot be imported: {error}") from error
        raise OnnxfuseError(
            "ONNX Runtime is not installed: take 'pip install onnxruntime', or onnxruntime-gpu[cuda,cudnn] for a GPU"
        ) from error
    except ImportError as error:
        raise OnnxfuseError(f"ONNX Runtime cannot be imported: {error}") from error
    if not hasattr(onnxruntime, "InferenceSession"):
        raise OnnxfuseError("ONNX Runtime is broken: its packages overwrote each other; keep one of them")
    if _silent:
        onnxruntime.set_default_logger_severity(_FATAL)
    return onnxruntime


_silent = False
_FATAL = 4


def silence_onnxruntime() -> None:
    """From now on ONNX Runtime's default logger, which all of a process share, writes nothing short of the fatal.

    This is for the command line, whose errors are one line: what ONNX Runtime writes is in an exception too.  Its
    telemetry, which warns of a folder that it cannot write before any logger is asked, is off unless the user wants it.
    It does not load ONNX Runtime.
    """
    global _silent
    _silent = True
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def why_no_cuda() -> str:
    """Why ONNX Runtime cannot run models on a GPU of this machine; empty if it can."""
    from onnxfuse.cuda.arch import devices

    if not devices():
        return "there is no CUDA GPU here"
    if CUDA_PROVIDER not in load_onnxruntime().get_available_providers():
        return "ONNX Runtime has no CUDA provider here: take 'pip install onnxruntime-gpu[cuda,cudnn]'"
    return ""


def register(session_options: "onnxruntime.SessionOptions", model: str | bytes | Path | None = None) -> None:
    """Make the onnxfuse operators known to sessions that are created with ``session_options``.

    With ``model``, a path or the bytes of a file, the operators that it has, and no others: each takes ONNX Runtime
    some 35 us and 10 kB whenever it creates a session.  Without, more of each kind than most models have; what is
    beyond them runs as the original nodes.  Options that have been registered stay as they are; a warning says which
    operators of the model they lack.
    """
    _register(session_options, model, _names)


def register_for_one(session_options: "onnxruntime.SessionOptions", model: str | bytes) -> None:
    """The same for options that serve no other model: operators that take nothing but float32 in this one are
    registered for that type alone, which takes ONNX Runtime a third of the time."""
    _register(session_options, model, str)


def _register_for_all(session_options: "onnxruntime.SessionOptions", model: str | bytes) -> None:
    """The same for options that may serve other models too: what is registered without one, and what this one has."""
    _register(session_options, model, lambda listed: f"{PLAIN},{_names(listed)}")


def _names(listed: str) -> str:
    """A list without types."""
    return listed.replace(OF_FLOATS, "")


def _register(
    session_options: "onnxruntime.SessionOptions", model: str | bytes | Path | None, wanted: Callable[[str], str]
) -> None:
    """``wanted`` makes the list to register of that of the model."""
    library = custom_ops_library()
    listed = None if model is None else operators(model, library)
    if session_options in _registered:
        _warn_of_missing(_registered[session_options], listed or "")
        return
    entry = wanted(listed) if listed else ""
    if entry:
        session_options.add_session_config_entry(OPERATORS, entry)
    session_options.register_custom_ops_library(library)
    _registered[session_options] = entry or PLAIN


def _warn_of_missing(registered: str, listed: str) -> None:
    """Say which of the operators in a list are not among those that are registered."""
    if not listed or _names(listed) == registered:
        return
    if missing := names_of(listed) - names_of(registered):
        warnings.warn(
            f"onnxfuse: the session options were registered for a model without {', '.join(sorted(missing))}, which "
            "run slowly with them: give each model options of its own, or name it where they are registered first",
            stacklevel=4,
        )


def _entry(options: "onnxruntime.SessionOptions", key: str) -> str | None:
    try:
        return options.get_session_config_entry(key)
    except RuntimeError:  # there is no such entry
        return None


def InferenceSession(  # noqa: N802 - the name that users of ONNX Runtime know
    path_or_bytes: str | bytes | Path,
    sess_options: "onnxruntime.SessionOptions | None" = None,
    providers: Sequence[str | tuple[str, dict[Any, Any]]] | None = None,
    **kwargs: Any,
) -> "onnxruntime.InferenceSession":
    """A plain ``onnxruntime.InferenceSession`` with the onnxfuse operators registered.

    The arguments are those of ``onnxruntime.InferenceSession``; ``sess_options`` get the operators registered, once,
    and serve any number of sessions, of this model and others.  ``providers`` defaults to what ONNX Runtime has
    available, without TensorRT, and without CUDA where there is no GPU.  With the CUDA provider among them, kernels
    that the model does not carry for the GPUs of this machine are compiled, in memory; a warning says if they cannot
    be.  Raises OnnxfuseError if ONNX Runtime is not installed.
    """
    ort = load_onnxruntime()
    model = str(path_or_bytes) if isinstance(path_or_bytes, Path) else path_or_bytes
    if providers is None:
        left_out = {TENSORRT_PROVIDER, CUDA_PROVIDER} if why_no_cuda() else {TENSORRT_PROVIDER}
        providers = [name for name in ort.get_available_providers() if name not in left_out]
    cuda = any(CUDA_PROVIDER in (provider, provider[0]) for provider in providers)
    options = ort.SessionOptions() if sess_options is None else sess_options
    if sess_options is None:
        register_for_one(options, model)
    else:
        _register_for_all(options, model)
    if cuda:
        load_cuda_libraries()
        model, wanted = with_kernels(model, options)
        given: Sequence[dict[Any, Any]] | None = kwargs.get("provider_options")
        if wanted and given is None:
            providers = [_with_options(provider, wanted) for provider in providers]
        elif wanted and given is not None and len(given) == len(providers):  # else ONNX Runtime says what is wrong
            named = zip(providers, given, strict=True)
            kwargs["provider_options"] = [_with_options((str(name), own), wanted)[1] for name, own in named]
    return ort.InferenceSession(model, sess_options=options, providers=providers, **kwargs)


def _with_options(provider: str | tuple[str, dict[Any, Any]], wanted: dict[str, str]) -> tuple[str, dict[Any, Any]]:
    """A provider with its options, and those ``wanted`` if it is CUDA's and they say nothing of it."""
    name, own = (provider, {}) if isinstance(provider, str) else provider
    return name, {**(wanted if name == CUDA_PROVIDER else {}), **(own or {})}


def with_kernels(model: str | bytes, options: "onnxruntime.SessionOptions") -> tuple[str | bytes, dict[str, str]]:
    """For a session on the CUDA provider: the model, with code for the GPUs of this machine added if it lacks any, and
    the options of that provider that it is written for.

    ``options`` learn where the external data of a model lies that becomes bytes.  Where something is to be compiled and
    cannot be, a warning says why, and those nodes run on the CPU.
    """
    from onnxfuse.cuda.arch import devices
    from onnxfuse.cuda.complete import complete, provider_options, read

    architectures = devices()
    if not architectures:
        return model, {}
    folder = _entry(options, EXTERNAL_DATA_FOLDER)
    proto, path = read(model, None if folder is None else Path(folder))
    wanted = provider_options(proto)
    try:
        completed = complete(proto, path, architectures)
    except OnnxfuseError as error:
        warnings.warn(f"onnxfuse: kernels of the model are not compiled for this GPU: {error}", stacklevel=3)
        return model, wanted
    if completed is None:
        return model, wanted
    if isinstance(model, str):
        options.add_session_config_entry(EXTERNAL_DATA_FOLDER, str(Path(model).resolve().parent))
    return completed, wanted


def load_cuda_libraries() -> None:
    """Load the CUDA libraries of Python packages, where ONNX Runtime needs them.

    ONNX Runtime looks for the packages beside itself; they may be in another folder that Python imports from.
    """
    ort = load_onnxruntime()
    if not hasattr(ort, "preload_dlls") or why_no_cuda():
        return
    beside = Path(ort.__file__).resolve().parent.parent
    found = importlib.util.find_spec("nvidia")  # a namespace: each folder that has some of the packages
    folders = [Path(folder) for folder in (found.submodule_search_locations or [] if found else [])]
    elsewhere = [lib for folder in folders if folder.resolve().parent != beside for lib in sorted(folder.glob("*/lib"))]
    with redirect_stdout(StringIO()):  # it says there what it does not find
        for folder in elsewhere:
            ort.preload_dlls(directory=str(folder))
        ort.preload_dlls()
