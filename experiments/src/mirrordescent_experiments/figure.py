"""Figures: a line per method with a band over the runs, rows of pictures, and groups of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mirrordescent.report.charts import FLOOR

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mirrordescent.report import Panel


def draw_panel(panel: Panel, title: str, path: Path) -> None:
    """Write PATH.png and PATH.svg: the mean of every method, with the range of its runs."""
    figure = _figure(9, 5.5)
    axes = figure.subplots()
    horizontal, vertical = panel.scales
    first = 1 if horizontal == "log" else 0  # there is no 0 on a logarithmic axis
    for index, curve in enumerate(panel.curves):
        x = torch.tensor(getattr(curve, panel.against)[first:])
        values = (
            curve.values[first:].clamp(min=FLOOR) if vertical == "log" else curve.values[first:]
        )
        colour = f"C{index % 10}"
        style = ("-", "--", ":")[index // 10 % 3]
        axes.plot(x, values.mean(1), style, color=colour, label=curve.name)
        if values.shape[1] > 1:
            axes.fill_between(
                x, values.amin(1), values.amax(1), color=colour, alpha=0.08, linewidth=0
            )
    axes.set(
        xscale=horizontal, yscale=vertical, xlabel=panel.against, ylabel=panel.quantity, title=title
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    _save(figure, path)


def draw_pictures(pictures: Mapping[str, Tensor], path: Path) -> None:
    """Write PATH.png and PATH.svg: images (channels, height, width) in a row, each under
    its title.
    """
    figure = _figure(3.2 * len(pictures), 3.6)
    for axes, (title, image) in zip(
        figure.subplots(1, len(pictures), squeeze=False)[0], pictures.items(), strict=True
    ):
        axes.imshow(
            image.clamp(0, 1).movedim(0, -1).squeeze(-1).numpy(),
            cmap="gray",
            vmin=0,
            vmax=1,
            interpolation="nearest",
        )
        axes.set_title(title)
        axes.axis("off")
    _save(figure, path)


def draw_groups(groups: Mapping[str, Tensor], quantity: str, title: str, path: Path) -> None:
    """Write PATH.png and PATH.svg: a dot for every number of the groups, one group after
    the other.
    """
    figure = _figure(9, 5)
    axes = figure.subplots()
    first = 0
    for name, values in groups.items():
        axes.scatter(range(first, first + len(values)), values, s=9, label=name)
        first += len(values)
    axes.set(xlabel="entry", ylabel=quantity, title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    _save(figure, path)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, path: Path) -> None:
    """Write a figure, the same bytes every time."""
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": path.name}):
        figure.savefig(path.with_name(f"{path.name}.png"), dpi=110)
        figure.savefig(path.with_name(f"{path.name}.svg"), metadata={"Date": None})
