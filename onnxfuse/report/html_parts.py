"""What the page of a report is made of: its style, text that is escaped, and tables."""

from collections.abc import Iterable
from html import escape

from onnxfuse.wording import printable

MOST_ROWS = 2000
"""Of a table: a browser shows a page of a few thousand rows; the JSON report holds all of them."""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --soft: #62676f; --page: #ffffff; --line: #e2e4e8;
  --before: #a9b1bd; --after: #2f6fde; --bad: #b3261e; --good: #1b7f3b; --reads: #2f6fde; --writes: #e08a1e;
  --k0: #cfe0ff; --k1: #ffe0b8; --k2: #cdeccf; --k3: #f3cfe6;
  --k4: #d9d2f5; --k5: #c9ecec; --k6: #f6ecb0; --k7: #e4e4e4; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --soft: #a0a6b0; --page: #17191d;
  --line: #32363d; --before: #5b6470; --after: #6ea2ff; --bad: #ff8a80; --good: #6fd08c; --reads: #6ea2ff;
  --writes: #f0b060;
  --k0: #27447e; --k1: #6b4512; --k2: #20552c; --k3: #6b2a55;
  --k4: #43367f; --k5: #16555a; --k6: #5a5110; --k7: #4a4d52; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 2rem auto;
  max-width: 70rem; padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p.soft, td.soft { color: var(--soft); } .bad { color: var(--bad); } .good { color: var(--good); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .35rem .7rem .35rem 0; overflow-wrap: anywhere;
  border-bottom: 1px solid var(--line); min-width: 4rem; }
th { color: var(--soft); font-weight: 500; }
.counts td:nth-child(2) { width: 40%; } .counts th:nth-child(n+3), .counts td:nth-child(n+3) { text-align: right;
  font-variant-numeric: tabular-nums; white-space: nowrap; } .counts td { vertical-align: middle; }
code, pre { font: 13px/1.4 ui-monospace, monospace; } pre { overflow-x: auto; margin: .4rem 0; }
.bar { height: .7rem; border-radius: .2rem; margin: .15rem 0; min-width: 2px; }
.before { background: var(--before); } .after { background: var(--after); }
summary { cursor: pointer; } p.lead { font-size: 1.25rem; font-weight: 600; margin: .4rem 0; }
.soft { color: var(--soft); } .region { border-bottom: 1px solid var(--line); padding: .5rem 0; }
.gain { color: var(--good); } .pair { display: flex; align-items: center; height: .9rem; font-size: .75rem;
  color: var(--soft); } .pair i { height: .6rem; } .pair span { padding-left: .4rem; white-space: nowrap; }
.reads { background: var(--reads); } .writes { background: var(--writes); }
.key { display: inline-block; width: .8rem; height: .6rem; }
.graphs { display: flex; flex-wrap: wrap; gap: 1rem; } figure { margin: 0; flex: 1 1 22rem; min-width: 0; }
figcaption { color: var(--soft); } .graph { overflow: auto; max-height: 44rem; border: 1px solid var(--line);
  border-radius: .3rem; } .graph svg { display: block; margin: 0 auto; }
svg text { font-size: 12px; fill: var(--ink); text-anchor: middle; } svg rect { stroke: var(--before); }
svg path { fill: none; stroke: var(--before); } .plain rect { fill: var(--page); }
.block text { text-anchor: end; font-weight: 600; } .block path { stroke: var(--ink); stroke-width: 1.5; }
.kind { display: inline-block; padding: 0 .5rem; border-radius: .2rem; margin: .1rem 0; }
.k0 rect { fill: var(--k0); } .kind.k0 { background: var(--k0); }
.k1 rect { fill: var(--k1); } .kind.k1 { background: var(--k1); }
.k2 rect { fill: var(--k2); } .kind.k2 { background: var(--k2); }
.k3 rect { fill: var(--k3); } .kind.k3 { background: var(--k3); }
.k4 rect { fill: var(--k4); } .kind.k4 { background: var(--k4); }
.k5 rect { fill: var(--k5); } .kind.k5 { background: var(--k5); }
.k6 rect { fill: var(--k6); } .kind.k6 { background: var(--k6); }
.k7 rect { fill: var(--k7); } .kind.k7 { background: var(--k7); }
@media (max-width: 40rem) { body { margin: 1rem auto; } .counts td:nth-child(2),
  .counts th:nth-child(2), .bars { display: none; } th, td { padding-right: .4rem; } }
"""


def document(title: str, sections: Iterable[str], style: str) -> str:
    """A page that needs nothing from outside, of the sections that are not empty; the title is escaped."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{text(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        + "\n".join(section for section in sections if section)
        + "\n</body>\n</html>\n"
    )


def text(value: object) -> str:
    """Escaped for HTML, with control characters and lone surrogates made visible."""
    return escape(printable(str(value)), quote=True)


def pair_of_bars(before: float, after: float, longest: float) -> str:
    """Two bars, one above the other, of lengths that are parts of ``longest``; of nothing there is none."""
    return "".join(
        f'<div class="bar{f" {style}" if value else ""}" style="width:{100 * value / longest:.1f}%"></div>'
        for style, value in (("before", before), ("after", after))
    )


def table(columns: Iterable[str], rows: Iterable[Iterable[str]], style: str = "") -> str:
    """A table of cells that are HTML already."""
    head = "".join(f"<th>{text(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>\n" for row in rows)
    rows_of_it = f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>"
    return f'<div class="scroll"><table class="{style}">{rows_of_it}</table></div>'


def folded(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]], total: int) -> str:
    """A table that opens on a click."""
    return f"<details><summary>{text(title)}</summary>{table(columns, rows)}{rest(total)}</details>"


def rest(total: int, shown: int = MOST_ROWS) -> str:
    """How many of ``total`` rows are not shown, if any."""
    if total <= shown:
        return ""
    return f'<p class="soft">And {total - shown} more: the JSON report has all.</p>'
