"""HTML for notebooks: an object's headline, its facts, and a table; all text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape


def card(
    headline: str, facts: Mapping[str, str], header: Sequence[str] = (), rows: Iterable[Sequence[str]] = ()
) -> str:
    """A headline, a line for each fact, and a table below if there is a header."""
    parts = [
        f"<strong>{escape(headline)}</strong>",
        *(f"{escape(name)}: {escape(fact)}" for name, fact in facts.items()),
    ]
    html = f"<div>{'<br>'.join(parts)}</div>"
    if header:
        body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
        html += f"<table><thead><tr>{_cells('th', header)}</tr></thead><tbody>{body}</tbody></table>"
    return html


def _cells(tag: str, texts: Sequence[str]) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)
