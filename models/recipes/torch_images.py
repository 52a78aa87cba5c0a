"""Networks that classify images: the structure of the published ones, few channels."""

from pathlib import Path

import torch
from common_torch import export
from torch import Tensor, nn
from torch.nn import functional

IMAGES = {"image": {0: "batch", 2: "height", 3: "width"}}


def _save(path: Path, module: nn.Module, size: int = 96, opset: int = 18, dynamo: bool = False) -> None:
    inputs = {"image": torch.randn(2, 3, size, size)}
    export(path, module, inputs, ["logits"], IMAGES, opset=opset, dynamo=dynamo)


def _unit(before: int, after: int, kernel: int = 3, stride: int = 1, group: int = 1, act: type = nn.ReLU) -> nn.Module:
    conv = nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=group, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(after), act())


def _head(channels: int, classes: int = 100) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


# --- ResNet ---


class _Bottleneck(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        middle = after // 4
        self.body = nn.Sequential(
            _unit(before, middle, 1),
            _unit(middle, middle, 3, stride),
            _unit(middle, after, 1, act=nn.Identity),
        )
        plain = stride == 1 and before == after
        self.shortcut = nn.Identity() if plain else _unit(before, after, 1, stride, act=nn.Identity)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


def _resnet() -> nn.Module:
    layers: list[nn.Module] = [_unit(3, 32, 7, 2), nn.MaxPool2d(3, 2, 1)]
    before = 32
    for after, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for index in range(depth):
            layers.append(_Bottleneck(before, after, stride if index == 0 else 1))
            before = after
    return nn.Sequential(*layers, _head(before))


def resnet(path: Path) -> None:
    """ResNet-50 with a quarter of the channels."""
    _save(path, _resnet())


def resnet_dynamo(path: Path) -> None:
    """The same network from the exporter on torch.export."""
    _save(path, _resnet(), dynamo=True)


def resnet_opset9(path: Path) -> None:
    """The same network in the oldest opset that the exporter writes."""
    _save(path, _resnet(), opset=9)


# --- MobileNets and EfficientNet ---


class _SqueezeExcite(nn.Module):
    def __init__(self, channels: int, act: type, gate: type) -> None:
        super().__init__()
        middle = max(8, channels // 4)
        self.layers = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, middle, 1), act(), nn.Conv2d(middle, channels, 1), gate()
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.layers(x)


class _InvertedResidual(nn.Module):
    def __init__(
        self, before: int, after: int, expand: float, kernel: int, stride: int, act: type, gate: type | None
    ) -> None:
        super().__init__()
        middle = round(before * expand)
        layers = [_unit(before, middle, 1, act=act)] if expand > 1 else []
        layers.append(_unit(middle, middle, kernel, stride, middle, act))
        if gate is not None:
            layers.append(_SqueezeExcite(middle, nn.SiLU if gate is nn.Sigmoid else nn.ReLU, gate))
        layers.append(_unit(middle, after, 1, act=nn.Identity))
        self.body = nn.Sequential(*layers)
        self.residual = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.residual else self.body(x)


def mobilenet_v2(path: Path) -> None:
    """The whole of MobileNetV2: blocks that are bounded between 0 and 6."""
    blocks = []
    before = 32
    for expand, after, repeats, stride in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for step in [stride] + [1] * (repeats - 1):
            blocks.append(_InvertedResidual(before, after, expand, 3, step, nn.ReLU6, None))
            before = after
    ends = _unit(3, 32, 3, 2, act=nn.ReLU6), _unit(320, 1280, 1, act=nn.ReLU6)
    _save(path, nn.Sequential(ends[0], *blocks, ends[1], _head(1280)))


def mobilenet_v3(path: Path) -> None:
    """MobileNetV3: hard swish, squeeze and excite with a hard sigmoid."""
    gate, swish = nn.Hardsigmoid, nn.Hardswish
    _save(
        path,
        nn.Sequential(
            _unit(3, 16, 3, 2, act=swish),
            _InvertedResidual(16, 16, 1, 3, 2, nn.ReLU, gate),
            _InvertedResidual(16, 24, 4, 3, 2, nn.ReLU, None),
            _InvertedResidual(24, 24, 4, 3, 1, nn.ReLU, None),
            _InvertedResidual(24, 40, 4, 5, 2, swish, gate),
            _InvertedResidual(40, 40, 6, 5, 1, swish, gate),
            _InvertedResidual(40, 48, 3, 5, 1, swish, gate),
            _InvertedResidual(48, 96, 6, 5, 2, swish, gate),
            _unit(96, 288, 1, act=swish),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(288, 256),
            swish(),
            nn.Linear(256, 100),
        ),
        opset=14,
    )


def efficientnet(path: Path) -> None:
    """EfficientNet: SiLU, squeeze and excite with a sigmoid."""
    blocks = [
        _InvertedResidual(before, after, expand, kernel, stride, nn.SiLU, nn.Sigmoid)
        for before, after, expand, kernel, stride in (
            (32, 16, 1, 3, 1),
            (16, 24, 6, 3, 2),
            (24, 24, 6, 3, 1),
            (24, 40, 6, 5, 2),
            (40, 40, 6, 5, 1),
            (40, 80, 6, 3, 2),
            (80, 80, 6, 3, 1),
        )
    ]
    _save(path, nn.Sequential(_unit(3, 32, 3, 2, act=nn.SiLU), *blocks, _unit(80, 320, 1, act=nn.SiLU), _head(320)))


# --- ConvNeXt ---


class _ChannelsLastNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class _ConvNextBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.expand = nn.Linear(channels, 4 * channels)
        self.project = nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.project(functional.gelu(self.expand(y)))
        return x + y.permute(0, 3, 1, 2)


def convnext(path: Path) -> None:
    """ConvNeXt: depthwise convolutions, LayerNorm over channels, GELU, layer scale."""
    layers: list[nn.Module] = [nn.Conv2d(3, 48, 4, 4), _ChannelsLastNorm(48), _ConvNextBlock(48), _ConvNextBlock(48)]
    for before, after in ((48, 96), (96, 192)):
        layers += [_ChannelsLastNorm(before), nn.Conv2d(before, after, 2, 2)]
        layers += [_ConvNextBlock(after), _ConvNextBlock(after)]
    _save(path, nn.Sequential(*layers, _head(192)))


# --- DenseNet, Inception, ShuffleNet ---


class _DenseBlock(nn.Module):
    def __init__(self, before: int, growth: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(before + index * growth),
                nn.ReLU(),
                nn.Conv2d(before + index * growth, 4 * growth, 1, bias=False),
                nn.BatchNorm2d(4 * growth),
                nn.ReLU(),
                nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
            )
            for index in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


def densenet(path: Path) -> None:
    """DenseNet: BatchNorm and ReLU ahead of every convolution, on ever longer concatenations."""
    layers: list[nn.Module] = [_unit(3, 32, 7, 2), nn.MaxPool2d(3, 2, 1)]
    channels = 32
    for depth in (4, 6, 4):
        layers += [_DenseBlock(channels, 16, depth)]
        channels += 16 * depth
        layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels // 2, 1), nn.AvgPool2d(2)]
        channels //= 2
    _save(path, nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU(), _head(channels)))


class _Inception(nn.Module):
    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            [
                _unit(before, width, 1),
                nn.Sequential(_unit(before, width, 1), _unit(width, width, 5)),
                nn.Sequential(_unit(before, width, 1), _unit(width, width, 3), _unit(width, width, 3)),
                nn.Sequential(nn.AvgPool2d(3, 1, 1), _unit(before, width, 1)),
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def inception(path: Path) -> None:
    """Inception v3: parallel branches, joined."""
    layers = [_unit(3, 32, 3, 2), _unit(32, 48), nn.MaxPool2d(3, 2), _Inception(48, 24), _Inception(96, 32)]
    _save(path, nn.Sequential(*layers, nn.MaxPool2d(3, 2), _Inception(128, 48), _Inception(192, 48), _head(192)))


class _Shuffle(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        middle = _unit(half, half, 3, 1, half, nn.Identity)
        self.body = nn.Sequential(_unit(half, half, 1), middle, _unit(half, half, 1))

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, 1)
        joined = torch.cat([left, self.body(right)], 1)
        batch, channels, height, width = joined.shape
        mixed = joined.reshape(batch, 2, channels // 2, height, width).transpose(1, 2)
        return mixed.reshape(batch, channels, height, width)


def shufflenet(path: Path) -> None:
    """ShuffleNet v2: half of the channels pass by, then all are shuffled."""
    layers = [_unit(3, 32, 3, 2), nn.MaxPool2d(3, 2, 1), _Shuffle(32), _Shuffle(32), _unit(32, 64, 3, 2)]
    _save(path, nn.Sequential(*layers, _Shuffle(64), _Shuffle(64), _unit(64, 128, 1), _head(128)))


def shufflenet_dynamo(path: Path) -> None:
    """The same network from the exporter on torch.export."""
    layers = [_unit(3, 32, 3, 2), nn.MaxPool2d(3, 2, 1), _Shuffle(32), _Shuffle(32), _unit(32, 64, 3, 2)]
    module = nn.Sequential(*layers, _Shuffle(64), _Shuffle(64), _unit(64, 128, 1), _head(128))
    _save(path, module, dynamo=True)


# --- MLP-Mixer ---


class _Mixer(nn.Module):
    def __init__(self, tokens: int, channels: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(channels), nn.LayerNorm(channels)])
        self.across = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.within = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.norms[1](x))


class _MixerNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 96, 16, 16)
        self.blocks = nn.Sequential(*(_Mixer(36, 96) for _ in range(3)))
        self.head = nn.Linear(96, 100)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.blocks(self.patches(image).flatten(2).transpose(1, 2)).mean(1))


def mlp_mixer(path: Path) -> None:
    """MLP-Mixer, for images of 96 by 96; opset 20 has GELU as a node."""
    inputs = {"image": torch.randn(2, 3, 96, 96)}
    export(path, _MixerNet(), inputs, ["logits"], {"image": {0: "batch"}}, opset=20)
