"""From a damaged batch of images to a restored one, with a certificate: a method, and a primal-dual one to prove it."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import cast

import torch
from torch import Tensor

from mirrordescent.methods import Conditioned, HandOver
from mirrordescent.mirrors.icnn import ConvICNN
from mirrordescent.problems.tv import TVInpainting
from mirrordescent.restore.memory import available, needed
from mirrordescent.restore.planning import PROVEN, SINGLE_PRECISION, Plan, primal_dual
from mirrordescent.restore.tiling import MARGIN, windows
from mirrordescent.solve import Status, Trace, gap, relative_gap, solve

CHECK_EVERY = 20
SHARE = 0.7  # of the available memory that may be used


@dataclass(frozen=True)
class Restored:
    """Restored images, and how they were found.

    ``gap`` is (f(x) − lower) / (f(y) − lower) with a proven lower bound on the optimal value, per image; of tiles the
    worst. ``steps`` counts iterations per image by method. Tiles have no common trace, and no common ``lower`` bound.
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
def restore(problem: TVInpainting, plan: Plan, *, memory: int | None = None, progress: bool | None = None) -> Restored:
    """Restore a batch of images; one that is too large for the memory in overlapping tiles.

    Args:
        problem: the batch.
        plan: how.
        memory: bytes that may be used; by default a share of what is available.
        progress: show a progress bar; by default on a terminal.
    """
    if plan.tolerance < SINGLE_PRECISION:
        problem = copy.deepcopy(problem).double()
    free = available() if memory is None else None
    memory = memory if free is None else int(SHARE * free)
    if memory is None or needed(problem, plan.method) <= memory:
        return _restore(problem, plan, progress)
    return _restore_in_tiles(problem, plan, memory, progress)


def _restore(problem: TVInpainting, plan: Plan, progress: bool | None) -> Restored:
    fitted, back = _fit(problem, plan)
    stop = gap(plan.tolerance, start_value=fitted.value(fitted.start())) if plan.method.certifies else None
    own = solve(
        fitted, plan.method, fitted.start(fill=True), iterations=plan.iterations, stop=stop, fused=plan.fused,
        check_every=CHECK_EVERY if stop else None, trace=_recorded(plan.iterations), progress=progress,
    )  # fmt: skip
    x = back(cast(Tensor, own.x))
    value, black = problem.value(x), problem.value(problem.start())
    batch, copies, parts = len(value), fitted.y.numel() // problem.y.numel(), len(fitted.y) // len(problem.y)

    def per_image(values: Tensor) -> Tensor:
        """Add up what was found channel by channel: (…, batch)."""
        return values.reshape(*values.shape[:-1], batch, -1).sum(-1) / copies

    best = own.lower
    if best is not None and Status.BUDGET in own.statuses:  # not proven in time: once it is worth some more
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
        statuses=[max(own.statuses[i : i + parts]) for i in range(0, batch * parts, parts)],  # the worst of each image
        trace=Trace(own.trace.iterations, own.trace.seconds, per_image(own.trace.values)),
    )


def _proven(problem: TVInpainting, plan: Plan, x: Tensor, black: Tensor, progress: bool | None) -> Tensor:
    """Find a lower bound, tight up to the tolerance, by a run that begins at the answer, which stays as it is."""
    proof = solve(
        problem, primal_dual(plan.then), x, iterations=PROVEN, check_every=CHECK_EVERY, progress=progress,
        stop=gap(plan.tolerance, start_value=black),
    )  # fmt: skip
    return cast(Tensor, proof.lower)


def _shared_out(plan: Plan, steps: Tensor) -> dict[str, list[int]]:
    """Count the iterations of every image, those of the method and those of the one that it handed over to."""
    method = plan.method.method if isinstance(plan.method, Conditioned) else plan.method
    if not isinstance(method, HandOver):
        return {plan.label: steps.tolist()}
    first = steps.clamp(max=method.after)
    return {plan.label: first.tolist(), plan.then: (steps - first).tolist()}


def _recorded(iterations: int) -> list[int]:
    """Return the iterations of a curve: a few of the first, then evenly spaced ones."""
    return sorted(k for k in {0, 1, 2, 5, 10, *range(0, iterations, CHECK_EVERY), iterations} if k <= iterations)


def _restore_in_tiles(problem: TVInpainting, plan: Plan, memory: int, progress: bool | None) -> Restored:
    batch, _, height, width = problem.y.shape
    whole = needed(problem, None)
    per_pixel = needed(problem, plan.method) / (batch * height * width)
    side = int(((memory - whole) / per_pixel) ** 0.5) if memory > whole else 0
    if side < 4 * MARGIN:
        raise ValueError(
            f"an image of {width}×{height} pixels needs about {needed(problem, plan.method) / 1e9:.1f} GB, and "
            f"{memory / 1e9:.1f} GB can be used: make it smaller, or cut it into parts"
        )
    x = problem.start()
    gap = x.new_zeros(batch)
    steps: dict[str, list[int]] = {}
    statuses, seconds, count = [Status.CONVERGED] * batch, 0.0, 0
    for sample in range(batch):
        for outer, inner, core in windows(height, width, side):
            part = itemgetter((slice(sample, sample + 1), slice(None), *outer))
            found = _restore(_changed(problem, part), plan, progress)
            x[sample][(..., *core)] = found.x[0][(..., *inner)]
            gap[sample] = torch.maximum(gap[sample], found.gap[0])
            for label, taken in found.steps.items():
                steps.setdefault(label, [0] * batch)[sample] = max(steps.get(label, [0] * batch)[sample], *taken)
            statuses[sample] = max(statuses[sample], *found.statuses)
            seconds, count = seconds + found.seconds, count + 1
    return Restored(x, problem.value(x), gap, None, steps, seconds, statuses, None, count // batch)


def _fit(problem: TVInpainting, plan: Plan) -> tuple[TVInpainting, Callable[[Tensor], Tensor]]:
    """Give a map the channels it was learned for: colours one by one to a grey map, copies of grey to a colour map."""
    channels = problem.y.shape[1]
    wanted = {part.inputs for part in plan.method.modules() if isinstance(part, ConvICNN)} or {channels}
    count = max(wanted)
    if wanted == {channels}:
        return problem, lambda x: x
    if problem.coupled:
        raise ValueError(f"{plan.label} is for images of {count} channels, and coupled channels cannot be taken apart")
    if wanted == {1}:
        taken_apart = _changed(problem, lambda images: images.reshape(-1, 1, *images.shape[2:]))
        return taken_apart, lambda x: x.reshape(problem.y.shape)
    if channels == 1 and len(wanted) == 1:
        return _changed(problem, lambda images: images.expand(-1, count, -1, -1)), lambda x: x.mean(1, keepdim=True)
    raise ValueError(f"{plan.label} is for images of {count} channels, not of {channels}")


def _changed(problem: TVInpainting, change: Callable[[Tensor], Tensor]) -> TVInpainting:
    """Return the problem of images that were cut out, taken apart or repeated."""
    mask = None if problem.mask is None else change(problem.mask.expand_as(problem.y)).contiguous()
    return TVInpainting(
        change(problem.y).contiguous(), mask, problem.weight, problem.scale, isotropic=problem.isotropic,
        coupled=problem.coupled, huber=problem.huber,
    )  # fmt: skip
