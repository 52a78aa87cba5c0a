"""Compiling, when a session is created, what a model does not carry for the GPUs of this machine."""

import re
from pathlib import Path

import onnx

from onnxfuse.cuda.arch import devices, number
from onnxfuse.cuda.embed import PTX, RECIPE, architecture_of, embed, is_cuda
from onnxfuse.cuda.fitting import Fitter
from onnxfuse.cuda.options import CudaOptions
from onnxfuse.cuda.tuned import TunedKernels
from onnxfuse.errors import OnnxfuseError
from onnxfuse.graph import Model
from onnxfuse.graph_export import onnx_graphs
from onnxfuse.inference import infer
from onnxfuse.planner.fused_node import FAST_MATH_KEY
from onnxfuse.program import Program
from onnxfuse.program.ops import FUSED_CONV_OPS, FUSED_OPS
from onnxfuse.runtime import DOMAIN

_TARGET = re.compile(rb"^\.target (sm_[0-9]+)", re.MULTILINE)


def complete(
    path_or_bytes: str | bytes, architectures: tuple[str, ...] | None = None, folder: Path | None = None
) -> bytes | None:
    """The model with machine code for ``architectures``, by default those of this machine's GPUs.

    None if it needs none: it has no fused nodes, all of them carry code that runs, or there is no GPU.  External data
    stays where it is: beside the file, or for a model given as bytes in ``folder``.  Raises OnnxfuseError if there is
    no compiler, or the model is too large for memory.
    """
    wanted = devices() if architectures is None else architectures
    if not wanted:
        return None
    if isinstance(path_or_bytes, bytes):
        proto, path = onnx.load_model_from_string(path_or_bytes), None if folder is None else folder / "model.onnx"
    else:
        proto, path = onnx.load(path_or_bytes, load_external_data=False), Path(path_or_bytes)
    nodes = [node for graph in onnx_graphs(proto.graph) for node in graph.node]
    fused = [node for node in nodes if node.domain == DOMAIN and node.op_type in (*FUSED_OPS, *FUSED_CONV_OPS)]
    if all(_has_code(node, name) for node in fused if not _reads_views(node) for name in wanted):
        return None
    model = Model.from_proto(proto, path)
    infer(model)
    options = CudaOptions(wanted)
    fast_math = any(entry.key == FAST_MATH_KEY for node in fused for entry in node.metadata_props)
    embed(model, Fitter(options.compiler, wanted, fast_math, TunedKernels(wanted)), options)
    try:
        return model.to_proto().SerializeToString()
    except (ValueError, onnx.onnx_cpp2py_export.checker.ValidationError) as error:
        raise OnnxfuseError(
            "the model is too large to compile its kernels in memory: embed them with 'onnxfuse optimize --target cuda'"
        ) from error


def _reads_views(node: onnx.NodeProto) -> bool:
    """Whether a node reads parts of tensors, for which there are no kernels: it runs on the CPU."""
    program = next((attribute.s for attribute in node.attribute if attribute.name == "program"), b"")
    return node.op_type in FUSED_OPS and Program.parse(program.decode(errors="replace")).reads_views


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
