"""What a table says of one model of scripts/parity.py, by column: the tables of the terminal and of both pages."""

import re
from typing import Any

from onnxfuse.report.report import describe_ulp


def cells(item: dict[str, Any]) -> dict[str, str]:
    """The text of every column but for ``result``, of a model of results.json."""
    error, timing, top = item["error"], item["time"], item["top1"]
    return {
        "model": item["name"],
        "ratio": f"{timing['ratio']:.3f}" if timing else "-",
        "ORT / onnxfuse": f"{timing['ratio']:.3f} ({timing['low']:.3f} to {timing['high']:.3f})" if timing else "-",
        "ms before": f"{timing['before_ms']:.3f}" if timing else "-",
        "ms after": f"{timing['after_ms']:.3f}" if timing else "-",
        "outputs": str(item["outputs"]),
        "max abs": f"{error['max_abs']:.2g}",
        "max rel": f"{error['max_rel']:.2g}",
        "max ulp": describe_ulp(error["max_ulp"]),
        "top-1": "-" if top is None else f"{100 * top:.1f} %",
        "regions": str(item["fused"]),
        "nodes": f"{item['nodes'][0]} → {item['nodes'][1]}",
        "launches": f"{item['launches'][0]} → {item['launches'][1]}",
        "task": item["task"],
        "reference": re.split(r"[:(]", item["reference"])[0].strip(),
    }


COLUMNS = (
    *("model", "outputs", "max abs", "max rel", "max ulp", "top-1", "regions", "nodes", "launches"),
    *("ORT / onnxfuse", "reference"),
)
"""Of plain tables, whose last column is ``result``."""


def plain_row(item: dict[str, Any]) -> tuple[str, ...]:
    """A row of a plain table."""
    found = cells(item)
    return (*(found[column] for column in COLUMNS), "pass" if item["ok"] else "FAIL")
