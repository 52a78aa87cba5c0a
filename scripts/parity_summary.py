#!/usr/bin/env python3
"""Put a summary of a full run of scripts/parity.py under benchmarks/: its page and its numbers are made by that."""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parent.parent))  # tools/, behind the packages of this Python

from parity import COLUMNS, cells

from tools.markdown_table import table
from tools.messages import Parser
from tools.parity.page import geometric_mean

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
SLOWER = 0.98
"""A model whose speed ratio is below this lost."""


def summary(content: dict[str, Any], note: str = "") -> str:
    """The text of benchmarks/README.md."""
    models = content["models"]
    timed = [item for item in models if item["time"]]
    ratios = [item["time"]["ratio"] for item in timed]
    slower = sorted((item["time"]["ratio"], item["name"]) for item in timed if item["time"]["high"] < SLOWER)
    regions = [region for item in models for region in item["regions"] if not region["note"]]
    exact = sum(region["excess"] == 0 for region in regions)
    failed = [item for item in models if not item["ok"]]
    fused = sum(item["fused"] for item in models)
    lines = [
        "# Results of full runs",
        "",
        "`scripts/parity.py --regions --out DIR` over the model zoo, put here by `scripts/parity_summary.py DIR`.",
        "The first writes a page with plots, `index.html`, and every number, `results.json`.",
        "",
        f"Machine: {content['machine']}; {content['system']}; {content['versions']}; {content['date']}.",
        "Other processes ran on the machine: ratios are of times taken in turns, times themselves are rough.",
        "",
        f"- {len(models) - len(failed)} of {len(models)} models pass, with {fused} fused nodes.",
        f"- {exact} of {len(regions)} comparisons of single fused nodes are exact; the largest error of the others is "
        f"{max((float(region['excess']) for region in regions), default=0.0):.2g} of what is allowed.",
    ]
    if note:
        lines.append(f"- {note}")
    if ratios:
        lines.append(f"- Geometric mean of the speed ratio over {len(ratios)} models: {geometric_mean(ratios):.3f}.")
    if slower:
        lines.append(f"- Slower than ONNX Runtime: {', '.join(f'{name} ({ratio:.2f})' for ratio, name in slower)}.")
    lines += [f"- Fails: {item['name']}: {item['reason']} ({item['reproducer']})." for item in failed]
    return "\n".join([*lines, "", table(COLUMNS, map(cells, models))]) + "\n"


def main() -> int:
    """Summarise; the folder is the --out of scripts/parity.py."""
    parser = Parser(description=__doc__)
    parser.add_argument("results", type=Path, metavar="DIR")
    parser.add_argument("--note", default="", help="a sentence about this run")
    arguments = parser.parse_args()
    content = json.loads((arguments.results / "results.json").read_text(encoding="utf-8"))
    BENCHMARKS.mkdir(exist_ok=True)
    (BENCHMARKS / "README.md").write_text(summary(content, arguments.note), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
