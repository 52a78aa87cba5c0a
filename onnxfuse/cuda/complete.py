"""Compiling, when a session is created, what a model does not carry for the GPUs of this machine."""

import re
from pathlib import Path

import onnx

from onnxfuse.cuda.arch import number
from onnxfuse.cuda.elementwise.fitting import Fitter
from onnxfuse.cuda.embed import PTX, RECIPE, architecture_of, embed, is_cuda, is_elementwise, is_reducing
from onnxfuse.cuda.options import CudaOptions
from onnxfuse.cuda.tuned import TunedKernels
from onnxfuse.errors import OnnxfuseError
from onnxfuse.fused.kinds import DOMAIN, ELEMENTWISE, FAST_MATH_KEY, PREFERS_NHWC, REDUCTION, kind_of
from onnxfuse.fused.target import CUDA
from onnxfuse.model.graph import Model
from onnxfuse.model.protos import onnx_graphs
from onnxfuse.program import Program
from onnxfuse.shapes.inference import infer

_TARGET = re.compile(rb"^\.target (sm_[0-9]+)", re.MULTILINE)


def read(model: str | bytes, folder: Path | None = None) -> tuple[onnx.ModelProto, Path | None]:
    """A model without its external data, and the path that this is relative to: that of the file, or for a model given
    as bytes one in ``folder``."""
    if isinstance(model, bytes):
        return onnx.load_model_from_string(model), None if folder is None else folder / "model.onnx"
    return onnx.load(model, load_external_data=False), Path(model)


def provider_options(model: onnx.ModelProto) -> dict[str, str]:
    """The options of the CUDA provider that a model is written for."""
    return {"prefer_nhwc": "1"} if any(entry.key == PREFERS_NHWC for entry in model.metadata_props) else {}


def complete(proto: onnx.ModelProto, path: Path | None, architectures: tuple[str, ...]) -> bytes | None:
    """The model with machine code for ``architectures``.

    None if it needs none: it has no fused nodes, or all of them carry code that runs.  External data stays where it is,
    beside ``path``.  Raises OnnxfuseError if there is no compiler, or the model is too large for memory.
    """
    nodes = [node for graph in onnx_graphs(proto.graph) for node in graph.node]
    fused = [node for node in nodes if node.domain == DOMAIN and kind_of(node.op_type) in CUDA.kinds]
    if all(_has_code(node, name) for node in fused if _can_have_code(node) for name in architectures):
        return None
    model = Model.from_proto(proto, path)
    infer(model)
    options = CudaOptions(architectures)
    fast_math = any(entry.key == FAST_MATH_KEY for node in fused for entry in node.metadata_props)
    embed(model, Fitter(options.compiler, architectures, fast_math, TunedKernels(architectures)), options)
    try:
        return model.to_proto().SerializeToString()
    except (ValueError, onnx.onnx_cpp2py_export.checker.ValidationError) as error:
        raise OnnxfuseError(
            "the model is too large to compile its kernels in memory: embed them with 'onnxfuse optimize --target cuda'"
        ) from error


def _can_have_code(node: onnx.NodeProto) -> bool:
    """Whether there are kernels for it; else, as where it reads parts of tensors, it runs on the CPU."""
    kind = kind_of(node.op_type)
    if kind is not ELEMENTWISE and kind is not REDUCTION:
        return True
    text = next((attribute.s for attribute in node.attribute if attribute.name == "program"), b"")
    program = Program.parse(text.decode(errors="replace"))
    return is_elementwise(program) if kind is ELEMENTWISE else is_reducing(program)


def _has_code(node: onnx.NodeProto, device: str) -> bool:
    """Whether a node carries code for ``device``: machine code runs on its own and later minor versions of a compute
    capability, PTX on all later ones."""
    found = {attribute.name: attribute.s for attribute in node.attribute if is_cuda(attribute.name)}
    if RECIPE not in found:
        return False
    names = [name for name in map(architecture_of, found) if name is not None]
    if any(number(name) // 10 == number(device) // 10 and number(name) <= number(device) for name in names):
        return True
    target = _TARGET.search(found.get(PTX, b""))
    return target is not None and number(target[1].decode()) <= number(device)
