"""Models as Hugging Face's transformers defines them, in its default implementation of attention, and torch.export or
TorchScript has them: the structure of the published ones, small widths.
"""

from pathlib import Path

import torch
import transformers
from common_torch import export
from common_transformers import Cached, cached, write, write_script
from torch import Tensor

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
_LINES = [  # kernel, inputs, outputs, stride and squeeze-excitation of each block: a line of text keeps its width
    [[3, 16, 32, 1, False]],
    [[3, 32, 64, 1, False], [3, 64, 64, 1, False]],
    [[3, 64, 128, (2, 1), False], [3, 128, 128, 1, False]],
    [[3, 128, 256, (1, 2), False], *[[5, 256, 256, 1, False]] * 4],
    [[5, 256, 512, (2, 1), True], [5, 512, 512, 1, True], [5, 512, 512, (2, 1), False], [5, 512, 512, 1, False]],
]
_TOKENS = {0: "batch", 1: "length"}
_BATCH = {"pixel_values": {0: "batch"}}
_ANY_IMAGE = {"pixel_values": {0: "batch", 2: "height", 3: "width"}}


def _image(height: int, width: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, height, width)}


def _text(length: int = 12) -> dict[str, Tensor]:
    ids = torch.randint(3, WORDS, (2, length))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def bert(path: Path) -> None:
    """BertModel."""
    model = transformers.BertModel(transformers.BertConfig(**_SMALL))
    write(path, model, _text(), "last_hidden_state", dict.fromkeys(_text(), _TOKENS))


def gpt2(path: Path) -> None:
    """GPT2LMHeadModel."""
    config = transformers.GPT2Config(n_embd=96, n_layer=3, n_head=4, vocab_size=WORDS, use_cache=False)
    write(path, transformers.GPT2LMHeadModel(config), _text(), "logits", dict.fromkeys(_text(), _TOKENS))


def gpt_neo(path: Path) -> None:
    """GPTNeoForCausalLM, in whose scores a number takes the place of what is to come, as in GPT-2 for years."""
    config = transformers.GPTNeoConfig(
        **{"hidden_size": 96, "num_layers": 4, "num_heads": 4, "intermediate_size": 192, "vocab_size": WORDS},
        **{"attention_types": [[["global", "local"], 2]], "window_size": 16, "max_position_embeddings": 128},
        use_cache=False,
    )
    write_script(path, transformers.GPTNeoForCausalLM(config), _text(), "logits", dict.fromkeys(_text(), _TOKENS))


def flaubert(path: Path) -> None:
    """FlaubertModel, whose mask is expanded as the scores."""
    config = transformers.FlaubertConfig(emb_dim=96, n_layers=3, n_heads=4, vocab_size=WORDS, use_cache=False)
    model = transformers.FlaubertModel(config)
    write_script(path, model, _text(), "last_hidden_state", dict.fromkeys(_text(), _TOKENS))


def llama(path: Path) -> None:
    """LlamaForCausalLM, with grouped heads."""
    config = transformers.LlamaConfig(**_SMALL, num_key_value_heads=2, use_cache=False)
    write(path, transformers.LlamaForCausalLM(config), _text(), "logits", dict.fromkeys(_text(), _TOKENS))


def qwen3(path: Path) -> None:
    """Qwen3ForCausalLM, which normalizes queries and keys."""
    config = transformers.Qwen3Config(**_SMALL, num_key_value_heads=2, head_dim=24, use_cache=False)
    write(path, transformers.Qwen3ForCausalLM(config), _text(), "logits", dict.fromkeys(_text(), _TOKENS))


def bart(path: Path) -> None:
    """BartModel, encoder and decoder."""
    inputs = {**_text(), "decoder_input_ids": torch.randint(3, WORDS, (2, 5))}
    dynamic = {**dict.fromkeys(_text(), _TOKENS), "decoder_input_ids": {0: "batch", 1: "decoded"}}
    write(path, transformers.BartModel(transformers.BartConfig(**_SPEECH)), inputs, "last_hidden_state", dynamic)


def whisper(path: Path) -> None:
    """WhisperModel, encoder and decoder; spectra of 100 frames."""
    config = transformers.WhisperConfig(**_SPEECH, num_mel_bins=40, max_source_positions=50)
    inputs = {"input_features": torch.randn(2, 40, 100), "decoder_input_ids": torch.randint(3, WORDS, (2, 5))}
    dynamic = {"input_features": {0: "batch"}, "decoder_input_ids": {0: "batch", 1: "decoded"}}
    write(path, transformers.WhisperModel(config), inputs, "last_hidden_state", dynamic)


def mpnet(path: Path) -> None:
    """MPNetModel: biases of relative positions, which all layers share, beside the padding mask."""
    config = transformers.MPNetConfig(**_SMALL)
    write_script(path, transformers.MPNetModel(config), _text(), "last_hidden_state", dict.fromkeys(_text(), _TOKENS))


def wav2vec2(path: Path) -> None:
    """Wav2Vec2Model, features by convolutions; waves of any length."""
    config = transformers.Wav2Vec2Config(**_SMALL, conv_dim=(48,) * 7, num_conv_pos_embeddings=32)
    inputs = {"input_values": torch.randn(2, 8000)}
    write_script(
        path, transformers.Wav2Vec2Model(config), inputs, "last_hidden_state", {"input_values": {0: "batch", 1: "time"}}
    )


def qwen3_cached(path: Path) -> None:
    """Qwen3ForCausalLM for one more word: keys and values of the words before it come in and go out longer by it."""
    config = transformers.Qwen3Config(**_SMALL, num_key_value_heads=2, head_dim=24)
    heads, layers = config.num_key_value_heads, config.num_hidden_layers
    inputs = {"input_ids": torch.randint(3, WORDS, (2, 1)), "attention_mask": torch.ones(2, 10, dtype=torch.int64)}
    dynamic = {"input_ids": {0: "batch"}, "attention_mask": {0: "batch", 1: "all"}}
    for name in cached("past_key_values", layers):
        inputs[name] = torch.randn(2, heads, 9, config.head_dim)
        dynamic[name] = {0: "batch", 2: "past"}
    outputs = ["logits", *cached("present", layers)]
    dynamic |= {name: {0: "batch", 2: "all"} for name in outputs[1:]}
    model = Cached(transformers.Qwen3ForCausalLM(config))
    export(path, model, inputs, outputs, dynamic, opset=17)


def vit(path: Path) -> None:
    """ViTModel for images of 96 by 96."""
    config = transformers.ViTConfig(**_IMAGES, image_size=96, patch_size=16)
    write(path, transformers.ViTModel(config), _image(96, 96), "last_hidden_state", _BATCH)


def swin(path: Path) -> None:
    """SwinForImageClassification, half of the smallest one's width, shifted windows with their masks."""
    config = transformers.SwinConfig(
        image_size=112, embed_dim=48, depths=(2, 2), num_heads=(3, 6), window_size=7, num_labels=100
    )
    write_script(path, transformers.SwinForImageClassification(config), _image(112, 112), "logits", _BATCH)


def swin_v2(path: Path) -> None:
    """Swinv2ForImageClassification, half of the smallest one's width: attention by cosines, shifted windows."""
    config = transformers.Swinv2Config(
        image_size=128, embed_dim=48, depths=(2, 2), num_heads=(3, 6), window_size=8, num_labels=100
    )
    model = transformers.Swinv2ForImageClassification(config)
    write(path, model, _image(128, 128), "logits", _BATCH)


def segformer(path: Path) -> None:
    """SegformerForSemanticSegmentation, half of the smallest one's widths; images of any size."""
    config = transformers.SegformerConfig(
        hidden_sizes=(16, 32, 80, 128), depths=(1, 1, 1, 1), decoder_hidden_size=64, num_labels=19
    )
    model = transformers.SegformerForSemanticSegmentation(config)
    write_script(path, model, _image(128, 128), "logits", _ANY_IMAGE)


def pvt_v2(path: Path) -> None:
    """PvtV2ForImageClassification, half of the smallest one's widths."""
    config = transformers.PvtV2Config(hidden_sizes=(16, 32, 80, 128), depths=(1, 1, 1, 1), num_labels=100)
    model = transformers.PvtV2ForImageClassification(config)
    write_script(path, model, _image(96, 96), "logits", _BATCH)


def focalnet(path: Path) -> None:
    """FocalNetForImageClassification, a third of the smallest one's widths."""
    config = transformers.FocalNetConfig(
        image_size=96, embed_dim=32, hidden_sizes=(64, 128, 256, 256), depths=(1, 1, 2, 1), num_labels=100
    )
    model = transformers.FocalNetForImageClassification(config)
    write_script(path, model, _image(96, 96), "logits", _BATCH)


def pp_ocrv5_det(path: Path) -> None:
    """PPOCRV5MobileDetForObjectDetection, as published but for its weights; images of any size."""
    model = transformers.PPOCRV5MobileDetForObjectDetection(transformers.PPOCRV5MobileDetConfig())
    write_script(path, model, _image(96, 128), "last_hidden_state", _ANY_IMAGE)


def pp_ocrv5_rec(path: Path) -> None:
    """PPOCRV5MobileRecForTextRecognition, as published but for its weights and fewer letters; lines of any width."""
    backbone = transformers.PPLCNetV3Config(scale=0.95, block_configs=_LINES, out_indices=[5])
    config = transformers.PPOCRV5MobileRecConfig(backbone_config=backbone, head_out_channels=WORDS)
    model = transformers.PPOCRV5MobileRecForTextRecognition(config)
    write_script(path, model, _image(48, 160), "last_hidden_state", {"pixel_values": {0: "batch", 3: "width"}})
