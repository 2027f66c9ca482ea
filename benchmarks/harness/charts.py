"""Charts of rows, drawn with matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def save_charts(
    rows: Sequence[Any], draw: Callable[[Any, Any], None], file: Path, *, across: int, height: float
) -> None:
    """Save a picture with a chart for each row, which ``draw(row, axes)`` fills.

    ``across`` charts are side by side; each is ``height`` inches high.
    """
    from matplotlib import pyplot

    pyplot.switch_backend("Agg")
    across = max(across, 1)
    down = math.ceil(len(rows) / across) or 1
    figure, charts = pyplot.subplots(down, across, figsize=(6.5 * across, height * down), squeeze=False)
    for chart in charts.flat[len(rows) :]:
        chart.remove()
    for row, chart in zip(rows, charts.flat, strict=False):
        draw(row, chart)
    figure.tight_layout()
    figure.savefig(file, dpi=120)
