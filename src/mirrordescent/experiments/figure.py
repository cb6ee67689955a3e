"""Convergence figures: log–log, a line per method, a band over the problems."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from mirrordescent.experiments.result import Curve

FLOOR = 1e-6  # gaps below this are rounding of single precision


def draw_panel(curves: Sequence[Curve], title: str, path: Path, against: str = "iterations") -> None:
    """Write PATH.png and PATH.svg: the mean gap against iterations or seconds, with the range of the problems."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for index, curve in enumerate(curves):
        x = torch.tensor(getattr(curve, against)[1:])
        gaps = curve.gaps[1:].clamp(min=FLOOR)
        colour, style = f"C{index % 10}", ("-", "--", ":")[index // 10 % 3]
        axes.plot(x, gaps.mean(1), style, color=colour, label=curve.name)
        if gaps.shape[1] > 1:
            axes.fill_between(x, gaps.amin(1), gaps.amax(1), color=colour, alpha=0.08, linewidth=0)
    axes.set(xscale="log", yscale="log", xlabel=against, ylabel="gap f(x) − f*, certified", title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    for suffix in (".png", ".svg"):
        figure.savefig(path.with_suffix(suffix), dpi=110)
