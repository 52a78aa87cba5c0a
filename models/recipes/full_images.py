"""Networks on images at the size that is deployed: published configurations, made-up weights."""

import math
from pathlib import Path

import torch
import transformers
from common_torch import export
from common_transformers import write, write_script
from torch import Tensor, nn
from torch.nn import functional
from torch_dense import _CrossStage as CrossStage
from torch_dense import _ResBlock as ResBlock
from torch_dense import _unit as silu_unit
from torch_dense import _Yolo as Yolo
from torch_images import _head as head
from torch_images import _InvertedResidual as InvertedResidual
from torch_images import _Shuffle as Shuffle
from torch_images import _unit as unit

_ANY_IMAGE = {"pixel_values": {0: "batch", 2: "height", 3: "width"}}


def _image(size: int = 224) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(1, 3, size, size)}


def _calibrated(model: nn.Module) -> nn.Module:
    """The model with statistics of several images, of which each channel has a brightness of its own.

    By those of one image of noise a layer's channels hardly vary deep in the network, and normalizing divides by that:
    another brightness would then be a thousand times as large at the end, and rounding too.
    """
    brightness = torch.randn(4, 3, 1, 1, generator=torch.Generator().manual_seed(0))
    contrast = torch.linspace(0.5, 1.5, 4).reshape(-1, 1, 1, 1)
    model.calibrated_on = (_image()["pixel_values"] * contrast + brightness,)
    return model


def _classifier(path: Path, model: nn.Module) -> None:
    write(path, _calibrated(model), _image(), "logits", {})


# --- convolutions ---


def resnet50(path: Path) -> None:
    """ResNet-50."""
    _classifier(path, transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000)))


def resnet50_script(path: Path) -> None:
    """ResNet-50 by way of TorchScript, images of any size."""
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000))
    write_script(path, _calibrated(model), _image(), "logits", _ANY_IMAGE)


def regnet_y_1_6gf(path: Path) -> None:
    """RegNetY-1.6GF: grouped convolutions, squeeze and excite."""
    config = transformers.RegNetConfig(
        depths=[2, 6, 17, 2], hidden_sizes=[48, 120, 336, 888], groups_width=24, num_labels=1000
    )
    _classifier(path, transformers.RegNetForImageClassification(config))


def efficientnet_b0(path: Path) -> None:
    """EfficientNet-B0: SiLU, squeeze and excite.

    The configuration's own pooling, a window of ``hidden_dim`` by ``hidden_dim`` that is cut off at the image, becomes
    the mean over the image that it computes: OpenVINO refuses a window that is larger than what it slides over.
    """
    config = transformers.EfficientNetConfig(
        width_coefficient=1.0, depth_coefficient=1.0, image_size=224, hidden_dim=1280, num_labels=1000
    )
    model = transformers.EfficientNetForImageClassification(config)
    model.efficientnet.pooler = nn.AdaptiveAvgPool2d(1)
    _classifier(path, model)


def convnext_tiny(path: Path) -> None:
    """ConvNeXt-T: depthwise convolutions of 7 by 7, LayerNorm, GELU."""
    _classifier(path, transformers.ConvNextForImageClassification(transformers.ConvNextConfig(num_labels=1000)))


_LARGE = (  # kernel, expansion, channels, gate, activation, stride
    (3, 1, 16, False, nn.ReLU, 1),
    (3, 4, 24, False, nn.ReLU, 2),
    (3, 3, 24, False, nn.ReLU, 1),
    (5, 3, 40, True, nn.ReLU, 2),
    (5, 3, 40, True, nn.ReLU, 1),
    (5, 3, 40, True, nn.ReLU, 1),
    (3, 6, 80, False, nn.Hardswish, 2),
    (3, 2.5, 80, False, nn.Hardswish, 1),
    (3, 2.3, 80, False, nn.Hardswish, 1),
    (3, 2.3, 80, False, nn.Hardswish, 1),
    (3, 6, 112, True, nn.Hardswish, 1),
    (3, 6, 112, True, nn.Hardswish, 1),
    (5, 6, 160, True, nn.Hardswish, 2),
    (5, 6, 160, True, nn.Hardswish, 1),
    (5, 6, 160, True, nn.Hardswish, 1),
)


def mobilenet_v3_large(path: Path) -> None:
    """MobileNetV3-Large."""
    blocks: list[nn.Module] = [unit(3, 16, 3, 2, act=nn.Hardswish)]
    before = 16
    for kernel, expand, after, gated, act, stride in _LARGE:
        gate = nn.Hardsigmoid if gated else None
        blocks.append(InvertedResidual(before, after, expand, kernel, stride, act, gate))
        before = after
    blocks += [unit(160, 960, 1, act=nn.Hardswish), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    blocks += [nn.Linear(960, 1280), nn.Hardswish(), nn.Linear(1280, 1000)]
    export(path, nn.Sequential(*blocks), _image(), ["logits"], {}, dynamo=True)


class _ShuffleDown(nn.Module):
    """The unit between two stages of ShuffleNetV2: both halves at half the size, shuffled."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        half = after // 2
        self.left = nn.Sequential(unit(before, before, 3, 2, before, nn.Identity), unit(before, half, 1))
        middle = unit(half, half, 3, 2, half, nn.Identity)
        self.right = nn.Sequential(unit(before, half, 1), middle, unit(half, half, 1))

    def forward(self, x: Tensor) -> Tensor:
        return functional.channel_shuffle(torch.cat([self.left(x), self.right(x)], 1), 2)


def shufflenet_v2_x1(path: Path) -> None:
    """ShuffleNetV2 1.0."""
    blocks: list[nn.Module] = [unit(3, 24, 3, 2), nn.MaxPool2d(3, 2, 1)]
    before = 24
    for after, repeats in ((116, 4), (232, 8), (464, 4)):
        blocks += [_ShuffleDown(before, after), *(Shuffle(after) for _ in range(repeats - 1))]
        before = after
    export(path, nn.Sequential(*blocks, unit(464, 1024, 1), head(1024, 1000)), _image(), ["logits"], {}, dynamo=True)


class _Detector(Yolo):
    """The widths and depths of a YOLO of 7 million parameters, 80 classes, images of 640 by 640."""

    def __init__(self) -> None:
        super().__init__(80)

        def stage(before: int, after: int, depth: int) -> nn.Sequential:
            return nn.Sequential(silu_unit(before, after, 3, 2), *(CrossStage(after) for _ in range(depth)))

        self.stem = nn.Sequential(silu_unit(3, 32, 5, 2), stage(32, 64, 1), stage(64, 128, 2))
        self.fine = nn.Sequential(*(CrossStage(128) for _ in range(2)))
        self.coarse = nn.Sequential(stage(128, 256, 3), stage(256, 512, 1), silu_unit(512, 256, 1))
        self.coarse.append(nn.Upsample(scale_factor=2.0, mode="nearest"))
        self.heads = nn.ModuleList([nn.Conv2d(channels, 3 * self.values, 1) for channels in (128, 256)])


def yolo_640(path: Path) -> None:
    """A detector with a head that decodes boxes."""
    export(path, _Detector(), {"image": torch.rand(1, 3, 640, 640)}, ["boxes"], {}, dynamo=True)


# --- transformers ---


def vit_b16(path: Path) -> None:
    """ViT-B/16."""
    _classifier(path, transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000)))


def vit_b16_script(path: Path) -> None:
    """ViT-B/16 by way of TorchScript, any batch."""
    model = transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000))
    write_script(path, model, _image(), "logits", {"pixel_values": {0: "batch"}})


def dinov2_small(path: Path) -> None:
    """DINOv2-small."""
    config = transformers.Dinov2Config(hidden_size=384, num_attention_heads=6, image_size=224, patch_size=14)
    write(path, transformers.Dinov2Model(config), _image(), "last_hidden_state", {})


def clip_vit_b32(path: Path) -> None:
    """The image half of CLIP ViT-B/32."""
    model = transformers.CLIPVisionModel(transformers.CLIPVisionConfig())
    write(path, model, _image(), "last_hidden_state", {})


def swin_t(path: Path) -> None:
    """Swin-T by way of TorchScript: torch.export does not decompose its attention."""
    model = transformers.SwinForImageClassification(transformers.SwinConfig(num_labels=1000))
    write_script(path, model, _image(), "logits", {})


def segformer_b0(path: Path) -> None:
    """SegFormer-B0, 512 by 512."""
    model = transformers.SegformerForSemanticSegmentation(transformers.SegformerConfig(num_labels=150))
    write(path, model, _image(512), "logits", {})


def detr_r50(path: Path) -> None:
    """DETR on a ResNet-50, 512 by 512: encoder and decoder with a hundred queries."""
    backbone = transformers.ResNetConfig(out_features=["stage4"])
    config = transformers.DetrConfig(use_timm_backbone=False, use_pretrained_backbone=False, backbone_config=backbone)
    write(path, transformers.DetrForObjectDetection(config), _image(512), "logits", {})


# --- diffusion ---


class _CrossAttention(nn.Module):
    """Attention of a latent's places to themselves or to a text, eight heads."""

    def __init__(self, channels: int, context: int) -> None:
        super().__init__()
        self.query = nn.Linear(channels, channels, bias=False)
        self.key, self.value = (nn.Linear(context, channels, bias=False) for _ in range(2))
        self.out = nn.Linear(channels, channels)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        def heads(values: Tensor) -> Tensor:
            return values.unflatten(-1, (8, -1)).transpose(1, 2)

        q, k, v = heads(self.query(x)), heads(self.key(context)), heads(self.value(context))
        return self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class _SpatialTransformer(nn.Module):
    """Self-attention, attention to the text and a gated layer, as Stable Diffusion has them."""

    def __init__(self, channels: int, context: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, channels)
        self.enter, self.leave = (nn.Conv2d(channels, channels, 1) for _ in range(2))
        self.norms = nn.ModuleList([nn.LayerNorm(channels) for _ in range(3)])
        self.own, self.cross = _CrossAttention(channels, channels), _CrossAttention(channels, context)
        self.widen, self.narrow = nn.Linear(channels, 8 * channels), nn.Linear(4 * channels, channels)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        y = self.enter(self.norm(x)).flatten(2).transpose(1, 2)
        normalized = self.norms[0](y)
        y = y + self.own(normalized, normalized)
        y = y + self.cross(self.norms[1](y), text)
        values, gate = self.widen(self.norms[2](y)).chunk(2, -1)
        y = y + self.narrow(values * functional.gelu(gate))
        return x + self.leave(y.transpose(1, 2).unflatten(2, x.shape[2:]))


class _DiffusionLevel(nn.Module):
    """The first level of Stable Diffusion's U-Net, down and up: 320 channels, latents of 64 by 64."""

    def __init__(self, channels: int = 320, time: int = 1280, context: int = 768) -> None:
        super().__init__()
        self.channels = channels
        self.time = nn.Sequential(nn.Linear(channels, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(4, channels, 3, padding=1)
        widths = [channels] * 2 + [2 * channels] * 2
        self.blocks = nn.ModuleList([ResBlock(width, channels, time, groups=32) for width in widths])
        self.attend = nn.ModuleList([_SpatialTransformer(channels, context) for _ in widths])
        self.norm = nn.GroupNorm(32, channels)
        self.last = nn.Conv2d(channels, 4, 3, padding=1)

    def forward(self, latent: Tensor, timestep: Tensor, text: Tensor) -> Tensor:
        half = self.channels // 2
        rates = torch.exp(torch.arange(half, dtype=torch.float32) * (-math.log(10000.0) / half))
        angles = timestep[:, None].float() * rates[None]
        time = self.time(torch.cat([angles.cos(), angles.sin()], 1))
        x = self.first(latent)
        skips = []
        for index, (block, attend) in enumerate(zip(self.blocks, self.attend, strict=True)):
            if index >= len(self.blocks) // 2:
                x = torch.cat([x, skips.pop()], 1)
            x = attend(block(x, time), text)
            skips.append(x)
        return self.last(functional.silu(self.norm(x)))


def unet_sd_level(path: Path) -> None:
    """One level of Stable Diffusion's U-Net, with attention to 77 tokens."""
    inputs = {"latent": torch.randn(1, 4, 64, 64), "timestep": torch.tensor([500]), "text": torch.randn(1, 77, 768)}
    export(path, _DiffusionLevel(), inputs, ["noise"], {}, dynamo=True)
