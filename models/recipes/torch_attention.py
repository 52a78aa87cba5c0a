"""Attention as PyTorch's own layers have it, with rows before the batch, and as transformers had it before there was
scaled_dot_product_attention, with batch and heads in one dimension: the structure of the published ones, small widths.
"""

from pathlib import Path

import torch
from common_torch import export
from torch import Tensor, nn

_WIDTH = 96
_HEADS = 4


class _Merged(nn.Module):
    """Attention by bmm, of queries that are scaled first, with a mask of four dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.size = _WIDTH // _HEADS
        self.query, self.key, self.value, self.out = (nn.Linear(_WIDTH, _WIDTH) for _ in range(4))

    def split(self, x: Tensor, length: int, batch: int) -> Tensor:
        return x.view(batch, length, _HEADS, self.size).transpose(1, 2).contiguous()

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        batch, rows, _ = x.shape
        merged = (batch * _HEADS, -1, self.size)
        q = self.split(self.query(x) * self.size**-0.5, rows, batch).view(*merged)
        k = self.split(self.key(memory), -1, batch).view(*merged)
        v = self.split(self.value(memory), -1, batch).view(*merged)
        columns = k.shape[1]
        scores = torch.bmm(q, k.transpose(1, 2)).view(batch, _HEADS, rows, columns) + mask
        weights = scores.view(batch * _HEADS, rows, columns).softmax(-1)
        mixed = torch.bmm(weights, v).view(batch, _HEADS, rows, self.size).transpose(1, 2)
        return self.out(mixed.reshape(batch, rows, _WIDTH))


class _MergedLayer(nn.Module):
    def __init__(self, attentions: int) -> None:
        super().__init__()
        self.attentions = nn.ModuleList([_Merged() for _ in range(attentions)])
        self.norms = nn.ModuleList([nn.LayerNorm(_WIDTH) for _ in range(attentions + 1)])
        self.feed = nn.Sequential(nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH))

    def forward(self, x: Tensor, mask: Tensor, memory: Tensor, hidden: Tensor) -> Tensor:
        x = self.norms[0](x + self.attentions[0](x, x, mask))
        if len(self.attentions) > 1:
            x = self.norms[1](x + self.attentions[1](x, memory, hidden))
        return self.norms[-1](x + self.feed(x))


class _Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList([_MergedLayer(1) for _ in range(2)])
        self.decoder = nn.ModuleList([_MergedLayer(2) for _ in range(2)])

    def forward(self, source: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        hidden = (1.0 - mask[:, None, None, :].float()) * -1e4
        for layer in self.encoder:
            source = layer(source, hidden, source, hidden)
        length = target.shape[1]
        causal = torch.full((length, length), -1e4).triu(1)[None, None]
        for layer in self.decoder:
            target = layer(target, causal, source, hidden)
        return target


def bmm_translator(path: Path) -> None:
    """Encoder and decoder with BART's attention of transformers 4.0 to 4.4x, from embedded words."""
    inputs = {
        "source": torch.randn(2, 9, _WIDTH),
        "mask": torch.ones(2, 9, dtype=torch.int64),
        "target": torch.randn(2, 5, _WIDTH),
    }
    source = {0: "batch", 1: "length"}
    dynamic = {"source": source, "mask": source, "target": {0: "batch", 1: "decoded"}}
    export(path, _Translator(), inputs, ["hidden"], dynamic, opset=14)


class _Encoder(nn.Module):
    """nn.TransformerEncoder, whose layers PyTorch computes by a kernel of its own where there is nothing to export."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(_WIDTH, _HEADS, 4 * _WIDTH, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        return self.encoder(x, src_key_padding_mask=hidden)


def layers_encoder(path: Path) -> None:
    """nn.TransformerEncoder with a padding mask, by torch.export."""
    inputs = {"x": torch.randn(2, 9, _WIDTH), "hidden": torch.zeros(2, 9)}
    sizes = {0: "batch", 1: "length"}
    export(path, _Encoder(), inputs, ["y"], {"x": sizes, "hidden": sizes}, dynamo=True)


class _Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(_WIDTH, _HEADS, 4 * _WIDTH), 2)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        causal = torch.full((x.shape[0], x.shape[0]), -torch.inf).triu(1)
        return self.decoder(x, memory, tgt_mask=causal, tgt_is_causal=False)


def layers_decoder(path: Path) -> None:
    """nn.TransformerDecoder, rows first, by torch.export."""
    inputs = {"x": torch.randn(5, 2, _WIDTH), "memory": torch.randn(9, 2, _WIDTH)}
    dynamic = {"x": {0: "decoded", 1: "batch"}, "memory": {0: "length", 1: "batch"}}
    export(path, _Decoder(), inputs, ["y"], dynamic, dynamo=True)


class _Detector(nn.Module):
    """Self-attention of DETR's encoder: places are added to queries and keys alone."""

    def __init__(self) -> None:
        super().__init__()
        self.attentions = nn.ModuleList([nn.MultiheadAttention(_WIDTH, _HEADS) for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(_WIDTH) for _ in range(4)])
        self.feeds = nn.ModuleList(
            [nn.Sequential(nn.Linear(_WIDTH, 4 * _WIDTH), nn.ReLU(), nn.Linear(4 * _WIDTH, _WIDTH)) for _ in range(2)]
        )

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        for index, (attention, feed) in enumerate(zip(self.attentions, self.feeds, strict=True)):
            q = x + places
            x = self.norms[2 * index](x + attention(q, q, x)[0])
            x = self.norms[2 * index + 1](x + feed(x))
        return x


def detr_encoder(path: Path) -> None:
    """DETR's encoder, of nn.MultiheadAttention that returns its weights too, for 100 places, by TorchScript."""
    inputs = {"x": torch.randn(100, 1, _WIDTH), "places": torch.randn(100, 1, _WIDTH)}
    export(path, _Detector(), inputs, ["y"], {}, opset=17)
