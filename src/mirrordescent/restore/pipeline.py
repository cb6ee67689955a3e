"""Restoration of a batch of images with a proven gap to the optimum."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from operator import attrgetter
from typing import TypeAlias, cast

import torch
from torch import Tensor

from mirrordescent._internal.progress import ProgressBar
from mirrordescent.methods import Conditioned, Switch
from mirrordescent.mirrors.icnn import ConvICNN
from mirrordescent.problems.tv import TVInpainting
from mirrordescent.restore.deep_holes import fill_holes
from mirrordescent.restore.memory import available_memory, needed_memory, reuse_freed_memory
from mirrordescent.restore.planning import (
    PROOF_ITERATIONS,
    SINGLE_PRECISION,
    RestorationPlan,
    primal_dual,
)
from mirrordescent.restore.tiling import MARGIN, Tile, Window, windows
from mirrordescent.solving import Status, Trace, gap, relative_gap, solve

CHECK_EVERY = 20
MEMORY_SHARE = 0.7  # of the available memory that may be used
# Pixels of an image that is solved at once. Larger images are faster in tiles, which reuse memory.
LARGEST_IMAGE = 3 << 20
TILE = 896  # side of a tile, in pixels
STRIP = 256  # rows of a large image whose value is computed at a time

ChangeImages: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Restored:
    """Restored images.

    Args:
        x: The images, (batch, channels, height, width).
        value: Objective f(x) per image.
        gap: (f(x) − lower)/(f(y) − lower) per image, with a proven lower bound on the optimal
            value. For images in tiles it is the largest gap of a tile, unless ``whole``.
        lower: Lower bound per image; None for images in tiles.
        steps: Iterations per image by the name of the method.
        seconds: Time of the solve.
        statuses: Status per image.
        trace: Values along the run; None for images in tiles.
        tiles: Number of tiles.
        whole: Whether value and gap are those of the whole images, not of tiles.
    """

    x: Tensor
    value: Tensor
    gap: Tensor
    lower: Tensor | None
    steps: dict[str, list[int]]
    seconds: float
    statuses: list[Status]
    trace: Trace | None
    tiles: int = 1
    whole: bool = True


@torch.no_grad()
def restore(
    problem: TVInpainting,
    plan: RestorationPlan,
    *,
    memory: int | None = None,
    progress: bool | None = None,
    announce: Callable[[str], object] | None = None,
) -> Restored:
    """Restore a batch of images. Images that are too large are solved in overlapping tiles.

    Args:
        problem: The problem of the batch.
        plan: The method, and when it stops; see
            :func:`~mirrordescent.restore.plan_restoration`.
        memory: Bytes that may be used, by default a share of the available memory.
        progress: Whether to show a progress bar; by default on a terminal.
        announce: Function that is called with a message if there are tiles.
    """
    if plan.tolerance < SINGLE_PRECISION:
        problem = copy.deepcopy(problem).double()
    if memory is None:
        available = available_memory()
        memory = None if available is None else int(MEMORY_SHARE * available)
    height, width = problem.y.shape[2:]
    fits = memory is None or needed_memory(problem, plan.method) <= memory
    if fits and height * width <= LARGEST_IMAGE:
        return _restore(problem, plan, progress)
    reuse_freed_memory()
    side = TILE if memory is None else min(TILE, _largest_tile(problem, plan, memory))
    tiles = list(windows(height, width, side))
    if announce is not None:
        announce(
            f"{width}×{height} pixels: in {len(tiles)} tiles, each solved by itself with a margin "
            f"of {MARGIN} pixels"
        )
    return _restore_in_tiles(problem, plan, tiles, progress)


def _restore(problem: TVInpainting, plan: RestorationPlan, progress: bool | None) -> Restored:
    """Restore images at once."""
    fitted, undo = _fit_channels(problem, plan)
    stop = None
    if plan.method.certifies:
        stop = gap(plan.tolerance, start_value=fitted.value(fitted.start()))
    solution = solve(
        fitted,
        plan.method,
        fitted.start(fill=True),
        iterations=plan.iterations,
        stop=stop,
        fused=plan.fused,
        check_every=CHECK_EVERY if stop else None,
        trace=recorded_iterations(plan.iterations),
        progress=progress,
    )
    x = undo(cast(Tensor, solution.x))
    value = problem.value(x)
    black = problem.value(problem.start())
    batch = len(value)
    copies = fitted.y.numel() // problem.y.numel()
    parts = len(fitted.y) // len(problem.y)

    def per_image(values: Tensor) -> Tensor:
        """Return values (…, batch) from values of channels (…, batch · channels)."""
        return values.reshape(*values.shape[:-1], batch, -1).sum(-1) / copies

    bound = solution.lower
    if bound is not None and {Status.BUDGET, Status.PRECISION} & {*solution.statuses}:
        # The gap was not proven in time. A tighter bound is worth some more computation.
        tight = plan.method.tight_bound(fitted, solution.state)
        bound = bound if tight is None else torch.fmax(bound, tight)
    lower = _prove(problem, plan, x, black, progress) if bound is None else per_image(bound)
    first = range(0, batch * parts, parts)
    trace = solution.trace
    return Restored(
        x=x,
        value=value,
        gap=relative_gap(value, lower, black),
        lower=lower,
        steps=_steps_by_method(plan, solution.steps.reshape(batch, -1).amax(1)),
        seconds=solution.seconds,
        statuses=[max(solution.statuses[i : i + parts], key=attrgetter("severity")) for i in first],
        trace=Trace(trace.iterations, trace.seconds, per_image(trace.values)),
    )


def _prove(
    problem: TVInpainting,
    plan: RestorationPlan,
    x: Tensor,
    black: Tensor,
    progress: bool | None,
) -> Tensor:
    """Return lower bounds, tight up to the tolerance, by a primal-dual run from an answer x."""
    proof = solve(
        problem,
        primal_dual(plan.then),
        x,
        iterations=PROOF_ITERATIONS,
        check_every=CHECK_EVERY,
        progress=progress,
        stop=gap(plan.tolerance, start_value=black),
    )
    return cast(Tensor, proof.lower)


def _steps_by_method(plan: RestorationPlan, steps: Tensor) -> dict[str, list[int]]:
    """Return the iterations per image of the method, and of the one to which it switches."""
    method = plan.method.method if isinstance(plan.method, Conditioned) else plan.method
    if not isinstance(method, Switch):
        return {plan.label: steps.tolist()}
    first = steps.clamp(max=method.after)
    return {plan.label: first.tolist(), plan.then: (steps - first).tolist()}


def recorded_iterations(iterations: int) -> list[int]:
    """Return the iterations of a curve: some of the first ones, then every twentieth."""
    chosen = {0, 1, 2, 5, 10, *range(0, iterations, CHECK_EVERY), iterations}
    return [k for k in sorted(chosen) if k <= iterations]


def _largest_tile(problem: TVInpainting, plan: RestorationPlan, memory: int) -> int:
    """Return the side of the largest tile for which there is memory."""
    batch, _, height, width = problem.y.shape
    whole = needed_memory(problem, None)
    solving = needed_memory(problem, plan.method)
    per_pixel = solving / (batch * height * width)
    side = int(((memory - whole) / per_pixel) ** 0.5) if memory > whole else 0
    if side < 4 * MARGIN:
        raise ValueError(
            f"an image of {width}×{height} pixels needs about {solving / 1e9:.1f} GB of memory, "
            f"and {memory / 1e9:.1f} GB can be used: make it smaller, or cut it into parts"
        )
    return side


def _restore_in_tiles(
    problem: TVInpainting,
    plan: RestorationPlan,
    tiles: list[Tile],
    progress: bool | None,
) -> Restored:
    """Restore images tile by tile."""
    filled = _fill_unknown_tiles(problem, tiles)

    def restore_tile(sample: int, window: Window) -> Restored | Tensor:
        if not _has_known_pixels(problem, sample, window):
            return filled[(slice(sample, sample + 1), slice(None), *window)]
        return _restore(_tile(problem, sample, window), plan, False)

    restored = solve_tiles(torch.empty_like(problem.y), tiles, restore_tile, progress)
    return replace(restored, value=_value_by_strips(problem, restored.x))


def solve_tiles(
    x: Tensor,
    tiles: list[Tile],
    restore_tile: Callable[[int, Window], Restored | Tensor],
    progress: bool | None,
    factor: int = 1,
) -> Restored:
    """Restore images tile by tile. The gap is the largest one of a tile; the value is NaN.

    Args:
        x: Tensor for the restored images, (batch, channels, height, width).
        tiles: Tiles of :func:`~mirrordescent.restore.tiling.windows`.
        restore_tile: Function of the index of an image and a window that returns the restored tile,
            or only its pixels (1, channels, height, width) if nothing has to be solved.
        progress: Whether to show a progress bar; by default on a terminal.
        factor: Ratio of the sides of restored and given images.
    """
    batch = len(x)
    gaps = x.new_zeros(batch)
    steps: dict[str, list[int]] = {}
    statuses = [Status.CONVERGED] * batch
    seconds = 0.0
    with ProgressBar("tiles", batch * len(tiles), progress) as bar:
        for count, (sample, (outer, inner, core)) in enumerate(product(range(batch), tiles), 1):
            tile = restore_tile(sample, outer)
            place = (sample, slice(None), _scaled(core[0], factor), _scaled(core[1], factor))
            part = (0, slice(None), _scaled(inner[0], factor), _scaled(inner[1], factor))
            if isinstance(tile, Tensor):
                x[place] = tile[part]
                continue
            x[place] = tile.x[part]
            gaps[sample] = torch.maximum(gaps[sample], tile.gap[0])
            for label, (taken,) in tile.steps.items():
                most = steps.setdefault(label, [0] * batch)
                most[sample] = max(most[sample], taken)
            statuses[sample] = max(statuses[sample], *tile.statuses, key=attrgetter("severity"))
            seconds += tile.seconds
            bar.update(count, f"{seconds:.0f} s")
    value = torch.full_like(gaps, torch.nan)
    return Restored(
        x,
        value,
        gaps,
        None,
        steps,
        seconds,
        statuses,
        None,
        tiles=len(tiles),
        whole=len(tiles) == 1,
    )


def _scaled(interval: slice, factor: int) -> slice:
    return slice(factor * interval.start, factor * interval.stop)


def _fill_unknown_tiles(problem: TVInpainting, tiles: list[Tile]) -> Tensor:
    """Return the images; if a tile has no known pixel, all holes are filled first."""
    for sample, (outer, _, _) in product(range(len(problem.y)), tiles):
        if not _has_known_pixels(problem, sample, outer):
            assert problem.mask is not None
            return fill_holes(problem.y, problem.mask)
    return problem.y


def _has_known_pixels(problem: TVInpainting, sample: int, window: Window) -> bool:
    """Return whether a pixel of every channel is known in a window."""
    if problem.mask is None:
        return True
    mask = problem.mask.expand_as(problem.y)[(sample, slice(None), *window)]
    return bool(mask.flatten(1).any(-1).all())


def _value_by_strips(problem: TVInpainting, x: Tensor) -> Tensor:
    """Return the objective, computed some rows at a time.

    Neighbouring strips share a row, whose total variation is subtracted once.
    """
    height = x.shape[2]
    total = x.new_zeros(len(x), dtype=torch.float64)
    for top in range(0, height, STRIP):
        bottom = min(height, top + STRIP)
        residual = x[:, :, top:bottom] - problem.y[:, :, top:bottom]
        if problem.mask is not None:
            residual = residual * problem.mask[:, :, top:bottom]
        variation = problem.total_variation(x[:, :, top : bottom + 1])
        if bottom < height:
            variation = variation - problem.total_variation(x[:, :, bottom : bottom + 1])
        fit = residual.square().flatten(1).sum(1)
        total += problem.scale * (fit + problem.weight * variation)
    return total.to(x.dtype)


def _fit_channels(
    problem: TVInpainting, plan: RestorationPlan
) -> tuple[TVInpainting, ChangeImages]:
    """Return a problem with the channels that a learned map needs, and a function to undo this.

    A grey map restores the channels of a colour image one by one. A colour map restores copies of a
    grey channel.
    """
    channels = problem.y.shape[1]
    trained = {part.inputs for part in plan.method.modules() if isinstance(part, ConvICNN)}
    if not trained or trained == {channels}:
        return problem, lambda x: x
    count = max(trained)
    if problem.coupled:
        raise ValueError(
            f"{plan.label} is for images of {count} channels, and coupled channels cannot be "
            "restored one by one"
        )
    if trained == {1}:
        y, mask = _map_images(problem, lambda images: images.reshape(-1, 1, *images.shape[2:]))
        weight = problem.weight
        if isinstance(weight, Tensor):
            weight = weight.repeat_interleave(channels)
        return _like(problem, y, mask, weight), lambda x: x.reshape(problem.y.shape)
    if channels == 1 and len(trained) == 1:
        y, mask = _map_images(problem, lambda images: images.expand(-1, count, -1, -1))
        return _like(problem, y, mask, problem.weight), lambda x: x.mean(1, keepdim=True)
    raise ValueError(f"{plan.label} is for images of {count} channels, not of {channels}")


def _tile(problem: TVInpainting, sample: int, window: Window) -> TVInpainting:
    """Return the problem of a window of one image."""
    y, mask = _map_images(
        problem, lambda images: images[(slice(sample, sample + 1), slice(None), *window)]
    )
    weight = problem.weight
    if isinstance(weight, Tensor):
        weight = float(weight[sample])
    return _like(problem, y, mask, weight)


def _map_images(problem: TVInpainting, change: ChangeImages) -> tuple[Tensor, Tensor | None]:
    """Return changed copies of the observation and the mask."""
    y = change(problem.y).contiguous()
    if problem.mask is None:
        return y, None
    return y, change(problem.mask.expand_as(problem.y)).contiguous()


def _like(
    problem: TVInpainting, y: Tensor, mask: Tensor | None, weight: float | Tensor
) -> TVInpainting:
    """Return a problem with other images, and with the total variation of a given problem."""
    return TVInpainting(
        y,
        mask,
        weight,
        problem.scale,
        isotropic=problem.isotropic,
        coupled=problem.coupled,
        huber=problem.huber,
    )
