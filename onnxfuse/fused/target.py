"""What passes and planners ask about where a model will run: facts of ONNX Runtime there, and of the kernels there.

A pass never asks for a target's name.  To add a target, add a row here, what makes its kernels under its own folder,
and its object in ``onnxfuse.targets``.
"""

from collections.abc import Callable
from dataclasses import dataclass

from onnxfuse import cpu
from onnxfuse.fused.kinds import KINDS, Kind


@dataclass(frozen=True)
class Target:
    """The facts of one target.

    name: in requests and reports.
    kinds: the kinds of fused nodes that have kernels there.
    blocked_images: ONNX Runtime has images in blocks of channels between its convolutions, and reorders them where a
    node beside these knows the plain layout alone.  What counts is the machine where the model is optimized; the file
    runs on others too, but was planned for this one.
    activations_in_conv: ONNX Runtime computes an activation inside the convolution before it.
    halves_in_float: whether ONNX Runtime computes products and convolutions of float16 in float32.
    bias_apart: ONNX Runtime adds the bias of a convolution in a kernel of its own.
    nhwc_option: the provider has the option ``prefer_nhwc``.
    host_apart: nodes without a kernel there run on the host, between copies.
    reads_views: fused nodes of elementwise operators read parts of tensors where they lie.
    reads_immediates: scalars of the programs of a convolution are in their text, and no inputs.
    keeps_softmax: Softmax is left to ONNX Runtime, for at some sizes what it computes in kernels of their own is faster
    than one fused node: with a mask, 8x197x197 takes 0.8 of the time on an EPYC with AVX2, and 8x12x256x256 1.2 to 1.5.
    library_costs: what it costs to load the library shows beside a small model.
    """

    name: str
    kinds: frozenset[Kind]
    blocked_images: Callable[[], bool]
    activations_in_conv: bool
    halves_in_float: Callable[[], bool]
    bias_apart: bool
    nhwc_option: bool
    host_apart: bool
    reads_views: bool
    reads_immediates: bool
    keeps_softmax: bool
    library_costs: bool


CPU = Target(
    "cpu",
    kinds=frozenset(kind for kind in KINDS if "cpu" in kind.targets),
    blocked_images=lambda: cpu.has_blocked_images(),
    activations_in_conv=True,
    halves_in_float=lambda: not cpu.has_float16(),
    bias_apart=False,
    nhwc_option=False,
    host_apart=False,
    reads_views=True,
    reads_immediates=False,
    keeps_softmax=True,
    library_costs=True,
)
CUDA = Target(
    "cuda",
    kinds=frozenset(kind for kind in KINDS if "cuda" in kind.targets),
    blocked_images=lambda: False,
    activations_in_conv=False,
    halves_in_float=lambda: False,
    bias_apart=True,
    nhwc_option=True,
    host_apart=True,
    reads_views=False,
    reads_immediates=True,
    keeps_softmax=False,
    library_costs=False,
)
TARGETS = {target.name: target for target in (CPU, CUDA)}
