"""Helpers of the tests of ``--target cuda``: running the command line, and reading what it wrote."""

import onnx
import pytest

from onnxfuse.cli import cli


def bytes_attributes(node: onnx.NodeProto) -> dict[str, bytes]:
    """The string attributes of a node."""
    return {attribute.name: attribute.s for attribute in node.attribute}


def run_cli(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """The exit status, standard output, and the last line of standard error."""
    status = cli.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return status, out, err.splitlines()[-1] if err else ""
