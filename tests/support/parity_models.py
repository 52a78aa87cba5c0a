"""Small models for the tests of parity, benchmark and command line, and a library-free way to break them."""

from pathlib import Path

import onnx
from onnx import parser

from onnxfuse.model.graph import Model

CHAIN = """
<ir_version: 8, opset_import: ["": 17], producer_name: "test">
chain (float[batch, 4, width] x) => (float[batch, 4, width] y)
<float[4, 1] scale = {1.5, -2.0, 0.25, 3.0}, float[1] half = {0.5}>
{
  [scaled] a = Mul(x, scale)
  [shifted] b = Add(a, half)
  [squashed] c = Sigmoid(b)
  [gated] y = Mul(c, b)
}
"""


def chain(text: str = CHAIN) -> onnx.ModelProto:
    return parser.parse_model(text)


class Breaks:
    """A pass that makes another model of the chain."""

    name = "breaks"
    description = "adds where the model multiplies"

    def run(self, loaded: Model, _context: object) -> None:
        next(node for node in loaded.graph.nodes if node.name == "gated").op = "Add"


def save(model: onnx.ModelProto, path: Path) -> Path:
    onnx.save(model, path)
    return path


def model_file(path: Path, signature: str, body: str, opset: int = 17) -> Path:
    """A file with the model of one line of ONNX text: ``signature`` is what stands after the graph's name."""
    text = f'<ir_version: 8, opset_import: ["": {opset}]> g {signature} {{ {body} }}'
    return save(parser.parse_model(text), path)
