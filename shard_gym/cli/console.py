"""What all sub-commands print with: the two streams, the style of tables and texts, and progress bars."""

from __future__ import annotations

import re

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from shard_gym.common.report import GAP, Cell, Grid, Note, Printout, Style, plain

NONE = "-"  # shown where there is no value
REFERENCE = "random"  # the agent all others are compared with

FAILED = "bold red"

_STYLES: dict[Style, str] = {"critical": "bold yellow", "failed": FAILED}


def output() -> Console:
    """Standard output as it is now, for results."""
    return Console(highlight=False)


def errors() -> Console:
    """Standard error as it is now, for errors and progress."""
    return Console(stderr=True, highlight=False)


def sentence(text: str, style: str = "") -> Text:
    """`text` as it is: markup is not interpreted, and control characters become "?"."""
    return Text(plain(text), style)


def say(text: str, style: str = "") -> None:
    """Print a sentence for results; the window breaks its lines, so that what is copied has no breaks."""
    output().print(sentence(text, style), soft_wrap=True)


def warn(text: str, style: str = "yellow") -> None:
    """The same on standard error."""
    errors().print(sentence(text, style), soft_wrap=True)


def tell(told: Note) -> None:
    """Print what stands beside a result on standard error."""
    warn(as_options(told.text), "yellow" if told.is_warning else "dim")


_ARGUMENT = re.compile(r"`([a-z]+(?:_[a-z]+)*)(?:=([^`]+))?`")
WIDE = 100  # columns of a window where names and parts of tables have room beside hosts
_VALUES, _QUOTE = {"True": "yes", "False": "no"}, "'"
_FLAGS = ("whole", "index_dedup")  # options without a value


def as_options(text: str) -> str:
    """`text` with options in place of the arguments in backticks: `host_memory=0` is --host-memory 0."""
    return _ARGUMENT.sub(lambda found: _option(*found.groups()), text)


def _option(name: str, value: str | None) -> str:
    option = f"--{name.replace('_', '-')}"
    if value is None or (value == "True" and name in _FLAGS):
        return option
    if name == "agent_options":  # {'max_queries': 500}
        return "--option " + re.sub(r"[{'}]", "", value).replace(": ", "=")
    return f"{option} {_VALUES.get(value) or value.strip(_QUOTE)}"


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


def is_narrow(console: Console) -> bool:
    """Whether names and parts of tables have no room beside hosts."""
    return console.width < WIDE


def print_report(console: Console, report: Printout) -> None:
    """Print what a result says of itself."""
    for block in report.blocks:
        if isinstance(block, Grid):
            print_table(console, _table_of(block))
        else:
            console.print(
                sentence(as_options(block.text), _STYLES.get(block.style, block.style)), soft_wrap=block.soft_wrap
            )


def _table_of(grid: Grid) -> Table:
    table = new_table(header=grid.header, footer=grid.footer)
    for each in grid.columns:
        table.add_column(
            *(each.header, each.footer),
            justify="right" if each.right else "left",
            no_wrap=each.no_wrap,
            overflow=each.overflow or "ellipsis",
            min_width=each.min_width,
        )
    for style, cells in grid.rows:
        table.add_row(*map(_text_of, cells), style=_STYLES.get(style, style))
    return table


def _text_of(cell: str | Cell) -> Text:
    if isinstance(cell, str):
        return sentence(cell)
    text = sentence(cell.text, _STYLES.get(cell.style, cell.style))
    text.no_wrap = cell.no_wrap or None
    return text


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
