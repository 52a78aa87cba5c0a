"""Simplify a model with onnxslim or onnxsim: ``simplify.py onnxslim|onnxsim IN.onnx OUT.onnx``."""

import sys

import onnx


def main(tool: str, source: str, target: str) -> None:
    """Write the simplified model."""
    model = onnx.load(source)
    if tool == "onnxslim":
        import onnxslim

        simplified = onnxslim.slim(model)
    else:
        import onnxsim

        simplified, _ = onnxsim.simplify(model)
    onnx.save(simplified, target)


if __name__ == "__main__":
    main(*sys.argv[1:])
