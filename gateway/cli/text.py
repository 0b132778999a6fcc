"""Text for a terminal: tables and paragraphs in 80 columns, foreign text made harmless.

Decides widths only. Called by the commands that show the fleet.
"""

import textwrap
from collections.abc import Iterable, Iterator, Sequence

WIDTH = 80
_GAP = "  "
_LIMIT = 2000


def plain(text: object) -> str:
    """Return foreign text as one line without control characters."""
    printable = "".join(c if c.isprintable() else " " for c in str(text)[:_LIMIT])
    return " ".join(printable.split())


def wrapped(text: str, indent: str = "") -> str:
    """Return a paragraph; its lines after the first are two columns further in."""
    return textwrap.fill(
        plain(text),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_on_hyphens=False,
    )


def table(rows: Iterable[Sequence[object]], numbers: Sequence[int] = ()) -> list[str]:
    """Return the lines of a table; the widest columns are cut until it fits.

    `numbers` are the columns that are set to the right.
    """
    cells = [[plain(cell) for cell in row] for row in rows]
    widths = _widths(cells)
    return [_GAP.join(_set(row, widths, numbers)).rstrip() for row in cells]


def _set(row: Sequence[str], widths: Sequence[int], numbers: Sequence[int]) -> Iterator[str]:
    for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
        cut = cell if len(cell) <= width else f"{cell[: width - 1]}…"
        yield cut.rjust(width) if column in numbers else cut.ljust(width)


def _widths(cells: Sequence[Sequence[str]]) -> list[int]:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    over = sum(widths) + len(_GAP) * (len(widths) - 1) - WIDTH
    for _ in range(over):
        widths[widths.index(max(widths))] -= 1
    return widths
