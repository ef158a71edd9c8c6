"""The render modes of the environments."""

from __future__ import annotations

import importlib.util
from typing import Any

from shard_gym.envs.placement.rendering.ansi import render_ansi
from shard_gym.envs.placement.rendering.view import PlacementView
from shard_gym.errors import InvalidOptionError

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
            f"rgb_array needs matplotlib: pip install 'shard-gym[viz]'."
        )


def render(view: PlacementView, render_mode: str) -> Any:
    """A str for "ansi"; for "rgb_array" the (H, W, 3) uint8 array of `figure.render_rgb`."""
    if render_mode == "ansi":
        return render_ansi(view)
    from shard_gym.envs.placement.rendering.figure import render_rgb  # needs matplotlib

    return render_rgb(view)
