#!/usr/bin/env python3
"""Write docs/operators.md, the table of operators that are fused, by asking the code about each."""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))  # tools/, behind the packages of this Python

import onnx
import onnx_graphsurgeon as gs
from onnx import defs

from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program.figures import MAX_RANK
from onnxfuse.program.lowering import check, is_elementwise
from tools.messages import Parser

OPSET = 25
"""The opset whose operators and types the table lists; a newer onnx must not change it."""

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "operators.md"

GROUPS = {
    "floating-point": ("f16", "bf16", "f32", "f64"),
    "signed": ("i8", "i16", "i32", "i64"),
    "unsigned": ("u8", "u16", "u32", "u64"),
    "bool": ("bool",),
}

NOTES = {
    "BatchNormalization": "inference mode; input of known rank, all inputs of one type",
    "Cast": "to any of these types",
    "CastLike": "to any of these types",
    "Celu": "`alpha` is positive and finite",
    "Clip": "bounds are scalars, or attributes as before opset 11",
    "DequantizeLinear": "per tensor or per axis; to float, float16 or bfloat16",
    "Dropout": "inference mode, mask not used",
    "Gelu": "both forms",
    "Mod": "`fmod` 0 and 1; floating-point needs 1",
    "Pow": "the exponent has the type of the base, or is a constant that this type can hold; for integers it also has"
    " the base's shape, or is a constant: without 2 and 3, or of one element where the last dimension is known",
    "QuantizeLinear": "per tensor or per axis; to int8, uint8, int16 or uint16",
    "Selu": "`alpha` is positive and finite",
    "Where": "the types of the two values; the condition is bool",
}

INTRODUCTION = f"""\
# Operators that are fused

This table is made by `scripts/operator_table.py` from the code that lowers nodes, and `scripts/test.sh` fails
if it is out of date. It lists every elementwise operator of the ONNX standard that becomes part of a fused
node, with the element types of its main input, as of opset {OPSET}. Models of opset 7 and later are
read.

"floating-point" is float (32 bits), double, float16 and bfloat16; "signed" and "unsigned" are the
integers of 8, 16, 32 and 64 bits. The last two floating-point types are computed in float and rounded
once, where a value leaves the region or is cast. A node of another type stays as it is, and `onnxfuse
inspect` gives the reason. So does one of float16 with an attribute that float16 cannot hold, and a node with
a tensor of more than {MAX_RANK} dimensions; if the number is not known it is fused, and a run with more is an
error. On the CPU Sin and Cos of double stay, for ONNX Runtime computes them in half the time.

| operator | since opset | element types | remarks |
| --- | --- | --- | --- |
"""


def supported_types(schema: defs.OpSchema) -> tuple[str, ...]:
    """The element types of the main input for which some choice of the other types can be fused."""
    main = schema.inputs[1 if schema.name == "Where" else 0].type_str
    return tuple(name for name in DTYPES if any(_can_fuse(types, schema) for types in _choices(schema, main, name)))


def _choices(schema: defs.OpSchema, main: str, chosen: str) -> Iterator[dict[str, str]]:
    """Every assignment of types to the schema's type variables in which ``main`` has the ``chosen`` type."""
    variables = {constraint.type_param_str: _known(constraint) for constraint in schema.type_constraints}
    if chosen in variables[main]:
        variables[main] = [chosen]
        for types in itertools.product(*variables.values()):
            yield dict(zip(variables, types, strict=True))


def _known(constraint: defs.OpSchema.TypeConstraintParam) -> list[str]:
    """The types of a constraint that Programs can hold."""
    allowed = set(constraint.allowed_type_strs)
    names = {f"tensor({_onnx_name(dtype)})": dtype for dtype in DTYPES}
    return [dtype for name, dtype in names.items() if name in allowed]


def _onnx_name(dtype: str) -> str:
    return str(onnx.TensorProto.DataType.Name(DTYPES[dtype].onnx)).lower()


def _can_fuse(types: dict[str, str], schema: defs.OpSchema) -> bool:
    required = [entry for entry in schema.inputs if entry.option != defs.OpSchema.FormalParameterOption.Optional]
    whole = 2 if schema.name == "Pow" else 1  # inputs that are no scalars
    inputs = [
        gs.Variable(f"in{index}", DTYPES[types[entry.type_str]].numpy, [2, 3] if index < whole else [])
        for index, entry in enumerate(required)
    ]
    output_type = DTYPES[types[schema.outputs[0].type_str]]
    attributes: dict[str, object] = {}
    if schema.name == "BitShift":
        attributes["direction"] = "LEFT"
    elif schema.name == "Cast":
        attributes["to"] = output_type.onnx
    elif schema.name == "Mod":
        attributes["fmod"] = int(types["T"] in GROUPS["floating-point"])
    output = gs.Variable("out", output_type.numpy)
    return check(gs.Node(schema.name, "node", attributes, inputs, [output]), OPSET) is None


def describe(types: tuple[str, ...]) -> str:
    """Types in words, whole groups by their name."""
    words = []
    for group, members in GROUPS.items():
        if set(members) <= set(types):
            words.append(group)
        else:
            words += [_onnx_name(name) for name in members if name in types]
    return ", ".join(words)


def document() -> str:
    """The whole text of docs/operators.md."""
    schemas = [schema for schema in defs.get_all_schemas_with_history() if schema.domain == ""]
    first: dict[str, int] = {}
    for schema in schemas:
        first[schema.name] = min(first.get(schema.name, schema.since_version), schema.since_version)
    lines = []
    for name in sorted(name for name in first if is_elementwise(gs.Node(name))):
        types = supported_types(defs.get_schema(name, OPSET))
        lines.append(f"| {name} | {max(first[name], 7)} | {describe(types)} | {NOTES.get(name, '')} |")
    return INTRODUCTION + "\n".join(line.replace("|  |", "| |") for line in lines) + "\n"


def main() -> int:
    """Write the document, or with ``--check`` say whether it is up to date."""
    parser = Parser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if it is out of date")
    arguments = parser.parse_args()
    if not arguments.check:
        DOCUMENT.write_text(document(), encoding="utf-8")
    elif not DOCUMENT.is_file() or DOCUMENT.read_text(encoding="utf-8") != document():
        print(f"{DOCUMENT.name} is out of date: run scripts/operator_table.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
