"""What all sub-commands print with: the two streams, one look for all tables, one form for each kind of number."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

NONE = "-"
"""Stands where there is no value."""

REFERENCE = "random"
"""The agent all others are compared with."""

FAILED = "bold red"

GAP = 2
"""Characters between two columns of a table."""


def output() -> Console:
    """Standard output as it is now, for results."""
    return Console(highlight=False)


def errors() -> Console:
    """Standard error as it is now, for errors and progress."""
    return Console(stderr=True, highlight=False)


def sentence(text: str, style: str = "") -> Text:
    """`text` as it stands: no markup is read, and nothing in it moves a cursor."""
    return Text("".join(char if char.isprintable() or char == "\n" else "?" for char in text), style)


def heading(console: Console, text: str) -> None:
    """A line above a table. It is not the table's title, which would be wrapped to the table's width."""
    console.print(sentence(text, "bold"))


def new_table(*, header: bool = True, footer: bool = False) -> Table:
    """An empty table in the common look: no frame, rules around the rows, narrow gaps."""
    return Table(
        box=box.SIMPLE,
        show_header=header,
        show_footer=footer,
        header_style="bold cyan",
        footer_style="bold",
        pad_edge=False,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )


def print_table(console: Console, table: Table, expendable: Sequence[str] = ()) -> None:
    """Print `table` so that no name and no number in it is cut off: only columns that may wrap give way.

    Where the console is too narrow, the columns with the `expendable` headers are left out, the first of them first,
    and named below. What is too wide even then runs over the edge.
    """
    left_out = []
    for header in expendable:
        if _least_width(console, table) <= console.width:
            break
        table = _without(table, header)
        left_out.append(" ".join(header.split()))
    if _least_width(console, table) > console.width:
        table.width = _least_width(console, table)
    console.print(table, crop=False)
    if left_out:
        console.print(sentence(f"Left out, for the window is narrow: {', '.join(left_out)}.", "dim"))


def _without(table: Table, header: str) -> Table:
    """`table` without the column of that header."""
    kept = [column for column in table.columns if column.header != header]
    slim = new_table(header=table.show_header, footer=table.show_footer)
    for column in kept:
        slim.add_column(
            column.header,
            column.footer,
            justify=column.justify,
            no_wrap=column.no_wrap,
            overflow=column.overflow,
            min_width=column.min_width,
        )
    for cells in zip(*(column.cells for column in kept), strict=True):
        slim.add_row(*cells)
    return slim


def _least_width(console: Console, table: Table) -> int:
    """Characters that `table` needs: a column that may wrap its `min_width`, each other one its longest line."""
    unbounded = console.options.update(max_width=100_000)
    total = GAP * (len(table.columns) - 1)
    for column in table.columns:
        if column.min_width is not None:
            total += column.min_width
            continue
        cells = [*column.cells, *([column.header] if table.show_header else []), column.footer]
        total += max(Measurement.get(console, unbounded, cell).maximum for cell in cells)
    return total


def new_progress() -> Progress:
    """Progress bars on standard error that leave nothing behind, and are absent where it is not a terminal."""
    console = errors()
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
