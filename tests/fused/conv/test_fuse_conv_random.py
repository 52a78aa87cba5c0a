"""Random convolutional networks with all convolutions fused: the same results, and shapes that the kernels take."""

from random import Random

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.cuda.conv.choice import RuleChooser
from onnxfuse.cuda.conv.fitting import render_case, tilings_of
from onnxfuse.cuda.conv.node import FusedConv, fused_convolutions
from onnxfuse.fused.choices import ConvPolicy
from onnxfuse.fused.conv.choosers import CudaChooser
from onnxfuse.fused.conv.fuse_conv import FuseConv
from onnxfuse.fused.elementwise.fuse_elementwise import FuseElementwise
from onnxfuse.passes import PassContext
from onnxfuse.shapes.inference import infer
from tests.support import fusing
from tools.fuzz.networks import RandomNetwork, random_network


def _with_open_sizes(network: RandomNetwork) -> onnx.ModelProto:
    """The model with names for the batch and the spatial sizes."""
    model = onnx.ModelProto()
    model.CopyFrom(network.model)
    del model.graph.value_info[:]
    for axis, name in ((0, "n"), (2, "h"), (3, "w")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
        for output in model.graph.output:
            output.type.tensor_type.shape.dim[axis].dim_param = f"{output.name}_{axis}"
    return model


def _check_kernels(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> int:
    """Hold the shapes that reach each fused convolution in a run against its kernels; how many there were."""
    loaded = onnxfuse.Model.from_proto(model)
    infer(loaded)
    nodes = list(fused_convolutions(loaded))
    tapped = onnx.ModelProto()
    tapped.CopyFrom(model)
    del tapped.graph.output[:]
    constants = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    names = {tensor.name for fused in nodes for tensor in (*fused.node.inputs, *fused.node.outputs)}
    names -= constants.keys() | feeds.keys()
    for name in sorted(names):
        tapped.graph.output.add().name = name
    shapes = constants | {name: value.shape for name, value in feeds.items()}
    if names:
        results = fusing.run(tapped, feeds, library=False)
        shapes |= {output.name: value.shape for output, value in zip(tapped.graph.output, results, strict=True)}
    for fused in nodes:
        _check_shapes(fused, shapes)
    return len(nodes)


def _check_shapes(fused: FusedConv, shapes: dict[str, tuple[int, ...]]) -> None:
    case, (data, weights, *operands) = fused.case, fused.node.inputs
    real = [shapes[tensor.name] for tensor in operands]
    assert shapes[weights.name] == case.conv.weight_shape
    wanted = case.conv.output_shape(shapes[data.name])
    assert {shapes[tensor.name] for tensor in fused.node.outputs} == {wanted}
    before, after = case.operand_shapes(shapes[data.name])
    for shape, expected in zip(real, before + after, strict=True):
        assert tuple(dim for dim in shape if dim != 1) == tuple(dim for dim in expected if dim != 1)
    render_case(case, next(iter(tilings_of(case)), ()))  # raises for what it cannot render


@pytest.mark.parametrize("seeds", [range(1, 41), range(41, 81)], ids=str)
def test_networks(seeds: range) -> None:
    fused = 0
    for seed in seeds:
        network = random_network(Random(seed))
        for model in (network.model, _with_open_sizes(network)):
            loaded = onnxfuse.Model.from_proto(model)
            infer(loaded)
            context = PassContext(target="cuda", convolutions=CudaChooser(RuleChooser(ConvPolicy.ALL)))
            FuseConv().run(loaded, context)
            only_convolutions = loaded.to_proto()
            FuseElementwise().run(loaded, context)
            onnx.checker.check_model(loaded.to_proto(), full_check=True)
            expected = fusing.run(network.model, network.feeds, library=False)
            for actual, wanted in zip(
                fusing.run(only_convolutions, network.feeds, library=False), expected, strict=True
            ):
                assert fusing.same_bits(actual, wanted), f"seed {seed}"
            for actual, wanted in zip(
                fusing.run(only_convolutions, network.feeds, library=True), expected, strict=True
            ):
                fusing.assert_close(actual, wanted)
            fused += _check_kernels(only_convolutions, network.feeds)
    assert fused > 100
