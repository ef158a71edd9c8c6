"""The render modes of the environments, and the check of one."""

from __future__ import annotations

import importlib.util

from shard_gym.errors import InvalidOptionError, install_extra

RENDER_MODES: list[str] = ["ansi", "rgb_array"] if importlib.util.find_spec("matplotlib") else ["ansi"]
"""The render modes that work with the packages installed here."""


def check_render_mode(render_mode: str | None) -> None:
    """Refuse a render mode that does not work here.

    Raises:
        InvalidOptionError: it is not known, or needs a package that is not installed.
    """
    if render_mode is not None and render_mode not in RENDER_MODES:
        raise InvalidOptionError(
            f"render_mode must be None or one of {RENDER_MODES}, not {render_mode!r}. "
            f"rgb_array needs matplotlib. {install_extra('viz')}"
        )
