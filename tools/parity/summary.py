"""A summary of a run of scripts/parity.py, as Markdown: benchmarks/README.md is that of a full run."""

from typing import Any

from tools.markdown_table import table
from tools.parity.page import geometric_mean
from tools.parity.rows import COLUMNS, plain_row

SLOWER = 0.98
"""A model whose speed ratio is below this lost."""


def summary(content: dict[str, Any], note: str = "") -> str:
    """The text for the content of results.json, with one more sentence."""
    models = content["models"]
    ratios = [item["time"]["ratio"] for item in models if item["time"]]
    slower = sorted(
        (item["time"]["ratio"], item["name"]) for item in models if item["time"] and item["time"]["high"] < SLOWER
    )
    regions = [region for item in models for region in item["regions"] if not region["note"]]
    exact = sum(region["excess"] == 0 for region in regions)
    failed = [item for item in models if not item["ok"]]
    fused = sum(item["fused"] for item in models)
    lines = [
        "# Results of full runs",
        "",
        "`scripts/parity.py --regions --out DIR` over the model zoo: `summary.md` of what it writes, beside a page",
        "with plots, `index.html`, and every number, `results.json`.",
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
    return "\n".join([*lines, "", table([*COLUMNS, "result"], map(plain_row, models))]) + "\n"
