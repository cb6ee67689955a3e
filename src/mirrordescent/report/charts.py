"""Curves and groups of numbers as data for the charts of a page, and as tables."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mirrordescent.report.content import Curve, Dots, Panel, Scale, Table

FLOOR = 1e-9
"""Smallest value on a logarithmic axis. Smaller gaps are 0 up to rounding."""
POINTS = 300
"""Largest number of points of a curve."""
COLUMNS = 6
"""Largest number of iterations in a table of curves."""

Point = list[float | None]


def chart(content: Panel | Dots) -> dict[str, Any]:
    """Return the axes and the series of a chart.

    A point is [iteration, seconds, mean, lowest, highest] of a curve, or [entry, value] of a group.
    """
    series: dict[str, list[Point]] = {}
    ceiling = None
    if isinstance(content, Panel):
        ceiling = _ceiling(content)
        for curve in content.curves:
            series[curve.name] = _points(curve, content.scales)
    else:
        entry = 0
        for name, values in content.groups.items():
            series[name] = []
            for value in _rounded(values):
                series[name].append([entry, value])
                entry += 1
    return {
        "axes": content.axes,
        "against": content.against,
        "scales": content.scales,
        "ceiling": ceiling,
        "lines": isinstance(content, Panel),
        "series": [{"name": name, "points": points} for name, points in series.items()],
    }


def _ceiling(panel: Panel) -> float | None:
    """Return the upper end of a logarithmic axis. Curves that diverge may exceed it."""
    if panel.scales[1] != "log":
        return None
    starts = [float(curve.values[0].mean()) for curve in panel.curves]
    shown = [start for start in starts if math.isfinite(start) and start > FLOOR]
    return 3 * max(shown) if shown else None


def _points(curve: Curve, scales: tuple[Scale, Scale]) -> list[Point]:
    """Return at most ``POINTS`` points of a curve. A logarithmic axis has no 0."""
    horizontal, vertical = scales
    first = 1 if horizontal == "log" and curve.iterations[0] == 0 else 0
    rows = [first + i for i in thinned(curve.iterations[first:], horizontal == "log")]
    values = curve.values[rows].double()
    if vertical == "log":
        values = values.clamp(min=FLOOR)
    seconds = _rounded(torch.tensor(curve.seconds, dtype=torch.float64)[rows])
    means = _rounded(values.mean(1))
    lowest = _rounded(values.amin(1))
    highest = _rounded(values.amax(1))
    points: list[Point] = []
    for i, row in enumerate(rows):
        points.append([curve.iterations[row], seconds[i], means[i], lowest[i], highest[i]])
    return points


def thinned(positions: Sequence[int], logarithmic: bool, most: int = POINTS) -> list[int]:
    """Return indices of evenly spaced positions, with the first and the last.

    Args:
        positions: Increasing positions.
        logarithmic: Whether they are evenly spaced on a logarithmic axis.
        most: Largest number of indices.

    >>> thinned(range(1, 1001), True, most=4)
    [0, 9, 99, 999]
    >>> thinned(range(9), False, most=3)
    [0, 4, 8]
    """
    if len(positions) <= most:
        return list(range(len(positions)))
    low = positions[0]
    high = positions[-1]
    indices = set()
    for i in range(most):
        share = i / (most - 1)
        target = low * (high / low) ** share if logarithmic else low + (high - low) * share
        indices.add(min(bisect_left(positions, round(target)), len(positions) - 1))
    return sorted(indices)


def table(content: Panel | Dots) -> Table:
    """Return a chart as a table: means of curves at a few iterations, or the spread of groups."""
    if isinstance(content, Dots):
        return _spread_table(content)
    columns = _table_iterations(content.curves)
    rows = []
    for curve in content.curves:
        means = [f"{curve.mean_at(k):.4g}" if k in curve.iterations else "–" for k in columns]
        rows.append((curve.name, *means, f"{curve.seconds[-1]:.3g} s"))
    return Table(("method", *(f"k = {k}" for k in columns), "time"), rows)


def _spread_table(dots: Dots) -> Table:
    rows = []
    for name, values in dots.groups.items():
        spread = (min(values), torch.median(values), max(values))
        rows.append((name, str(len(values)), *(f"{value:.4g}" for value in spread)))
    return Table(("group", "entries", "smallest", "median", "largest"), rows)


def _table_iterations(curves: Sequence[Curve]) -> list[int]:
    """Return the last few powers of ten among the iterations, and the last iteration."""
    iterations = sorted({k for curve in curves for k in curve.iterations if k > 0})
    powers = [k for k in iterations if math.log10(k).is_integer()]
    return sorted({*powers[-COLUMNS + 1 :], *iterations[-1:]})


def _rounded(values: Tensor) -> list[float | None]:
    """Return numbers with five digits, and None for NaN and infinity, which JSON does not have."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values.tolist()]
