"""A program of another environment that answers requests, one line of JSON each, until it is closed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress


class OtherProcess:
    """It begins with the first request, and anew with the one after it has ended."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._command = list(command)
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None

    def ask(self, request: Mapping[str, object]) -> str:
        """What the program answers: why it could not do what was asked; empty if it has done it."""
        if self._process is None:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            print(json.dumps(request), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        return str(json.loads(line)) if line else f"the process ended with status {self.close()}"

    def close(self) -> int:
        """End the process; its exit status."""
        if self._process is None:
            return 0
        self._process.communicate()
        status, self._process = self._process.returncode, None
        return status
