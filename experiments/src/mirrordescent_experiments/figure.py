"""Figures: curves with a band over the runs, rows of pictures, and groups of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from mirrordescent.report import Panel
from mirrordescent.report.charts import FLOOR

COLOURS = 10
STYLES = ("-", "--", ":")


def draw_panel(
    panel: Panel,
    title: str,
    paths: Sequence[Path],
    ranges: Mapping[str, tuple[Tensor, Tensor]] | None = None,
) -> None:
    """Draw the mean of every method, with the range of its runs.

    Args:
        panel: Curves to draw.
        title: Title of the figure.
        paths: Files to write; their suffixes are .png or .svg.
        ranges: Lowest and highest values of curves that are means of several runs.
    """
    figure = _figure(9, 5.5)
    axes = figure.subplots()
    horizontal, vertical = panel.scales
    first = 1 if horizontal == "log" else 0  # there is no 0 on a logarithmic axis

    def shown(values: Tensor) -> Tensor:
        values = values[first:]
        return values.clamp(min=FLOOR) if vertical == "log" else values

    for index, curve in enumerate(panel.curves):
        x = torch.tensor(getattr(curve, panel.against)[first:])
        colour = f"C{index % COLOURS}"
        style = STYLES[index // COLOURS % len(STYLES)]
        axes.plot(x, shown(curve.values).mean(1), style, color=colour, label=curve.name)
        band = (ranges or {}).get(curve.name)
        if band is None and curve.values.shape[1] > 1:
            band = (curve.values.amin(1), curve.values.amax(1))
        if band is not None:
            low, high = (shown(values) for values in band)
            axes.fill_between(x, low, high, color=colour, alpha=0.08, linewidth=0)
    axes.set(
        xscale=horizontal, yscale=vertical, xlabel=panel.against, ylabel=panel.quantity, title=title
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    _save(figure, paths)


def draw_pictures(pictures: Mapping[str, Tensor], paths: Sequence[Path]) -> None:
    """Draw images (channels, height, width) in a row, each under its title."""
    figure = _figure(3.2 * len(pictures), 3.6)
    row = figure.subplots(1, len(pictures), squeeze=False)[0]
    for axes, (title, image) in zip(row, pictures.items(), strict=True):
        pixels = image.clamp(0, 1).movedim(0, -1).squeeze(-1).numpy()
        axes.imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(title)
        axes.axis("off")
    _save(figure, paths)


def draw_groups(
    groups: Mapping[str, Tensor], quantity: str, title: str, paths: Sequence[Path]
) -> None:
    """Draw a dot for every number of the groups, one group after the other."""
    figure = _figure(9, 5)
    axes = figure.subplots()
    first = 0
    for name, values in groups.items():
        axes.scatter(range(first, first + len(values)), values, s=9, label=name)
        first += len(values)
    axes.set(xlabel="entry", ylabel=quantity, title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    _save(figure, paths)


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, paths: Sequence[Path]) -> None:
    """Write a figure to files: the same figure gives the same bytes.

    The layout is computed for the first file and kept for the others.
    """
    for path in paths:
        if path.suffix == ".png":
            figure.savefig(path, dpi=110)
        else:
            with rc_context({"svg.hashsalt": path.stem}):
                figure.savefig(path, metadata={"Date": None})
        figure.set_layout_engine("none")
