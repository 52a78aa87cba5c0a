"""Export torch modules, with weights that do not depend on torch's random numbers."""

import copy
from pathlib import Path

import onnx
import torch
from common_weights import draw
from torch import nn

# The inputs that normalizations are calibrated on are drawn after this import: the same in every process.
torch.manual_seed(0)

Sizes = dict[str, dict[int, str]]
"""Input name to the names of its dynamic dimensions."""

_PLAIN = (nn.BatchNorm2d, nn.BatchNorm1d, nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm2d)


def initialize(module: nn.Module) -> nn.Module:
    """Give every parameter its weights, by its name."""
    with torch.no_grad():
        for prefix, part in module.named_modules():
            for name, parameter in part.named_parameters(prefix=prefix, recurse=False):
                shape = tuple(parameter.shape)
                fan_in = 0
                if parameter.dim() >= 2 and not isinstance(part, _PLAIN):
                    fan_in = shape[-1] if isinstance(part, nn.Embedding) else parameter[0].numel()
                parameter.copy_(torch.from_numpy(draw(name, shape, fan_in)))
    return module


def calibrate(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> nn.Module:
    """Give the batch normalizations the statistics of their own inputs, as training would.

    They are those of ``inputs``, or of ``calibrated_on``, a tuple of inputs, where a part of the module has that.
    """
    inputs = next((part.calibrated_on for part in module.modules() if hasattr(part, "calibrated_on")), inputs)
    norms = [part for part in module.modules() if isinstance(part, nn.BatchNorm2d | nn.BatchNorm1d)]
    for norm in norms:
        norm.momentum = 1.0
    module.train()
    with torch.no_grad():
        for _ in range(2 if norms else 0):
            module(*inputs)
    return module.eval()


def export(
    path: Path,
    module: nn.Module,
    inputs: dict[str, torch.Tensor],
    outputs: list[str],
    dynamic: Sizes,
    *,
    opset: int = 18,
    dynamo: bool = False,
) -> None:
    """Write a module's graph in inference mode, from the exporter on TorchScript or the one on torch.export."""
    torch.manual_seed(0)
    values = tuple(inputs.values())
    module = calibrate(initialize(copy.deepcopy(module)), values)
    if dynamo:
        dims = {name: torch.export.Dim(name) for axes in dynamic.values() for name in axes.values()}
        shapes = tuple({axis: dims[name] for axis, name in dynamic.get(key, {}).items()} for key in inputs)
        torch.onnx.export(
            module,
            values,
            path,
            input_names=list(inputs),
            output_names=outputs,
            dynamic_shapes=shapes,
            opset_version=opset,
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    else:
        torch.onnx.export(
            module,
            values,
            path,
            input_names=list(inputs),
            output_names=outputs,
            dynamic_axes=dynamic,
            opset_version=opset,
            dynamo=False,
        )
    model = onnx.load(path)
    _forget_origin(model.graph)
    for function in model.functions:
        del function.metadata_props[:]
        for node in function.node:
            del node.metadata_props[:]
    onnx.save(model, path)
    onnx.checker.check_model(str(path))


def _forget_origin(graph: onnx.GraphProto) -> None:
    """Drop the stack traces, which name files of the machine that exported the model."""
    del graph.metadata_props[:]
    for node in graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _forget_origin(attribute.g)
