"""The results of scripts/gpu_suite.py as JSON, as Markdown with targets, and as plots (SVG)."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from tools.gpu.chains import TEN_OPS
from tools.gpu.convolutions import DENSE, DEPTHWISE, POINTWISE, PRODUCT, ConvTimes
from tools.gpu.kernels import PEERS, Measured
from tools.gpu.models import CONVOLUTIONAL, ModelTimes
from tools.gpu.parity import Verdict
from tools.markdown_table import table

LARGE = 64
"""10^6 bytes from which a chain has to come near a copy."""
_NOT_MEASURED = "not measured"
DRY_RUN = "dry run"
"""In the description of the machine: nothing ran on a GPU."""


@dataclass
class Results:
    """Everything that was measured, and what went wrong; ``machine`` says where, ``notes`` what was left out."""

    machine: dict[str, str] = field(default_factory=dict)
    parity: list[Verdict] = field(default_factory=list)
    sanitizer: str = ""
    kernels: list[Measured] = field(default_factory=list)
    reductions: list[Measured] = field(default_factory=list)
    transposes: list[Measured] = field(default_factory=list)
    parts: list[Measured] = field(default_factory=list)
    attention: list[Measured] = field(default_factory=list)
    products: list[Measured] = field(default_factory=list)
    convolutions: list[ConvTimes] = field(default_factory=list)
    models: list[ModelTimes] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def is_dry_run(self) -> bool:
        """Whether nothing ran on a GPU."""
        return DRY_RUN in self.machine

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON takes them, and the targets."""
        return {
            "machine": self.machine,
            "seconds": round(self.seconds, 1),
            "targets": [vars(target) for target in targets(self)],
            "parity": [vars(verdict) for verdict in self.parity],
            "sanitizer": self.sanitizer,
            "kernels": [job.to_json() for job in self.kernels],
            "reductions": [job.to_json() for job in self.reductions],
            "transposes": [job.to_json() for job in self.transposes],
            "parts": [job.to_json() for job in self.parts],
            "attention": [job.to_json() for job in self.attention],
            "products": [job.to_json() for job in self.products],
            "convolutions": [job.to_json() for job in self.convolutions],
            "models": [model.to_json() for model in self.models],
            "errors": self.errors,
            "notes": self.notes,
        }


@dataclass(frozen=True)
class Target:
    """One line of the table of targets: the worst that was measured, None if nothing was, against what it has to be."""

    name: str
    wanted: str
    measured: float | None
    met: bool | None
    where: str = ""


def targets(results: Results) -> list[Target]:
    """The targets for an H100 or H200."""
    found = [
        _target("share of copy bandwidth, 64 MB and up, every chain", 0.92, _shares(results.kernels)),
        _target("against torch.compile, every chain and size", 1.0, _ratios(results.kernels, "torch")),
        _target("against XLA, every chain and size", 1.0, _ratios(results.kernels, "jax")),
        _target("against ORT unfused, 10-op chain, 64 MB", 5.0, _ten_ops(results)),
        _target("PP-OCR models, batch 1, against ORT CUDA", 1.5, _models([m for m in results.models if _is_ocr(m)])),
        _target("any zoo model against ORT CUDA", 0.98, _models(results.models)),
        _target("depthwise convolutions with HardSwish against ORT CUDA", 2.0, _convolutions(results, DEPTHWISE)),
        _target("pointwise convolutions with SiLU or residual", 1.2, _convolutions(results, POINTWISE)),
        _mean_target("3x3 dense convolutions with tail, geometric mean", 1.05, _convolutions(results, DENSE)),
        _target("3x3 dense convolutions with tail", 1.0, _convolutions(results, DENSE)),
        _target("products of BERT-base with tail", 1.0, _convolutions(results, PRODUCT)),
        _mean_target("convolutional models, batch 1, geometric mean", 1.3, _convolutional(results)),
        _target("convolutional models, batch 1", 1.0, _convolutional(results)),
        _target("share of copy bandwidth, 64 MB and up, what reduces", 0.92, _shares(results.reductions)),
        _target("against torch.compile, what reduces", 1.0, _ratios(results.reductions, "torch")),
        _target("against XLA, what reduces", 1.0, _ratios(results.reductions, "jax")),
        _target("against ORT, what reduces", 1.0, _ratios(results.reductions, "ort", "onnxfuse")),
        _target("share of copy bandwidth, 64 MB and up, transposes", 0.8, _shares(results.transposes)),
        _target("against ORT, transposes", 1.0, _ratios(results.transposes, "ort")),
        _target("share of copy bandwidth, 64 MB and up, parts of one launch", 0.85, _shares(results.parts)),
        _target("against ORT, parts of one launch", 1.0, _ratios(results.parts, "ort")),
        _target("share of copy bandwidth, 64 MB and up, products of few rows", 0.9, _shares(results.products)),
        _target("against ORT, products of few rows", 1.0, _ratios(results.products, "ort")),
        _target("attention against torch's", 0.9, _ratios(_with_mask(results, False), "torch", "onnxfuse")),
        _target("attention with a mask against torch's", 1.2, _ratios(_with_mask(results, True), "torch", "onnxfuse")),
    ]
    shares = [
        (m.elementwise["onnxfuse"] / m.elementwise["ort"], m.model) for m in results.models if m.elementwise.get("ort")
    ]
    worst = max(shares, default=None)
    found.append(
        Target(
            "launches in fused parts of a model, share of the original's",
            "≤ 0.33",
            worst[0] if worst else None,
            worst[0] <= 1 / 3 if worst else None,
            worst[1] if worst else "",
        )
    )
    compared = [] if results.is_dry_run else results.parity
    added = [] if results.is_dry_run else [(m.copies["onnxfuse"] - m.copies["ort"], m.model) for m in _counted(results)]
    most = max(added, default=None)
    found.append(
        Target(
            "copies between host and device that the original has not, any model",
            "0",
            float(most[0]) if most else None,
            most[0] <= 0 if most else None,
            most[1] if most else "",
        )
    )
    failed = [verdict for verdict in compared if not verdict.ok]
    found.append(
        Target(
            "parity, comparisons that fail",
            "0",
            float(len(failed)) if compared else None,
            not failed if compared else None,
            failed[0].name if failed else "",
        )
    )
    return found


def _target(name: str, least: float, values: Iterable[tuple[float, str]]) -> Target:
    worst = min(values, default=None)
    if worst is None:
        return Target(name, f"≥ {least}", None, None)
    return Target(name, f"≥ {least}", worst[0], worst[0] >= least, worst[1])


def _mean_target(name: str, least: float, values: Sequence[tuple[float, str]]) -> Target:
    if not values:
        return Target(name, f"≥ {least}", None, None)
    mean = math.exp(sum(math.log(ratio) for ratio, _ in values) / len(values))
    return Target(name, f"≥ {least}", mean, mean >= least, f"{len(values)} measurements")


def _convolutions(results: Results, kind: str) -> list[tuple[float, str]]:
    own = [job for job in results.convolutions if job.kind == kind]
    return [(ratio, job.name) for job in own if (ratio := job.ratio) is not None]


def _convolutional(results: Results) -> list[tuple[float, str]]:
    """Convolutional models, at batch 1."""
    return _models([m for m in results.models if m.batch == 1 and m.model.startswith(CONVOLUTIONAL)])


def _shares(jobs: Sequence[Measured]) -> list[tuple[float, str]]:
    large = [job for job in jobs if job.megabytes >= LARGE]
    return [(share, _name(job)) for job in large if (share := job.ratio("copy")) is not None]


def _ratios(jobs: Sequence[Measured], system: str, to: str = "kernel") -> list[tuple[float, str]]:
    return [(ratio, _name(job)) for job in jobs if (ratio := job.ratio(system, to)) is not None]


def _with_mask(results: Results, masked: bool) -> list[Measured]:
    return [job for job in results.attention if ("mask" in job.chain) == masked]


def _ten_ops(results: Results) -> list[tuple[float, str]]:
    chosen = [job for job in results.kernels if job.chain == TEN_OPS and job.megabytes == LARGE]
    return [(ratio, _name(job)) for job in chosen if (ratio := job.ratio("ort", "onnxfuse")) is not None]


def _models(models: Iterable[ModelTimes]) -> list[tuple[float, str]]:
    return [
        (ratio, f"{model.model}, {model.dtype}, batch {model.batch}")
        for model in models
        if (ratio := model.best_ratio) is not None
    ]


def _counted(results: Results) -> list[ModelTimes]:
    return [model for model in results.models if len(model.copies) == 2]


def _is_ocr(model: ModelTimes) -> bool:
    return model.model.startswith("ch_") and model.batch == 1


def _name(job: Measured) -> str:
    return f"{job.chain}, {job.dtype}, {job.megabytes:g} MB"


def write(results: Results, folder: Path) -> None:
    """Write results.json, results.md and the plots into ``folder``, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results.to_json(), indent=1)
    (folder / "results.json").write_text(text + "\n", encoding="utf-8")
    plots = {
        "bandwidth.svg": _bandwidth_plot(results),
        "models.svg": _models_plot(results),
    }
    for name, plot in plots.items():
        if plot:
            (folder / name).write_text(plot, encoding="utf-8")
    shown = [name for name, plot in plots.items() if plot]
    (folder / "results.md").write_text(markdown(results, shown), encoding="utf-8")


def markdown(results: Results, plots: Sequence[str] = ()) -> str:
    """The tables."""
    machine = ", ".join(f"{name} {value}" for name, value in results.machine.items())
    parts = [
        "# CUDA: measured by scripts/gpu_suite.py",
        f"{machine or 'no machine'}; {results.seconds:.0f} s.",
        "## Targets",
        table(
            ("on an H100 or H200", "wanted", "worst measured", "", "where"),
            [
                (
                    target.name,
                    target.wanted,
                    _NOT_MEASURED if target.measured is None else f"{target.measured:.3g}",
                    "" if target.met is None else ("met" if target.met else "**missed**"),
                    target.where,
                )
                for target in targets(results)
            ],
        ),
        *(f"![{name}]({name})" for name in plots),
    ]
    if results.parity:
        parts += ["## Parity", _parity(results)]
    if results.sanitizer:
        parts.append(f"compute-sanitizer: {results.sanitizer}")
    if any(job.seconds for job in results.kernels):
        parts += [
            "## Chains",
            "Times in µs; share: the bytes of inputs and outputs over those that a copy moves in that time; the other "
            "columns are times over that of our kernel, and ORT's over ours in ONNX Runtime. Our kernel, the copy and "
            "torch's are replayed from CUDA graphs; the times of jax and cupy have the calls from Python in them.",
            _kernels(results.kernels),
        ]
    if any(job.seconds for job in results.reductions):
        parts += ["## Reductions", "As above.", _kernels(results.reductions)]
    if any(job.seconds for job in results.transposes):
        parts += [
            "## Transposes",
            "Times in µs of a kernel that reads a tensor in another order; share as above; the ratio is of the time of "
            "ONNX Runtime's session, a Transpose with the operations behind it, over that kernel's.",
            _transposes(results.transposes),
        ]
    if any(job.seconds for job in results.parts):
        parts += [
            "## Parts",
            "Times in µs of one launch that computes several parts; share as above; the ratio is of the time of ONNX "
            "Runtime's session over that kernel's.",
            _transposes(results.parts, "parts"),
        ]
    if any(job.seconds for job in results.attention):
        parts += [
            "## Attention",
            "Times in µs of sessions with ONNX Runtime's nodes and with one fused node, and of torch's "
            "scaled_dot_product_attention, all replayed from CUDA graphs; ratios are of the others' times over ours.",
            _attention_table(results),
        ]
    if any(job.seconds for job in results.products):
        parts += [
            "## Products of few rows",
            "Times in µs of one launch that reads each byte of the matrices once; share and ratio as above.",
            _transposes(results.products, "products"),
        ]
    if any(job.seconds for job in results.convolutions):
        parts += [
            "## Convolutions",
            "Times in µs of one convolution with its tail: ORT's, ORT's with a fused tail, and the fused node; the "
            "ratio is ORT's over the faster one of the others.",
            _convolution_table(results),
        ]
    if results.models:
        parts += ["## Models", "Times in ms, ratios are ORT's over ours.", _model_table(results)]
    problems = [*results.errors, *_problems(results)]
    if problems:
        parts += ["## Problems", _lines(problems)]
    if results.notes:
        parts += ["## Left out", _lines(results.notes)]
    return "\n\n".join(parts) + "\n"


def _lines(texts: Iterable[str]) -> str:
    return "\n".join(f"- {' '.join(text.split())}" for text in texts)


def _parity(results: Results) -> str:
    kinds = dict.fromkeys(verdict.kind for verdict in results.parity)
    rows = []
    for kind in kinds:
        own = [verdict for verdict in results.parity if verdict.kind == kind]
        failed = [verdict for verdict in own if not verdict.ok]
        example = f"{failed[0].name}: {failed[0].detail}" if failed else ""
        rows.append((kind, str(len(own)), str(len(failed)), example))
    return table(("what", "compared", "failed", "for example"), rows)


def _kernels(jobs: Sequence[Measured]) -> str:
    rows = []
    for job in jobs:
        if not job.seconds:
            continue
        ratios = [_ratio(job.ratio(system)) for system in PEERS]
        kernel, share = job.seconds.get("kernel"), job.ratio("copy")
        rows.append(
            (
                job.chain,
                job.dtype,
                f"{job.megabytes:g}",
                "" if kernel is None else f"{1e6 * kernel:.1f}",
                "" if share is None else f"{100 * share:.0f} %",
                *ratios,
                _ratio(job.ratio("ort", "onnxfuse")),
            )
        )
    return table(("chain", "type", "MB", "kernel", "share", *PEERS, "ORT / ours"), rows)


def _transposes(jobs: Sequence[Measured], kind: str = "transpose") -> str:
    rows = []
    for job in jobs:
        kernel, share = job.seconds.get("kernel"), job.ratio("copy")
        microseconds = "" if kernel is None else f"{1e6 * kernel:.1f}"
        percent = "" if share is None else f"{100 * share:.0f} %"
        rows.append((job.chain, job.dtype, f"{job.megabytes:g}", microseconds, percent, _ratio(job.ratio("ort"))))
    return table((kind, "type", "MB", "kernel", "share", "ORT / ours"), rows)


def _attention_table(results: Results) -> str:
    rows = []
    for job in results.attention:
        times = [job.seconds.get(name) for name in ("ort", "torch", "onnxfuse")]
        microseconds = ["" if value is None else f"{1e6 * value:.1f}" for value in times]
        ratios = [_ratio(job.ratio(name, "onnxfuse")) for name in ("ort", "torch")]
        rows.append((job.chain, job.dtype, *microseconds, *ratios))
    return table(("attention", "type", "ORT", "torch", "ours", "ORT / ours", "torch / ours"), rows)


def _convolution_table(results: Results) -> str:
    rows = []
    for job in results.convolutions:
        if not job.seconds:
            continue
        times = [job.seconds.get(name) for name in ("ort", "tail", "fused")]
        rows.append(
            (
                job.network,
                job.layer,
                job.dtype,
                str(job.batch),
                *("" if value is None else f"{1e6 * value:.1f}" for value in times),
                _ratio(job.ratio),
            )
        )
    return table(("network", "layer", "type", "batch", "ORT", "tail fused", "fused", "ratio"), rows)


def _model_table(results: Results) -> str:
    rows = []
    for model in results.models:
        times = [model.seconds.get(label) for label in ("ort", "onnxfuse", "ort, graph", "onnxfuse, graph")]
        rows.append(
            (
                model.model,
                model.dtype,
                str(model.batch),
                *("" if value is None else f"{1e3 * value:.3f}" for value in times),
                _ratio(model.ratio(False)),
                _ratio(model.ratio(True)),
                " → ".join(_layout(model.settings.get(f"{name}, graph")) for name in ("ort", "onnxfuse")),
                " → ".join(str(model.launches[name]) for name in ("ort", "onnxfuse") if name in model.launches),
                " → ".join(str(model.copies[name]) for name in ("ort", "onnxfuse") if name in model.copies),
                " → ".join(str(model.elementwise[name]) for name in ("ort", "onnxfuse") if name in model.elementwise),
            )
        )
    columns = ("model", "type", "batch", "ORT", "ours", "ORT, graph", "ours, graph", "ratio", "ratio, graph")
    return table((*columns, "layout, graph", "launches", "copies", "in fused parts"), rows)


def _layout(settings: str | None) -> str:
    """Where the channels are with these settings of the provider."""
    if settings is None:
        return ""
    return "NHWC" if "prefer_nhwc" in settings else "NCHW"


def _problems(results: Results) -> list[str]:
    timed = [*results.kernels, *results.reductions, *results.attention]
    found = [f"{_name(job)}, {system}: {error}" for job in timed for system, error in job.errors.items()]
    found += [f"{job.name}, {system}: {error}" for job in results.convolutions for system, error in job.errors.items()]
    for model in results.models:
        found += [f"{model.model}, batch {model.batch}, {what}: {error}" for what, error in model.errors.items()]
    return list(dict.fromkeys(found))


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


# ------------------------------------------------------------------------------------------------ plots

_WIDTH, _LABEL, _BAR, _GAP = 900, 330, 14, 8
_FONT = 'font-family="sans-serif" font-size="12"'


def _bandwidth_plot(results: Results) -> str:
    bars = [(_name(job), share) for job in results.kernels if (share := job.ratio("copy")) is not None]
    return _bars("Share of the copy's bandwidth", bars, 0.92)


def _models_plot(results: Results) -> str:
    return _bars("ONNX Runtime's time over ours", [(name, ratio) for ratio, name in _models(results.models)], 1.0)


def _bars(title: str, bars: Sequence[tuple[str, float]], line: float) -> str:
    """Horizontal bars and a line to reach; empty without bars."""
    if not bars:
        return ""
    most = max(line, *(value for _, value in bars)) * 1.08
    scale = (_WIDTH - _LABEL - 60) / most
    height = 40 + len(bars) * (_BAR + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" {_FONT}>',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="8" y="20" font-size="15">{escape(title)}</text>',
    ]
    for index, (name, value) in enumerate(bars):
        y = 34 + index * (_BAR + _GAP)
        color = "#2f6fde" if value >= line else "#b3261e"
        parts += [
            f'<text x="{_LABEL - 8}" y="{y + 11}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{_LABEL}" y="{y}" width="{max(value * scale, 1):.1f}" height="{_BAR}" fill="{color}"/>',
            f'<text x="{_LABEL + value * scale + 5:.1f}" y="{y + 11}">{value:.2f}</text>',
        ]
    x = _LABEL + line * scale
    parts.append(f'<line x1="{x:.1f}" y1="28" x2="{x:.1f}" y2="{height - 4}" stroke="#1c1e21" stroke-dasharray="4 3"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"
