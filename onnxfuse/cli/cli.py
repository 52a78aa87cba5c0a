"""The command line.  Heavy modules are imported by the command that needs them, so that ``--help`` is
quick."""

import argparse
import gc
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from onnxfuse.cli.cli_arguments import make_parser
from onnxfuse.cli.output import Progress, fail, flush, open_missing_streams, print_content, print_json, write
from onnxfuse.errors import OnnxfuseError, ParityError
from onnxfuse.system import signals
from onnxfuse.wording import printable

EXIT_OK = 0
EXIT_PARITY = 1
EXIT_ERROR = 2
_SIGNALS = dict.fromkeys(signals("SIGTERM", "SIGHUP"), "terminated") | {signal.SIGINT: "interrupted"}
_ALARM = signals("SIGALRM")
"""None on Windows: an import is not waited for there."""
_LATER_SECONDS = 0.02
_AGAIN_SECONDS = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status; never raises, whatever happens."""
    received: list[int] = []
    try:
        with _ending_on_signals(received):
            open_missing_streams()
            return _guarded(argv, received)
    except (_Ended, KeyboardInterrupt) as ended:
        number = signal.Signals(ended.signal if isinstance(ended, _Ended) else signal.SIGINT)
        fail("".join([*getattr(ended, "__notes__", []), _SIGNALS[number]]))
        return 128 + number


def _guarded(argv: Sequence[str] | None, received: list[int]) -> int:
    try:
        arguments = make_parser().parse_args(argv)
        from onnxfuse.run.runtime import silence_onnxruntime

        silence_onnxruntime()
        status = _COMMANDS[arguments.command](arguments)
        flush()
        return status
    except SystemExit as error:  # argparse has printed what there is to say
        return _exited(error)
    except Exception as error:
        if received:
            raise _Ended(received[0]) from error
        message, status = _described(error)
        if os.environ.get("ONNXFUSE_DEBUG"):
            import traceback

            traceback.print_exception(error)
        fail(message)
        return status


def _exited(error: SystemExit) -> int:
    try:
        flush()
    except OSError as full:
        fail(_described(full)[0])
        return EXIT_ERROR
    return error.code if isinstance(error.code, int) else EXIT_ERROR


def _described(error: Exception) -> tuple[str, int]:
    """What to say of an error, and the exit status."""
    if isinstance(error, ParityError):
        return str(error), EXIT_PARITY
    if isinstance(error, OnnxfuseError):
        return str(error), EXIT_ERROR
    if isinstance(error, MemoryError):
        return "out of memory", EXIT_ERROR
    if isinstance(error, OSError):
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror or error}{where}", EXIT_ERROR
    text = f"{type(error).__name__}: {error}".rstrip(": ")
    whose = ", ".join(getattr(error, "__notes__", ["onnxfuse"]))  # that of a pass has a note: it may be the user's
    return f"this is a bug in {whose} ({text}); set ONNXFUSE_DEBUG=1 for the traceback", EXIT_ERROR


class _Ended(BaseException):
    """A signal to end as an exception, so that temporary files are removed."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = number


@contextmanager
def _ending_on_signals(received: list[int]) -> Iterator[None]:
    """Make signals to end an exception.

    Not while a module is imported: compiled ones make another error of an exception that comes then, or abort.  Then
    ``received`` has the number of the signal, and the exception comes later.  And not for some time after another one,
    whose removal of temporary files must not be stopped.
    """
    ending = -math.inf

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ending
        if number not in _ALARM:
            received.append(number)
        if not received or time.monotonic() < ending + _AGAIN_SECONDS:
            return
        if _ALARM and _is_importing(frame):
            signal.setitimer(signal.ITIMER_REAL, _LATER_SECONDS)
        else:
            ending = time.monotonic()
            raise _Ended(received[0])

    previous = {}
    if _is_main_thread():
        for number in (*_SIGNALS, *_ALARM):
            if signal.getsignal(number) not in (None, signal.SIG_IGN):  # as nohup asks for
                previous[number] = signal.signal(number, end)
    try:
        yield
    finally:
        if received and _ALARM:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code is not main.__code__:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _is_main_thread() -> bool:
    import threading

    return threading.current_thread() is threading.main_thread()


# --- commands ---


@contextmanager
def _uncollected() -> Iterator[None]:
    """Leave cyclic garbage alone: a large model is millions of objects that live until the end, and
    Python's collector would go through all of them again and again, for a fourth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _plan_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the plan of a model depends on, beside the target, as ``optimize`` and ``inspect`` take it."""
    from onnxfuse.run.given_shapes import parse_shapes

    names = ("passes", "static", "fast_math", "arch", "conv", "tuning", "tf32", "prefer_nhwc")
    return {"shapes": parse_shapes(arguments.shape), **{name: getattr(arguments, name) for name in names}}


def _run_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What two models run on, and where."""
    from onnxfuse.run.given_shapes import parse_shapes
    from onnxfuse.targets.request import runnable_target

    target = runnable_target(arguments.target)
    return {"inputs": arguments.inputs, "shapes": parse_shapes(arguments.shape), "target": target}


@_uncollected()
def _optimize(arguments: argparse.Namespace) -> int:
    from onnxfuse.api import optimize
    from onnxfuse.report.report_file import ReportFile
    from onnxfuse.report.tables import render_optimization

    before = _file_at(arguments.output)
    with ExitStack() as stack, _telling_what_is_written(arguments.output, before):
        report = None
        if arguments.report is not None:
            report = ReportFile(arguments.report, arguments.input, arguments.output)
            stack.enter_context(report)
        with Progress(arguments.verbosity) as progress:
            result = optimize(
                arguments.input,
                arguments.target,
                **_plan_options(arguments),
                check=not arguments.no_check,
                bench=not (arguments.no_check or arguments.no_bench or os.environ.get("ONNXFUSE_NO_BENCH")),
                inputs=arguments.inputs,
                embed=not arguments.no_embed,
                keep_source=arguments.keep_source,
                tune=arguments.tune,
                time_kernels=report is not None,
                profile=arguments.profile,
                output=arguments.output,
                overwrite=arguments.overwrite,
                progress=progress,
            )
        try:
            if report is not None:
                report.write_report(result.report)
            print_content(render_optimization(result.report, arguments.verbosity < 0))
            flush()
        except (OSError, OnnxfuseError) as error:
            raise OnnxfuseError(f"{arguments.output} was written, but then: {_described(error)[0]}") from error
    return EXIT_OK


def _file_at(path: Path) -> tuple[int, int] | None:
    """Which file is at a path, of which another has taken the place if this changes; None for none."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


@contextmanager
def _telling_what_is_written(path: Path, before: tuple[int, int] | None) -> Iterator[None]:
    """Make a signal to end say that the output was written, if another file than ``before`` is there."""
    try:
        yield
    except _Ended as ended:
        if _file_at(path) != before:
            ended.add_note(f"{path} was written, but then: ")
        raise


def _check(arguments: argparse.Namespace) -> int:
    from onnxfuse.check.parity import compare
    from onnxfuse.report.tables import render_parity

    with Progress(arguments.verbosity) as progress:
        result = compare(
            arguments.original,
            arguments.optimized,
            **_run_options(arguments),
            regions=arguments.regions,
            progress=progress,
        )
    if arguments.json:
        print_json(result.to_json())
    else:
        print_content(render_parity(result, arguments.verbosity < 0))
    if not result.ok:
        raise ParityError(result.failure())
    return EXIT_OK


def _bench(arguments: argparse.Namespace) -> int:
    from onnxfuse.bench import bench
    from onnxfuse.report.tables import render_bench

    with Progress(arguments.verbosity) as progress:
        result = bench(
            arguments.original,
            arguments.optimized,
            **_run_options(arguments),
            threads=arguments.threads,
            seconds=arguments.seconds,
            memory=arguments.full,
            trace=arguments.profile,
            progress=progress,
        )
    if arguments.json:
        print_json(result.to_json())
    else:
        print_content(render_bench(result, arguments.verbosity < 0))
    return EXIT_OK


@_uncollected()
def _inspect(arguments: argparse.Namespace) -> int:
    from onnxfuse.planning.inspection import inspect
    from onnxfuse.planning.inspection_tables import render_inspection

    with Progress(arguments.verbosity) as progress:
        found = inspect(arguments.model, arguments.target, progress, **_plan_options(arguments))
    if arguments.cuda is not None:
        write(found.cuda_source(arguments.cuda))
    elif arguments.program is not None:
        write(found.program(arguments.program))
    elif arguments.json:
        print_json(found.to_json())
    else:
        print_content(render_inspection(found, every_node=arguments.all, brief=arguments.verbosity < 0))
    return EXIT_OK


def _zoo_list(arguments: argparse.Namespace) -> int:
    from onnxfuse.zoo.manifest import MANIFEST, read_manifest, select
    from onnxfuse.zoo.zoo_commands import list_json, render_list

    models = select(read_manifest(arguments.manifest or MANIFEST), arguments.models)
    if arguments.json:
        print_json(list_json(models))
    else:
        print_content(render_list(models))
    return EXIT_OK


def _zoo_fetch(arguments: argparse.Namespace) -> int:
    from onnxfuse.zoo.manifest import MANIFEST, read_manifest
    from onnxfuse.zoo.zoo_commands import fetch_models

    with Progress(arguments.verbosity) as progress:
        manifest = read_manifest(arguments.manifest or MANIFEST)
        paths = fetch_models(manifest, arguments.models, arguments.out, progress)
    write("\n".join(map(str, paths)))
    return EXIT_OK


def _zoo_add(arguments: argparse.Namespace) -> int:
    from onnxfuse.zoo.manifest import MANIFEST
    from onnxfuse.zoo.zoo_commands import NewEntry, add

    names = ("name", "task", "licence", "package", "path", "recipe", "environment")
    entry = NewEntry(**{name: getattr(arguments, name) for name in names})
    with Progress(arguments.verbosity) as progress:
        text = add(entry, arguments.model, arguments.manifest or MANIFEST, progress)
    write(text)
    return EXIT_OK


@_uncollected()
def _unfuse(arguments: argparse.Namespace) -> int:
    from onnxfuse.model.protos import onnx_graphs
    from onnxfuse.unfusing import unfuse
    from onnxfuse.wording import plural

    before = _file_at(arguments.output)
    with _telling_what_is_written(arguments.output, before):
        plain = unfuse(arguments.input, output=arguments.output, overwrite=arguments.overwrite)
        nodes = sum(len(graph.node) for graph in onnx_graphs(plain.graph))
        try:
            write(f"{plural(nodes, 'node')}, none of them fused")
            flush()
        except OSError as error:
            raise OnnxfuseError(f"{arguments.output} was written, but then: {_described(error)[0]}") from error
    return EXIT_OK


def _export_library(arguments: argparse.Namespace) -> int:
    from onnxfuse.run.library import export_library

    write("\n".join(map(str, export_library(arguments.folder))))
    return EXIT_OK


def _doctor(arguments: argparse.Namespace) -> int:
    from onnxfuse.doctor import examine

    found = list(examine())
    if arguments.json:
        print_json(dict(found))
    else:
        width = max(len(subject) for subject, _ in found)
        write("\n".join(f"{subject:{width}}  {printable(text)}" for subject, text in found))
    return EXIT_OK


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "optimize": _optimize,
    "check": _check,
    "bench": _bench,
    "inspect": _inspect,
    "unfuse": _unfuse,
    "export-library": _export_library,
    "doctor": _doctor,
    "zoo list": _zoo_list,
    "zoo fetch": _zoo_fetch,
    "zoo add": _zoo_add,
}
