"""The command line.  Heavy modules are imported by the command that needs them, so that ``--help`` is
quick."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import StringIO, TextIOWrapper
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from onnxfuse.cli_arguments import make_parser
from onnxfuse.errors import OnnxfuseError, ParityError
from onnxfuse.runtime import silence_onnxruntime
from onnxfuse.wording import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

EXIT_OK = 0
EXIT_PARITY = 1
EXIT_ERROR = 2
EXIT_INTERRUPT = 130
_FATAL_SIGNALS = ("SIGTERM", "SIGHUP")

_PIPED_WIDTH = 200  # a table that goes to a file or another program is not folded to the width of a terminal


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
        arguments = make_parser().parse_args(argv)
        silence_onnxruntime()
        status = _COMMANDS[arguments.command](arguments)
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
    text = printable(" ".join(message.split()))
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
            static=arguments.static,
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
        found = inspect(
            arguments.model,
            resolve_target(arguments.target),
            progress,
            arch=arguments.arch,
            conv=arguments.conv,
            tuning=arguments.tuning,
            tf32=arguments.tf32,
        )
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


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "optimize": _optimize,
    "check": _check,
    "bench": _bench,
    "inspect": _inspect,
    "zoo list": _zoo_list,
    "zoo fetch": _zoo_fetch,
    "zoo add": _zoo_add,
}


# --- output ---


class _Progress:
    """Says on standard error what is being done: one line that changes on a terminal, a line a step
    elsewhere."""

    def __enter__(self) -> Callable[[str], None]:
        from rich.console import Console
        from rich.text import Text

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
