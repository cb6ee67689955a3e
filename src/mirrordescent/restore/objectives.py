"""Objectives of restoration beyond plain total variation, for whole images and for tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from mirrordescent.problems import Problem, TVInpainting
from mirrordescent.restore.degradation import Degradation
from mirrordescent.restore.pipeline import (
    LARGEST_IMAGE,
    TILE,
    Restored,
    recorded_iterations,
    solve_tiles,
)
from mirrordescent.restore.planning import RestorationPlan
from mirrordescent.restore.tiling import MARGIN, Window, windows
from mirrordescent.solving import gap, relative_gap, solve


class Objective(Protocol):
    """A batch of images to restore.

    ``window`` returns the objective of a part of one image, so that large images are solved in
    tiles.
    """

    @property
    def y(self) -> Tensor:
        """The observed images."""

    @property
    def degradation(self) -> Degradation:
        """What happened to the images before their noise."""

    def window(self, sample: int, window: Window) -> Objective:
        """Return the objective of a window of one image."""

    def problem(self) -> Problem:
        """Return the problem whose solution is an answer."""

    def start(self) -> Tensor:
        """Return the first point."""

    def answer(self, x: Tensor) -> Tensor:
        """Return the restored images from a point of the problem."""

    def for_tiles(self) -> Objective:
        """Return the objective of which tiles are cut: perhaps of images with their borders."""

    def whole(self, x: Tensor) -> WholeGap | None:
        """Return the gap of whole images that were solved in tiles; None if it is not known."""


@dataclass(frozen=True, eq=False)
class DegradedVariation:
    """½(‖Z(Ax − y)‖² + λ TV(x)) for images that were blurred or reduced in size.

    Args:
        y: Observed images, (batch, channels, height, width).
        degradation: The operator A.
        weight: Weight λ, a number or (batch,).
        variant: Keyword arguments of :class:`~mirrordescent.problems.TVInpainting`.
    """

    y: Tensor
    degradation: Degradation
    weight: float | Tensor
    variant: dict[str, Any] = field(default_factory=dict)

    def window(self, sample: int, window: Window) -> DegradedVariation:
        """Return the objective of a window of one image."""
        part = self.y[(slice(sample, sample + 1), slice(None), *window)].contiguous()
        weight = self.weight
        if isinstance(weight, Tensor):
            weight = float(weight[sample])
        return DegradedVariation(part, self.degradation, weight, self.variant)

    def problem(self) -> TVInpainting:
        """Return the problem on the unknown image, which is larger than y after a blur."""
        y, mask = self.degradation.extend(self.y, None)
        operator = self.degradation.operator(self.y)
        return TVInpainting(y, mask, self.weight, operator=operator, **self.variant)

    def start(self) -> Tensor:
        """Return y, continued at its border or enlarged."""
        return self.degradation.start(self.y)

    def answer(self, x: Tensor) -> Tensor:
        """Return the part of x that the photograph shows."""
        return self.degradation.crop(x)

    def for_tiles(self) -> DegradedVariation:
        """Return this objective: every tile has a border of its own."""
        return self

    def whole(self, x: Tensor) -> None:
        """Return None: the gap is that of the tiles."""
        return None


@torch.no_grad()
def restore_objective(
    objective: Objective,
    plan: RestorationPlan,
    *,
    progress: bool | None = None,
    announce: Callable[[str], object] | None = None,
    changes: Callable[[int, Window], bool] | None = None,
) -> Restored:
    """Restore a batch of images. Images that are too large are solved in overlapping tiles.

    Args:
        objective: The images and their objective.
        plan: The method, and when it stops.
        progress: Whether to show a progress bar; by default on a terminal.
        announce: Function that is called with a message if there are tiles.
        changes: Function that tells whether any pixel of a window of an image may change. A tile
            without such pixels is not solved. By default all tiles are.
    """
    height, width = objective.y.shape[2:]
    factor = objective.degradation.factor
    pixels = height * width * factor**2
    if pixels <= LARGEST_IMAGE:
        return _solve(objective, plan, progress)
    tiles = list(windows(height, width, max(4 * MARGIN, TILE // factor)))
    if announce is not None:
        announce(
            f"{width}×{height} pixels: in {len(tiles)} tiles, each solved by itself with a margin "
            f"of {MARGIN} pixels"
        )

    framed = objective.for_tiles()
    batch, channels, height, width = framed.y.shape
    tiles = list(windows(height, width, max(4 * MARGIN, TILE // factor)))

    def restore_tile(sample: int, window: Window) -> Restored | Tensor:
        if changes is not None and framed is objective and not changes(sample, window):
            return framed.y[(slice(sample, sample + 1), slice(None), *window)]
        return _solve(framed.window(sample, window), plan, False)

    x = framed.y.new_empty(batch, channels, factor * height, factor * width)
    restored = solve_tiles(x, tiles, restore_tile, progress, factor)
    whole = framed.whole(restored.x)
    if whole is not None:
        restored = replace(restored, value=whole.value, gap=whole.gap, whole=True)
    return restored if framed is objective else replace(restored, x=objective.answer(restored.x))


class WholeGap(NamedTuple):
    """The objective of whole images that were solved in tiles, and their proven relative gap."""

    value: Tensor
    gap: Tensor


def _solve(objective: Objective, plan: RestorationPlan, progress: bool | None) -> Restored:
    """Restore images at once."""
    problem = objective.problem()
    start = objective.start()
    first = problem.value(start)
    method = plan.method.to(start)
    solution = solve(
        problem,
        method,
        start,
        iterations=plan.iterations,
        stop=gap(plan.tolerance, start_value=first) if method.certifies else None,
        check_every=plan.check_every,
        fused=plan.fused,
        trace=recorded_iterations(plan.iterations),
        progress=progress,
    )
    lower = solution.lower
    if lower is None:
        lower = torch.full_like(first, -torch.inf)
    return Restored(
        x=objective.answer(cast(Tensor, solution.x)),
        value=solution.value,
        gap=relative_gap(solution.value, lower, first),
        lower=lower,
        steps={plan.label: solution.steps.tolist()},
        seconds=solution.seconds,
        statuses=list(solution.statuses),
        trace=solution.trace,
    )
