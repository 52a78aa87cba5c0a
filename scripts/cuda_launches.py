#!/usr/bin/env python3
"""Write benchmarks/cuda_launches.md: what is left to launch of models of deployed size on CUDA, without a GPU.

Each model is optimized for sm_90 as by default, in float32 and converted to float16, and counted as the report counts:
launches before and after, and bytes of tensors that one launch writes and another reads, after over before.  Beside
that stand the bytes that ONNX Runtime's products and convolutions write, and that they write or read, over the same:
with these products left to it, no fusion around them gets below.  A CUDA graph can be captured where the report knows
nothing that keeps it.  Models with open sizes are counted as they are, and with all sizes given (--static).
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

os.environ["PYTHONSAFEPATH"] = "1"
sys.path.append(str(Path(__file__).resolve().parent.parent))  # tools/, behind the packages of this Python

import onnxfuse
from onnxfuse.errors import OnnxfuseError
from onnxfuse.planning.statistics import Statistics
from onnxfuse.report.report import Report, group
from onnxfuse.zoo.fetching import fetch
from onnxfuse.zoo.manifest import StoredModel, read_manifest, select
from tools.gpu.four_bits import four_bit_model
from tools.gpu.half import half_model
from tools.markdown_table import table
from tools.messages import Parser, say

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "benchmarks" / "cuda_launches.md"
MODELS = (
    *("bert_base", "minilm_l6", "gpt2_small", "vit_b16", "dinov2_small", "clip_vit_b32", "t5_small_encoder"),
    *("whisper_base_encoder", "llama_160m", "modernbert_base", "deberta_v3_small", "segformer_b0", "swin_t"),
    *("conformer_encoder", "llama_160m_cached", "gpt2_small_cached", "whisper_base_decoder"),
    *("bert_base_script", "gpt2_small_script", "vit_b16_script"),
)
FOUR_BITS = "llama_160m_cached"
"""What is counted with weights of 4 bits too."""
COLUMNS = (
    *("model", "sizes", "type", "launches before", "after", "bytes before", "after", "ratio"),
    *("products write", "or read", "CUDA graph"),
)


@dataclass(frozen=True)
class Subject:
    """A model as it is counted: the ``kind`` of its numbers, what makes such a file of the model's, and whether its
    sizes are given."""

    model: StoredModel
    kind: str
    make: Callable[[Path, Path], Path]
    static: bool


def subjects(models: Sequence[str]) -> Iterator[Subject]:
    """What to count of the named models, or of all.  Raises OnnxfuseError for a pattern that no model matches."""
    for model in select(read_manifest(), models or MODELS):
        kinds: dict[str, Callable[[Path, Path], Path]] = {"float32": lambda path, out: path, "float16": half_model}
        if model.name == FOUR_BITS:
            kinds["4 bits"] = four_bit_model
        for kind, make in kinds.items():
            for static in (False, True) if any(model.sizes) else (True,):
                yield Subject(model, kind, make, static)


def counted(subject: Subject, path: Path) -> Report:
    """The report of one.  Raises OnnxfuseError if the model cannot be optimized."""
    is_open = any(subject.model.sizes)
    shapes = subject.model.shapes() if is_open else None
    return onnxfuse.optimize(
        path, "cuda", arch="sm_90", embed=False, check=False, shapes=shapes, static=is_open and subject.static
    ).report


def cells(subject: Subject, report: Report) -> list[str]:
    """A line of the table."""
    assert report.before is not None and report.after is not None
    before, after = report.counts() or (report.before, report.after)
    sizes = ", ".join(f"{name} {size}" for name, size in subject.model.sizes[0].items())
    how = sizes if not sizes or subject.static else f"open ({sizes})"
    launches = str(report.before.launches), str(report.after.launches)
    return [subject.model.name, how, subject.kind, *launches, *_bytes(before, after), _graph(report)]


def _bytes(before: Statistics, after: Statistics) -> list[str]:
    whole, rest = before.bytes_between, after.bytes_between
    cells = [whole.at_least(), rest.at_least()]
    parts = [found.constant() for found in (rest, after.bytes_of_products, after.bytes_at_products)]
    known = whole.terms[()]
    bound = "" if whole.constant() is not None else "≤ "  # of some tensors before the size may not be known
    return cells + ["" if part is None or not known else f"{bound}{part / known:.2f}" for part in parts]


def _graph(report: Report) -> str:
    if not report.not_captured:
        return "yes"
    reasons = group(report.not_captured, lambda item: item.reason)
    return "no: " + "; ".join(
        f"{reason} ({', '.join(dict.fromkeys(item.op for item in items))})" for reason, items in reasons
    )


def main(given: Sequence[str] | None = None) -> int:
    """Count, print, and write the page."""
    parser = Parser(description=__doc__)
    add = parser.add_argument
    add("models", nargs="*", metavar="MODEL", help="these of models/manifest.toml, without a page (default: twenty)")
    add("--made", type=Path, metavar="DIR", help="keep what recipes make there, and take what is there")
    arguments = parser.parse_args(given)
    lines: list[list[str]] = []
    print(table(COLUMNS, ()))
    try:
        for subject in subjects(arguments.models):
            say(f"{subject.model.name}, {subject.kind}{', every size given' * subject.static}")
            with tempfile.TemporaryDirectory() as folder:
                path = fetch(subject.model.name, folder=Path(folder), made=arguments.made)
                made = subject.make(path, Path(folder) / "made.onnx")
                lines.append(cells(subject, counted(subject, made)))
            print(table(lines[-1], ()).partition("\n")[0], flush=True)
    except OnnxfuseError as error:
        print(f"cuda_launches.py: {error}", file=sys.stderr)
        return 2
    if not arguments.models:
        about = (__doc__ or "").split("\n\n", 1)[1]
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
        head = f"# What is left to launch on CUDA\n\nMade by `scripts/cuda_launches.py`.\n\n{about}"
        PAGE.write_text(
            f"{head}\n{date.today()}; commit {commit.stdout.strip()}.\n\n{table(COLUMNS, lines)}\n", "utf-8"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
