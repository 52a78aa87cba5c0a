"""Language models at the size that is deployed: published configurations, made-up weights."""

from pathlib import Path
from typing import Any

import torch
import transformers
from common_torch import export
from common_transformers import Cached, cached, write, write_script
from torch import Tensor, nn

_TOKENS = {0: "batch", 1: "length"}
_PAST = 255
_LLAMA: dict[str, Any] = {
    **{"vocab_size": 32000, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12},
    **{"num_attention_heads": 12, "num_key_value_heads": 4},
}
_MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}
_DEBERTA: dict[str, Any] = {
    **{"vocab_size": 128100, "hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12},
    **{"intermediate_size": 3072, "relative_attention": True, "position_buckets": 256, "share_att_key": True},
    **{"pos_att_type": ["p2c", "c2p"], "norm_rel_ebd": "layer_norm", "position_biased_input": False},
    **{"max_relative_positions": -1, "type_vocab_size": 0},
}


def _ids(length: int, words: int = 30000) -> Tensor:
    return torch.randint(3, words, (1, length))


def _text(length: int = 128) -> dict[str, Tensor]:
    ids = _ids(length)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _encoder(path: Path, model: nn.Module) -> None:
    write(path, model, _text(), "last_hidden_state", {})


def bert_base(path: Path) -> None:
    """BERT-base, one text of 128 tokens."""
    _encoder(path, transformers.BertModel(transformers.BertConfig()))


def bert_base_script(path: Path) -> None:
    """BERT-base by way of TorchScript, any batch and length."""
    model = transformers.BertModel(transformers.BertConfig())
    write_script(path, model, _text(), "last_hidden_state", dict.fromkeys(_text(), _TOKENS))


def bert_base_float16(path: Path) -> None:
    """BERT-base in float16."""
    _encoder(path, transformers.BertModel(transformers.BertConfig()).to(torch.float16))


def minilm_l6(path: Path) -> None:
    """MiniLM-L6."""
    _encoder(path, transformers.BertModel(transformers.BertConfig(**_MINILM)))


def deberta_v3_small(path: Path) -> None:
    """DeBERTa-v3-small: attention with relative positions, disentangled."""
    _encoder(path, transformers.DebertaV2Model(transformers.DebertaV2Config(**_DEBERTA)))


def modernbert_base(path: Path) -> None:
    """ModernBERT-base: rotary positions, gated layers, local and global attention."""
    _encoder(path, transformers.ModernBertModel(transformers.ModernBertConfig(attn_implementation="sdpa")))


def xlm_roberta_base(path: Path) -> None:
    """XLM-R-base: a quarter of a million words."""
    config = transformers.XLMRobertaConfig(vocab_size=250002, max_position_embeddings=514, type_vocab_size=1)
    _encoder(path, transformers.XLMRobertaModel(config))


def t5_small_encoder(path: Path) -> None:
    """The encoder of T5-small by way of TorchScript: RMSNorm, biases of relative positions."""
    model = transformers.T5EncoderModel(transformers.T5Config())
    write_script(path, model, {"input_ids": _ids(128)}, "last_hidden_state", {})


def clip_text_b32(path: Path) -> None:
    """The text half of CLIP ViT-B/32, 77 tokens."""
    model = transformers.CLIPTextModel(transformers.CLIPTextConfig())
    write(path, model, {"input_ids": _ids(77)}, "last_hidden_state", {})


def gpt2_small(path: Path) -> None:
    """GPT-2 small over a prompt of 64 tokens."""
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False))
    write(path, model, {"input_ids": _ids(64)}, "logits", {})


def gpt2_small_script(path: Path) -> None:
    """The same by way of TorchScript, any batch and length."""
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False))
    write_script(path, model, _text(64), "logits", dict.fromkeys(_text(), _TOKENS))


def _decoding(path: Path, model: nn.Module, layers: int, heads: int, size: int) -> None:
    """One more word after those whose keys and values come in; any number of them."""
    inputs = {"input_ids": _ids(1), "attention_mask": torch.ones(1, _PAST + 1, dtype=torch.int64)}
    dynamic = {"attention_mask": {1: "all"}}
    for name in cached("past_key_values", layers):
        inputs[name] = torch.randn(1, heads, _PAST, size)
        dynamic[name] = {2: "past"}
    outputs = ["logits", *cached("present", layers)]
    dynamic |= {name: {2: "all"} for name in outputs[1:]}
    export(path, Cached(model), inputs, outputs, dynamic, opset=17)


def gpt2_small_cached(path: Path) -> None:
    """A step of GPT-2 small."""
    config = transformers.GPT2Config()
    _decoding(path, transformers.GPT2LMHeadModel(config), 12, 12, 64)


def llama_160m(path: Path) -> None:
    """A Llama of 160 million parameters over a prompt of 64 tokens, grouped heads."""
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**_LLAMA, use_cache=False))
    write(path, model, {"input_ids": _ids(64)}, "logits", {})


def llama_160m_bfloat16(path: Path) -> None:
    """The same in bfloat16."""
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**_LLAMA, use_cache=False)).to(torch.bfloat16)
    write(path, model, {"input_ids": _ids(64)}, "logits", {})


def llama_160m_cached(path: Path) -> None:
    """A step of the same in float32."""
    _decoding(path, transformers.LlamaForCausalLM(transformers.LlamaConfig(**_LLAMA)), 12, 4, 64)
