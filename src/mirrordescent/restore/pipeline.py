"""From a damaged batch of images to a restored one, with a certificate: a method, and a primal-dual
one to prove it.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from operator import itemgetter
from typing import cast

import torch
from torch import Tensor

from mirrordescent._internal.progress import ProgressBar
from mirrordescent.methods import Conditioned, Switch
from mirrordescent.mirrors.icnn import ConvICNN
from mirrordescent.problems.tv import TVInpainting
from mirrordescent.restore.deep_holes import pulled
from mirrordescent.restore.memory import available, keep_freed, needed
from mirrordescent.restore.planning import PROVEN, SINGLE_PRECISION, Plan, primal_dual
from mirrordescent.restore.tiling import MARGIN, Window, windows
from mirrordescent.solving import Status, Trace, gap, relative_gap, solve

CHECK_EVERY = 20
SHARE = 0.7  # of the available memory that may be used
LARGEST = (
    3 << 20
    # pixels of an image that is solved at once; larger ones are faster in tiles, whose memory is
    # reused
)
TILE = 896  # side of a tile, in pixels
STRIP = 256  # rows of which the value of a large image is found at a time


@dataclass(frozen=True)
class Restored:
    """Restored images, and how they were found.

    ``gap`` is (f(x) − lower) / (f(y) − lower) with a proven lower bound on the optimal value, per
    image; of tiles the worst. ``steps`` counts iterations per image by method. Tiles have no common
    trace, and no common ``lower`` bound.
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


@torch.no_grad()
def restore(
    problem: TVInpainting,
    plan: Plan,
    *,
    memory: int | None = None,
    progress: bool | None = None,
    announce: Callable[[str], object] | None = None,
) -> Restored:
    """Restore a batch of images; large ones, or ones that are too large for the memory, in
    overlapping tiles.

    Args:
        problem: the batch.
        plan: how.
        memory: bytes that may be used; by default a share of what is available.
        progress: show a progress bar; by default on a terminal.
        announce: is told that there will be tiles.
    """
    if plan.tolerance < SINGLE_PRECISION:
        problem = copy.deepcopy(problem).double()
    free = available() if memory is None else None
    memory = memory if free is None else int(SHARE * free)
    height, width = problem.y.shape[2:]
    fits = memory is None or needed(problem, plan.method) <= memory
    if fits and height * width <= LARGEST:
        return _restore(problem, plan, progress)
    keep_freed()
    side = min(TILE, _largest_tile(problem, plan, memory)) if memory is not None else TILE
    count = sum(1 for _ in windows(height, width, side))
    if announce is not None:
        announce(
            f"{width}×{height} pixels: in {count} tiles, each solved by itself with a margin of {MARGIN} pixels"
        )
    return _restore_in_tiles(problem, plan, side, progress)


def _restore(problem: TVInpainting, plan: Plan, progress: bool | None) -> Restored:
    fitted, back = _fit(problem, plan)
    stop = (
        gap(plan.tolerance, start_value=fitted.value(fitted.start()))
        if plan.method.certifies
        else None
    )
    own = solve(
        fitted,
        plan.method,
        fitted.start(fill=True),
        iterations=plan.iterations,
        stop=stop,
        fused=plan.fused,
        check_every=CHECK_EVERY if stop else None,
        trace=_recorded(plan.iterations),
        progress=progress,
    )
    x = back(cast(Tensor, own.x))
    value = problem.value(x)
    black = problem.value(problem.start())
    batch = len(value)
    copies = fitted.y.numel() // problem.y.numel()
    parts = len(fitted.y) // len(problem.y)

    def per_image(values: Tensor) -> Tensor:
        """Add up what was found channel by channel: (…, batch)."""
        return values.reshape(*values.shape[:-1], batch, -1).sum(-1) / copies

    best = own.lower
    if (
        best is not None and Status.BUDGET in own.statuses
    ):  # not proven in time: once it is worth some more
        tight = plan.method.tight_bound(fitted, own.state)
        best = best if tight is None else torch.fmax(best, tight)
    lower = _proven(problem, plan, x, black, progress) if best is None else per_image(best)
    return Restored(
        x=x,
        value=value,
        gap=relative_gap(value, lower, black),
        lower=lower,
        steps=_shared_out(plan, own.steps.reshape(batch, -1).amax(1)),
        seconds=own.seconds,
        statuses=[
            max(own.statuses[i : i + parts]) for i in range(0, batch * parts, parts)
        ],  # the worst of each image
        trace=Trace(own.trace.iterations, own.trace.seconds, per_image(own.trace.values)),
    )


def _proven(
    problem: TVInpainting, plan: Plan, x: Tensor, black: Tensor, progress: bool | None
) -> Tensor:
    """Find a lower bound, tight up to the tolerance, by a run that begins at the answer, which
    stays as it is.
    """
    proof = solve(
        problem,
        primal_dual(plan.then),
        x,
        iterations=PROVEN,
        check_every=CHECK_EVERY,
        progress=progress,
        stop=gap(plan.tolerance, start_value=black),
    )
    return cast(Tensor, proof.lower)


def _shared_out(plan: Plan, steps: Tensor) -> dict[str, list[int]]:
    """Count the iterations of every image, those of the method and those of the one that it handed
    over to.
    """
    method = plan.method.method if isinstance(plan.method, Conditioned) else plan.method
    if not isinstance(method, Switch):
        return {plan.label: steps.tolist()}
    first = steps.clamp(max=method.after)
    return {plan.label: first.tolist(), plan.then: (steps - first).tolist()}


def _recorded(iterations: int) -> list[int]:
    """Return the iterations of a curve: a few of the first, then evenly spaced ones."""
    return sorted(
        k
        for k in {0, 1, 2, 5, 10, *range(0, iterations, CHECK_EVERY), iterations}
        if k <= iterations
    )


def _largest_tile(problem: TVInpainting, plan: Plan, memory: int) -> int:
    """Return the side of the largest tile for which there is memory beside the whole image, or say
    what it takes.
    """
    batch, _, height, width = problem.y.shape
    whole = needed(problem, None)
    per_pixel = needed(problem, plan.method) / (batch * height * width)
    side = int(((memory - whole) / per_pixel) ** 0.5) if memory > whole else 0
    if side < 4 * MARGIN:
        raise ValueError(
            f"an image of {width}×{height} pixels needs about {needed(problem, plan.method) / 1e9:.1f} GB, and "
            f"{memory / 1e9:.1f} GB can be used: make it smaller, or cut it into parts"
        )
    return side


def _restore_in_tiles(
    problem: TVInpainting, plan: Plan, side: int, progress: bool | None
) -> Restored:
    batch, _, height, width = problem.y.shape
    tiles = list(windows(height, width, side))
    x = torch.empty_like(problem.y)
    rough = _without_deep_holes(problem, tiles)
    gap = x.new_zeros(batch)
    steps: dict[str, list[int]] = {}
    statuses = [Status.CONVERGED] * batch
    seconds = 0.0
    with ProgressBar("tiles", batch * len(tiles), progress) as bar:
        for count, (sample, (outer, inner, core)) in enumerate(product(range(batch), tiles), 1):
            part = itemgetter((slice(sample, sample + 1), slice(None), *outer))
            if problem.mask is not None and not _seen(problem, part):
                x[sample][(..., *core)] = rough[sample][(..., *core)]
                continue
            found = _restore(_changed(problem, part, sample), plan, False)
            x[sample][(..., *core)] = found.x[0][(..., *inner)]
            gap[sample] = torch.maximum(gap[sample], found.gap[0])
            for label, taken in found.steps.items():
                steps.setdefault(label, [0] * batch)[sample] = max(
                    steps.get(label, [0] * batch)[sample], *taken
                )
            statuses[sample] = max(statuses[sample], *found.statuses)
            seconds += found.seconds
            bar.update(count, f"{seconds:.0f} s")
    return Restored(x, _value(problem, x), gap, None, steps, seconds, statuses, None, len(tiles))


def _without_deep_holes(
    problem: TVInpainting, tiles: list[tuple[Window, Window, Window]]
) -> Tensor:
    """Return the images with their holes filled roughly, if some tile lies in one: it has nothing
    to be solved from.
    """
    if problem.mask is None:
        return problem.y
    parts = [
        itemgetter((slice(s, s + 1), slice(None), *outer))
        for s in range(len(problem.y))
        for outer, _, _ in tiles
    ]
    return (
        problem.y
        if all(_seen(problem, part) for part in parts)
        else pulled(problem.y, problem.mask)
    )


def _seen(problem: TVInpainting, part: Callable[[Tensor], Tensor]) -> bool:
    """Tell whether a pixel of every channel of a part is known."""
    assert problem.mask is not None
    return bool(part(problem.mask.expand_as(problem.y)).flatten(2).any(-1).all())


def _value(problem: TVInpainting, x: Tensor) -> Tensor:
    """Return the objective, some rows at a time: the last row of a strip, with which the next
    begins, counts once.
    """
    height = x.shape[2]
    total = x.new_zeros(len(x), dtype=torch.float64)
    for top in range(0, height, STRIP):
        rows = slice(top, min(height, top + STRIP + 1))
        last = slice(top + STRIP, top + STRIP + 1)
        own = slice(top, min(height, top + STRIP))
        off = x[:, :, own] - problem.y[:, :, own]
        if problem.mask is not None:
            off = off * problem.mask[:, :, own]
        variation = problem.total_variation(x[:, :, rows])
        if top + STRIP < height:
            variation = variation - problem.total_variation(x[:, :, last])
        total += problem.scale * (off.square().flatten(1).sum(1) + problem.weight * variation)
    return total.to(x.dtype)


def _fit(problem: TVInpainting, plan: Plan) -> tuple[TVInpainting, Callable[[Tensor], Tensor]]:
    """Give a map the channels it was learned for: colours one by one to a grey map, copies of grey
    to a colour map.
    """
    channels = problem.y.shape[1]
    wanted = {part.inputs for part in plan.method.modules() if isinstance(part, ConvICNN)} or {
        channels
    }
    count = max(wanted)
    if wanted == {channels}:
        return problem, lambda x: x
    if problem.coupled:
        raise ValueError(
            f"{plan.label} is for images of {count} channels, and coupled channels cannot be taken apart"
        )
    if wanted == {1}:
        taken_apart = _changed(problem, lambda images: images.reshape(-1, 1, *images.shape[2:]))
        return taken_apart, lambda x: x.reshape(problem.y.shape)
    if channels == 1 and len(wanted) == 1:
        return _changed(problem, lambda images: images.expand(-1, count, -1, -1)), lambda x: x.mean(
            1, keepdim=True
        )
    raise ValueError(f"{plan.label} is for images of {count} channels, not of {channels}")


def _changed(
    problem: TVInpainting, change: Callable[[Tensor], Tensor], sample: int | None = None
) -> TVInpainting:
    """Return the problem of images that were taken apart or repeated, or of a part that was cut out
    of one sample.
    """
    y = change(problem.y).contiguous()
    mask = problem.mask
    weight = problem.weight
    if mask is not None:
        mask = change(mask.expand_as(problem.y)).contiguous()
    if isinstance(weight, Tensor):
        weight = (
            weight.repeat_interleave(len(y) // len(weight))
            if sample is None
            else float(weight[sample])
        )
    return TVInpainting(
        y,
        mask,
        weight,
        problem.scale,
        isotropic=problem.isotropic,
        coupled=problem.coupled,
        huber=problem.huber,
    )
