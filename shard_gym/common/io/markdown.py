"""Markdown: tables, and generated blocks between two marks in a page that is otherwise edited by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from shard_gym.common.errors import DamagedFileError

END = "<!-- end -->"

_ESCAPED = str.maketrans({character: f"\\{character}" for character in r"\`*_[]<>|#~$"} | {"&": "&amp;"})


def table(header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1, notes: int = 0) -> str:
    """A table without a final line break; the first `left` and the last `notes` columns are aligned left."""
    rule = ["---"] * left + ["---:"] * (len(header) - left - notes) + ["---"] * notes
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *rows))


def collapsed(title: str, content: str) -> str:
    """Markdown that a reader opens with a click on its title, which is plain text."""
    return f"<details>\n<summary>{title}</summary>\n\n{content}\n\n</details>"


def escaped(text: str) -> str:
    """`text` without Markdown or HTML syntax, for names from untrusted files."""
    return text.translate(_ESCAPED)


def begin(block: str) -> str:
    """The mark at the beginning of the generated block of that name; `END` is the mark at its end."""
    return f"<!-- generated: {block} -->"


def has_block(page: Path, block: str) -> bool:
    """Whether the file `page` exists and has the generated block."""
    return page.is_file() and f"{begin(block)}\n" in _text(page)


def with_block(page: Path, block: str, content: str) -> str:
    """The text of `page` with `content` in its generated block, between blank lines; DamagedFileError without one."""
    text = _text(page) if page.is_file() else ""
    before, start, rest = text.partition(f"{begin(block)}\n")
    _, end, after = rest.partition(f"{END}\n")
    if not start or not end:
        raise DamagedFileError(
            f"{page} has no generated block {block!r}: a line {begin(block)!r} and, after it, a line {END!r}."
        )
    return f"{before}{start}\n{content.strip()}\n\n{end}{after}"


def without_blocks(page: Path, block: str) -> str:
    """The text of `page` without the content of its first generated block of that name; all of it if there is none."""
    before, start, rest = _text(page).partition(f"{begin(block)}\n")
    _, end, after = rest.partition(f"{END}\n")
    return f"{before}{start}{end}{after}" if end else f"{before}{start}{rest}"


def _text(page: Path) -> str:
    try:
        return page.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DamagedFileError(f"{page} is not UTF-8.") from error
