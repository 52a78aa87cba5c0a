"""Models as Hugging Face's transformers defines them, in its default implementation of attention, and torch.export has
them: the structure of the published ones, small widths.
"""

from pathlib import Path
from typing import Any

import torch
import transformers
from common_torch import export
from torch import Tensor, nn

WORDS = 512
_SMALL = {
    "hidden_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 192,
    "vocab_size": WORDS,
}
_IMAGES = {key: value for key, value in _SMALL.items() if key != "vocab_size"}
_SPEECH = {
    **{"d_model": 96, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": WORDS, "use_cache": False},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 192, "decoder_ffn_dim": 192},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
}
_TOKENS = {0: "batch", 1: "length"}


class _Single(nn.Module):
    """A model with its inputs in order and one output, by its name."""

    def __init__(self, model: nn.Module, inputs: list[str], output: str) -> None:
        super().__init__()
        self.model = model
        self.inputs = inputs
        self.output = output

    def forward(self, first: Tensor, second: Tensor | None = None, third: Tensor | None = None) -> Any:
        values = (first, second, third)
        return getattr(self.model(**dict(zip(self.inputs, values, strict=False))), self.output)


def _write(path: Path, model: nn.Module, inputs: dict[str, Tensor], output: str, dynamic: Any) -> None:
    export(path, _Single(model, list(inputs), output), inputs, [output], dynamic, opset=20, dynamo=True)


def _text(length: int = 12) -> dict[str, Tensor]:
    ids = torch.randint(3, WORDS, (2, length))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def bert(path: Path) -> None:
    """BertModel."""
    model = transformers.BertModel(transformers.BertConfig(**_SMALL))
    _write(path, model, _text(), "last_hidden_state", dict.fromkeys(_text(), _TOKENS))


def gpt2(path: Path) -> None:
    """GPT2LMHeadModel."""
    config = transformers.GPT2Config(n_embd=96, n_layer=3, n_head=4, vocab_size=WORDS, use_cache=False)
    _write(path, transformers.GPT2LMHeadModel(config), _text(), "logits", dict.fromkeys(_text(), _TOKENS))


def llama(path: Path) -> None:
    """LlamaForCausalLM, with grouped heads."""
    config = transformers.LlamaConfig(**_SMALL, num_key_value_heads=2, use_cache=False)
    _write(path, transformers.LlamaForCausalLM(config), _text(), "logits", dict.fromkeys(_text(), _TOKENS))


def qwen3(path: Path) -> None:
    """Qwen3ForCausalLM, which normalizes queries and keys."""
    config = transformers.Qwen3Config(**_SMALL, num_key_value_heads=2, head_dim=24, use_cache=False)
    _write(path, transformers.Qwen3ForCausalLM(config), _text(), "logits", dict.fromkeys(_text(), _TOKENS))


def bart(path: Path) -> None:
    """BartModel, encoder and decoder."""
    inputs = {**_text(), "decoder_input_ids": torch.randint(3, WORDS, (2, 5))}
    dynamic = {**dict.fromkeys(_text(), _TOKENS), "decoder_input_ids": {0: "batch", 1: "decoded"}}
    _write(path, transformers.BartModel(transformers.BartConfig(**_SPEECH)), inputs, "last_hidden_state", dynamic)


def whisper(path: Path) -> None:
    """WhisperModel, encoder and decoder; spectra of 100 frames."""
    config = transformers.WhisperConfig(**_SPEECH, num_mel_bins=40, max_source_positions=50)
    inputs = {"input_features": torch.randn(2, 40, 100), "decoder_input_ids": torch.randint(3, WORDS, (2, 5))}
    dynamic = {"input_features": {0: "batch"}, "decoder_input_ids": {0: "batch", 1: "decoded"}}
    _write(path, transformers.WhisperModel(config), inputs, "last_hidden_state", dynamic)


def vit(path: Path) -> None:
    """ViTModel for images of 96 by 96."""
    config = transformers.ViTConfig(**_IMAGES, image_size=96, patch_size=16)
    inputs = {"pixel_values": torch.randn(2, 3, 96, 96)}
    _write(path, transformers.ViTModel(config), inputs, "last_hidden_state", {"pixel_values": {0: "batch"}})
