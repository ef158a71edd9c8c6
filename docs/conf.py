"""The documentation site, built by `make docs`.

Every page is a Markdown file that also reads well in the repository. This file adds what Sphinx does not do:

- Pages of docs/ include files from elsewhere (CONTRIBUTING.md, CHANGELOG.md ...). Links between files become links
  between pages.
- A fence ```` ```{docstring} NAME ```` becomes the docstring of NAME. The environments document themselves that way.
- Long names in headings break between their parts.
- Docstrings are Markdown, and autodoc reads reStructuredText: single backticks and fences are translated.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

import shard_gym

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"

project = "ShardGym"
author = "The ShardGym authors"
version = release = shard_gym.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinxcontrib.mermaid",
]
exclude_patterns = ["data", "results/machines/*/cost-model.md"]
highlight_language = "text"

myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
myst_url_schemes = {"http": None, "https": None, "mailto": None, "site": "{{path}}"}  # site: a path in build/docs

autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_use_ivar = True
napoleon_attr_annotations = False
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"ShardGym {version}"
html_static_path = ["static"]
html_css_files = ["shard_gym.css"]
html_show_sourcelink = False
html_show_copyright = False
html_copy_source = False

COLON = "\N{RATIO}"
"""In place of the colons that napoleon must not see."""

PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "leaderboards/README.md": "results/leaderboards.md",
    "tools/README.md": "tools.md",
    "agents/dreamshard/checkpoints/README.md": "results/pretrained.md",
}
"""The page of docs/ that stands for a file: it includes it, but for the README, which has a home page of its own."""


def linked(text: str, source: Path, page: Path) -> str:
    """Markdown from the file `source` with its relative links as the page `page` needs them."""

    def replaced(match: re.Match[str]) -> str:
        target, mark, anchor = match["target"].partition("#")
        path = os.path.relpath((source.parent / target).resolve(), ROOT)
        found = DOCS / PAGES[path] if path in PAGES else ROOT / path
        if found.is_dir():
            raise ValueError(f"{source} links to the folder {target}, which is no page. Link to a file in it.")
        return f"]({os.path.relpath(found, page.parent)}{mark}{anchor})"

    return re.sub(r"\]\((?P<target>(?![a-z]+:|#|<)[^)\s]+)\)", replaced, text)


def with_docstrings(text: str) -> str:
    """Markdown with every fence ```` ```{docstring} NAME ```` replaced by the docstring of NAME."""

    def docstring(match: re.Match[str]) -> str:
        module, _, name = match["name"].rpartition(".")
        return inspect.getdoc(getattr(importlib.import_module(module), name)) or ""

    return re.sub(r"^```\{docstring\} (?P<name>\S+)\n```$", docstring, text, flags=re.MULTILINE)


def read_page(app: Sphinx, docname: str, content: list[str]) -> None:
    """Sphinx read a page."""
    page = Path(app.env.doc2path(docname))
    content[0] = linked(with_docstrings(content[0]), page, page)


def read_included(app: Sphinx, path: Path, docname: str, content: list[str]) -> None:
    """A page included a file. MyST names the page without its folder, so it is looked up by the file."""
    source = (DOCS / path).resolve()
    content[0] = linked(content[0], source, DOCS / PAGES[os.path.relpath(source, ROOT)])


def markdown_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Autodoc read a docstring: `code` becomes ``code``, and fences become code blocks."""
    if any(line.startswith("## ") for line in lines):
        lines[:] = ["See the page of the environment."]
    text = re.sub(r"^( *)```(\w+)$", r"\1.. code-block:: \2\n", "\n".join(lines), flags=re.MULTILINE)
    text = re.sub(r"^ *```$", "", text, flags=re.MULTILINE)
    parts = re.split(r"(`[^`\n]+`)", text)
    parts[::2] = [re.sub(r"([|*]|_\b)", r"\\\1", part) for part in parts[::2]]
    parts[1::2] = [f"`{part}`\\ " for part in parts[1::2]]
    lines[:] = "".join(parts).split("\n")
    if what in ("data", "attribute", "property"):  # napoleon takes what is before a colon for a type
        lines[:] = [line.replace(":", COLON) for line in lines]


def restore_colons(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Napoleon is done."""
    lines[:] = [line.replace(COLON, ":") for line in lines]


def short_types(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Autodoc read a signature: `NDArray` is written as in the source, and the default of a field as `...`."""
    array = r"~?numpy\.ndarray\[tuple\[~?typing\.Any, \.\.\.\], ~?numpy\.dtype\[~?(numpy\.)?(\w+)\]\]"
    short = [text and re.sub(array, r"NDArray[\2]", text).replace("<factory>", "...") for text in (signature, returns)]
    return short[0], short[1]


def breakable_titles(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Sphinx is about to write a page: long names in its headings may break after a dot, a slash or an underscore."""
    if app.builder.format != "html":
        return
    for title in doctree.findall(nodes.title):
        for text in list(title.findall(nodes.Text)):
            first, *others = re.split(r"(?<=[./_])(?=\w)", text)
            parts = [nodes.Text(first)]
            for part in others:
                parts += [nodes.raw("", "<wbr>", format="html"), nodes.Text(part)]
            text.parent.replace(text, parts)


def setup(app: Sphinx) -> None:
    """Connects the functions above."""
    app.connect("source-read", read_page)
    app.connect("include-read", read_included)
    app.connect("autodoc-process-docstring", markdown_docstring, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", restore_colons, priority=600)
    app.connect("autodoc-process-signature", short_types)
    app.connect("doctree-resolved", breakable_titles)
