"""The table of ONNX's elementwise operators: what is known of each by its name.

A row is there for every operator of the standard that Programs can express, and a test fails where one is missing, here
or in a table of what ONNX Runtime does with these operators (``ort/slow_kernels.py`` for its CPU provider,
``ort/cuda_kernels.py`` for CUDA).  How a node becomes instructions is in ``program/lowering.py``, what these take
and how precise they are in ``program/ops.py``; the versions and attributes that are understood are in
``known_operators.py``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, Flag, auto


class Operands(Enum):
    """Which inputs have elements for those of the result."""

    FIRST = "first"
    """The first; others are scalars, or matter for their type alone."""
    BROADCAST = "broadcast"
    """All, by broadcasting."""
    ONE_WAY = "one way"
    """All, by broadcasting to the shape of the first."""
    AXIS = "axis"
    """The first; others may be vectors along one of its axes."""


class Values(Enum):
    """What the result's values are by nature."""

    ANY = "any"
    UNIT = "unit"
    """From 0 to 1."""
    KEPT = "kept"
    """Those of the first input."""


class Slack(Flag):
    """What the definition leaves open of a result in float32 or float64, so that two that differ may both be right."""

    EXACT = 0
    """Nothing: all bits are settled."""
    FUNCTION = auto()
    """The last digits, as with any function that is not rounded correctly."""
    SUM = auto()
    """The last digits of a sum, where rules rewrite it."""
    ANY_SUM = auto()
    """The same wherever it is, for the order of its additions is open."""
    CANCELS = auto()
    """In 16 bits, all of a result that is small beside what was added up to it."""
    ZERO_SIGN = auto()
    """The sign of a zero."""


@dataclass(frozen=True)
class Elementwise:
    """An elementwise operator.

    ``steps`` says that a last digit decides the result, so that numbers which were rounded to 16 bits give quite
    another: a whole number, or whether two numbers are equal.  ``commutes`` says that the inputs may be exchanged.
    """

    operands: Operands
    slack: Slack
    values: Values = Values.ANY
    steps: bool = False
    commutes: bool = False


_FIRST, _BROADCAST, _ONE_WAY, _AXIS = Operands.FIRST, Operands.BROADCAST, Operands.ONE_WAY, Operands.AXIS
_EXACT, _FUNCTION, _CANCELS, _ZERO_SIGN = Slack.EXACT, Slack.FUNCTION, Slack.CANCELS, Slack.ZERO_SIGN
_SUM, _ANY_SUM = Slack.SUM, Slack.SUM | Slack.ANY_SUM
_KEPT, _UNIT = Values.KEPT, Values.UNIT

ELEMENTWISE: Mapping[str, Elementwise] = {
    "Abs": Elementwise(_FIRST, _EXACT),
    "Acos": Elementwise(_FIRST, _FUNCTION),
    "Acosh": Elementwise(_FIRST, _FUNCTION),
    "Add": Elementwise(_BROADCAST, _SUM, commutes=True),
    "And": Elementwise(_BROADCAST, _EXACT, commutes=True),
    "Asin": Elementwise(_FIRST, _FUNCTION),
    "Asinh": Elementwise(_FIRST, _FUNCTION),
    "Atan": Elementwise(_FIRST, _FUNCTION),
    "Atanh": Elementwise(_FIRST, _FUNCTION),
    "BatchNormalization": Elementwise(_AXIS, _FUNCTION | _ANY_SUM),
    "BitShift": Elementwise(_BROADCAST, _EXACT),
    "BitwiseAnd": Elementwise(_BROADCAST, _EXACT, commutes=True),
    "BitwiseNot": Elementwise(_FIRST, _EXACT),
    "BitwiseOr": Elementwise(_BROADCAST, _EXACT, commutes=True),
    "BitwiseXor": Elementwise(_BROADCAST, _EXACT, commutes=True),
    "Cast": Elementwise(_FIRST, _EXACT, values=_KEPT),
    "CastLike": Elementwise(_FIRST, _EXACT, values=_KEPT),
    "Ceil": Elementwise(_FIRST, _EXACT, steps=True),
    "Celu": Elementwise(_FIRST, _FUNCTION | _CANCELS),
    "Clip": Elementwise(_FIRST, _ZERO_SIGN),
    "Cos": Elementwise(_FIRST, _FUNCTION),
    "Cosh": Elementwise(_FIRST, _FUNCTION),
    "DequantizeLinear": Elementwise(_AXIS, _EXACT),
    "Div": Elementwise(_BROADCAST, _EXACT),
    "Dropout": Elementwise(_FIRST, _EXACT, values=_KEPT),
    "Elu": Elementwise(_FIRST, _FUNCTION | _CANCELS),
    "Equal": Elementwise(_BROADCAST, _EXACT, steps=True, commutes=True),
    "Erf": Elementwise(_FIRST, _FUNCTION),
    "Exp": Elementwise(_FIRST, _FUNCTION),
    "Floor": Elementwise(_FIRST, _EXACT, steps=True),
    "Gelu": Elementwise(_FIRST, _FUNCTION | _CANCELS),
    "Greater": Elementwise(_BROADCAST, _EXACT),
    "GreaterOrEqual": Elementwise(_BROADCAST, _EXACT),
    "HardSigmoid": Elementwise(_FIRST, _FUNCTION | _CANCELS, values=_UNIT),
    "HardSwish": Elementwise(_FIRST, _CANCELS),
    "Identity": Elementwise(_FIRST, _EXACT, values=_KEPT),
    "IsInf": Elementwise(_FIRST, _EXACT, steps=True),
    "IsNaN": Elementwise(_FIRST, _EXACT),
    "LeakyRelu": Elementwise(_FIRST, _FUNCTION | _ZERO_SIGN),
    "Less": Elementwise(_BROADCAST, _EXACT),
    "LessOrEqual": Elementwise(_BROADCAST, _EXACT),
    "Log": Elementwise(_FIRST, _FUNCTION),
    "Max": Elementwise(_BROADCAST, _ZERO_SIGN, commutes=True),
    "Mean": Elementwise(_BROADCAST, _FUNCTION | _ANY_SUM, commutes=True),
    "Min": Elementwise(_BROADCAST, _ZERO_SIGN, commutes=True),
    "Mish": Elementwise(_FIRST, _FUNCTION | _CANCELS),
    "Mod": Elementwise(_BROADCAST, _EXACT, steps=True),
    "Mul": Elementwise(_BROADCAST, _EXACT, commutes=True),
    "Neg": Elementwise(_FIRST, _EXACT),
    "Not": Elementwise(_FIRST, _EXACT),
    "Or": Elementwise(_BROADCAST, _EXACT, commutes=True),
    "PRelu": Elementwise(_ONE_WAY, _ZERO_SIGN),
    "Pow": Elementwise(_BROADCAST, _FUNCTION),
    "QuantizeLinear": Elementwise(_AXIS, _EXACT, steps=True),
    "Reciprocal": Elementwise(_FIRST, _EXACT),
    "Relu": Elementwise(_FIRST, _ZERO_SIGN),
    "Round": Elementwise(_FIRST, _EXACT, steps=True),
    "Selu": Elementwise(_FIRST, _FUNCTION | _CANCELS),
    "Shrink": Elementwise(_FIRST, _FUNCTION | _CANCELS),
    "Sigmoid": Elementwise(_FIRST, _FUNCTION, values=_UNIT),
    "Sign": Elementwise(_FIRST, _EXACT, steps=True),
    "Sin": Elementwise(_FIRST, _FUNCTION),
    "Sinh": Elementwise(_FIRST, _FUNCTION),
    "Softplus": Elementwise(_FIRST, _FUNCTION | _CANCELS),
    "Softsign": Elementwise(_FIRST, _FUNCTION),
    "Sqrt": Elementwise(_FIRST, _EXACT),
    "Sub": Elementwise(_BROADCAST, _SUM),
    "Sum": Elementwise(_BROADCAST, _ANY_SUM, commutes=True),
    "Swish": Elementwise(_FIRST, _FUNCTION),
    "Tan": Elementwise(_FIRST, _FUNCTION),
    "Tanh": Elementwise(_FIRST, _FUNCTION),
    "ThresholdedRelu": Elementwise(_FIRST, _ZERO_SIGN),
    "Where": Elementwise(_BROADCAST, _ZERO_SIGN),
    "Xor": Elementwise(_BROADCAST, _EXACT, commutes=True),
}
"""By name."""


def operators_that(holds: Callable[[Elementwise], bool]) -> frozenset[str]:
    """The names of the operators of which something holds."""
    return frozenset(name for name, row in ELEMENTWISE.items() if holds(row))


BROADCASTING = operators_that(lambda row: row.operands is Operands.BROADCAST)
"""Those that broadcast their inputs to each other."""
HAVE_AXIS = operators_that(lambda row: row.operands is Operands.AXIS)
"""Those that may read vectors along an axis."""
