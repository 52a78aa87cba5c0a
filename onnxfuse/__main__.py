"""``python -m onnxfuse`` is the command line."""

import sys

from onnxfuse.cli import main

sys.exit(main())
