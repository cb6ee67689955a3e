"""Runs held against the bounds of their theorems."""

import math
from typing import Any

import torch
from torch import Tensor

from mirrordescent.methods.base import Theorem
from mirrordescent.solving import Solution
from mirrordescent.theory import bounds
from mirrordescent.theory.assumptions import Verdict
from mirrordescent.theory.beforehand import Beforehand
from mirrordescent.theory.constants import ProblemConstants
from mirrordescent.theory.energies import Record
from mirrordescent.theory.findings import Bounded

ROUNDING = 1e3  # times the machine epsilon, relative to what was computed


def bounded_by(
    theorem: Theorem,
    method: Any,
    record: Record,
    alpha: float,
    known: Beforehand,
    of_problem: ProblemConstants,
) -> Bounded:
    """Return what the theorem bounds, its a-priori bound and its pathwise one; there is none
    without an α > 0.
    """
    alpha = alpha if alpha > 0 else math.nan
    judge = {
        "accelerated": _accelerated,
        "accelerated stochastic": _accelerated_stochastic,
        "descent": _descent,
    }
    return judge[theorem](method, record, alpha, known, of_problem)


def _descent(
    method: Any, record: Record, alpha: float, known: Beforehand, of_problem: ProblemConstants
) -> Bounded:
    """Theorem 2, whose case 1 without errors and noise is the bound of mirror descent."""
    start = record["divergence"][0]
    steps = record.steps
    mu = of_problem.strong_convexity.value
    bound = bounds.smd_bound(start, steps, known.second_moment, alpha, known.pairing)
    strongly: Tensor | str = "none: f is not strongly convex, μ = 0"
    if mu > 0:
        strongly = bounds.smd_bound_strongly_convex(
            start, steps, known.second_moment, alpha, known.squared_error, mu
        )
    return Bounded(
        "the mean of f(x_i) − f* weighted by t_i",
        "Theorem 2, case 1",
        bounds.weighted_mean_gap(record),
        bound,
        bounds.smd_realised_bound(record, alpha),
        bounds.smd_slack(record, alpha),
        {"Theorem 2, case 2, with C'/2μ": strongly},
    )


def _accelerated(
    method: Any, record: Record, alpha: float, known: Beforehand, of_problem: ProblemConstants
) -> Bounded:
    t = float(record.steps[0])
    r = method.r
    start = record["divergence"][0]
    gap = record["gap"][0]

    def bound(first_error: Tensor, error: Tensor) -> Tensor:
        return bounds.amd_bound(
            bounds.amd_first_energy(start, gap, t, r, first_error), record.steps, r, error
        )

    pathwise = bound(record["error"][0], record.running_maximum("error"))
    return Bounded(
        "f(x̃_k) − f*",
        "Theorem 1",
        record["gap"][1:],
        bound(known.energy_error, known.energy_error),
        pathwise,
        bounds.amd_slack(record, r),
    )


def _accelerated_stochastic(
    method: Any, record: Record, alpha: float, known: Beforehand, of_problem: ProblemConstants
) -> Bounded:
    """Theorem 3 before its proof brings in L_f, since that is infinite where f has kinks; and as it
    is printed.
    """
    first = record["energy"][0]
    steps = record.steps
    L = of_problem.smoothness.value
    far = torch.maximum(record["divergence"][0], alpha / 2 * known.squared_distance)
    moments = known.second_moment.expand(len(steps), -1)
    printed: Tensor | str = "none: f has kinks, L_f = ∞"
    if math.isfinite(L):
        printed = bounds.asmd_bound(
            len(steps),
            first,
            far,
            alpha,
            L,
            known.variance,
            known.squared_gradient,
            t=float(steps.max()),
        )
    met = (
        torch.cat([record["divergence"], alpha / 2 * record["distance"].square()])
        .nan_to_num()
        .amax(0)
    )
    error = record["error"].nan_to_num().clamp(min=0).amax(0)
    return Bounded(
        "f(x_k) − f*",
        "Theorem 3, by second moments",
        record["gap"][1:],
        bounds.asmd_bound_by_moments(first, steps, far, moments, alpha),
        bounds.asmd_bound_by_moments(first, steps, met, record["displacement"], alpha, error),
        further={"Theorem 3 as printed, with the α that it lacks": printed},
    )


def falls(theorem: Theorem, bounded: Bounded, record: Record) -> list[Verdict]:
    """Tell whether Lemma 1 holds in every step of AMD."""
    slack = bounded.slack
    if theorem != "accelerated" or slack is None:
        return []
    rounding = ROUNDING * torch.finfo(slack.dtype).eps * (1 + record["energy"].abs())
    violated = int((slack < -torch.maximum(rounding[1:], rounding[:-1])).any(1).sum())
    smallest = float(slack.nan_to_num(torch.inf).min())
    because = f"The smallest slack is {smallest:.3g}; {violated} of {len(slack)} steps violate it."
    return [Verdict.of("the energy falls as in Lemma 1", not violated, because)]


def stays_below(bounded: Bounded, solution: Solution, stochastic: bool) -> Verdict:
    """Judge a run by its a-priori bound; with stochastic gradients, which it bounds in expectation,
    in the mean.
    """
    assumption = "the run stays below its bound"
    measured = bounded.measured
    bound = bounded.bound
    failed = sum(status.failed for status in solution.statuses)
    last, apriori, pathwise = (float(s[-1].nanmean()) for s in (measured, bound, bounded.pathwise))
    numbers = (
        f"At the end {bounded.what} is {last:.3g}, the a-priori bound of {bounded.theorem} {apriori:.3g}, on average; "
        f"the pathwise bound, of what was met along the run, is {pathwise:.3g}."
    )
    if failed:
        return Verdict.of(
            assumption, False, f"{failed} of {len(solution.statuses)} problems failed. {numbers}"
        )
    if bool(bound.isnan().all()):
        return Verdict.of(assumption, None, "There is no bound, because no α > 0 was found.")
    if stochastic:
        measured = measured.mean(1, keepdim=True)
        bound = bound.mean(1, keepdim=True)
    rounding = ROUNDING * torch.finfo(bound.dtype).eps * (1 + bound.abs())
    above = (measured > bound + rounding).any(1).nonzero().flatten()
    first = f"It is above it first after {int(above[0]) + 1} steps. " if len(above) else ""
    return Verdict.of(assumption, not len(above), first + numbers)
