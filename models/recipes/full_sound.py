"""Networks on sound at the size that is deployed: published configurations, made-up weights."""

from pathlib import Path

import torch
import transformers
from common_torch import export
from common_transformers import cached, write, write_script
from torch import Tensor, nn

_WHISPER = {
    **{"d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 8},
    **{"decoder_attention_heads": 8, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048},
}
_PAST = 63


def whisper_base_encoder(path: Path) -> None:
    """The encoder of Whisper-base, 30 seconds."""
    model = transformers.WhisperModel(transformers.WhisperConfig(**_WHISPER)).encoder
    write(path, model, {"input_features": torch.randn(1, 80, 3000)}, "last_hidden_state", {})


class _Step(nn.Module):
    """One more word: the decoder's keys and values of the words before it and of the sound come in."""

    def __init__(self, model: transformers.WhisperForConditionalGeneration) -> None:
        super().__init__()
        self.model = model
        self.layers = len(model.model.decoder.layers)

    def forward(self, ids: Tensor, position: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        own, cross = transformers.DynamicCache(), transformers.DynamicCache()
        for values, cache in ((past[: 2 * self.layers], own), (past[2 * self.layers :], cross)):
            for layer in range(self.layers):
                cache.update(*values[2 * layer : 2 * layer + 2], layer)
        both = transformers.EncoderDecoderCache(own, cross)
        sound = torch.zeros(1, 1500, self.model.config.d_model)  # not looked at: its keys and values are there
        hidden = self.model.model.decoder(
            input_ids=ids, encoder_hidden_states=sound, past_key_values=both, position_ids=position
        ).last_hidden_state
        present = [part for layer in own.layers for part in (layer.keys, layer.values)]
        return self.model.proj_out(hidden), *present


def whisper_base_decoder(path: Path) -> None:
    """A step of the decoder of Whisper-base."""
    model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**_WHISPER))
    inputs = {"input_ids": torch.randint(3, 50000, (1, 1)), "position_ids": torch.tensor([[_PAST]])}
    own, cross = cached("past.decoder", 6), cached("past.encoder", 6)
    inputs |= {name: torch.randn(1, 8, _PAST, 64) for name in own}
    inputs |= {name: torch.randn(1, 8, 1500, 64) for name in cross}
    outputs = ["logits", *cached("present", 6)]
    dynamic = {name: {2: "past"} for name in own} | {name: {2: "all"} for name in outputs[1:]}
    export(path, _Step(model), inputs, outputs, dynamic, opset=17)


def wav2vec2_base(path: Path) -> None:
    """Wav2Vec2-base, two seconds, by way of TorchScript."""
    model = transformers.Wav2Vec2Model(transformers.Wav2Vec2Config())
    write_script(path, model, {"input_values": torch.randn(1, 32000)}, "last_hidden_state", {})


def conformer_encoder(path: Path) -> None:
    """Twelve layers of a Conformer of 512 channels, relative positions, eight seconds of a spectrogram."""
    config = transformers.ParakeetEncoderConfig(hidden_size=512, num_hidden_layers=12, num_attention_heads=8)
    config._attn_implementation = "eager"  # torch.export does not decompose the default one
    model = transformers.ParakeetEncoder(config)
    write(path, model, {"input_features": torch.randn(1, 800, 80)}, "last_hidden_state", {})
