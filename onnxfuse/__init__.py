"""onnxfuse: fuse nodes of ONNX models that belong together into single ones, with kernels that ONNX Runtime runs.

    import onnxfuse

    result = onnxfuse.optimize("model.onnx", output="fused.onnx")
    session = onnxfuse.InferenceSession("fused.onnx", providers=["CPUExecutionProvider"])

Every public name is imported when it is first used, so ``import onnxfuse`` itself takes no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnxfuse.api import Result as Result
    from onnxfuse.api import optimize as optimize
    from onnxfuse.errors import OnnxfuseError as OnnxfuseError
    from onnxfuse.errors import ParityError as ParityError
    from onnxfuse.model.graph import Model as Model
    from onnxfuse.passes import Pass as Pass
    from onnxfuse.passes import RewriteRule as RewriteRule
    from onnxfuse.passes import register_pass as register_pass
    from onnxfuse.report.report import Report as Report
    from onnxfuse.run.executable import Executable as Executable
    from onnxfuse.run.library import custom_ops_library as custom_ops_library
    from onnxfuse.run.library import export_library as export_library
    from onnxfuse.run.runtime import InferenceSession as InferenceSession
    from onnxfuse.run.runtime import register as register
    from onnxfuse.unfusing import unfuse as unfuse

__version__ = "0.1.0"

_HOMES = {
    "optimize": ".api",
    "Result": ".api",
    "OnnxfuseError": ".errors",
    "ParityError": ".errors",
    "Executable": ".run.executable",
    "Model": ".model.graph",
    "Pass": ".passes",
    "RewriteRule": ".passes",
    "register_pass": ".passes",
    "Report": ".report.report",
    "InferenceSession": ".run.runtime",
    "custom_ops_library": ".run.library",
    "export_library": ".run.library",
    "register": ".run.runtime",
    "unfuse": ".unfusing",
}

__all__ = [
    "Executable",
    "InferenceSession",
    "Model",
    "OnnxfuseError",
    "ParityError",
    "Pass",
    "Report",
    "Result",
    "RewriteRule",
    "__version__",
    "custom_ops_library",
    "export_library",
    "optimize",
    "register",
    "register_pass",
    "unfuse",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
