#!/usr/bin/env python3
"""Whether optimized models run everywhere: without the library and with it, in several versions of ONNX Runtime and in
onnx's ReferenceEvaluator, and after a tool has written them anew that knows no overloads of functions.

The environments are set up in the cache at first use.  What an ONNX Runtime computes of the original is what it must
compute of the optimized model; where it does not run the original, there is nothing to ask for.
"""

import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.metadata import version
from pathlib import Path

os.environ["PYTHONSAFEPATH"] = "1"

sys.path.append(str(Path(__file__).resolve().parent.parent))  # tools/, behind the packages of this Python

import onnx

import onnxfuse
from onnxfuse.check.comparison import compare_values
from onnxfuse.check.numerics import output_numbers
from onnxfuse.errors import OnnxfuseError
from onnxfuse.files.model_io import read_proto
from onnxfuse.model.protos import onnx_graphs
from onnxfuse.run.inputs import InputSet
from onnxfuse.run.library import custom_ops_library
from onnxfuse.run.sessions import Value
from onnxfuse.zoo.fetching import environment_python, fetch
from onnxfuse.zoo.manifest import Environment, FetchError, read_manifest, select
from onnxfuse.zoo.model_inputs import input_sets
from tools import portability_worker
from tools.markdown_table import table
from tools.messages import Parser, one_line, say
from tools.other_process import OtherProcess
from tools.parity.reference import ROUNDINGS, against_reference
from tools.parity.roundings import Judge

WORKER = Path(portability_worker.__file__)
PACKAGES = Path(custom_ops_library()).parents[2]
"""The folder that has the installed package."""
VERSIONS = ("1.20.1", "1.22.0", "1.24.4", "1.26.0")
EQUAL = "equal"
ORIGINAL = "original: "
"""Begins what is said where the original does not run."""
WAYS = (
    ("without the library", "fused", False),
    ("without overloads", "plain_names", False),
    ("with it", "fused", True),
)
"""How the optimized model is run: what is said of it, which file, and with the library or not."""


class Elsewhere:
    """The ONNX Runtime of another Python, in a process that is there until it is closed."""

    def __init__(self, python: str) -> None:
        self._process = OtherProcess([python, str(WORKER), str(PACKAGES)])

    def __enter__(self) -> "Elsewhere":
        return self

    def __exit__(self, *_unused: object) -> None:
        self._process.close()

    def run(
        self, model: Path, feeds: dict[str, Value], library: bool = False, optimized: bool = True
    ) -> list[Value] | str:
        """The outputs of a model, with ONNX Runtime's optimizations or not, or why there are none."""
        with tempfile.TemporaryDirectory() as folder:
            given, outputs = Path(folder) / "feeds", Path(folder) / "outputs"
            given.write_bytes(pickle.dumps(feeds))
            files = {"model": str(model), "feeds": str(given), "outputs": str(outputs)}
            if reason := self._process.ask({"library": library, "optimized": optimized, **files}):
                return reason
            values: list[Value] = pickle.loads(outputs.read_bytes())
            return values


@dataclass
class Row:
    """What became of a model: one answer for each place, of which the last is ReferenceEvaluator."""

    model: str
    functions: int
    answers: dict[str, str]


def with_plain_names(path: Path, target: Path) -> Path:
    """The model as a tool writes it that does not know of overloads, beside its external data."""
    model = onnx.load(path, load_external_data=False)
    for function in model.functions:
        function.overload = ""
    nodes = [node for graph in onnx_graphs(model.graph) for node in graph.node]
    for node in (*nodes, *(node for function in model.functions for node in function.node)):
        node.overload = ""
    onnx.save(model, target)
    return target


def answer(
    place: Elsewhere, original: Path, folder: Path, inputs: InputSet, tolerance: float, judge: Judge | None = None
) -> str:
    """``equal``, or the first way in which an optimized model, in ``folder``, does not do what the original does; or
    does so but for roundings, as ``judge`` says.
    """
    expected = place.run(original, inputs.feeds)
    if isinstance(expected, str):
        return f"{ORIGINAL}{expected}"
    known = output_numbers(read_proto(original))
    rounded = ""

    @cache
    def unoptimized() -> dict[str, Value]:
        found = place.run(original, inputs.feeds, optimized=False)
        return {} if isinstance(found, str) else dict(zip(known, found, strict=True))

    for way, stem, library in WAYS:
        actual = place.run(folder / f"{stem}.onnx", inputs.feeds, library)
        if isinstance(actual, str):
            return f"{way}: {actual}"
        for (name, numbers), left, right in zip(known.items(), expected, actual, strict=True):
            found = compare_values(name, left, right, numbers)
            if found.within(tolerance):
                continue
            said = f"{way}: output {name}: {found.reason}"
            excuse = "" if judge is None else judge.excuse(name, left, right, numbers, unoptimized)
            if not excuse:
                return said
            rounded = rounded or f"{ROUNDINGS}{said}; {excuse}"
    return rounded or EQUAL


def check(name: str, places: dict[str, Elsewhere], target: str, seconds: float) -> Row:
    """Optimize one model of the zoo and run it in all ``places``, and for so many seconds in ReferenceEvaluator."""
    model = read_manifest()[name]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "made").mkdir()
        original = fetch(name, folder=folder / "made")
        fused = folder / "fused.onnx"
        options = {"arch": "sm_80", "embed": False} if target == "cuda" else {}
        onnxfuse.optimize(original, target, check=False, output=fused, **options)  # type: ignore[arg-type]
        with_plain_names(fused, folder / "plain_names.onnx")
        inputs = input_sets(model, original)[0]
        judge = Judge(original, inputs)
        answers = {
            title: answer(place, original, folder, inputs, model.tolerance, judge) for title, place in places.items()
        }
        evaluator = f"ReferenceEvaluator of onnx {onnx.__version__}"
        answers[evaluator] = against_reference(original, fused, inputs, seconds, model.tolerance, judge)
        return Row(name, len(read_proto(fused).functions), answers)


def is_wrong(found: str) -> bool:
    """Whether an answer says that an optimized model does not do what the original does."""
    return found != EQUAL and not found.startswith((ORIGINAL, ROUNDINGS, "too ", "unsupported", "no reference"))


def is_rounded(found: str) -> bool:
    """Whether an answer says that an optimized model does what the original does but for roundings."""
    return found.startswith(ROUNDINGS)


def is_nothing(found: str) -> bool:
    """Whether there was nothing to compare."""
    return found != EQUAL and not is_rounded(found) and not is_wrong(found)


def page(rows: Sequence[Row], target: str) -> str:
    """The text of the page."""
    places = list(rows[0].answers)
    counted = []
    for place in places:
        found = [row.answers[place] for row in rows]
        equal, rounded, wrong = found.count(EQUAL), sum(map(is_rounded, found)), sum(map(is_wrong, found))
        counted.append((place, equal, rounded, len(found) - equal - rounded - wrong, wrong))
    fused = sum(row.functions > 0 for row in rows)
    lines = [
        f"# Models fused for {target}, everywhere",
        "",
        f"`scripts/portability.py --target {target}`: {len(rows)} models of the zoo, {fused} of them with fused nodes:",
        "without the native library, after a tool has written them anew that knows no overloads of functions, and with",
        "the library (ReferenceEvaluator: without it); each is held against the original in the same place.",
        f"onnxfuse {version('onnxfuse')}, {date.today()}.",
        "",
        table(("place", "equal", "but for roundings", "the original does not run, or is too slow", "differs"), counted),
        "",
        *_listed("What differs", rows, is_wrong),
        *_listed("Roundings", rows, is_rounded),
        *_listed("Where there is nothing to compare", rows, is_nothing),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _listed(title: str, rows: Iterable[Row], wanted: Callable[[str], bool]) -> list[str]:
    found = [(row.model, place, text[:300]) for row in rows for place, text in row.answers.items() if wanted(text)]
    return [f"## {title}", "", table(("model", "place", "what it says"), found), ""] if found else []


def main() -> int:
    """Check the models and write the page; 1 if one of them is wrong anywhere."""
    parser = Parser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["*"], metavar="GLOB", help="models of the zoo (default: all)")
    parser.add_argument(
        "--ort", nargs="*", default=VERSIONS, metavar="VERSION", help="versions besides the installed one, or none"
    )
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu", help="what to fuse for (default: cpu)")
    parser.add_argument(
        "--seconds", type=float, default=60.0, metavar="S", help="limit of ReferenceEvaluator (default: 60)"
    )
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the page there, not to standard output")
    arguments = parser.parse_args()
    others = [f"{name}=={version(name)}" for name in ("onnx", "numpy", "ml_dtypes")]
    rows, skipped = [], []
    pythons = {
        f"ONNX Runtime {one}": environment_python(Environment("onnxruntime", (f"onnxruntime=={one}", *others)), say)
        for one in arguments.ort
    }
    pythons[f"ONNX Runtime {version('onnxruntime')}"] = sys.executable
    with ExitStack() as stack:
        places = {title: stack.enter_context(Elsewhere(python)) for title, python in pythons.items()}
        for model in select(read_manifest(), arguments.models):
            try:
                row = check(model.name, places, arguments.target, arguments.seconds)
            except (FetchError, OnnxfuseError) as error:
                skipped.append(f"{model.name}: {one_line(error)}")
                continue
            rows.append(row)
            say(f"{row.model}: {', '.join(f'{place}: {found[:80]}' for place, found in row.answers.items())}")
    text = page(rows, arguments.target) if rows else ""
    if arguments.page is None:
        print(text, end="")
    else:
        arguments.page.write_text(text, encoding="utf-8")
    for message in skipped:
        say(message)
    return int(bool(skipped) or any(is_wrong(found) for row in rows for found in row.answers.values()))


if __name__ == "__main__":
    sys.exit(main())
