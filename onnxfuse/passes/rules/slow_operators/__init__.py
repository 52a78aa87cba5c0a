"""Operators that ONNX Runtime is slow at: the rules of the pass slow-operators."""
