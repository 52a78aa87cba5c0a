"""Machine code in the model: the attributes of fused nodes that the native library launches kernels from.

A fused node has ``cuda_recipe`` (see ``onnxfuse.cuda.recipe``), ``cuda_sm_90`` and the like with the machine code for
one architecture each, and ``cuda_ptx`` with PTX of the oldest of them, from which the driver compiles for GPUs to come.
Each node carries its own; equal code is loaded once.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_graphsurgeon as gs

from onnxfuse.cuda.arch import architecture, number
from onnxfuse.cuda.attention.case import fused_attentions
from onnxfuse.cuda.attention.fitting import AttentionFit
from onnxfuse.cuda.attention.kernel import AttentionKernel
from onnxfuse.cuda.compile.compiled import Compiled
from onnxfuse.cuda.conv.fitting import ConvFit
from onnxfuse.cuda.conv.kernel import ConvKernel
from onnxfuse.cuda.conv.node import fused_convolutions
from onnxfuse.cuda.elementwise.fitting import Fit, Fitter
from onnxfuse.cuda.kernel import Kernel
from onnxfuse.cuda.nest.fitting import NestFit
from onnxfuse.cuda.nest.kernel import NestKernel
from onnxfuse.cuda.options import CudaOptions
from onnxfuse.cuda.report import CudaReport, KernelReport, KernelUse
from onnxfuse.cuda.strided import Dim
from onnxfuse.fused.kinds import DOMAIN, ELEMENTWISE, REDUCTION, Kind
from onnxfuse.model.graph import Model
from onnxfuse.model.graph_ir import text_attribute
from onnxfuse.model.replacing import Replacement, writing
from onnxfuse.program import Program

AnyFit = Fit | ConvFit | NestFit | AttentionFit
AnyKernel = Kernel | ConvKernel | NestKernel | AttentionKernel
RECIPE = "cuda_recipe"
PTX = "cuda_ptx"
CODE = "cuda_"
"""Begins the name of an attribute with machine code; the architecture follows."""
_CODE = re.compile(r"cuda_sm_[1-9][0-9]{1,2}")


def is_elementwise(program: Program) -> bool:
    """Whether there are elementwise kernels for a Program: outputs are written in the order of what is computed."""
    steps = [step.name for steps in program.output_views for step in steps]
    return not (program.reductions or program.indices) and not {"slice", "permute"} & set(steps)


def is_reducing(program: Program) -> bool:
    """Whether there are kernels along rows and columns for a Program: it reduces, and its tensors are strided."""
    return bool(program.reductions) and not any(spec.swaps_halves for spec in program.inputs)


@dataclass(frozen=True)
class ProgramNode:
    """A fused node of a model that is one Program."""

    node: gs.Node
    program: Program

    @property
    def shapes(self) -> list[Sequence[Dim] | None]:
        """What is known of its inputs."""
        return [tensor.shape for tensor in self.node.inputs]


def elementwise_nodes(model: Model) -> Iterator[ProgramNode]:
    """The fused nodes of every graph of the model that elementwise kernels can be made for.

    Raises ProgramError for a Program that does not validate.
    """
    return _program_nodes(model, ELEMENTWISE, is_elementwise)


def reducing_nodes(model: Model) -> Iterator[ProgramNode]:
    """The same of those that reduce."""
    return _program_nodes(model, REDUCTION, is_reducing)


def _program_nodes(model: Model, kind: Kind, has_kernels: Callable[[Program], bool]) -> Iterator[ProgramNode]:
    for node in model.fused_nodes(kind):
        program = Program.parse(text_attribute(node, "program"))
        if has_kernels(program):
            yield ProgramNode(node, program)


def embed(model: Model, fitter: Fitter, options: CudaOptions) -> CudaReport:
    """Give every fused node of the model the recipe of its kernels and, unless ``options`` say no, their code.

    What a node had of both is replaced.  Raises CompileError, or OnnxfuseError if there is no compiler.
    """
    fitted = _fitted(model, fitter, options)
    sources = {fit.source.sha256: fit.source for _, fit in fitted}
    report = CudaReport(architectures=options.architectures, embedded=options.embed)
    code: dict[tuple[str, str], Compiled] = {}
    if options.embed and fitted:
        texts = [source.text for source in sources.values()]
        code = options.compiler.compile(texts, options.architectures, fitter.options)
        report.compiler = options.compiler.version
    for node, fit in fitted:
        attributes = _attributes(fit, options.architectures, code)
        _set(model, node, attributes)
        report.kernels[node.name] = _describe(fit, options.architectures, code, attributes)
    report.compiled, report.from_cache = options.compiler.compiled, options.compiler.found
    if options.keep_source is not None:
        _keep(options.keep_source, [(source.sha256, source.text) for source in sources.values()])
    return report


def _fitted(model: Model, fitter: Fitter, options: CudaOptions) -> list[tuple[gs.Node, AnyFit]]:
    """The fused nodes of a model, and what is to be compiled for each."""
    found: list[tuple[gs.Node, AnyFit]] = []
    found += [(own.node, fitter.fit(own.program, own.shapes)) for own in elementwise_nodes(model)]
    nest_fitter = options.nest_fitter(fitter)
    reducing = list(reducing_nodes(model))
    nest_fitter.prepare([(own.program, own.shapes) for own in reducing])
    found += [(own.node, nest_fitter.fit(own.program, own.shapes)) for own in reducing]
    conv_fitter = options.conv_fitter(fitter)
    found += [(fused.node, conv_fitter.fit(fused.case)) for fused in fused_convolutions(model)]
    attention_fitter = options.attention_fitter(fitter)
    found += [(fused.node, attention_fitter.fit(fused.case)) for fused in fused_attentions(model)]
    return found


def _attributes(
    fit: AnyFit, architectures: tuple[str, ...], code: dict[tuple[str, str], Compiled]
) -> dict[str, str | bytes]:
    attributes: dict[str, str | bytes] = {RECIPE: fit.recipe}
    digest = fit.source.sha256
    if code:
        attributes |= {CODE + name: code[digest, name].cubin for name in architectures}
        attributes[PTX] = code[digest, min(architectures, key=number)].ptx
    return attributes


def _set(model: Model, node: gs.Node, attributes: dict[str, str | bytes]) -> None:
    for name in [name for name in node.attrs if is_cuda(name)]:
        del node.attrs[name]
    node.attrs.update(attributes)
    function = model.functions.get((DOMAIN, node.op, getattr(node, "overload", "")))
    if function is not None:
        function.attribute.extend(name for name in attributes if name not in function.attribute)


def is_cuda(attribute: str) -> bool:
    """Whether an attribute of a fused node is one of those above."""
    return attribute in (RECIPE, PTX) or architecture_of(attribute) is not None


def architecture_of(attribute: str) -> str | None:
    """``sm_90`` for ``cuda_sm_90``; None for an attribute without machine code."""
    return attribute.removeprefix(CODE) if _CODE.fullmatch(attribute) else None


def _describe(
    fit: AnyFit,
    architectures: tuple[str, ...],
    code: dict[tuple[str, str], Compiled],
    attributes: dict[str, str | bytes],
) -> KernelReport:
    main = fit.source.kernels[0]
    function = main.functions[0] if isinstance(main, NestKernel) else main.name
    access = main.reads if isinstance(main, AttentionKernel) else str(main.access)
    parts: tuple[Kernel, ...] = ()
    if isinstance(fit, Fit) and fit.source.joint:
        function = fit.source.main
        parts = tuple(fit.source.kernels[member] for member in fit.source.joint[0].members)
        access = " ".join(str(part.access) for part in parts)
    uses = {}
    for name in architectures if code else ():
        resources = code[fit.source.sha256, name].resources
        found = resources.get(function)
        if found is not None:
            share = architecture(name).occupancy(found.registers, main.block, found.shared)
            others = max((other.spills for key, other in resources.items() if key != function), default=0)
            uses[name] = KernelUse(found.registers, found.spills, share, others)
    return KernelReport(
        source=fit.source.sha256,
        access=access,
        vector=main.vector,
        block=main.block,
        choice=fit.choice.value,
        kernels=len(fit.source.kernels) + (len(fit.source.joint) if isinstance(fit, Fit) else 0),
        code_bytes=sum(len(value) for name, value in attributes.items() if name != RECIPE),
        uses=uses,
        family="parts" if parts else _family(main),
        tile=str(len(parts)) if parts else _tile(main),
        moves=fit.traffic(main) if isinstance(fit, NestFit) and isinstance(main, NestKernel) else 1.0,
    )


def _family(kernel: AnyKernel) -> str:
    """How a kernel works, in a word."""
    match kernel:
        case Kernel():
            return "transpose" if kernel.access.transposes else "elementwise"
        case NestKernel():
            return kernel.along
        case AttentionKernel():
            return f"attention {kernel.family}"
        case ConvKernel():
            return kernel.family


def _tile(kernel: AnyKernel) -> str:
    """What a block computes, if it is not one group a thread; of rows how many threads share one, and how many groups
    each of them keeps; of attention how many rows of Q a block has, how many keys it takes at a time, of what size."""
    match kernel:
        case Kernel():
            sizes: tuple[int, ...] = (kernel.tile, kernel.tile) if kernel.tile else ()
        case NestKernel():
            sizes = (kernel.threads, kernel.items)
        case AttentionKernel():
            sizes = (kernel.rows, kernel.keys, kernel.size)
        case ConvKernel():
            sizes = kernel.tile
    return "x".join(map(str, sizes))


def _keep(folder: Path, sources: Iterable[tuple[str, str]]) -> None:
    """One file for each source, named by the hash that the recipes have.

    Raises OnnxfuseError, which names the one that cannot be written; what was there stays.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for digest, text in sources:
        with Replacement(folder / f"{digest[:16]}.cu") as file:
            file.write(text.encode())
