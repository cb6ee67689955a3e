"""Curves and dots as the plain data that the page's script draws, and as tables."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor

from mirrordescent.report.content import Curve, Dots, Panel, Scale, Table

FLOOR = 1e-9  # what a logarithmic axis shows of gaps that are 0 up to rounding
POINTS = 300  # of a curve, at most
COLUMNS = 6  # of a table of curves, at most


def chart(content: Panel | Dots) -> dict[str, Any]:
    """Return axes and series; a point is [iteration, seconds, mean, lowest, highest] or [entry,
    value].
    """
    if isinstance(content, Panel):
        series = [(curve.name, _points(curve, content.scales)) for curve in content.curves]
    else:
        entry = count()
        series = [
            (name, [[next(entry), v] for v in _rounded(values)])
            for name, values in content.groups.items()
        ]
    return {
        "axes": content.axes,
        "against": content.against,
        "scales": content.scales,
        "ceiling": _ceiling(content) if isinstance(content, Panel) else None,
        "lines": isinstance(content, Panel),
        "series": [{"name": name, "points": points} for name, points in series],
    }


def _ceiling(panel: Panel) -> float | None:
    """Return how far up a logarithmic axis needs to go: curves that diverge may leave it."""
    starts = [float(curve.values[0].mean()) for curve in panel.curves]
    known = [start for start in starts if math.isfinite(start) and start > FLOOR]
    return 3 * max(known) if panel.scales[1] == "log" and known else None


def _points(curve: Curve, scales: tuple[Scale, Scale]) -> list[list[float | None]]:
    """Thin a curve; a logarithmic axis has no 0."""
    horizontal, vertical = scales
    first = 1 if horizontal == "log" and curve.iterations[0] == 0 else 0
    rows = [first + i for i in thinned(curve.iterations[first:], horizontal == "log")]
    values = curve.values[rows].double()
    if vertical == "log":
        values = values.clamp(min=FLOOR)
    seconds = torch.tensor(curve.seconds, dtype=torch.float64)[rows]
    columns = [_rounded(each) for each in (seconds, values.mean(1), values.amin(1), values.amax(1))]
    return [
        list(point) for point in zip((curve.iterations[row] for row in rows), *columns, strict=True)
    ]


def thinned(positions: Sequence[int], logarithmic: bool, most: int = POINTS) -> list[int]:
    """Choose at most so many indices of rising positions, evenly spaced there, with the first and
    the last.

    >>> thinned(range(1, 1001), True, most=4)
    [0, 9, 99, 999]
    >>> thinned(range(9), False, most=3)
    [0, 4, 8]
    """
    if len(positions) <= most:
        return list(range(len(positions)))
    low = positions[0]
    high = positions[-1]
    shares = [i / (most - 1) for i in range(most)]
    wanted = [
        low * (high / low) ** share if logarithmic else low + (high - low) * share
        for share in shares
    ]
    return sorted({min(bisect_left(positions, round(each)), len(positions) - 1) for each in wanted})


def table(content: Panel | Dots) -> Table:
    """Return the means of curves at a few iterations, or the spread of groups, for those who cannot
    see the chart.
    """
    if isinstance(content, Dots):
        rows = [
            (n, str(len(v)), *(f"{f(v):.4g}" for f in (min, torch.median, max)))
            for n, v in content.groups.items()
        ]
        return Table(("group", "entries", "smallest", "median", "largest"), rows)
    shown = _round_iterations(content.curves)
    means = (
        [f"{c.mean_at(k):.4g}" if k in c.iterations else "–" for k in shown] for c in content.curves
    )
    lines = [
        (c.name, *each, f"{c.seconds[-1]:.3g} s")
        for c, each in zip(content.curves, means, strict=True)
    ]
    return Table(("method", *(f"k = {k}" for k in shown), "time"), lines)


def _round_iterations(curves: Sequence[Curve]) -> list[int]:
    """Choose powers of ten and the last iteration, of those that curves have."""
    had = sorted({k for curve in curves for k in curve.iterations if k > 0})
    powers = [k for k in had if math.log10(k).is_integer()]
    return sorted({*powers[-COLUMNS + 1 :], *had[-1:]})


def _rounded(values: Tensor) -> list[float | None]:
    """Return five digits of each; JSON knows no NaN and no infinity."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values.tolist()]
