"""Export models of transformers: inputs by name, one output or logits and a cache."""

from pathlib import Path
from typing import Any

import transformers
from common_torch import export
from torch import Tensor, nn


class Single(nn.Module):
    """A model with its inputs in order and one output, by its name."""

    def __init__(self, model: nn.Module, inputs: list[str], output: str) -> None:
        super().__init__()
        self.model = model
        self.inputs = inputs
        self.output = output

    def forward(self, first: Tensor, second: Tensor | None = None, third: Tensor | None = None) -> Any:
        """The output."""
        values = (first, second, third)
        return getattr(self.model(**dict(zip(self.inputs, values, strict=False))), self.output)


class Cached(nn.Module):
    """A decoder that gives logits and its cache, whose tensors are the inputs after ids and mask: keys and values of
    each layer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        """Logits and the longer cache."""
        cache = transformers.DynamicCache()
        for layer, (keys, values) in enumerate(zip(past[::2], past[1::2], strict=True)):
            cache.update(keys, values, layer)
        result = self.model(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True)
        present = [part for layer in cache.layers for part in (layer.keys, layer.values)]
        return result.logits, *present


def cached(prefix: str, layers: int) -> list[str]:
    """The names of keys and values of each layer."""
    return [f"{prefix}.{layer}.{part}" for layer in range(layers) for part in ("key", "value")]


def write(path: Path, model: nn.Module, inputs: dict[str, Tensor], output: str, dynamic: Any) -> None:
    """Export a model's one output by way of torch.export."""
    export(path, Single(model, list(inputs), output), inputs, [output], dynamic, opset=20, dynamo=True)


def write_script(path: Path, model: nn.Module, inputs: dict[str, Tensor], output: str, dynamic: Any) -> None:
    """The same by way of TorchScript, for models that torch.export gives fixed sizes."""
    export(path, Single(model, list(inputs), output), inputs, [output], dynamic, opset=17)
