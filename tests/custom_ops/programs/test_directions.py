"""Every other run over tensors beyond the second level of cache goes from their end to their beginning."""

import numpy as np
import pytest

from tests.custom_ops.fused import assert_same_bits, fused_model, new_session, run, session_options

TWO = "onnxfuse 1\ninput {0} broadcast\ninput {0} broadcast\n"
CASES = {
    "one chain": (TWO + "mul {0} 0 1\nadd {0} 2 0\noutput 3\n", (700_001,), ()),
    "rows": (TWO + "mul {0} 0 1\nadd {0} 2 1\noutput 3\n", (37, 20_011), (37, 1)),
    "rows of columns": (TWO + "mul {0} 0 1\nadd {0} 2 1\noutput 3\n", (3, 11, 20_011), (11, 20_011)),
    "gathered": (TWO + "mul {0} 0 1\nadd {0} 2 1\noutput 3\n", (70_001, 11), (11,)),
    "several steps and results": (
        TWO + "mul {0} 0 1\nless {0} 2 0\nwhere {0} 3 0 1\nadd {0} 4 2\noutput 5\noutput 3\noutput 2\n",
        (500_003,),
        (500_003,),
    ),
    "two stages": (TWO + "abs {0} 1\nadd {0} 0 2\noutput 3\noutput 2\n", (2, 400_009), (400_009,)),
}


def expected(name: str, x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    match name:
        case "one chain":
            return [x * y + x]
        case "several steps and results":
            product = x * y
            less = product < x
            return [np.where(less, x, y) + product, less, product]
        case "two stages":
            return [x + abs(y), abs(y)]
        case _:
            return [x * y + y]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", CASES)
def test_every_run_computes_everything(name: str, dtype: str, threads: int) -> None:
    """With other numbers in each run, so that what another has left is no result."""
    program, shape, other = CASES[name]
    kind = {"f32": np.float32, "f64": np.float64}[dtype]
    session = new_session(fused_model(program.format(dtype), [shape, other]), session_options(threads))
    for seed in range(4):
        x, y = (np.random.default_rng([seed, i]).uniform(0.5, 2, s).astype(kind) for i, s in enumerate((shape, other)))
        for actual, wanted in zip(run(session, [x, y]), expected(name, x, y), strict=True):
            assert_same_bits(actual, wanted)
