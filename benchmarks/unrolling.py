"""Measure the memory and time of a meta-step by kind of differentiation, and against autograd."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from benchmarks.measure import Row, judged, paired_ratio, peak_megabytes, printed_by, ratios
from mirrordescent import SMD, TVInpainting
from mirrordescent.learn import Checkpointed, Draw, Full, Objective
from mirrordescent.learn.unrolling import Differentiation
from mirrordescent.mirrors import Conjugate, ConvICNN
from mirrordescent.schedules import Prefix

WAYS: dict[str, Differentiation] = {"full": Full(), "checkpointed": Checkpointed()}


def setting(horizon: int) -> tuple[SMD, Draw]:
    """Return a one-network map with an explicit gradient, and 8 crops of 48×48."""
    generator = torch.Generator().manual_seed(0)
    method = SMD(
        Conjugate(ConvICNN(3, generator=generator), start="scaled"),
        Prefix(torch.full((horizon,), 0.1)),
    )
    y = torch.rand(8, 3, 48, 48, generator=generator)
    problem = TVInpainting(y, torch.rand(48, 48, generator=generator) > 0.2)
    return method, Draw(problem, problem.start())


def meta_step(method: SMD, draw: Draw, horizon: int, differentiation: str) -> None:
    """Compute one meta-gradient."""
    method.zero_grad()
    objective = Objective(differentiation=WAYS[differentiation])
    losses, _ = objective.losses(method, draw, horizon, 0)
    torch.autograd.backward(losses.mean())


def nested_meta_step(method: SMD, draw: Draw, horizon: int) -> None:
    """Compute the same with the network's gradient by autograd, as one would without explicit
    gradients.
    """
    method.zero_grad()
    mirror = method.mirror
    assert isinstance(mirror, Conjugate)

    def to_primal(y: Tensor) -> Tensor:
        y = y if y.requires_grad else y.requires_grad_()
        return torch.autograd.grad(mirror.dual_potential.value(y).sum(), y, create_graph=True)[0]

    y = mirror.dual_start(draw.x0)
    assert isinstance(y, Tensor)
    x = to_primal(y)
    total = torch.zeros(8)
    for k in range(1, horizon + 1):
        y = y - method.t(k) * draw.problem.grad(x)
        x = to_primal(y)
        total = total + draw.problem.value(x)
    torch.autograd.backward(total.mean())


def print_growth(differentiation: str, horizon: int) -> None:
    """Print by how many megabytes a meta-step raises the peak, after one forward step has loaded
    everything.
    """
    with torch.no_grad():
        Objective().losses(*setting(1), 1, 0)
    before = peak_megabytes()
    meta_step(*setting(horizon), horizon, differentiation)
    print(peak_megabytes() - before)


def largest_difference(first: Callable[[], None], second: Callable[[], None], method: SMD) -> float:
    """Return the largest relative difference of two meta-gradients."""
    first()
    a = [p.grad.clone() for p in method.parameters() if p.grad is not None]
    second()
    b = [p.grad for p in method.parameters() if p.grad is not None]
    return max(
        float((x - y).abs().max() / y.abs().max().clamp(min=1e-30))
        for x, y in zip(a, b, strict=True)
    )


def rows() -> Iterator[Row]:
    """Yield ratios of time and memory."""
    method, draw = setting(40)
    time = paired_ratio(
        lambda: meta_step(method, draw, 40, "checkpointed"),
        lambda: meta_step(method, draw, 40, "full"),
        repeats=3,
    )
    peak = partial(printed_by, "benchmarks.unrolling", keep_freed=False)
    kept = {horizon: peak("checkpointed", horizon) for horizon in (10, 40, 160)}
    yield judged("checkpointed / full, N = 40, time", time, 1.5)
    yield judged("checkpointed / full, N = 40, memory", kept[40] / peak("full", 40), 0.25, ".3f")
    for small, large in ((10, 40), (40, 160)):
        yield judged(
            f"checkpointed memory, N = {large} / N = {small}: √N", kept[large] / kept[small], 2
        )
    method, draw = setting(10)

    def ours():
        return meta_step(method, draw, 10, "full")

    def theirs():
        return nested_meta_step(method, draw, 10)

    yield judged("explicit / nested create_graph, N = 10, time", paired_ratio(ours, theirs), 1)
    yield judged(
        "relative difference of their gradients",
        largest_difference(ours, theirs, method),
        1e-5,
        ".1e",
    )


def main() -> str:
    """Measure."""
    return f"A map of one network, 8 images of 3×48×48.\n\n{ratios(rows())}"


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print_growth(sys.argv[1], int(sys.argv[2]))
    else:
        print(main())
