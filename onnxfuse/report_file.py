"""Writing the report to a file, as HTML or JSON by its suffix."""

import json
import os
import tempfile
from pathlib import Path

from onnxfuse.errors import OnnxfuseError
from onnxfuse.report import Report

SUFFIXES = (".html", ".htm", ".json")


def check_report_path(path: Path, *models: Path) -> None:
    """Raise OnnxfuseError, before any work is done, if no report can be written to ``path``."""
    if path.suffix.lower() not in SUFFIXES:
        raise OnnxfuseError(f"the report {path} must end in .html or .json")
    if path.is_dir() or not path.parent.is_dir():
        raise OnnxfuseError(f"cannot write the report {path}: not a file in an existing directory")
    if path.resolve() in {model.resolve() for model in models}:
        raise OnnxfuseError(f"the report cannot be written over the model {path}")


def write_report(report: Report, path: Path) -> None:
    """Write the report through a temporary file.  Raises OSError if the file cannot be written."""
    if path.suffix.lower() == ".json":
        text = json.dumps(report.to_json(), indent=2) + "\n"
    else:
        from onnxfuse.report_html import render

        text = render(report)
    handle, temporary = tempfile.mkstemp(prefix=path.name, suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)  # mkstemp's files are for their owner alone
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
