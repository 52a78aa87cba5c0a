"""Writing the report to a file, as HTML or JSON by its suffix, and a trace."""

import json
import os
from collections.abc import Iterable
from pathlib import Path

from onnxfuse.errors import OnnxfuseError
from onnxfuse.files.model_io import external_files
from onnxfuse.model.replacing import Replacement, place
from onnxfuse.report.report import Report

SUFFIXES = (".html", ".htm", ".json")


class ReportFile(Replacement):
    """The file of a report, which is opened before there is a report to write."""

    def __init__(self, path: Path, *models: Path) -> None:
        """Raises OnnxfuseError if no report can be written to ``path``, or it is a file of one of the ``models``."""
        if path.suffix.lower() not in SUFFIXES:
            raise OnnxfuseError(f"the report {path} must end in .html or .json")
        _check_place("the report", path, models)
        super().__init__(path)
        self._json = path.suffix.lower() == ".json"

    def write_report(self, report: Report) -> None:
        """Replace the file by one with this report.  Raises OnnxfuseError if that fails."""
        if self._json:
            text = json.dumps(report.to_json(), indent=2) + "\n"
        else:
            from onnxfuse.report.report_html import render

            text = render(report)
        self.write(text.encode("utf-8", errors="backslashreplace"))


class TraceFile(Replacement):
    """The file of a trace, which is opened before there is one to write."""

    def __init__(self, path: Path, *models: Path) -> None:
        """Raises OnnxfuseError if no trace can be written to ``path``, or it is a file of one of the ``models``."""
        if path.suffix.lower() != ".json":
            raise OnnxfuseError(f"the trace {path} must end in .json")
        _check_place("the trace", path, models)
        super().__init__(path)


def _check_place(what: str, path: Path, models: Iterable[Path]) -> None:
    """Raises OnnxfuseError if ``path`` is a file of one of the ``models``."""
    if place(path) in {Path(os.path.realpath(model)) for model in models}:
        raise OnnxfuseError(f"{what} cannot be written over the model {path}")
    if path.exists() and any(place(path) in external_files(model) for model in models):
        raise OnnxfuseError(f"{what} cannot be written over {path}, which holds data of a model")
