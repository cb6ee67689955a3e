"""The right-hand sides of the theorems, with their constants as arguments.

Step sizes have the shape (K,), series measured along a run (K, batch), and bounds (K, batch). All
other arguments are plain numbers or tensors with one number per problem, (batch,).

If a printed statement differs from its proof, the function computes what the proof shows, and its
docstring names the change. All computations are in double precision. Upper bounds are then rounded
up to the precision of the steps, and slacks are rounded down.
"""

from typing import cast

import torch
from torch import Tensor

from mirrordescent._internal.rounding import rounded_down, rounded_up
from mirrordescent.methods.accelerated import area
from mirrordescent.theory.energies import Record

Number = float | Tensor


def md_bound(divergence: Number, steps: Tensor, displacements: Tensor, alpha: float) -> Tensor:
    """Bound min_{k<s} f(x_k) − f* of mirror descent (section 1.3) for s = 1, …, K: (K, batch).

        ( B_ψ(x*, x_0) + (1/2α) Σ t_k² ‖g_k‖_*² ) / Σ t_k

    The bound holds for every convex f; ‖·‖_* is dual to the norm in which ψ is α-strongly convex.
    It also bounds the mean of f(x_k) − f* weighted by t_k, and hence f at the ergodic average.

    Args:
        divergence: B_ψ(x*, x_0).
        steps: Step sizes t_k.
        displacements: ‖g_k‖_*² along the run.
        alpha: Strong convexity α of ψ.

    >>> import torch
    >>> md_bound(1.0, torch.tensor([1.0, 1.0]), torch.tensor([[4.0], [0.0]]), alpha=1.0)
    tensor([[3.0000],
            [1.5000]])
    """
    return rounded_up(_md_bound(divergence, steps, displacements, alpha), steps.dtype)


def smd_bound(
    divergence: Number,
    steps: Tensor,
    second_moment: Number,
    alpha: float,
    error_pairing: Number = 0.0,
) -> Tensor:
    """Bound the weighted mean of E[f(x_i) − f*], i < s, of SMD (Theorem 2, case 1): (K, batch).

        ( B_ψ(x*, x_0) + (σ²/2α) Σ tᵢ² ) / Σ tᵢ + C,        E‖Gᵢ + Uᵢ‖_*² ≤ σ²,   −⟨Uᵢ, xᵢ − x*⟩ ≤ C

    It also bounds E[f] − f* at the ergodic average. In the paper G contains the error U, so that
    σ² bounds the second moment of the whole displacement G + U. The paper requires ⟨Uᵢ, xᵢ − x*⟩
    to be *bounded*; the proof needs only the lower bound −C. Every C not below the mean of
    −⟨Uᵢ, xᵢ − x*⟩ weighted by tᵢ is enough.

    Args:
        divergence: B_ψ(x*, x_0).
        steps: Step sizes tᵢ.
        second_moment: σ².
        alpha: Strong convexity α of ψ.
        error_pairing: C.
    """
    t, _ = _columns(steps)
    variable_part = divergence + second_moment * t.square().cumsum(0) / (2 * alpha)
    return rounded_up(variable_part / t.cumsum(0) + error_pairing, steps.dtype)


def smd_bound_strongly_convex(
    divergence: Number,
    steps: Tensor,
    second_moment: Number,
    alpha: float,
    squared_error: Number,
    mu: float,
) -> Tensor:
    """Bound the weighted mean of E[f(x_i) − f*] for μ-strongly convex f (Theorem 2, case 2).

        ( B_ψ(x*, x_0) + (σ²/2α) Σ tᵢ² ) / Σ tᵢ + C'/2μ,        ‖Uᵢ‖_*² ≤ C'

    Args:
        divergence: B_ψ(x*, x_0).
        steps: Step sizes tᵢ.
        second_moment: σ².
        alpha: Strong convexity α of ψ.
        squared_error: C'.
        mu: Strong convexity μ of f.
    """
    return smd_bound(divergence, steps, second_moment, alpha, _double(squared_error) / (2 * mu))


def smd_slack(record: Record, alpha: float) -> Tensor:
    """Return the slack of the pathwise inequality of SMD (eq. summedSMD1): (K, batch).

        Σ tᵢ (f(xᵢ) − f(u))
            ≤  B_ψ(u, x_0) − B_ψ(u, x_s) + Σ (tᵢ²/2α) ‖Gᵢ + Uᵢ‖_*² − Σ tᵢ⟨Δᵢ + Uᵢ, xᵢ − u⟩

    The inequality holds for every convex f, every u and every draw of the noise, for s = 1, …, K.
    The paper drops B_ψ(u, x_s) ≥ 0. With this term the inequality is sharper, and an equality for
    linear f and quadratic ψ. A negative slack beyond rounding shows that f is not convex or that α
    is too large.
    """
    t, _ = _columns(record.steps)
    excess = _realised_bound(record, alpha) - _weighted_mean(record)
    slack = t.cumsum(0) * excess - record["divergence"][1:]
    return rounded_down(slack, record.steps.dtype)


def smd_realised_bound(record: Record, alpha: float) -> Tensor:
    """Bound the weighted mean of f(xᵢ) − f(u), i < s, by numbers measured along the run.

        ( B_ψ(u, x_0) + Σ (tᵢ²/2α) ‖Gᵢ + Uᵢ‖_*² − Σ tᵢ⟨Δᵢ + Uᵢ, xᵢ − u⟩ ) / Σ tᵢ

    This is the pathwise inequality as a bound, for s = 1, …, K: (K, batch). Without noise and
    errors it is :func:`md_bound`.
    """
    return rounded_up(_realised_bound(record, alpha), record.steps.dtype)


def weighted_mean_gap(record: Record) -> Tensor:
    """Return Σ tᵢ (f(xᵢ) − f(u)) / Σ tᵢ over i < s, for s = 1, …, K: (K, batch).

    The gap at the ergodic average is at most this.
    """
    return _weighted_mean(record).to(record.steps.dtype)


def amd_slack(record: Record, r: float) -> Tensor:
    """Return the slack of Lemma 1 in every step of AMD, bound minus change: (K, batch).

        Ẽ_{k+1} − Ẽ_k  ≤  ((2k + 1 − rk) t_k / r) (f(x̃_{k+1}) − f*)
                           − (k² (t_{k−1} − t_k) / r) (f(x̃_k) − f*) + r·error

    Here error = ⟨∇ψ(z̃_{k+1}) − ∇ψ(ẑ_{k+1}), z̃_{k+1} − x*⟩. The lemma assumes γ ≥ L_R L_ψ* and
    t_k ≤ ℓ_R/(L_f γ).
    """
    t, k = _columns(record.steps)
    gap = record["gap"]
    # For k = 0 any t_{−1} will do: its weight is 0² = 0.
    previous_t = torch.cat([t[:1], t[:-1]])
    next_gap_term = (2 * k + 1 - r * k) * t / r * gap[1:]
    gap_term = k**2 * (previous_t - t) / r * gap[:-1]
    bound = next_gap_term - gap_term + r * record["error"]
    change = record["energy"].double().diff(dim=0)
    return rounded_down(bound - change, record.steps.dtype)


def amd_first_energy(
    divergence: Number, first_gap: Number, t: float, r: float, first_error: Number = 0.0
) -> Number:
    """Bound Ẽ_1 (Proposition 1).

        r B(x*, x_0) + (t_0/r) (f(x_0) − f*) + r·error_1

    The paper's proof requires t_0 ≤ ℓ_R/(2 L_f γ) and uses convexity in the wrong direction. The
    statement is true under the conditions of Lemma 1 alone, because x̃_1 is a descent step from
    x_0: f(x̃_1) ≤ f(x_0) − (1/(γt_0) − L_f/ℓ_R) R(x̃_1, x_0).

    Args:
        divergence: B(x*, x_0).
        first_gap: f(x_0) − f*.
        t: First step size t_0.
        r: Parameter r of AMD.
        first_error: First error term.
    """
    bound = r * _double(divergence) + t / r * _double(first_gap) + r * _double(first_error)
    given = _first_tensor(divergence, first_gap, first_error)
    if given is None:
        return bound
    return rounded_up(cast(Tensor, bound), given.dtype)


def amd_bound(first_energy: Number, steps: Tensor, r: float, error: Number = 0.0) -> Tensor:
    """Bound f(x̃_{k+1}) − f* of AMD for k = 0, …, K−1 (Theorem 1): (K, batch).

        r / ((k+1)² t_k) · ( Ẽ_1 + k r M )

    The theorem assumes the conditions of Lemma 1, non-increasing t_k, and error terms of at most
    M ≥ 0. With t_k = Θ(k^−c) the bound is O(k^{c−1}), or O(k^{c−2}) if M = 0. For c = 1 it tends to
    0 only if M = 0.

    Args:
        first_energy: Ẽ_1.
        steps: Step sizes t_k.
        r: Parameter r of AMD.
        error: M, or its running maximum as a series (K, batch).
    """
    t, k = _columns(steps)
    return rounded_up(r / ((k + 1).square() * t) * (first_energy + k * r * error), steps.dtype)


def asmd_bound(
    iterations: int,
    first_energy: Number,
    largest_divergence: Number,
    alpha: float,
    smoothness: float,
    variance: Number = 0.0,
    squared_gradient: Number = 0.0,
    error: Number = 0.0,
    t: float = 1.0,
) -> Tensor:
    """Bound E[f(x_k) − f*] of ASMD for k = 1, …, K (Theorem 3): (K, batch).

        K + E_0/A_k + ((k+1)^{3/2}/A_k) ( M_ψ/t + t (8 L_f² M_ψ + 2ασ² + 4α‖∇f(x*)‖_*²)/α² )

    The theorem assumes E‖Δ‖_*² ≤ σ² and E⟨∇f(x_{k+1}), U_k⟩ ≤ K. M_ψ bounds both B_ψ(x*, ∇ψ*(y_k))
    and (α/2)‖x_k − x*‖² along the run. There are four differences from the print:

    - The factor α at ‖∇f(x*)‖², without which the units in the proof's estimate of E‖G‖² disagree.
    - M_ψ along the run, because sup B_ψ over the whole domain is infinite for all usual maps.
    - The error at x_{k+1}, as in the proof.
    - The constant step size t, with which the method runs on t·f.

    Args:
        iterations: K.
        first_energy: E_0.
        largest_divergence: M_ψ.
        alpha: Strong convexity α of ψ.
        smoothness: L_f.
        variance: σ².
        squared_gradient: ‖∇f(x*)‖_*².
        error: The bound K on the error terms.
        t: Step size.
    """
    M = _double(largest_divergence)
    variance = _double(variance)
    squared_gradient = _double(squared_gradient)
    second_moment = 8 * smoothness**2 * M + 2 * alpha * variance + 4 * alpha * squared_gradient
    constant = M / t + t * second_moment / alpha**2
    like = _first_tensor(first_energy, largest_divergence, error)
    if like is None:
        like = torch.empty(0)
    k = torch.arange(1, iterations + 1, dtype=torch.float64, device=like.device)[:, None]
    areas = k * (k + 1) / 2
    return rounded_up(error + first_energy / areas + (k + 1) ** 1.5 / areas * constant, like.dtype)


def asmd_bound_by_moments(
    first_energy: Number,
    steps: Tensor,
    largest_divergence: Number,
    displacements: Tensor,
    alpha: float,
    error: Number = 0.0,
) -> Tensor:
    """Bound E[f(x_k) − f*] of ASMD for k = 1, …, K by second moments: (K, batch).

        K + ( E_0 + (s_k/t_k) M_ψ + Σ_{j<k} t_j (A_{j+1} − A_j)²/(2α s_j) · E‖G_j‖_*² ) / A_k

    This is Theorem 3 before its proof bounds E‖G‖² by L_f. It holds for every convex f, smooth or
    not, and for every non-increasing t; the energy is A_k (f − f*) + (s_k/t_k) B. With
    s_k = (k+1)^{3/2}, constant t and E‖G‖² ≤ σ² the last sum is at most tσ²(k+1)^{3/2}/(3α).

    Args:
        first_energy: E_0.
        steps: Step sizes t_k.
        largest_divergence: M_ψ.
        displacements: E‖G_j‖_*², or ‖G_j‖_*² along one run.
        alpha: Strong convexity α of ψ.
        error: The bound K on the error terms.
    """
    t, k = _columns(steps)
    areas = t.new_tensor([area(k) for k in range(len(t) + 1)])[:, None]
    terms = t * areas.diff(dim=0).square() / (k + 1) ** 1.5 * displacements
    moments = terms.cumsum(0) / (2 * alpha)
    # The step size after the last one is unknown; the last one is used in its place.
    next_t = torch.cat([t[1:], t[-1:]])
    divergences = (k + 2) ** 1.5 / next_t * largest_divergence
    bound = error + (first_energy + divergences + moments) / areas[1:]
    return rounded_up(bound, steps.dtype)


def _md_bound(divergence: Number, steps: Tensor, displacements: Tensor, alpha: float) -> Tensor:
    t, _ = _columns(steps)
    return (divergence + (t.square() * displacements).cumsum(0) / (2 * alpha)) / t.cumsum(0)


def _realised_bound(record: Record, alpha: float) -> Tensor:
    t, _ = _columns(record.steps)
    pairings = record["noise_pairing"].double() + record["error_pairing"]
    mean_pairing = (t * pairings).cumsum(0) / t.cumsum(0)
    divergence = record["divergence"][0]
    return _md_bound(divergence, record.steps, record["displacement"], alpha) - mean_pairing


def _weighted_mean(record: Record) -> Tensor:
    t, _ = _columns(record.steps)
    return (t * record["gap"][:-1]).cumsum(0) / t.cumsum(0)


def _first_tensor(*numbers: Number) -> Tensor | None:
    """Return the first argument that is a tensor, if there is one."""
    for number in numbers:
        if isinstance(number, Tensor):
            return number
    return None


def _double(number: Number) -> Number:
    if isinstance(number, Tensor):
        return number.double()
    return number


def _columns(steps: Tensor) -> tuple[Tensor, Tensor]:
    """Return t_k and k for k = 0, …, K−1 in double precision: (K, 1) each."""
    t = steps.double()[:, None]
    return t, torch.arange(len(steps), dtype=t.dtype, device=t.device)[:, None]
