"""Tables in Markdown, for the pages that the scripts write."""

from collections.abc import Iterable


def table(columns: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """The lines of a table; what would end a cell in its text is escaped."""
    head = [str(column) for column in columns]
    cells = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *cells))
