#!/usr/bin/env python3
"""Write down what becomes of the zoo's models, so that a change of any plan is one that its author sees and means.

Plans the models that need no environment of their own, nor any package that the tests do not fetch anyway, for both
targets as onnxfuse inspect does, and writes tests/planning/zoo_plans.txt: for each model and target how many rewrites
there are, and how many fused nodes of each kind, with a digest of their operators and Programs.  Models that are named
are planned instead, whichever they are, and their lines printed: to compare two commits.  The processor is a fixed one,
and no CUDA compiler is asked.  Needs neither a GPU nor a compiler; some ten seconds.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

sys.path.append(str(Path(__file__).resolve().parent.parent))  # tools/, behind the packages of this Python

from onnxfuse import cpu
from onnxfuse.cuda.arch import COMMON
from onnxfuse.errors import OnnxfuseError
from onnxfuse.fused.target import TARGETS
from onnxfuse.planning.inspection import inspect
from onnxfuse.report.fused_region import FusedRegion
from onnxfuse.report.report import Report
from onnxfuse.zoo.fetching import fetch
from onnxfuse.zoo.manifest import StoredModel, read_manifest, select
from tools.messages import Parser, say
from tools.zoo_sources import ROOT, small_models

PLANS = ROOT / "tests" / "planning" / "zoo_plans.txt"
PACKAGES = ("onnx", "rapidocr-onnxruntime")
"""Those whose models the tests have: one that is installed, and one that they fetch."""
ARCHITECTURES: Mapping[str, tuple[str, ...] | None] = {"cpu": None, "cuda": COMMON}
"""By target."""
_HEAD = """\
# What becomes of the zoo's models, written by scripts/zoo_plans.py: model, target, what, how many, and a digest.
# That of fused nodes is of their operators and Programs, without the values of constants; that of rewrites of how many
# each rule or pass has made.
"""
_PROCESSOR = {"vendor": "AuthenticAMD", "family": "26", "features": "avx2 avx512 vnni"}
"""A Zen 5."""


@contextmanager
def fixed_machine() -> Iterator[None]:
    """Whatever the machine, what is planned is for one processor, and no compiler judges it."""
    none = OnnxfuseError("no compiler is asked")
    with (
        mock.patch.object(cpu, "_info", lambda: _PROCESSOR),
        mock.patch("platform.machine", lambda: "x86_64"),
        mock.patch("onnxfuse.cuda.compile.compiler.find_compiler", side_effect=none),
    ):
        yield


def at_hand(manifest: Mapping[str, StoredModel]) -> list[str]:
    """The names of the models that the tests have anyway."""
    found = []
    for name in small_models(manifest):
        model = manifest[name]
        if model.kept and model.environment is None and (model.package is None or model.package.name in PACKAGES):
            found.append(name)
    return found


def plan_lines(name: str, path: Path) -> list[str]:
    """The lines of one model."""
    lines = []
    with fixed_machine():
        for target in TARGETS:
            plan = inspect(path, target, arch=ARCHITECTURES[target]).plan
            lines += [f"{name} {target} {line}" for line in _lines(plan)]
    return lines


def _lines(plan: Report) -> Iterator[str]:
    rules = [f"{rule} {len(rewrites)}" for rule, rewrites in plan.rewrites_by_rule()]
    yield f"rewrites {len(plan.rewrites)} {_digest(rules)}"
    kinds = defaultdict(list)
    for region in plan.fused:
        kinds[region.kind].append(_content(region))
    for kind, contents in sorted(kinds.items()):
        yield f"{kind} {len(contents)} {_digest(contents)}"


def _content(region: FusedRegion) -> str:
    """What a fused node computes, but for the values of constants: where ONNX Runtime computes one, its rounding is
    that of the machine."""
    lines = [*region.prologue.splitlines(), *region.program.splitlines()]
    shown = [line.rpartition(" ")[0] if line.startswith("const ") else line for line in lines]
    return "\n".join([" ".join(region.ops), *shown])


def _digest(contents: list[str]) -> str:
    return sha256("\n\n".join(sorted(contents)).encode()).hexdigest()[:8]


def read() -> dict[str, list[str]]:
    """The lines of the list by model."""
    found = defaultdict(list)
    for line in PLANS.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            found[line.partition(" ")[0]].append(line)
    return dict(found)


def main() -> int:
    """Write the list, or print that of some models."""
    parser = Parser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="print the lines of these, and write nothing")
    named = parser.parse_args().models
    try:
        manifest, lines = read_manifest(), []
        for name in [model.name for model in select(manifest, named)] if named else at_hand(manifest):
            with TemporaryDirectory() as scratch:
                lines += plan_lines(name, fetch(name, manifest, folder=Path(scratch), progress=say))
    except OnnxfuseError as error:
        print(f"zoo_plans.py: error: {error}", file=sys.stderr)
        return 2
    if named:
        print("\n".join(lines))
    else:
        PLANS.write_text(_HEAD + "\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
