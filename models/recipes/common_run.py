"""Run one recipe: ``python common_run.py MODULE:FUNCTION OUT.onnx``."""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    module, _, function = sys.argv[1].partition(":")
    getattr(importlib.import_module(module), function)(Path(sys.argv[2]))
