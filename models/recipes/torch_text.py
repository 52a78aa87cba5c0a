"""Transformers on text and images: the structure of the published ones, small widths."""

import math
from pathlib import Path

import torch
from common_torch import export
from torch import Tensor, nn
from torch.nn import functional

WORDS = 512
TOKENS = {0: "batch", 1: "length"}


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, bias: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=bias) for _ in range(4))

    def split(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        return x.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

    def forward(
        self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None, scaled: bool = True
    ) -> Tensor:
        memory = x if memory is None else memory
        q, k, v = self.split(self.query(x)), self.split(self.key(memory)), self.split(self.value(memory))
        scores = q @ k.transpose(-1, -2)
        scores = scores / math.sqrt(q.shape[-1]) if scaled else scores
        scores = scores if mask is None else scores + mask
        mixed = (scores.softmax(-1) @ v).transpose(1, 2)
        return self.out(mixed.reshape(x.shape[0], -1, x.shape[2]))


def _causal(length: int, like: Tensor) -> Tensor:
    return torch.full((length, length), -1e4, dtype=like.dtype).triu(1)


# --- BERT, GPT-2 ---


class _Block(nn.Module):
    """A transformer layer; the norms come before the parts (GPT, ViT) or after them (BERT)."""

    def __init__(self, width: int, heads: int, before: bool, tanh: bool = False) -> None:
        super().__init__()
        self.attention = _Attention(width, heads)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        gelu = nn.GELU(approximate="tanh" if tanh else "none")
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), gelu, nn.Linear(4 * width, width))
        self.before = before

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.before:
            x = x + self.attention(self.norms[0](x), mask=mask)
            return x + self.feed(self.norms[1](x))
        x = self.norms[0](x + self.attention(x, mask=mask))
        return self.norms[1](x + self.feed(x))


class _Bert(nn.Module):
    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, width), nn.Embedding(128, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList([_Block(width, 4, before=False) for _ in range(3)])
        self.pool = nn.Linear(width, width)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.arange(input_ids.shape[1])
        x = self.norm(self.words(input_ids) + self.positions(places))
        mask = (1.0 - attention_mask[:, None, None, :].float()) * -1e4
        for block in self.blocks:
            x = block(x, mask)
        return x, torch.tanh(self.pool(x[:, 0]))


def bert(path: Path) -> None:
    """BERT: norms after the parts, exact GELU, padding mask, tanh pooler."""
    ids = torch.randint(0, WORDS, (2, 16))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    export(path, _Bert(), inputs, ["hidden", "pooled"], dict.fromkeys(inputs, TOKENS), opset=14)


class _Gpt(nn.Module):
    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, width), nn.Embedding(128, width)
        self.blocks = nn.ModuleList([_Block(width, 4, before=True, tanh=True) for _ in range(3)])
        self.norm = nn.LayerNorm(width)

    def forward(self, input_ids: Tensor) -> Tensor:
        length = input_ids.shape[1]
        x = self.words(input_ids) + self.positions(torch.arange(length))
        mask = _causal(length, x)
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x) @ self.words.weight.T


def gpt2(path: Path) -> None:
    """GPT-2: norms before the parts, tanh GELU, causal mask, tied output."""
    export(path, _Gpt(), {"input_ids": torch.randint(0, WORDS, (2, 16))}, ["logits"], {"input_ids": TOKENS})


# --- Llama ---


class _RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


def _turn(x: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return torch.cat([-right, left], -1)


class _LlamaBlock(nn.Module):
    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.norms = nn.ModuleList([_RmsNorm(width), _RmsNorm(width)])
        self.query = nn.Linear(width, width, bias=False)
        self.key, self.value = (nn.Linear(width, groups * self.size, bias=False) for _ in range(2))
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        y = self.norms[0](x)
        q = self.query(y).view(batch, length, self.heads, self.size).transpose(1, 2)
        k = self.key(y).view(batch, length, self.groups, self.size).transpose(1, 2)
        v = self.value(y).view(batch, length, self.groups, self.size).transpose(1, 2)
        q, k = q * cos + _turn(q) * sin, k * cos + _turn(k) * sin
        repeats = self.heads // self.groups
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        scores = (q @ k.transpose(-1, -2) / math.sqrt(self.size) + mask).softmax(-1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(batch, length, width))
        y = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class _Llama(nn.Module):
    def __init__(self, width: int = 96, heads: int = 4) -> None:
        super().__init__()
        self.size = width // heads
        self.words = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList([_LlamaBlock(width, heads, heads // 2) for _ in range(3)])
        self.norm = _RmsNorm(width)
        self.out = nn.Linear(width, WORDS, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        length = input_ids.shape[1]
        rates = 1.0 / 10000.0 ** (torch.arange(0, self.size, 2, dtype=torch.float32) / self.size)
        angles = torch.arange(length, dtype=torch.float32)[:, None] * rates[None]
        angles = torch.cat([angles, angles], -1)
        x = self.words(input_ids)
        mask = _causal(length, x)
        for block in self.blocks:
            x = block(x, angles.cos(), angles.sin(), mask)
        return self.out(self.norm(x))


def _llama(path: Path, dynamo: bool) -> None:
    inputs = {"input_ids": torch.randint(0, WORDS, (2, 16))}
    export(path, _Llama(), inputs, ["logits"], {"input_ids": TOKENS}, dynamo=dynamo)


def llama(path: Path) -> None:
    """Llama: RMSNorm, rotary positions, grouped heads, SwiGLU."""
    _llama(path, False)


def llama_dynamo(path: Path) -> None:
    """The same network from the exporter on torch.export."""
    _llama(path, True)


class _CachedLlamaBlock(_LlamaBlock):
    """One step of decoding: keys and values of the words before come in, those of all words go out."""

    def repeated(self, x: Tensor) -> Tensor:
        batch, groups, length, size = x.shape
        repeats = self.heads // self.groups
        return x[:, :, None].expand(batch, groups, repeats, length, size).reshape(batch, -1, length, size)

    def forward(  # type: ignore[override]
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, past: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, _ = x.shape
        y = self.norms[0](x)
        q, k, v = (
            project(y).view(batch, length, -1, self.size).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        q, k = q * cos + _turn(q) * sin, k * cos + _turn(k) * sin
        k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        scores = q @ self.repeated(k).transpose(2, 3) * self.size**-0.5 + mask
        mixed = (scores.softmax(-1) @ self.repeated(v)).transpose(1, 2)
        x = x + self.out(mixed.reshape(batch, length, -1))
        y = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y)), k, v


class _CachedLlama(nn.Module):
    """The inputs and outputs are those that decoders have which Hugging Face's Optimum exports."""

    def __init__(self, width: int = 96, heads: int = 4, layers: int = 3) -> None:
        super().__init__()
        self.size = width // heads
        self.words = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList([_CachedLlamaBlock(width, heads, heads // 2) for _ in range(layers)])
        self.norm = _RmsNorm(width)
        self.out = nn.Linear(width, WORDS, bias=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, *past: Tensor) -> list[Tensor]:
        rates = 1.0 / 10000.0 ** (torch.arange(0, self.size, 2, dtype=torch.float32) / self.size)
        angles = (rates[None, :, None] @ position_ids[:, None, :].float()).transpose(1, 2)
        angles = torch.cat([angles, angles], -1)[:, None]
        seen = torch.arange(attention_mask.shape[1])[None, None] <= position_ids[:, :, None]
        mask = torch.where(seen & (attention_mask[:, None] > 0), 0.0, -1e4)[:, None]
        x, present = self.words(input_ids), []
        for index, block in enumerate(self.blocks):
            x, *made = block(x, angles.cos(), angles.sin(), mask, past[2 * index : 2 * index + 2])
            present += made
        return [self.out(self.norm(x)), *present]


def llama_cached(path: Path) -> None:
    """A step of decoding with Llama: keys and values of the words before are inputs."""
    batch, length, past, layers, groups, size = 2, 3, 5, 3, 2, 24
    ids = torch.randint(0, WORDS, (batch, length))
    inputs = {
        "input_ids": ids,
        "attention_mask": torch.ones(batch, past + length, dtype=torch.int64),
        "position_ids": torch.arange(past, past + length).expand(batch, length),
    }
    dynamic = {name: {0: "batch", 1: "length"} for name in inputs} | {"attention_mask": {0: "batch", 1: "total"}}
    outputs = ["logits"]
    for index in range(layers):
        for kind in ("key", "value"):
            inputs[f"past.{index}.{kind}"] = torch.randn(batch, groups, past, size)
            dynamic[f"past.{index}.{kind}"] = {0: "batch", 2: "past"}
            outputs.append(f"present.{index}.{kind}")
            dynamic[outputs[-1]] = {0: "batch", 2: "total"}
    export(path, _CachedLlama(), inputs, outputs, dynamic)


# --- T5 ---


class _T5Feed(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = _RmsNorm(width)
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.down(functional.gelu(self.gate(y), approximate="tanh") * self.up(y))


class _T5(nn.Module):
    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.distances = nn.Embedding(16, heads)
        self.encoder, self.decoder, self.cross = (
            nn.ModuleList([_Attention(width, heads, bias=False) for _ in range(2)]) for _ in range(3)
        )
        self.norms = nn.ModuleList([_RmsNorm(width) for _ in range(6)])
        self.feeds = nn.ModuleList([_T5Feed(width) for _ in range(4)])
        self.last = _RmsNorm(width)

    def bias(self, length: int) -> Tensor:
        places = torch.arange(length)
        distance = places[None] - places[:, None]
        near = distance.abs()
        far = 4 + (torch.log(near.float().clamp(min=1.0) / 4.0) / math.log(8.0) * 4.0).long()
        bucket = torch.where(near < 4, near, far.clamp(max=7)) + (distance > 0).long() * 8
        return self.distances(bucket).permute(2, 0, 1)[None]

    def forward(self, input_ids: Tensor, decoder_ids: Tensor) -> Tensor:
        x, bias = self.words(input_ids), self.bias(input_ids.shape[1])
        for index in range(2):
            x = x + self.encoder[index](self.norms[index](x), mask=bias, scaled=False)
            x = self.feeds[index](x)
        y = self.words(decoder_ids)
        mask = self.bias(decoder_ids.shape[1]) + _causal(decoder_ids.shape[1], y)
        for index in range(2):
            y = y + self.decoder[index](self.norms[2 + index](y), mask=mask, scaled=False)
            y = y + self.cross[index](self.norms[4 + index](y), memory=x, scaled=False)
            y = self.feeds[2 + index](y)
        return self.last(y) @ self.words.weight.T / math.sqrt(x.shape[-1])


def t5(path: Path) -> None:
    """T5: encoder and decoder, buckets of distances, gated tanh GELU."""
    inputs = {"input_ids": torch.randint(0, WORDS, (2, 12)), "decoder_ids": torch.randint(0, WORDS, (2, 5))}
    dynamic = {"input_ids": {0: "batch", 1: "length"}, "decoder_ids": {0: "batch", 1: "decoded"}}
    export(path, _T5(), inputs, ["logits"], dynamic)


# --- ViT, Swin, CLIP's text half ---


class _Vit(nn.Module):
    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, 37, width))
        self.blocks = nn.Sequential(*(_Block(width, 4, before=True) for _ in range(3)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 100)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


def _vit(path: Path, dynamo: bool) -> None:
    inputs = {"image": torch.randn(2, 3, 96, 96)}
    export(path, _Vit(), inputs, ["logits"], {"image": {0: "batch"}}, opset=18 if dynamo else 17, dynamo=dynamo)


def vit(path: Path) -> None:
    """A vision transformer for images of 96 by 96; opset 17 has LayerNormalization as a node."""
    _vit(path, False)


def vit_dynamo(path: Path) -> None:
    """The same network from the exporter on torch.export."""
    _vit(path, True)


class _SwinBlock(nn.Module):
    def __init__(self, width: int, heads: int, side: int, window: int, shift: int) -> None:
        super().__init__()
        self.block = _Block(width, heads, before=True)
        self.side, self.window, self.shift = side, window, shift
        self.bias = nn.Parameter(torch.zeros(heads, window * window, window * window))

    def forward(self, x: Tensor) -> Tensor:
        batch, width, side, window, shift = x.shape[0], x.shape[-1], self.side, self.window, self.shift
        count = side // window
        x = torch.roll(x, (-shift, -shift), (1, 2)) if shift else x
        x = x.view(batch, count, window, count, window, width).permute(0, 1, 3, 2, 4, 5)
        x = self.block(x.reshape(-1, window * window, width), self.bias)
        x = x.view(batch, count, count, window, window, width).permute(0, 1, 3, 2, 4, 5)
        x = x.reshape(batch, side, side, width)
        return torch.roll(x, (shift, shift), (1, 2)) if shift else x


class _Swin(nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.first = nn.Sequential(_SwinBlock(width, 3, 16, 4, 0), _SwinBlock(width, 3, 16, 4, 2))
        self.merge = nn.Linear(4 * width, 2 * width, bias=False)
        self.second = nn.Sequential(_SwinBlock(2 * width, 6, 8, 4, 0), _SwinBlock(2 * width, 6, 8, 4, 2))
        self.norm = nn.LayerNorm(2 * width)
        self.head = nn.Linear(2 * width, 100)

    def forward(self, image: Tensor) -> Tensor:
        x = self.first(self.patches(image).permute(0, 2, 3, 1))
        x = self.merge(torch.cat([x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)], -1))
        return self.head(self.norm(self.second(x)).mean((1, 2)))


def swin(path: Path) -> None:
    """Swin: attention in shifted windows with position bias, patches merged; images of 64 by 64."""
    export(path, _Swin(), {"image": torch.randn(2, 3, 64, 64)}, ["logits"], {"image": {0: "batch"}}, opset=15)


class _QuickGelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class _ClipText(_Gpt):
    def __init__(self) -> None:
        super().__init__()
        for block in self.blocks:
            block.feed[1] = _QuickGelu()

    def forward(self, input_ids: Tensor) -> Tensor:
        length = input_ids.shape[1]
        x = self.words(input_ids) + self.positions(torch.arange(length))
        mask = _causal(length, x)
        for block in self.blocks:
            x = block(x, mask)
        last = self.norm(x)[:, -1]
        return last / last.pow(2).sum(-1, keepdim=True).sqrt()


def clip_text(path: Path) -> None:
    """The text half of CLIP: x * sigmoid(1.702 x), a normalized embedding."""
    inputs = {"input_ids": torch.randint(0, WORDS, (2, 16))}
    export(path, _ClipText(), inputs, ["embedding"], {"input_ids": TOKENS}, opset=16)
