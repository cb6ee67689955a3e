"""Time learned steps with the learned prior, against tuned classical methods on the same kernel.

The problems are crops of the validation photographs of BSDS500: noise, 30 % missing pixels, and a
Gaussian blur of 1.6 pixels. A method has finished when ‖∇f(x)‖²/(2μ) proves a relative gap of
0.001, where the dual bound of Condat–Vũ is used for that method. Classical methods are tuned on
other crops: step size and momentum, the step size of accelerated gradients with restart and of
nmAPG, and the memory of L-BFGS. Condat–Vũ has over-relaxation 1.8 and needs a convex prior. It uses
the responses themselves, for which there is no kernel, so it is given fewer steps. The control of
the learned steps was learned like them, without the geometry, or without a schedule for denoising.
Steps are means over crops. Seconds are the processor time of all steps without checks, from the
first gradient to the last, and the ratio is that to the fastest classical method, measured in turn.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from time import process_time
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from benchmarks.measure import Row, about, quick, table, threads, verdict
from mirrordescent import data, zoo
from mirrordescent.methods import (
    LBFGS,
    CondatVu,
    GradientMethod,
    Method,
    RidgeMomentum,
    TangentBound,
)
from mirrordescent.oracles import Default, Oracle
from mirrordescent.problems import (
    Blur,
    Composite,
    Problem,
    RidgePrior,
    gaussian_kernel,
    prior_denoising,
    prior_restoration,
    ridge_evaluations,
)
from mirrordescent.problems.prior_problems import FILLING_LEVEL, UNDOING_ANCHOR
from mirrordescent.problems.tv import fill_holes
from mirrordescent.solving import relative_gap
from mirrordescent.trees import Tree, dot, sum_per_sample

TOLERANCE = 1e-3
SIDE = 160
TUNING_SIDE = 96
CROPS = 2
TUNING_CROPS = 2
ROUNDS = 3
MOST = 300  # steps of a method
MOST_DUAL = 100  # steps of Condat–Vũ
BLURRED_NOISE = 0.01
TARGETS = {"noise": 0.8, "30 % missing": 0.6, "blur": 0.5}
ENTRIES = {
    "noise": "photo-prior-denoise",
    "30 % missing": "photo-prior-inpaint",
    "blur": "photo-prior-deblur",
}
STEPS = (1.0, 1.2, 1.4, 1.6, 1.8, 2.0)
MOMENTA = (0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.93, 0.96)
CONTROL = "-control"
EXACT = Default()


class RestartedState(NamedTuple):
    """Steps taken, the extrapolated point, the iterate, θ and the step size."""

    k: int
    x: Tensor
    iterate: Tensor
    theta: Tensor
    step: float


class Restarted(GradientMethod[RestartedState]):
    """Nesterov's method with steps t/L that restarts when momentum points against the gradient.

    Args:
        t: Step size in units of 1/L.

    Reference: O'Donoghue and Candès, Found. Comput. Math. 15 (2015).
    """

    def __init__(self, t: float) -> None:
        super().__init__()
        self.t = float(t)

    def init(self, x0: Tree, problem: Problem | None = None) -> RestartedState:
        assert isinstance(x0, Tensor)
        ones = torch.ones(len(x0), 1, 1, 1)
        return RestartedState(0, x0, x0, ones, self.t / _smoothness(problem))

    def update(self, state: RestartedState, grad: Tree) -> RestartedState:
        g = cast(Tensor, grad)
        iterate = state.x - state.step * g
        change = iterate - state.iterate
        against = (dot(g, change) > 0).reshape(-1, 1, 1, 1)
        grown = (1 + (1 + 4 * state.theta.square()).sqrt()) / 2
        momentum = torch.where(against, 0.0, (state.theta - 1) / grown)
        theta = torch.where(against, 1.0, grown)
        return RestartedState(state.k + 1, iterate + momentum * change, iterate, theta, state.step)


class MonotoneState(NamedTuple):
    """Steps taken, the point x, the last one, z, the momentum numbers, and a mean of values."""

    k: int
    x: Tensor
    last: Tensor
    z: Tensor
    momentum: float
    next_momentum: float
    mean: Tensor
    weight: float
    step: float


class NonmonotoneAPG(Method[MonotoneState]):
    """nmAPG of Li and Lin for a smooth f, one problem at a time, with steps t/L.

    Args:
        t: Step size in units of 1/L.

    Reference: Li and Lin, Accelerated proximal gradient methods for nonconvex programming, NIPS
        2015, Algorithm 2.
    """

    DECREASE = 1e-4
    FORGETTING = 0.8

    def __init__(self, t: float) -> None:
        super().__init__()
        self.t = float(t)

    def init(self, x0: Tree, problem: Problem | None = None) -> MonotoneState:
        assert isinstance(x0, Tensor)
        assert problem is not None
        step = self.t / _smoothness(problem)
        return MonotoneState(0, x0, x0, x0, 0.0, 1.0, problem.value(x0), 1.0, step)

    def step(
        self,
        problem: Problem,
        state: MonotoneState,
        oracle: Oracle,
        generator: Generator | None = None,
    ) -> MonotoneState:
        before = state.momentum
        now = state.next_momentum
        y = state.x + (before / now) * (state.z - state.x)
        y = y + ((before - 1) / now) * (state.x - state.last)
        z = y - state.step * cast(Tensor, problem.grad(y))
        value = problem.value(z)
        x = z
        if not bool(value <= state.mean - self.DECREASE * sum_per_sample((z - y).square())):
            safe = state.x - state.step * cast(Tensor, problem.grad(state.x))
            safe_value = problem.value(safe)
            if bool(safe_value < value):
                x = safe
                value = safe_value
        weight = self.FORGETTING * state.weight + 1
        mean = (self.FORGETTING * state.weight * state.mean + value) / weight
        grown = (1 + (1 + 4 * now**2) ** 0.5) / 2
        return MonotoneState(state.k + 1, x, state.x, z, now, grown, mean, weight, state.step)


def _smoothness(problem: Problem | None) -> float:
    smoothness = None if problem is None else problem.smoothness()
    assert smoothness is not None
    return smoothness


class Case(NamedTuple):
    """A problem and its start."""

    problem: Composite
    start: Tensor


def crops(side: int, first: int, count: int) -> list[Tensor]:
    """Return the middle of some validation photographs."""
    photographs = list(data.bsds500("val"))[first :: len(data.bsds500("val")) // count][:count]
    found = []
    for photo in photographs:
        top = (photo.shape[1] - side) // 2
        left = (photo.shape[2] - side) // 2
        found.append(photo[:, top : top + side, left : left + side])
    return found


def noisy(level: float, clean: Tensor, seed: int, prior: RidgePrior) -> Case:
    """Return the problem to remove noise."""
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(seed))
    y = F.pad((clean + level * noise)[None], (prior.border,) * 4, mode="reflect")
    return Case(prior_denoising(y, torch.tensor([level]), prior), y)


def missing(clean: Tensor, seed: int, prior: RidgePrior) -> Case:
    """Return the problem to fill in 30 % of the pixels."""
    generator = torch.Generator().manual_seed(seed)
    known = (torch.rand(1, 1, *clean.shape[1:], generator=generator) >= 0.3).to(clean)
    sides = (prior.border,) * 4
    mask = F.pad(known, sides)
    start = F.pad(fill_holes(clean[None], known), sides, mode="replicate")
    y = F.pad(clean[None], sides) * mask
    sigma = torch.tensor([FILLING_LEVEL])
    return Case(prior_restoration(y, sigma, prior, mask=mask, centre=start), start)


def blurred(clean: Tensor, seed: int, prior: RidgePrior) -> Case:
    """Return the problem to undo a blur; only pixels whose kernel lies inside are known."""
    kernel = gaussian_kernel(1.6)
    margin = len(kernel) // 2
    inside = slice(margin, -margin)
    blur = Blur(kernel)
    y = blur.A(clean[None])[..., inside, inside]
    y = y + BLURRED_NOISE * torch.randn(y.shape, generator=torch.Generator().manual_seed(seed))
    sides = (margin + prior.border,) * 4
    mask = F.pad(torch.ones_like(y[:, :1]), sides)
    start = F.pad(y, sides, mode="replicate")
    sigma = torch.tensor([BLURRED_NOISE])
    y = F.pad(y, sides)
    problem = prior_restoration(y, sigma, prior, blur, mask, start, UNDOING_ANCHOR)
    return Case(problem, start)


KINDS: dict[str, tuple[str, Callable[[Tensor, int, RidgePrior], Case]]] = {
    "noise 0.02": ("noise", partial(noisy, 0.02)),
    "noise 0.05": ("noise", partial(noisy, 0.05)),
    "noise 0.1": ("noise", partial(noisy, 0.1)),
    "30 % missing": ("30 % missing", missing),
    "blur": ("blur", blurred),
}


def take_steps(method: Method[Any], case: Case, steps: int) -> Any:
    """Return the state of a method after some steps."""
    state = method.init(case.start, case.problem)
    for _ in range(steps):
        state = method.step(case.problem, state, EXACT)
    return state


def proven_gap(method: Method[Any], case: Case, state: Any, first: Tensor) -> float:
    """Return the relative gap that is proven at the answer of a method."""
    x = cast(Tensor, method.answer(state))
    value = case.problem.value(x)
    if isinstance(method, CondatVu):
        lower = method.lower_bound(case.problem, state)
        assert lower is not None
    else:
        convexity = case.problem.strong_convexity()
        assert convexity
        lower = value - sum_per_sample(case.problem.grad(x).square()) / (2 * convexity)
    return float(relative_gap(value, lower.to(value), first))


def steps_needed(method: Method[Any], case: Case, most: int = MOST) -> int:
    """Return the number of steps after which the gap is proven, or ``most`` + 1."""
    every = 1
    if isinstance(method, CondatVu):
        every = 20
        most = min(most, MOST_DUAL)
    first = case.problem.value(case.start)
    state = method.init(case.start, case.problem)
    for k in range(1, most + 1):
        state = method.step(case.problem, state, EXACT)
        if k % every == 0 and proven_gap(method, case, state, first) <= TOLERANCE:
            return k
    return most + 1


def best_of(methods: Sequence[Method[Any]], cases: Sequence[Case]) -> Method[Any]:
    """Return the method that needs the fewest steps in total."""
    best = methods[0]
    fewest = [MOST] * len(cases)
    for method in methods:
        counts = []
        for case, limit in zip(cases, fewest, strict=True):
            counts.append(steps_needed(method, case, min(MOST, 2 * limit)))
            if sum(counts) > sum(fewest):
                break
        if len(counts) == len(cases) and sum(counts) < sum(fewest):
            best = method
            fewest = counts
    return best


def tuned_momentum(cases: Sequence[Case]) -> Method[Any]:
    """Return the best constant step size and momentum of a grid, which is climbed."""

    @torch.no_grad()
    def cost(place: tuple[int, int]) -> float:
        if place not in seen:
            i, j = place
            if not (0 <= i < len(STEPS) and 0 <= j < len(MOMENTA)):
                return float("inf")
            method = RidgeMomentum(STEPS[i], MOMENTA[j])
            seen[place] = float(sum(steps_needed(method, case) for case in cases))
        return seen[place]

    seen: dict[tuple[int, int], float] = {}
    at = (2, 4)
    while True:
        i, j = at
        near = [(i + a, j + b) for a, b in product((-1, 0, 1), repeat=2)]
        found = min(near, key=cost)
        if cost(found) >= cost(at):
            return RidgeMomentum(STEPS[i], MOMENTA[j])
        at = found


def classical(cases: Sequence[Case], convex: bool) -> dict[str, Method[Any]]:
    """Return the classical methods, tuned on some problems."""
    methods: dict[str, Method[Any]] = {
        "tuned momentum": tuned_momentum(cases),
        "restart": best_of([Restarted(t) for t in (1.0, 1.3, 1.6)], cases),
        "nmAPG": best_of([NonmonotoneAPG(t) for t in (1.0, 1.4, 1.8)], cases),
        "L-BFGS": best_of([LBFGS(memory) for memory in (5, 10)], cases),
    }
    if convex:
        methods["Condat–Vũ"] = CondatVu(relaxation=1.8)
    return methods


def processor_seconds(method: Method[Any], case: Case, steps: int) -> float:
    """Return the time of all steps; evaluations of earlier runs are forgotten."""
    ridge_evaluations.forget()
    began = process_time()
    take_steps(method, case, steps)
    return process_time() - began


@torch.no_grad()
def rows(names: Sequence[str]) -> Iterator[Row]:
    """Yield a row for every method on some kinds of problems."""
    prior = cast(RidgePrior, zoo.load("photo-prior"))
    kinds = [(name, KINDS[name]) for name in (names[:1] if quick() else names)]
    side = 32 if quick() else SIDE
    for name, (task, make) in kinds:
        tuning = [
            make(crop, seed, prior)
            for seed, crop in enumerate(crops(min(side, TUNING_SIDE), 1, TUNING_CROPS))
        ]
        cases = [
            make(crop, 100 + seed, prior)
            for seed, crop in enumerate(crops(side, 0, 1 if quick() else CROPS))
        ]
        methods = classical(tuning, convex=task != "noise")
        rivals = list(methods)
        methods["learned"] = _learned(ENTRIES[task])
        if ENTRIES[task] + CONTROL in zoo.list():
            methods["control"] = _learned(ENTRIES[task] + CONTROL)
        counts = {
            label: [steps_needed(method, case) for case in cases]
            for label, method in methods.items()
        }
        limits = {label: MOST_DUAL if label == "Condat–Vũ" else MOST for label in methods}
        finished = [label for label in methods if max(counts[label]) <= limits[label]]
        times: dict[str, list[float]] = {label: [] for label in finished}
        for _ in range(1 if quick() else ROUNDS):
            for label in finished:
                seconds = [
                    processor_seconds(methods[label], case, steps)
                    for case, steps in zip(cases, counts[label], strict=True)
                ]
                times[label].append(statistics.mean(seconds))
        medians = {label: statistics.median(each) for label, each in times.items()}
        fastest = min((label for label in rivals if label in medians), key=medians.__getitem__)
        for label in methods:
            if label not in medians:
                yield name, label, f"more than {limits[label]}", "", "", "", ""
                continue
            paired = zip(times[label], times[fastest], strict=True)
            ratio = statistics.median(ours / theirs for ours, theirs in paired)
            goal = ("", "")
            if label == "learned":
                goal = (f"≤ {TARGETS[task]:g}", verdict(ratio <= TARGETS[task]))
            steps = statistics.mean(counts[label])
            yield name, label, f"{steps:.1f}", f"{medians[label]:.3f}", f"{ratio:.2f}", *goal


def _learned(entry: str) -> Method[Any]:
    found = zoo.load(entry)
    assert isinstance(found, TangentBound)
    return found.method


def main(names: Sequence[str] = tuple(KINDS)) -> str:
    """Measure some kinds of problems."""
    header = ("problem", "method", "steps", "seconds", "ratio", "target", "")
    with threads(1):
        return f"{about(__doc__)}\n{table(header, rows(names))}"


if __name__ == "__main__":
    print(main(sys.argv[1:] or tuple(KINDS)))
