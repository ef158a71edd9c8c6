"""`NotebookFigure`: a matplotlib figure that notebooks show, also where nobody imported pyplot. Needs matplotlib."""

from __future__ import annotations

from io import BytesIO

from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """A figure that shows itself as a PNG at the end of a notebook's cell."""

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()
