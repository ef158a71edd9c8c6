"""What all sub-commands print with: the two streams, the style of tables and texts, and progress bars."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

NONE = "-"  # shown where there is no value
REFERENCE = "random"  # the agent all others are compared with

FAILED = "bold red"

GAP = 2  # characters between two columns of a table


def output() -> Console:
    """Standard output as it is now, for results."""
    return Console(highlight=False)


def errors() -> Console:
    """Standard error as it is now, for errors and progress."""
    return Console(stderr=True, highlight=False)


def sentence(text: str, style: str = "") -> Text:
    """`text` as it is: markup is not interpreted, and control characters become "?"."""
    return Text("".join(char if char.isprintable() or char == "\n" else "?" for char in text), style)


def say(text: str, style: str = "") -> None:
    """Print a sentence for results; the window breaks its lines, so that what is copied has no breaks."""
    output().print(sentence(text, style), soft_wrap=True)


def warn(text: str, style: str = "yellow") -> None:
    """The same on standard error."""
    errors().print(sentence(text, style), soft_wrap=True)


def heading(console: Console, text: str) -> None:
    """Print a line above a table. It is not the table's title, which rich wraps to the table's width."""
    console.print(sentence(text, "bold"))


def new_table(*, header: bool = True, footer: bool = False) -> Table:
    """An empty table in the common style: no frame, rules around the rows, narrow gaps."""
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


def print_table(console: Console, table: Table) -> None:
    """Print `table` with no number cut off: only columns that may wrap give way to a narrow window.

    They keep their `min_width`; if the table is still too wide, its lines run over the edge of the window.
    """
    unbounded = console.options.update(max_width=100_000)
    least = GAP * (len(table.columns) - 1)
    for column in table.columns:
        cells = (column.header, column.footer, *column.cells)
        widest = max(Measurement.get(console, unbounded, cell).maximum for cell in cells)
        least += widest if column.min_width is None else column.min_width
    if least > console.width:
        table.width = least
    console.print(table, crop=False)


def new_progress() -> Progress:
    """Progress bars on standard error that are erased at the end; none where it is not a terminal."""
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
