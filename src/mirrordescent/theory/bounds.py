"""The right-hand sides of the theorems, with the constants as arguments.

Step sizes are (K,), series measured along a run (K, batch), other numbers plain or one per problem,
(batch,); bounds are (K, batch). Where the printed statement and its proof differ, the proof's is
computed, and the docstring says what was changed. Everything is computed in double precision; upper
bounds are then rounded up to the precision of the steps, and slacks down.
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

    For every convex f; ‖·‖_* is dual to the norm in which ψ is α-strongly convex. The same number
    bounds the mean of the f(x_k) − f* weighted by t_k, and so f at the ergodic average.

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
    """Bound the weighted mean of E[f(x_i) − f*], i < s, of stochastic mirror descent (Theorem 2,
    case 1): (K, batch).

        ( B_ψ(x*, x_0) + (σ²/2α) Σ tᵢ² ) / Σ tᵢ + C,        E‖Gᵢ + Uᵢ‖_*² ≤ σ²,   −⟨Uᵢ, xᵢ − x*⟩ ≤ C

    It bounds E[f] − f* at the ergodic average too. The paper's G contains the error U, so σ² is a
    second moment of what moves the dual iterate, error and all. It asks for ⟨Uᵢ, xᵢ − x*⟩ to be
    *bounded*; what the proof needs is the lower bound −C, not an upper one. Any C not below the
    mean of −⟨Uᵢ, xᵢ − x*⟩ weighted by tᵢ will do.
    """
    t, _ = _columns(steps)
    bound = (divergence + second_moment * t.square().cumsum(0) / (2 * alpha)) / t.cumsum(
        0
    ) + error_pairing
    return rounded_up(bound, steps.dtype)


def smd_bound_strongly_convex(
    divergence: Number,
    steps: Tensor,
    second_moment: Number,
    alpha: float,
    squared_error: Number,
    mu: float,
) -> Tensor:
    """Bound the weighted mean of E[f(x_i) − f*], i < s, for a μ-strongly convex f (Theorem 2, case
    2): (K, batch).

    ( B_ψ(x*, x_0) + (σ²/2α) Σ tᵢ² ) / Σ tᵢ + C'/2μ,        ‖Uᵢ‖_*² ≤ C'
    """
    return smd_bound(divergence, steps, second_moment, alpha, _double(squared_error) / (2 * mu))


def smd_slack(record: Record, alpha: float) -> Tensor:
    """By how much the pathwise inequality of mirror descent holds (eq. summedSMD1), for s = 1, …,
    K: (K, batch).

        Σ tᵢ (f(xᵢ) − f(u))  ≤  B_ψ(u, x_0) − B_ψ(u, x_s) + Σ (tᵢ²/2α) ‖Gᵢ + Uᵢ‖_*² − Σ tᵢ⟨Δᵢ + Uᵢ,
        xᵢ − u⟩

    It holds for every convex f, every u, and every draw of the noise. The paper drops B_ψ(u, x_s) ≥
    0; kept, it makes the inequality sharper, and for linear f and quadratic ψ an equality. Negative
    slack beyond rounding means that f is not convex or α is too large.
    """
    t, _ = _columns(record.steps)
    slack = (
        t.cumsum(0) * (_realised(record, alpha) - _weighted_mean(record)) - record["divergence"][1:]
    )
    return rounded_down(slack, record.steps.dtype)


def smd_realised_bound(record: Record, alpha: float) -> Tensor:
    """Bound the weighted mean of f(xᵢ) − f(u), i < s, by what was met along one run, for s = 1, …,
    K: (K, batch).

        ( B_ψ(u, x_0) + Σ (tᵢ²/2α) ‖Gᵢ + Uᵢ‖_*² − Σ tᵢ⟨Δᵢ + Uᵢ, xᵢ − u⟩ ) / Σ tᵢ

    The pathwise inequality as a bound. Without noise and errors it is :func:`md_bound`.
    """
    return rounded_up(_realised(record, alpha), record.steps.dtype)


def weighted_mean_gap(record: Record) -> Tensor:
    """Σ tᵢ (f(xᵢ) − f(u)) / Σ tᵢ over i < s, for s = 1, …, K: (K, batch). The ergodic average's gap
    is at most this.
    """
    return _weighted_mean(record).to(record.steps.dtype)


def amd_slack(record: Record, r: float) -> Tensor:
    """By how much Lemma 1 holds in every step of a run of AMD, bound minus change of the energy:
    (K, batch).

        Ẽ_{k+1} − Ẽ_k  ≤  ((2k + 1 − rk) t_k / r) (f(x̃_{k+1}) − f*) − (k² (t_{k−1} − t_k) / r)
        (f(x̃_k) − f*) + r·error

    with error = ⟨∇ψ(z̃_{k+1}) − ∇ψ(ẑ_{k+1}), z̃_{k+1} − x*⟩, if γ ≥ L_R L_ψ* and t_k ≤ ℓ_R/(L_f γ).
    """
    t, k = _columns(record.steps)
    # t_{−1} would have the weight 0² = 0
    before = torch.cat([t[:1], t[:-1]])
    gap = record["gap"]
    bound = (
        (2 * k + 1 - r * k) * t / r * gap[1:]
        - k**2 * (before - t) / r * gap[:-1]
        + r * record["error"]
    )
    return rounded_down(bound - record["energy"].double().diff(dim=0), record.steps.dtype)


def amd_first_energy(
    divergence: Number, first_gap: Number, t: float, r: float, first_error: Number = 0.0
) -> Number:
    """Bound Ẽ_1 (Proposition 1).

        r B(x*, x_0) + (t_0/r) (f(x_0) − f*) + r·error_1

    The paper's proof asks for t_0 ≤ ℓ_R/(2 L_f γ) and uses convexity the wrong way round; the
    statement is true under the conditions of Lemma 1 alone, because x̃_1 is a descent step from
    x_0: f(x̃_1) ≤ f(x_0) − (1/(γt_0) − L_f/ℓ_R) R(x̃_1, x_0).
    """
    bound = r * _double(divergence) + t / r * _double(first_gap) + r * _double(first_error)
    given = next(
        (each for each in (divergence, first_gap, first_error) if isinstance(each, Tensor)), None
    )
    return bound if given is None else rounded_up(cast(Tensor, bound), given.dtype)


def amd_bound(first_energy: Number, steps: Tensor, r: float, error: Number = 0.0) -> Tensor:
    """Bound f(x̃_{k+1}) − f* of AMD for k = 0, …, K−1 (Theorem 1): (K, batch).

        r / ((k+1)² t_k) · ( Ẽ_1 + k r M )

    for non-increasing t_k within Lemma 1's conditions and error terms of at most M ≥ 0. With t_k =
    Θ(k^−c) this is O(k^{c−1}), or O(k^{c−2}) if M = 0; it does not tend to 0 for c = 1 unless M =
    0. M may be a series (K, batch), the running maximum.
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

    where E‖Δ‖_*² ≤ σ², E⟨∇f(x_{k+1}), U_k⟩ ≤ K, and M_ψ bounds both B_ψ(x*, ∇ψ*(y_k)) and (α/2)‖x_k
    − x*‖² along the run. Different from the print: the factor α at ‖∇f(x*)‖², without which the
    proof's own estimate of E‖G‖² has the wrong units; M_ψ along the run, because sup B_ψ over the
    whole domain is infinite for all usual maps; the error at x_{k+1}, where the proof has it; and
    the constant step size t, for which the method runs on tf.
    """
    M = _double(largest_divergence)
    variance = _double(variance)
    squared_gradient = _double(squared_gradient)
    moment = 8 * smoothness**2 * M + 2 * alpha * variance + 4 * alpha * squared_gradient
    like = next(
        (v for v in (first_energy, largest_divergence, error) if isinstance(v, Tensor)),
        torch.empty(0),
    )
    k = torch.arange(1, iterations + 1, dtype=torch.float64, device=like.device)[:, None]
    areas = k * (k + 1) / 2
    constant = M / t + t * moment / alpha**2
    return rounded_up(error + first_energy / areas + (k + 1) ** 1.5 / areas * constant, like.dtype)


def asmd_bound_by_moments(
    first_energy: Number,
    steps: Tensor,
    largest_divergence: Number,
    displacements: Tensor,
    alpha: float,
    error: Number = 0.0,
) -> Tensor:
    """Bound E[f(x_k) − f*] of ASMD for k = 1, …, K by the second moments themselves: (K, batch).

        K + ( E_0 + (s_k/t_k) M_ψ + Σ_{j<k} t_j (A_{j+1} − A_j)²/(2α s_j) · E‖G_j‖_*² ) / A_k

    This is Theorem 3 before its proof bounds E‖G‖² by way of L_f. It holds for every convex f,
    smooth or not, and for every non-increasing t: the energy is A_k (f − f*) + (s_k/t_k) B. With
    s_k = (k+1)^{3/2}, constant t and E‖G‖² ≤ σ² the last sum is at most tσ²(k+1)^{3/2}/(3α).
    """
    t, k = _columns(steps)
    areas = t.new_tensor([area(k) for k in range(len(t) + 1)])[:, None]
    moved = (t * areas.diff(dim=0).square() / (k + 1) ** 1.5 * displacements).cumsum(0) / (
        2 * alpha
    )
    next_t = torch.cat([t[1:], t[-1:]])  # of the step after the last one nothing is known
    bound = (
        error + (first_energy + (k + 2) ** 1.5 / next_t * largest_divergence + moved) / areas[1:]
    )
    return rounded_up(bound, steps.dtype)


def _md_bound(divergence: Number, steps: Tensor, displacements: Tensor, alpha: float) -> Tensor:
    t, _ = _columns(steps)
    return (divergence + (t.square() * displacements).cumsum(0) / (2 * alpha)) / t.cumsum(0)


def _realised(record: Record, alpha: float) -> Tensor:
    t, _ = _columns(record.steps)
    pairings = (t * (record["noise_pairing"].double() + record["error_pairing"])).cumsum(
        0
    ) / t.cumsum(0)
    return (
        _md_bound(record["divergence"][0], record.steps, record["displacement"], alpha) - pairings
    )


def _weighted_mean(record: Record) -> Tensor:
    t, _ = _columns(record.steps)
    return (t * record["gap"][:-1]).cumsum(0) / t.cumsum(0)


def _double(number: Number) -> Number:
    return number.double() if isinstance(number, Tensor) else number


def _columns(steps: Tensor) -> tuple[Tensor, Tensor]:
    """t_k and k, for k = 0, …, K−1, in double precision: (K, 1) each."""
    t = steps.double()[:, None]
    return t, torch.arange(len(steps), dtype=t.dtype, device=t.device)[:, None]
