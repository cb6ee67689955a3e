"""Comparison of runs with the bounds of their theorems."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mirrordescent.methods.base import Theorem
from mirrordescent.solving import Solution
from mirrordescent.theory import bounds
from mirrordescent.theory.assumptions import Verdict
from mirrordescent.theory.constants import ProblemConstants
from mirrordescent.theory.diagnosis_results import BoundCheck
from mirrordescent.theory.energies import Record
from mirrordescent.theory.prior_bounds import PriorConstants

ROUNDING = 1e3
"""Multiple of the machine epsilon below which a relative difference counts as rounding."""


def evaluate_bounds(
    theorem: Theorem,
    method: Any,
    record: Record,
    alpha: float,
    prior: PriorConstants,
    problem_constants: ProblemConstants,
) -> BoundCheck:
    """Return the quantity that a theorem bounds, with its a-priori bound and its pathwise bound.

    Without an α > 0 the bounds are NaN.

    Args:
        theorem: Theorem about the method.
        method: Method of the run.
        record: Series measured along the run.
        alpha: Strong convexity of the geometry.
        prior: Constants sampled before the run.
        problem_constants: L_f and μ of the problem.
    """
    if not alpha > 0:
        alpha = math.nan
    return _EVALUATIONS[theorem](method, record, alpha, prior, problem_constants)


def _evaluate_descent(
    method: Any,
    record: Record,
    alpha: float,
    prior: PriorConstants,
    problem_constants: ProblemConstants,
) -> BoundCheck:
    """Evaluate Theorem 2; without errors and noise its case 1 is the bound of mirror descent."""
    divergence = record["divergence"][0]
    steps = record.steps
    mu = problem_constants.strong_convexity.value
    strongly_convex: Tensor | str = "none: f is not strongly convex, μ = 0"
    if mu > 0:
        strongly_convex = bounds.smd_bound_strongly_convex(
            divergence, steps, prior.second_moment, alpha, prior.squared_error, mu
        )
    return BoundCheck(
        quantity="the mean of f(x_i) − f* weighted by t_i",
        theorem="Theorem 2, case 1",
        measured=bounds.weighted_mean_gap(record),
        bound=bounds.smd_bound(divergence, steps, prior.second_moment, alpha, prior.pairing),
        pathwise=bounds.smd_realised_bound(record, alpha),
        slack=bounds.smd_slack(record, alpha),
        other_bounds={"Theorem 2, case 2, with C'/2μ": strongly_convex},
    )


def _evaluate_accelerated(
    method: Any,
    record: Record,
    alpha: float,
    prior: PriorConstants,
    problem_constants: ProblemConstants,
) -> BoundCheck:
    """Evaluate Theorem 1, with the first energy by Proposition 1."""
    r = method.r
    t = float(record.steps[0])
    divergence = record["divergence"][0]
    first_gap = record["gap"][0]

    def bound(first_error: Tensor, error: Tensor) -> Tensor:
        first_energy = bounds.amd_first_energy(divergence, first_gap, t, r, first_error)
        return bounds.amd_bound(first_energy, record.steps, r, error)

    return BoundCheck(
        quantity="f(x̃_k) − f*",
        theorem="Theorem 1",
        measured=record["gap"][1:],
        bound=bound(prior.energy_error, prior.energy_error),
        pathwise=bound(record["error"][0], record.running_maximum("error")),
        slack=bounds.amd_slack(record, r),
    )


def _evaluate_accelerated_stochastic(
    method: Any,
    record: Record,
    alpha: float,
    prior: PriorConstants,
    problem_constants: ProblemConstants,
) -> BoundCheck:
    """Evaluate Theorem 3 by second moments, and as printed.

    The printed form contains L_f, which is infinite if f has kinks.
    """
    steps = record.steps
    first_energy = record["energy"][0]
    L = problem_constants.smoothness.value
    prior_divergence = torch.maximum(record["divergence"][0], alpha / 2 * prior.squared_distance)
    distances = alpha / 2 * record["distance"].square()
    largest_divergence = torch.cat([record["divergence"], distances]).nan_to_num().amax(0)
    largest_error = record["error"].nan_to_num().clamp(min=0).amax(0)
    printed: Tensor | str = "none: f has kinks, L_f = ∞"
    if math.isfinite(L):
        printed = bounds.asmd_bound(
            len(steps),
            first_energy,
            prior_divergence,
            alpha,
            L,
            prior.variance,
            prior.squared_gradient,
            t=float(steps.max()),
        )
    return BoundCheck(
        quantity="f(x_k) − f*",
        theorem="Theorem 3, by second moments",
        measured=record["gap"][1:],
        bound=bounds.asmd_bound_by_moments(
            first_energy,
            steps,
            prior_divergence,
            prior.second_moment.expand(len(steps), -1),
            alpha,
        ),
        pathwise=bounds.asmd_bound_by_moments(
            first_energy, steps, largest_divergence, record["displacement"], alpha, largest_error
        ),
        other_bounds={"Theorem 3 as printed, with the α that it lacks": printed},
    )


_EVALUATIONS: dict[Theorem, Callable[..., BoundCheck]] = {
    "descent": _evaluate_descent,
    "accelerated": _evaluate_accelerated,
    "accelerated stochastic": _evaluate_accelerated_stochastic,
}


def check_energy_decrease(theorem: Theorem, check: BoundCheck, record: Record) -> list[Verdict]:
    """Check Lemma 1 in every step of AMD; other theorems have no such verdict.

    Lemma 1 bounds the change of the energy in a step. It assumes γ ≥ L_R L_ψ* and
    t_k ≤ ℓ_R/(L_f γ).
    """
    slack = check.slack
    if theorem != "accelerated" or slack is None:
        return []
    # Energies are sums that cancel, so that errors are relative to the largest energy of a sample.
    tolerance = _rounding(record["energy"])
    violations = int((slack < -tolerance).any(1).sum())
    smallest = float(slack.nan_to_num(torch.inf).min())
    reason = f"The smallest slack is {smallest:.3g}; {violations} of {len(slack)} steps violate it."
    return [Verdict.of("the energy falls as in Lemma 1", violations == 0, reason)]


def _rounding(series: Tensor) -> Tensor:
    """Return the rounding error of a series (steps, batch), relative to its largest entries."""
    size = series.abs().nan_to_num(0.0, 0.0).amax(0)
    return ROUNDING * torch.finfo(series.dtype).eps * size


def check_below_bound(check: BoundCheck, solution: Solution, stochastic: bool) -> Verdict:
    """Compare a run with its a-priori bound in every step.

    With stochastic gradients the bound holds in expectation, so that means over the samples are
    compared.

    Args:
        check: Measured quantity and its bounds.
        solution: The run, whose failed samples count against it.
        stochastic: Whether the gradients were stochastic.
    """
    assumption = "the run stays below its bound"
    measured = check.measured
    bound = check.bound
    last_measured = float(measured[-1].nanmean())
    last_bound = float(bound[-1].nanmean())
    last_pathwise = float(check.pathwise[-1].nanmean())
    numbers = (
        f"At the end {check.quantity} is {last_measured:.3g}, the a-priori bound of "
        f"{check.theorem} {last_bound:.3g}, on average; the pathwise bound, computed from the "
        f"run itself, is {last_pathwise:.3g}."
    )
    failed = sum(status.failed for status in solution.statuses)
    if failed:
        reason = f"{failed} of {len(solution.statuses)} problems failed. {numbers}"
        return Verdict.of(assumption, False, reason)
    if bool(bound.isnan().all()):
        return Verdict.of(assumption, None, "There is no bound, because no α > 0 was found.")
    values = solution.value[None].abs().to(bound)  # of which gaps have the rounding errors
    if stochastic:
        measured = measured.mean(1, keepdim=True)
        bound = bound.mean(1, keepdim=True)
        values = values.mean(1, keepdim=True)
    exceeded = (measured > bound + _rounding(torch.cat([bound, values]))).any(1).nonzero().flatten()
    if len(exceeded):
        reason = f"It is above it first after {int(exceeded[0]) + 1} steps. {numbers}"
        return Verdict.of(assumption, False, reason)
    return Verdict.of(assumption, True, numbers)
