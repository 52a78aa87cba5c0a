"""``python -m onnxfuse`` is the command line, and so is the script that is installed."""

import sys


def run() -> int:
    """Run the command line, which an interrupt may end while its modules are imported; return the exit status."""
    try:
        from onnxfuse.cli.cli import main

        return main()
    except KeyboardInterrupt:  # before main could say so
        return 130


if __name__ == "__main__":
    sys.exit(run())
