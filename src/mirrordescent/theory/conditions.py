"""The assumptions of the theorems on a method's schedules and on a run, checked and explained."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mirrordescent.methods import Method, Wrapper
from mirrordescent.methods.accelerated import area
from mirrordescent.methods.base import Theorem
from mirrordescent.oracles import Exact, Oracle
from mirrordescent.problems import Problem
from mirrordescent.schedules import Prefix, Schedule
from mirrordescent.theory.assumptions import FAR, Verdict
from mirrordescent.theory.constants import MapConstants, ProblemConstants, map_constants
from mirrordescent.theory.energies import Record, schedule_value
from mirrordescent.theory.recording import theorem_of, unwrap
from mirrordescent.trees import Tree, norm, tree_map

EXPONENT_TOLERANCE = 1e-3
"""Tolerance in comparisons of decay exponents, which are computed from two late step sizes."""

Weight = Callable[[int], float]


@dataclass(frozen=True)
class Setting:
    """The setting in which a method's assumptions are checked.

    Attributes:
        problem: Problem of the run.
        oracle: Oracle that supplies gradients.
        iterations: Number of steps.
        map_constants: α and L_ψ of the geometry.
        problem_constants: L_f and μ of the problem.
        points: Points to sample at.
        record: Series measured along a run, if there is one.
    """

    problem: Problem
    oracle: Oracle
    iterations: int
    map_constants: MapConstants
    problem_constants: ProblemConstants
    points: Sequence[Tree]
    record: Record | None = None


def method_verdicts(method: Method[Any], setting: Setting) -> list[Verdict]:
    """Check the assumptions of the theorem about a method.

    These are assumptions on the schedules and, if the setting has a record, on error terms
    measured along the run.
    """
    theorem = theorem_of(method)
    if theorem is None:
        return [no_theorem(method)]
    return _CHECKS[theorem](unwrap(method), setting).verdicts()


def no_theorem(method: Method[Any]) -> Verdict:
    """Return the verdict on a method that no theorem covers."""
    reason = (
        f"No theorem is known for {type(method).__name__}: there is no bound to compare the run "
        "with."
    )
    if isinstance(method, Wrapper) and theorem_of(method.method):
        inner = type(unwrap(method.method)).__name__
        reason += f" There is one about the {inner} inside: examine that (method.method)."
    return Verdict.of("there is a theorem about the method", None, reason)


def decay_exponent(t: Schedule, far: int = 2**14) -> float:
    """Return the exponent c of t_k = Θ(k^−c), computed from t at ``far`` and at twice ``far``.

    >>> from mirrordescent.schedules import Prefix
    >>> round(decay_exponent(Prefix([0.4, 0.1], extension="root_reciprocal")), 3)
    0.5
    """
    return math.log2(schedule_value(t, far) / schedule_value(t, 2 * far))


class _MethodChecks:
    """Checks that several theorems share."""

    def __init__(self, method: Any, setting: Setting) -> None:
        self.method = method
        self.setting = setting
        self.record = setting.record
        self.smoothness = setting.problem_constants.smoothness
        self.steps = self._values(method.t)
        self.first_increase = _first_increase(self.steps)

    def verdicts(self) -> list[Verdict]:
        """Return the verdicts on all assumptions of the theorem."""
        raise NotImplementedError

    def non_increasing_steps(self) -> Verdict:
        """t_k does not increase: the proofs drop terms with t_{k+1} − t_k ≤ 0."""
        steps = self.steps
        k = self.first_increase
        if k is None:
            reason = f"From {steps[0]:.4g} to {steps[-1]:.4g} in {len(steps)} steps."
            return Verdict.of("t_k does not increase", True, reason)
        ratio = steps[k] / steps[k - 1]
        reason = f"Step {k + 1} is {ratio:.3g} times step {k}: outside the assumptions"
        if isinstance(self.method.t, Prefix):
            reason += "; monotone=True of Prefix prevents that"
        return Verdict.of("t_k does not increase", False, f"{reason}.")

    def bounded_second_moments(self) -> Verdict:
        """E‖G‖_*² ≤ σ² on the whole domain, as in Theorems 2 and 3.

        It holds on bounded domains and for bounded gradients, and fails for quadratics on Rⁿ.
        """
        problem = self.setting.problem
        holds: bool | None = None
        reason = "The gradient does not grow at the points sampled."
        if problem.bounded_gradients:
            holds = True
            reason = "The gradients are bounded."
            if problem.domain.bounded:
                reason = "The domain is bounded."
        elif self._gradient_grows():
            holds = False
            reason = "The gradient grows without bound far from the origin."
        reason += self._along_the_run("σ²", "displacement")
        return Verdict.of("E‖G‖_*² ≤ σ² on the whole domain", holds, reason)

    def _gradient_grows(self) -> bool:
        """Tell whether gradients far from the origin are much larger than at the points."""
        problem = self.setting.problem
        points = self.setting.points
        scaled = [tree_map(lambda leaf: FAR * leaf, x) for x in points]
        near = max(float(norm(problem.grad(x)).max()) for x in points)
        far = max(float(norm(problem.grad(x)).max()) for x in scaled)
        return far > 10 * near

    def paper_weights(self, mixing_name: str, mixing: Weight, dual_weight: Weight) -> Verdict:
        """The mixing and the dual weights are those of the theorem, whose proof needs them exactly.

        Args:
            mixing_name: Name of the mixing weights in the verdict.
            mixing: Formula of the mixing weights.
            dual_weight: Formula of the weights of dual steps.
        """
        assumption = "the weights are those of the theorem"
        compared = (
            (mixing_name, self.method.mixing, mixing),
            ("dual weight", self.method.dual_weight, dual_weight),
        )
        for name, schedule, formula in compared:
            for k, used in enumerate(self._values(schedule)):
                expected = formula(k)
                if abs(used - expected) > 1e-6 * (1 + expected):
                    reason = (
                        f"The {name} at k = {k} is {used:.4g}, not {expected:.4g}: "
                        "outside the theorem."
                    )
                    return Verdict.of(assumption, False, reason)
        return Verdict.of(assumption, True, "As printed.")

    def bounded_series(self, assumption: str, name: str, sign: int = 1) -> list[Verdict]:
        """Return the verdict on an error term that must stay bounded, if there is a record.

        The assumption holds if all errors are zero. Otherwise it is not known, and the reason
        compares the first half of the run with the second.

        Args:
            assumption: Statement for the verdict.
            name: Name of the series.
            sign: Sign with which the series must be bounded above.
        """
        if self.record is None:
            return []
        errors = (sign * self.record[name]).nan_to_num()
        if not bool(errors.any()):
            reason = "There is no error: the run is exact mirror descent."
            return [Verdict.of(assumption, True, reason)]
        half = len(errors) // 2
        early = float(errors[:half].clamp(min=0).max())
        late = float(errors[half:].clamp(min=0).max())
        growth = "It does not grow."
        if late > 2 * early:
            growth = "It grows, and no bound is in sight."
        reason = (
            f"The largest over the first half of the run is {early:.4g}, over the second "
            f"{late:.4g}. {growth}"
        )
        return [Verdict.of(assumption, None, reason)]

    def _along_the_run(self, symbol: str, series: str) -> str:
        """Return a sentence with the largest value of a series, if there is a record."""
        if self.record is None:
            return ""
        largest = float(self.record[series].nan_to_num().max())
        return f" Along the run {symbol} = {largest:.4g}."

    def _values(self, schedule: Schedule) -> list[float]:
        return [schedule_value(schedule, k + 1) for k in range(self.setting.iterations)]


class _DescentChecks(_MethodChecks):
    """The assumptions of Theorem 2, about MD and SMD."""

    def verdicts(self) -> list[Verdict]:
        return [
            self.bounded_second_moments(),
            self.summable_squares(),
            self.non_increasing_steps(),
            *self.bounded_series("−⟨U_k, x_k − x*⟩ ≤ C", "error_pairing", -1),
        ]

    def summable_squares(self) -> Verdict:
        """Σ t_k = ∞ and Σ t_k² < ∞, with which the first term of the bound tends to 0.

        For t_k = Θ(k^−c) this means 1/2 < c ≤ 1.
        """
        c = decay_exponent(self.method.t)
        holds = 0.5 + EXPONENT_TOLERANCE < c <= 1 + EXPONENT_TOLERANCE
        rate = "t_k tends to a constant"
        if c > EXPONENT_TOLERANCE:
            rate = f"t_k falls like k^−{c:.2g}"
        return Verdict.of("Σ t_k = ∞ and Σ t_k² < ∞", holds, rate + self._rate_consequence(c))

    def _rate_consequence(self, c: float) -> str:
        """Return the end of the sentence about steps that decay like k^−c."""
        tolerance = EXPONENT_TOLERANCE
        if 0.5 + tolerance < c <= 1 + tolerance:
            slowest = c > 1 - tolerance
            return ". The bound falls only like 1/log k." if slowest else "."
        if c > 1:
            return ": the steps add up to a finite length."
        alpha = self.setting.map_constants.alpha.value
        L = self.smoothness.value
        short = max(self.steps) * L <= alpha
        if c < tolerance and short and not self.setting.oracle.stochastic:
            limit = f"{alpha / L:.4g}"
            return f", but t ≤ α/L_f = {limit}, with which exact gradients need no decay."
        if abs(c - 0.5) < tolerance:
            return ": Σ t² grows like log k, and the bound still falls, like log k/√k."
        return ": the term with Σ t_k²/Σ t_k does not vanish."


class _AcceleratedChecks(_MethodChecks):
    """The assumptions of Lemma 1 and Theorem 1, about AMD."""

    def verdicts(self) -> list[Verdict]:
        r = self.method.r
        regulariser = self._regulariser_constants()
        return [
            Verdict.of("r ≥ 3", r >= 3, f"r = {r:g}."),
            self.paper_weights("mixing λ_k", lambda k: r / (r + k), lambda k: k / r),
            self.large_enough_gamma(regulariser),
            self.short_enough_steps(regulariser),
            self.non_increasing_steps(),
            self.slow_enough_decay(),
            self.exact_gradients(),
            *self.bounded_series("the error terms are at most M", "error"),
        ]

    def _regulariser_constants(self) -> MapConstants:
        """Return ℓ_R and L_R of the regulariser R."""
        method = self.method
        if method.regulariser is method.mirror and method.mirror.exact:
            return self.setting.map_constants
        return map_constants(method.regulariser, self.setting.points)

    def large_enough_gamma(self, regulariser: MapConstants) -> Verdict:
        """γ ≥ L_R L_ψ*, so that R/γ is at most the divergence of ψ* in Lemma 1."""
        L_R = regulariser.smoothness
        L_dual = self.setting.map_constants.dual_smoothness
        smallest = min(self._values(self.method.gamma))
        required = L_R.value * L_dual.value
        reason = f"The smallest γ is {smallest:.4g}, and L_R L_ψ* = {required:.4g}"
        holds: bool | None = True
        if smallest < L_R.estimate * L_dual.estimate * (1 - 1e-9):
            holds = False
        elif L_dual.sampled or smallest < required:
            holds = None
            reason += ", from samples"
        return Verdict.of("γ ≥ L_R L_ψ*", holds, f"{reason}.")

    def short_enough_steps(self, regulariser: MapConstants) -> Verdict:
        """t_k ≤ ℓ_R/(L_f γ), with which the gradient step of AMD decreases f in Lemma 1."""
        assumption = "t_k ≤ ℓ_R/(L_f γ)"
        L = self.smoothness
        alpha = regulariser.alpha
        if math.isinf(L.value):
            reason = (
                "L_f is infinite, because f has kinks: no step is short enough, and the behaviour "
                "of AMD is empirical here."
            )
            return Verdict.of(assumption, False, reason)
        gammas = self._values(self.method.gamma)
        largest = max(t * gamma for t, gamma in zip(self.steps, gammas, strict=True))
        reason = f"The largest γt is {largest:.4g}, and ℓ_R/L_f = {alpha.value / L.value:.4g}"
        holds: bool | None = True
        if largest > alpha.estimate / L.estimate * (1 + 1e-9):
            holds = False
        elif L.sampled:
            holds = None
            reason += ", from samples"
        return Verdict.of(assumption, holds, f"{reason}.")

    def slow_enough_decay(self) -> Verdict:
        """t_k = Θ(k^−c) with c < 1, for which Theorem 1 gives the rate O(k^{c−1})."""
        c = decay_exponent(self.method.t)
        return Verdict.of(
            "t_k = Θ(k^−c) with c < 1",
            c <= 1 - EXPONENT_TOLERANCE,
            f"c = {c:.2f}: the bound falls like k^{c - 1:.2g}.",
            f"c = {c:.2f}: Theorem 1 excludes this rule; convergence with it is an observation, "
            "no theorem.",
        )

    def exact_gradients(self) -> Verdict:
        """The oracle returns ∇f itself: there is no theorem for AMD with noise."""
        oracle = self.setting.oracle
        reason = f"{type(oracle).__name__} returns the gradient of another function than f."
        if oracle.stochastic:
            reason = "There is no theorem for AMD with stochastic gradients."
        exact = isinstance(oracle, Exact) and not oracle.stochastic
        return Verdict.of("the gradients are exact", exact, "The oracle is exact.", reason)


class _AcceleratedStochasticChecks(_MethodChecks):
    """The assumptions of Theorem 3, about ASMD."""

    def verdicts(self) -> list[Verdict]:
        return [
            self.paper_weights("mixing", _asmd_mixing, _asmd_dual_weight),
            self.constant_steps(),
            self.bounded_divergence(),
            self.bounded_second_moments(),
            *self.bounded_series("⟨∇f(x_{k+1}), U_k⟩ ≤ K", "error"),
        ]

    def constant_steps(self) -> Verdict:
        """The step size is constant, so that ASMD with t is ASMD with t = 1 on t·f."""
        first = self.steps[0]
        last = self.steps[-1]
        smallest = min(self.steps)
        largest = max(self.steps)
        reason = f"t falls from {first:.4g} to {last:.4g}; the bound has s_k/t_k in place of s_k."
        if self.first_increase is not None:
            reason = (
                f"t lies between {smallest:.4g} and {largest:.4g} and increases at times: "
                "outside the assumptions."
            )
        constant = largest <= smallest * (1 + 1e-9)
        running_on = f"t = {first:.4g}: the method runs on t·f."
        return Verdict.of("the step size is constant", constant, running_on, reason)

    def bounded_divergence(self) -> Verdict:
        """M_ψ = sup B_ψ < ∞ on the whole domain, for which the domain must be bounded."""
        lipschitz = math.isfinite(self.setting.map_constants.smoothness.value)
        bounded = self.setting.problem.domain.bounded and lipschitz
        reason = "It is infinite; the bound is computed along the run."
        if bounded:
            reason = "The domain is bounded and ∇ψ Lipschitz."
        reason += self._along_the_run("M_ψ", "divergence")
        return Verdict.of("M_ψ = sup B_ψ < ∞ on the whole domain", bounded, reason)


_CHECKS: dict[Theorem, type[_MethodChecks]] = {
    "descent": _DescentChecks,
    "accelerated": _AcceleratedChecks,
    "accelerated stochastic": _AcceleratedStochasticChecks,
}


def _asmd_mixing(k: int) -> float:
    return 1 - area(k) / area(k + 1)


def _asmd_dual_weight(k: int) -> float:
    return (area(k + 1) - area(k)) / (k + 1) ** 1.5


def _first_increase(steps: Sequence[float]) -> int | None:
    """Return the first k with t_k > t_{k−1}, if there is one."""
    for k, (before, after) in enumerate(pairwise(steps), 1):
        if after > before * (1 + 1e-6):
            return k
    return None
