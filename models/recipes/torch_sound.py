"""Networks on sound: recognition, enhancement, synthesis."""

import math
from pathlib import Path

import torch
from common_torch import export
from torch import Tensor, nn
from torch.nn import functional
from torch_text import _Block as Block


class _Whisper(nn.Module):
    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv1d(40, width, 3, padding=1), nn.Conv1d(width, width, 3, 2, 1)])
        self.blocks = nn.ModuleList([Block(width, 4, before=True) for _ in range(3)])
        self.norm = nn.LayerNorm(width)

    def forward(self, mel: Tensor) -> Tensor:
        x = mel
        for conv in self.convs:
            x = functional.gelu(conv(x))
        x = x.transpose(1, 2)
        half = x.shape[2] // 2
        rates = torch.exp(torch.arange(half, dtype=torch.float32) * (-math.log(10000.0) / (half - 1)))
        angles = torch.arange(x.shape[1], dtype=torch.float32)[:, None] * rates[None]
        x = x + torch.cat([angles.sin(), angles.cos()], 1)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def whisper_encoder(path: Path) -> None:
    """The encoder of Whisper: convolutions with GELU over a mel spectrogram, sinusoidal positions."""
    dynamic = {"mel": {0: "batch", 2: "frames"}}
    export(path, _Whisper(), {"mel": torch.randn(2, 40, 64)}, ["hidden"], dynamic)


class _Conformer(nn.Module):
    """One convolution module of a Conformer between two half-step feed-forward layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(4)])
        self.feeds = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)) for _ in range(2)
        )
        self.widen = nn.Conv1d(width, 2 * width, 1)
        self.depthwise = nn.Conv1d(width, width, 15, padding=7, groups=width)
        self.batch_norm = nn.BatchNorm1d(width)
        self.narrow = nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.feeds[0](self.norms[0](x))
        y = functional.glu(self.widen(self.norms[1](x).transpose(1, 2)), 1)
        y = functional.silu(self.batch_norm(self.depthwise(y)))
        x = x + self.narrow(y).transpose(1, 2)
        x = x + 0.5 * self.feeds[1](self.norms[2](x))
        return self.norms[3](x)


def conformer(path: Path) -> None:
    """Conformer blocks: GLU, depthwise convolution over time, swish, half-step residuals."""
    module = nn.Sequential(nn.Linear(40, 96), _Conformer(96), _Conformer(96), nn.Linear(96, 30), nn.LogSoftmax(-1))
    dynamic = {"frames": {0: "batch", 1: "time"}}
    export(path, module, {"frames": torch.randn(2, 32, 40)}, ["scores"], dynamic)


class _Denoiser(nn.Module):
    """A mask over a spectrogram from a recurrent network, applied to it."""

    def __init__(self, bins: int = 129) -> None:
        super().__init__()
        self.first = nn.Linear(bins, 64)
        self.gru = nn.GRU(64, 64, 2, batch_first=True)
        self.last = nn.Linear(64, bins)

    def forward(self, power: Tensor) -> Tensor:
        features = torch.log(power + 1e-6) * 0.2
        hidden, _ = self.gru(torch.relu(self.first(features)))
        return power * torch.sigmoid(self.last(hidden)) ** 2


def gru_denoiser(path: Path) -> None:
    """Noise suppression: logarithm of a power spectrum, GRU, a sigmoid mask."""
    dynamic = {"power": {0: "batch", 1: "time"}}
    export(path, _Denoiser(), {"power": torch.rand(2, 20, 129)}, ["clean"], dynamic, opset=14)


class _WaveNet(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, width, 1)
        self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**step) for step in range(6))
        self.outs = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(6))
        self.last = nn.Sequential(nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, 1, 1))

    def forward(self, sound: Tensor) -> Tensor:
        x = self.first(sound)
        skips = torch.zeros_like(x)
        for step, (gate, out) in enumerate(zip(self.gates, self.outs, strict=True)):
            left, right = gate(functional.pad(x, (2**step, 0))).chunk(2, 1)
            y = out(torch.tanh(left) * torch.sigmoid(right))
            skips = skips + y
            x = (x + y) * math.sqrt(0.5)
        return torch.tanh(self.last(skips))


def wavenet(path: Path) -> None:
    """WaveNet: dilated causal convolutions, tanh times sigmoid, skips."""
    dynamic = {"sound": {0: "batch", 2: "samples"}}
    export(path, _WaveNet(), {"sound": torch.randn(1, 1, 400)}, ["next"], dynamic, opset=10)


class _StateSpace(nn.Module):
    """A selective state-space layer over a short sequence, unrolled as the exporter leaves it."""

    def __init__(self, width: int = 48, states: int = 8, steps: int = 12) -> None:
        super().__init__()
        self.steps = steps
        self.inner = nn.Linear(width, 2 * width)
        self.rate, self.enter, self.leave = nn.Linear(width, width), nn.Linear(width, states), nn.Linear(width, states)
        self.decay = nn.Parameter(torch.zeros(width, states))
        self.skip = nn.Parameter(torch.zeros(width))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y, gate = self.inner(x).chunk(2, -1)
        y = functional.silu(y)
        rate = functional.softplus(self.rate(y))
        enter, leave = self.enter(y), self.leave(y)
        decay = torch.exp(rate[..., None] * -torch.exp(self.decay))
        drive = (rate * y)[..., None] * enter[:, :, None, :]
        state = torch.zeros_like(drive[:, 0])
        outputs = []
        for step in range(self.steps):
            state = decay[:, step] * state + drive[:, step]
            outputs.append((state * leave[:, step, None, :]).sum(-1))
        return self.out((torch.stack(outputs, 1) + self.skip * y) * functional.silu(gate))


def state_space(path: Path) -> None:
    """A Mamba-like layer: softplus, exponential decay, a scan of 12 steps, a SiLU gate."""
    inputs = {"frames": torch.randn(2, 12, 48)}
    export(path, _StateSpace(), inputs, ["hidden"], {"frames": {0: "batch"}}, opset=17)
