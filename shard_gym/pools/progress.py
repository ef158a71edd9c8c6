"""A progress bar on the terminal for `import_meta`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shard_gym.pools.meta_file import Progress


@contextmanager
def terminal_progress(title: str) -> Iterator[Progress]:
    """A callback that draws a bar with `rich`; without `rich`, or without a terminal, it does nothing.

    Use it as `with terminal_progress("Counting") as progress: import_meta(path, name, progress=progress)`.
    """
    try:
        from rich.console import Console
        from rich.progress import Progress as Bar
    except ImportError:
        yield lambda done, total: None
        return
    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
