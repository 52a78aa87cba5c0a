"""The types that the operators of Programs take."""

from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program.ops import OPS, Rule


def operand_dtypes(op: str, dtype: str) -> tuple[str | None, ...]:
    """The types of an instruction's operands; None is any type."""
    row = OPS[op]
    match row.rule:
        case Rule.CAST:
            return (None,)
        case Rule.SELECT:
            return ("bool", dtype, dtype)
        case _:
            return (dtype,) * row.arity


def supports(op: str, dtype: str) -> bool:
    """Whether the operator has a kernel for T = ``dtype``."""
    return DTYPES[dtype].compute in OPS[op].types
