"""From a damaged batch of images to a restored one, with a certificate: a method, and a primal-dual one to prove it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from mirrordescent.methods import HandOver
from mirrordescent.mirrors.icnn import ConvICNN
from mirrordescent.problems.tv import TVInpainting
from mirrordescent.restore.memory import available, needed
from mirrordescent.restore.planning import BUDGETS, SINGLE_PRECISION, Plan, certifies, primal_dual
from mirrordescent.restore.tiling import MARGIN, Window, windows
from mirrordescent.solve import Rule, Solution, Status, relative_gap, solve
from mirrordescent.solve.stopping import Look

CHECK_EVERY = 20
SHARE = 0.7  # of the available memory that may be used


@dataclass(frozen=True)
class Restored:
    """Restored images, and how they were found.

    ``gap`` is (f(x) − lower) / (f(y) − lower) with a proven lower bound on the optimal value, per image; of tiles the
    worst. ``steps`` counts iterations per image by method. ``trace`` has iterations, seconds and values (looks, batch);
    tiles have none, and no common ``lower`` bound.
    """

    x: Tensor
    value: Tensor
    gap: Tensor
    lower: Tensor | None
    steps: dict[str, list[int]]
    seconds: float
    statuses: list[Status]
    trace: tuple[list[int], list[float], Tensor] | None
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
    stop = _proven(plan.tolerance, fitted.value(fitted.start())) if certifies(plan.method) else None
    own = solve(
        fitted, plan.method, fitted.start(fill=True), iterations=plan.iterations, stop=stop,
        check_every=CHECK_EVERY if stop else None, trace=_recorded(plan.iterations), progress=progress,
    )  # fmt: skip
    x = back(cast(Tensor, own.x))
    value, black = problem.value(x), problem.value(problem.start())
    batch, copies = len(value), fitted.y.numel() // problem.y.numel()

    def per_image(values: Tensor) -> Tensor:
        """Add up what was found channel by channel: (…, batch)."""
        return values.reshape(*values.shape[:-1], batch, -1).sum(-1) / copies

    lower = None if own.lower is None else per_image(own.lower)
    found = Restored(
        x=x,
        value=value,
        gap=value if lower is None else relative_gap(value, lower, black),
        lower=lower,
        steps=_shared_out(plan, own.steps.reshape(batch, -1).amax(1)),
        seconds=own.seconds,
        statuses=_worst(own.statuses, batch),
        trace=(own.trace.iterations, own.trace.seconds, per_image(own.trace.values)),
    )
    return found if lower is not None else _prove(problem, plan, found, black, progress)


def _prove(problem: TVInpainting, plan: Plan, found: Restored, black: Tensor, progress: bool | None) -> Restored:
    """Find a lower bound from the answer on, and a better answer if that was asked for."""
    proof = solve(
        problem, primal_dual(plan.then, plan.fused), found.x, iterations=BUDGETS["pdhg"], check_every=CHECK_EVERY,
        progress=progress,
        stop=_proven(plan.tolerance, black, found.value if plan.hand_over else None),
    )  # fmt: skip
    assert proof.lower is not None
    if not plan.hand_over:
        return replace(found, lower=proof.lower, gap=relative_gap(found.value, proof.lower, black))
    better = proof.value < found.value
    x = torch.where(better.reshape(-1, 1, 1, 1), cast(Tensor, proof.x), found.x)
    value = torch.minimum(proof.value, found.value)
    statuses = [new if took else old for took, new, old in zip(better, proof.statuses, found.statuses, strict=True)]
    return replace(
        found,
        x=x,
        value=value,
        gap=relative_gap(value, proof.lower, black),
        lower=proof.lower,
        steps=found.steps | {plan.then: proof.steps.tolist()},
        seconds=found.seconds + proof.seconds,
        statuses=statuses,
        trace=_joined(found, proof),
    )


def _shared_out(plan: Plan, steps: Tensor) -> dict[str, list[int]]:
    """Count for every image what the method did, and what the one did that it handed over to."""
    if not isinstance(plan.method, HandOver):
        return {plan.label: steps.tolist()}
    first = steps.clamp(max=plan.method.after)
    return {plan.label: first.tolist(), plan.then: (steps - first).tolist()}


def _recorded(iterations: int) -> list[int]:
    """Return the iterations of a curve: a few of the first, then evenly spaced ones."""
    return sorted(k for k in {0, 1, 2, 5, 10, *range(0, iterations, CHECK_EVERY), iterations} if k <= iterations)


def _joined(found: Restored, proof: Solution) -> tuple[list[int], list[float], Tensor]:
    assert found.trace is not None
    k, seconds, values = found.trace
    after = proof.trace
    return (
        k + [k[-1] + each for each in after.iterations[1:]],
        seconds + [seconds[-1] + each for each in after.seconds[1:]],
        torch.cat([values, torch.minimum(after.values[1:], found.value)]),
    )


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
            part = _cut(problem, sample, outer)
            found = _restore(part, plan, progress)
            x[sample][(..., *core)] = found.x[0][(..., *inner)]
            gap[sample] = torch.maximum(gap[sample], found.gap[0])
            for label, taken in found.steps.items():
                steps.setdefault(label, [0] * batch)[sample] = max(steps.get(label, [0] * batch)[sample], *taken)
            statuses[sample] = max(statuses[sample], *found.statuses)
            seconds, count = seconds + found.seconds, count + 1
    return Restored(x, problem.value(x), gap, None, steps, seconds, statuses, None, count // batch)


def _cut(problem: TVInpainting, sample: int, window: Window) -> TVInpainting:
    index = (slice(sample, sample + 1), slice(None), *window)
    mask = None if problem.mask is None else problem.mask.expand_as(problem.y)[index]
    return TVInpainting(problem.y[index].contiguous(), mask, problem.weight, problem.scale)


def _fit(problem: TVInpainting, plan: Plan) -> tuple[TVInpainting, Callable[[Tensor], Tensor]]:
    """Give a map the channels it was learned for: colours one by one to a grey map, grey thrice to one of colours."""
    wanted = {part.inputs for part in plan.method.modules() if isinstance(part, ConvICNN)}
    channels = problem.y.shape[1]
    if not wanted or wanted == {channels}:
        return problem, lambda x: x
    y, mask = problem.y, problem.mask
    if wanted == {1}:
        y = y.reshape(-1, 1, *y.shape[2:])
        mask = None if mask is None else mask.expand_as(problem.y).reshape(y.shape)
        return TVInpainting(y, mask, problem.weight, problem.scale), lambda x: x.reshape(problem.y.shape)
    if channels == 1 and len(wanted) == 1:
        y = y.expand(-1, wanted.pop(), -1, -1).contiguous()
        return TVInpainting(y, mask, problem.weight, problem.scale), lambda x: x.mean(1, keepdim=True)
    raise ValueError(f"{plan.label} is for images of {wanted.pop()} channels, not of {channels}")


def _proven(tolerance: float, start_value: Tensor, value: Tensor | None = None) -> Rule:
    """Stop when the gap of the iterate, or of a better value that is known, is proven to be below the tolerance."""

    def test(look: Look) -> Tensor:
        if look.lower is None:
            return torch.zeros_like(look.running)
        best = look.value if value is None else torch.minimum(look.value, value)
        return relative_gap(best, look.lower, start_value) <= tolerance

    return Rule(test)


def _worst(statuses: list[Status], batch: int) -> list[Status]:
    """Return the worst status among the channels of every image."""
    each = len(statuses) // batch
    return [max(statuses[i * each : (i + 1) * each]) for i in range(batch)]
