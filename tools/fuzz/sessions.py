"""Mutated programs in models of one fused node, run by ONNX Runtime with a library built with sanitizers.

    fuzz_sessions.py LIBRARY SEED SECONDS

An error of memory ends the process; whatever else happens must be an exception of ONNX Runtime's.
"""

from __future__ import annotations

import re
import sys
import time
from random import Random

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

from onnxfuse.fused.kinds import DOMAIN, ELEMENTWISE, OPSET_VERSION
from onnxfuse.model.dtypes import DTYPES
from onnxfuse.program.operand_types import supports
from onnxfuse.program.ops import OPS

SIZES = (0, 1, 1, 2, 3, 17, 300)
EDITS = "0123456789 \n-"


def random_text(choose: Random) -> str:
    """A program that is valid for the most part, most often with a few edits."""
    types = [choose.choice(list(DTYPES)) for _ in range(choose.randint(1, 4))]
    lines = [
        f"input {kind} {choose.choice(('broadcast', 'broadcast', f'axis {choose.randint(-3, 2)}'))}" for kind in types
    ]
    for _ in range(choose.randint(0, 12)):
        kind = choose.choice(types)
        op = OPS[choose.choice([name for name in OPS if supports(name, kind)])]
        operands = []
        for position in range(op.arity):
            wanted = "bool" if op.rule.value == "select" and position == 0 else kind
            fitting = [index for index, other in enumerate(types) if other == wanted or op.rule.value == "cast"]
            operands.append(choose.choice(fitting or range(len(types))))
        lines.append(f"{op.name} {kind} {' '.join(map(str, operands))}")
        types.append("bool" if op.rule.value == "compare" else kind)
    lines += [f"output {choose.randrange(len(types))}" for _ in range(choose.choice((1, 1, 2, 3)))]
    text = "onnxfuse 1\n" + "\n".join(lines) + "\n"
    for _ in range(choose.choice((0, 0, 0, 1, 2))):
        at = choose.randrange(len(text))
        text = text[:at] + choose.choice((choose.choice(EDITS), "", choose.choice(EDITS) * 3)) + text[at + 1 :]
    return text


def run(library: str, choose: Random) -> None:
    """One model, created and run twice with different shapes."""
    text = random_text(choose)
    kinds = [line.split()[1] for line in text.splitlines() if re.match(r"input \w+ ", line)]
    if choose.random() < 0.1:
        kinds = [choose.choice(list(DTYPES)) for _ in range(choose.randint(1, 5))]
    kinds = [kind if kind in DTYPES else "f32" for kind in kinds] or ["f32"]
    outputs = [f"y{index}" for index in range(max(1, text.count("\noutput ") + choose.choice((0, 0, 0, 1))))]
    shapes = [[choose.choice(SIZES) for _ in range(choose.randint(0, 4))] for _ in kinds]
    node = helper.make_node(
        ELEMENTWISE.operator(choose.randint(1, ELEMENTWISE.plain + 1)),
        [f"x{i}" for i in range(len(kinds))],
        outputs,
        domain=DOMAIN,
        program=text,
    )
    declared = [
        helper.make_tensor_value_info(
            f"x{i}", DTYPES[kind].onnx, None if choose.random() < 0.3 else [None] * len(shape)
        )
        for i, (kind, shape) in enumerate(zip(kinds, shapes, strict=True))
    ]
    graph = helper.make_graph([node], "g", declared, [onnx.ValueInfoProto(name=name) for name in outputs])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, OPSET_VERSION)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = choose.choice((1, 1, 2))
    options.register_custom_ops_library(library)
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        for attempt in range(2):
            size = choose.choice(SIZES)
            feeds = {}
            for index, (kind, shape) in enumerate(zip(kinds, shapes, strict=True)):
                dims = [size if attempt and choose.random() < 0.5 else dim for dim in shape]
                count = int(np.prod(dims, dtype=np.int64))
                if count > 100_000:
                    return
                raw = np.zeros(dims, f"u{DTYPES[kind].itemsize}" if kind != "bool" else "?")
                feeds[f"x{index}"] = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, DTYPES[kind].onnx)
            session.run_with_ort_values(None, feeds)
    except Exception as error:
        if isinstance(error, (MemoryError, KeyboardInterrupt)):
            raise


def main() -> int:
    """Run for the given time."""
    library, seed, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    started, count = time.process_time(), 0
    while time.process_time() - started < seconds:
        run(library, Random(seed * 1_000_000 + count))
        count += 1
    print(f"{count} sessions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
