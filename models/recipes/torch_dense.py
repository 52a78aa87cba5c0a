"""Networks whose output is as large as an image: diffusion, detection, segmentation, upscaling, decoding."""

import math
from pathlib import Path

import torch
from common_torch import export
from torch import Tensor, nn
from torch.nn import functional

# --- the U-Net of a diffusion model ---


class _ResBlock(nn.Module):
    def __init__(self, before: int, after: int, time: int, groups: int = 8) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(groups, before), nn.GroupNorm(groups, after)])
        self.convs = nn.ModuleList([nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(after, after, 3, padding=1)])
        self.time = nn.Linear(time, after)
        self.shortcut = nn.Identity() if before == after else nn.Conv2d(before, after, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.convs[0](functional.silu(self.norms[0](x)))
        y = y + self.time(functional.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.convs[1](functional.silu(self.norms[1](y)))


class _Attention(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.project = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).flatten(2).chunk(3, 1)
        weights = (q.transpose(1, 2) @ k / math.sqrt(x.shape[1])).softmax(-1)
        return x + self.project((v @ weights.transpose(1, 2)).view_as(x))


class _UNet(nn.Module):
    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        time = 4 * channels
        self.channels = channels
        self.time = nn.Sequential(nn.Linear(channels, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(4, channels, 3, padding=1)
        self.down = nn.ModuleList([_ResBlock(channels, channels, time), _ResBlock(channels, 2 * channels, time)])
        self.shrink = nn.Conv2d(channels, channels, 3, 2, 1)
        self.middle = nn.ModuleList([_ResBlock(2 * channels, 2 * channels, time) for _ in range(2)])
        self.attention = _Attention(2 * channels)
        self.grow = nn.Conv2d(2 * channels, 2 * channels, 3, padding=1)
        self.up = _ResBlock(3 * channels, channels, time)
        self.norm = nn.GroupNorm(8, channels)
        self.last = nn.Conv2d(channels, 4, 3, padding=1)

    def forward(self, latent: Tensor, timestep: Tensor) -> Tensor:
        half = self.channels // 2
        rates = torch.exp(torch.arange(half, dtype=torch.float32) * (-math.log(10000.0) / half))
        angles = timestep[:, None].float() * rates[None]
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        first = self.down[0](self.first(latent), time)
        x = self.down[1](self.shrink(first), time)
        x = self.middle[1](self.attention(self.middle[0](x, time)), time)
        x = self.grow(functional.interpolate(x, scale_factor=2.0, mode="nearest"))
        x = self.up(torch.cat([x, first], 1), time)
        return self.last(functional.silu(self.norm(x)))


def _unet(path: Path, dynamo: bool) -> None:
    inputs = {"latent": torch.randn(2, 4, 32, 32), "timestep": torch.tensor([10, 500])}
    dynamic = {"latent": {0: "batch"}, "timestep": {0: "batch"}}
    export(path, _UNet(), inputs, ["noise"], dynamic, dynamo=dynamo)


def unet(path: Path) -> None:
    """The U-Net of a diffusion model: GroupNorm, SiLU, time embedding, attention."""
    _unet(path, False)


def unet_dynamo(path: Path) -> None:
    """The same network from the exporter on torch.export."""
    _unet(path, True)


# --- detection ---


def _unit(before: int, after: int, kernel: int = 3, stride: int = 1) -> nn.Module:
    conv = nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(after), nn.SiLU())


class _CrossStage(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.left, self.right, self.join = (
            _unit(channels, half, 1),
            _unit(channels, half, 1),
            _unit(channels, channels, 1),
        )
        self.body = nn.Sequential(_unit(half, half, 1), _unit(half, half))

    def forward(self, x: Tensor) -> Tensor:
        left = self.left(x)
        return self.join(torch.cat([left + self.body(left), self.right(x)], 1))


class _Yolo(nn.Module):
    """Two scales, three anchors, boxes decoded to pixels."""

    anchors = ((10.0, 13.0), (16.0, 30.0), (33.0, 23.0))

    def __init__(self, classes: int = 20) -> None:
        super().__init__()
        self.values = classes + 5
        self.stem = nn.Sequential(_unit(3, 16, 3, 2), _unit(16, 32, 3, 2), _CrossStage(32), _unit(32, 64, 3, 2))
        self.fine = _CrossStage(64)
        self.coarse = nn.Sequential(_unit(64, 128, 3, 2), _CrossStage(128))
        self.heads = nn.ModuleList([nn.Conv2d(64, 3 * self.values, 1), nn.Conv2d(128, 3 * self.values, 1)])

    def decode(self, x: Tensor, stride: float) -> Tensor:
        batch, _, height, width = x.shape
        x = x.view(batch, 3, self.values, height, width).permute(0, 1, 3, 4, 2).sigmoid()
        rows = torch.arange(height, dtype=torch.float32).view(1, 1, height, 1).expand(1, 1, height, width)
        columns = torch.arange(width, dtype=torch.float32).view(1, 1, 1, width).expand(1, 1, height, width)
        grid = torch.stack([columns, rows], -1)
        anchors = torch.tensor(self.anchors).view(1, 3, 1, 1, 2)
        centre = (x[..., 0:2] * 2.0 - 0.5 + grid) * stride
        size = (x[..., 2:4] * 2.0) ** 2 * anchors * (stride / 8.0)
        scores = x[..., 4:5] * x[..., 5:]
        boxes = torch.cat([centre - size / 2, centre + size / 2, scores], -1)
        return boxes.reshape(batch, -1, self.values - 1)

    def forward(self, image: Tensor) -> Tensor:
        fine = self.fine(self.stem(image))
        coarse = self.coarse(fine)
        return torch.cat([self.decode(self.heads[0](fine), 8.0), self.decode(self.heads[1](coarse), 16.0)], 1)


def yolo(path: Path) -> None:
    """A YOLO: cross-stage blocks with SiLU, and a head that decodes boxes."""
    dynamic = {"image": {0: "batch", 2: "height", 3: "width"}}
    export(path, _Yolo(), {"image": torch.rand(2, 3, 96, 128)}, ["boxes"], dynamic, opset=16)


# --- segmentation, upscaling, decoding of a latent ---


class _Segmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(_unit(3, 16, 3, 2), _unit(16, 32, 3, 2))
        self.rates = nn.ModuleList(
            nn.Sequential(nn.Conv2d(32, 32, 3, padding=rate, dilation=rate), nn.BatchNorm2d(32), nn.Hardswish())
            for rate in (1, 2, 4)
        )
        self.last = nn.Conv2d(96, 8, 1)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image)
        x = self.last(torch.cat([rate(x) for rate in self.rates], 1))
        return functional.interpolate(x, scale_factor=4.0, mode="bilinear", align_corners=False).softmax(1)


def segmentation(path: Path) -> None:
    """A segmenter with dilated convolutions and bilinear resizing."""
    dynamic = {"image": {0: "batch", 2: "height", 3: "width"}}
    export(path, _Segmenter(), {"image": torch.rand(2, 3, 64, 64)}, ["classes"], dynamic, opset=13)


class _Upscaler(nn.Module):
    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(channels, channels, 3, padding=1),
                nn.PReLU(channels),
                nn.Conv2d(channels, channels, 3, padding=1),
            )
            for _ in range(3)
        )
        self.last = nn.Conv2d(channels, 12, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        x = self.first(image - 0.5)
        for block in self.blocks:
            x = x + 0.2 * block(x)
        fine = functional.pixel_shuffle(self.last(x), 2)
        coarse = functional.interpolate(image, scale_factor=2.0, mode="nearest")
        return (fine + coarse).clamp(0.0, 1.0)


def upscaler(path: Path) -> None:
    """A residual upscaler: PRelu, scaled residuals, DepthToSpace, Clip."""
    dynamic = {"image": {0: "batch", 2: "height", 3: "width"}}
    export(path, _Upscaler(), {"image": torch.rand(1, 3, 32, 32)}, ["larger"], dynamic, opset=11)


def generator(path: Path) -> None:
    """The generator of a GAN: transposed convolutions with BatchNorm, LeakyReLU, Tanh."""
    layers: list[nn.Module] = []
    for before, after in ((64, 64), (64, 32), (32, 16)):
        layers += [nn.ConvTranspose2d(before, after, 4, 2, 1), nn.BatchNorm2d(after), nn.LeakyReLU(0.2)]
    module = nn.Sequential(*layers, nn.Conv2d(16, 3, 3, padding=1), nn.Tanh())
    export(path, module, {"latent": torch.randn(2, 64, 8, 8)}, ["image"], {"latent": {0: "batch"}}, opset=12)


class _Style(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(3, 16, 3, 1), nn.Conv2d(16, 32, 3, 2)])
        self.norms = nn.ModuleList([nn.InstanceNorm2d(width, affine=True) for width in (16, 32)])
        self.last = nn.Conv2d(32, 3, 3)

    def forward(self, image: Tensor) -> Tensor:
        x = image / 127.5 - 1.0
        for conv, norm in zip(self.down, self.norms, strict=True):
            x = functional.elu(norm(conv(functional.pad(x, (1, 1, 1, 1), mode="reflect"))))
        return (torch.tanh(self.last(x)) + 1.0) * 127.5


def style(path: Path) -> None:
    """Style transfer: reflecting pads, InstanceNorm, ELU, pixels from 0 to 255."""
    dynamic = {"image": {0: "batch", 2: "height", 3: "width"}}
    export(path, _Style(), {"image": 255 * torch.rand(1, 3, 48, 48)}, ["styled"], dynamic, opset=17)
