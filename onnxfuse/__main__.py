"""``python -m onnxfuse`` is the command line."""

import sys

try:
    from onnxfuse.cli import main

    sys.exit(main())
except KeyboardInterrupt:  # before main could say so
    sys.exit(130)
