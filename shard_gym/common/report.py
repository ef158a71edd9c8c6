"""What results say of themselves, without a console: paragraphs and tables, as plain text or printed by a command.

A sentence has arguments of functions in backticks, such as `host_memory=0`; a command prints the option.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from typing_extensions import override

Style = Literal["", "bold", "dim", "critical", "failed"]
"""How a text stands out: `critical` is what others wait for, `failed` what cannot be."""

GAP = 2  # characters between two columns of a table


@dataclass(frozen=True)
class Cell:
    """A cell of a table that stands out, or whose lines are cut rather than broken."""

    text: str
    style: Style = ""
    no_wrap: bool = False


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        right: whether numbers are aligned at their right end.
        no_wrap, overflow, min_width: what becomes of its texts in a window too narrow for the table.
    """

    header: str = ""
    footer: str = ""
    right: bool = False
    no_wrap: bool = False
    overflow: Literal["fold", "ellipsis"] | None = None
    min_width: int | None = None


@dataclass
class Grid:
    """A table of texts; `header` and `footer` say whether it has these lines."""

    columns: list[Column] = field(default_factory=list)
    rows: list[tuple[Style, list[str | Cell]]] = field(default_factory=list)
    header: bool = True
    footer: bool = False

    def column(
        self,
        header: str = "",
        footer: str = "",
        *,
        right: bool = False,
        no_wrap: bool = False,
        overflow: Literal["fold", "ellipsis"] | None = None,
        min_width: int | None = None,
    ) -> None:
        """Add a column; see `Column`."""
        self.columns.append(Column(header, footer, right, no_wrap, overflow, min_width))

    def row(self, *cells: str | Cell, style: Style = "") -> None:
        """Add a row; missing cells at its end are empty."""
        self.rows.append((style, list(cells)))

    @override
    def __str__(self) -> str:
        body = [[each if isinstance(each, str) else each.text for each in cells] for _, cells in self.rows]
        above = [[each.header for each in self.columns]] if self.header else []
        below = [[each.footer for each in self.columns]] if self.footer else []
        rows = [[*cells, *[""] * (len(self.columns) - len(cells))] for cells in (*above, *body, *below)]
        widths = [
            max(column.min_width or 0, *(len(line) for cell in cells for line in cell.split("\n")))
            for column, cells in zip(self.columns, zip(*rows, strict=True), strict=True)
        ]
        lines = [self._lines(cells, widths, above=self.header and not number) for number, cells in enumerate(rows)]
        rule = ["─" * (sum(widths) + GAP * (len(widths) - 1))]
        if self.footer:
            lines.insert(len(lines) - 1, rule)
        if self.header:
            lines.insert(1, rule)
        return "\n".join(line.rstrip() for group in lines for line in group)

    def _lines(self, cells: Sequence[str], widths: Sequence[int], *, above: bool) -> list[str]:
        """The lines of a row; short cells of the header, which is `above`, stand at its end."""
        texts = [cell.split("\n") for cell in cells]
        tall = max(map(len, texts))
        padded = []
        for text, width, column in zip(texts, widths, self.columns, strict=True):
            lines = [line.rstrip().rjust(width) if column.right else line.ljust(width) for line in text]
            empty = [" " * width] * (tall - len(text))
            padded.append(empty + lines if above else lines + empty)
        return [(" " * GAP).join(line) for line in zip(*padded, strict=True)]


@dataclass(frozen=True)
class Paragraph:
    """A paragraph; with `soft_wrap` the window breaks its lines, so that what is copied has no breaks."""

    text: str = ""
    style: Style = ""
    soft_wrap: bool = False


@dataclass
class Printout:
    """Paragraphs and tables, one below the other; `str` is the text in a window wide enough for each line."""

    blocks: list[Paragraph | Grid] = field(default_factory=list)

    def line(self, text: str = "", style: Style = "", *, soft_wrap: bool = False) -> None:
        """Add a paragraph."""
        self.blocks.append(Paragraph(text, style, soft_wrap))

    def heading(self, text: str) -> None:
        """Add a line above a table. It is not the table's title, which would be as narrow as the table."""
        self.line(text, "bold")

    def add(self, *blocks: Grid | Printout) -> None:
        """Add tables, and the blocks of other reports."""
        for block in blocks:
            self.blocks += block.blocks if isinstance(block, Printout) else [block]

    @override
    def __str__(self) -> str:
        return "\n".join(
            plain(block.text) if isinstance(block, Paragraph) else plain(str(block)) for block in self.blocks
        )


@dataclass(frozen=True)
class Note:
    """A sentence beside a result: a warning, or what is good to know."""

    text: str
    is_warning: bool = True

    @override
    def __str__(self) -> str:
        return self.text


Tell = Callable[[Note], None]
"""Is told each note as soon as it is known."""


class Notes:
    """A `Tell` that keeps what it is told, and tells it on.

    Args:
        on_note: is told each note, too; None if nobody is.
    """

    def __init__(self, on_note: Tell | None = None) -> None:
        self.told: list[Note] = []
        self._on_note = on_note

    def __call__(self, note: Note) -> None:
        """Keep a note, and tell it on."""
        self.told.append(note)
        if self._on_note is not None:
            self._on_note(note)

    def all(self, notes: Iterable[Note]) -> None:
        """Tell each of them."""
        for note in notes:
            self(note)


def plain(text: str) -> str:
    """`text` with "?" in place of control characters."""
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in text)
