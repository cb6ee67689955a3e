"""What the theorems assume of a method's schedules and of a run, and whether it holds, in words."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mirrordescent.methods import Method, Wrapper
from mirrordescent.methods.accelerated import area
from mirrordescent.oracles import Exact, Oracle
from mirrordescent.problems import Problem
from mirrordescent.schedules import Prefix, Schedule
from mirrordescent.theory.assumptions import FAR, Verdict
from mirrordescent.theory.constants import MapConstants, ProblemConstants, map_constants
from mirrordescent.theory.energies import Record, value_at
from mirrordescent.theory.watched import bare, theorem_of
from mirrordescent.trees import Tree, norm, tree_map


@dataclass(frozen=True)
class Setting:
    """What the assumptions on a method's schedules are judged by."""

    problem: Problem
    oracle: Oracle
    iterations: int
    of_map: MapConstants
    of_problem: ProblemConstants
    points: Sequence[Tree]
    record: Record | None = None


def method_verdicts(method: Method[Any], setting: Setting) -> list[Verdict]:
    """Judge the schedules that a method's theorem speaks of, and what was measured along a run if
    there is a record.
    """
    theorem = theorem_of(method)
    if theorem is None:
        return [no_theorem(method)]
    return getattr(_Conditions(bare(method), setting), theorem.replace(" ", "_"))()


def no_theorem(method: Method[Any]) -> Verdict:
    """Say that there is nothing to hold a run against."""
    because = f"No theorem is known for {type(method).__name__}: there is no bound to hold the run against."
    if isinstance(method, Wrapper) and theorem_of(method.method):
        because += f" There is one about the {type(bare(method.method)).__name__} inside: examine that (method.method)."
    return Verdict.of("there is a theorem about the method", None, because)


def decay(t: Schedule, far: int = 2**14) -> float:
    """Return the c of t_k = Θ(k^−c), from the ratio of two late values.

    >>> from mirrordescent.schedules import Prefix
    >>> round(decay(Prefix([0.4, 0.1], extension="root_reciprocal")), 3)
    0.5
    """
    return math.log2(value_at(t, far) / value_at(t, 2 * far))


class _Conditions:
    """The assumptions of the theorems on one method; ``method_verdicts`` calls what is named like
    the theorem.
    """

    def __init__(self, method: Any, setting: Setting) -> None:
        self.method = method
        self.setting = setting
        self.record = setting.record
        self.smoothness, self.steps = setting.of_problem.smoothness, self._values(method.t)
        growing = (
            k
            for k, (before, after) in enumerate(pairwise(self.steps), 1)
            if after > before * (1 + 1e-6)
        )
        self.increase = next(growing, None)  # the first k with t_k > t_{k−1}

    def descent(self) -> list[Verdict]:
        pairing = self._growth("−⟨U_k, x_k − x*⟩ ≤ C", "error_pairing", -1)
        return [self._bounded_moments(), self._summable(), self._non_increasing(), *pairing]

    def accelerated(self) -> list[Verdict]:
        method = self.method
        setting = self.setting
        own = method.regulariser is method.mirror and method.mirror.exact
        regulariser = setting.of_map if own else map_constants(method.regulariser, setting.points)
        return [
            Verdict.of("r ≥ 3", method.r >= 3, f"r = {method.r:g}."),
            self._paper_weights(
                "mixing λ_k", lambda k: method.r / (method.r + k), lambda k: k / method.r
            ),
            self._gamma_is_large_enough(regulariser),
            self._step_is_short_enough(regulariser),
            self._non_increasing(),
            self._slow_enough(),
            self._exact_gradients(),
            *self._growth("the error terms are at most M", "error"),
        ]

    def accelerated_stochastic(self) -> list[Verdict]:
        def mixing(k: int) -> float:
            return 1 - area(k) / area(k + 1)

        def weight(k: int) -> float:
            return (area(k + 1) - area(k)) / (k + 1) ** 1.5

        return [
            self._paper_weights("mixing", mixing, weight),
            self._constant(),
            self._bounded_divergence(),
            self._bounded_moments(),
            *self._growth("⟨∇f(x_{k+1}), U_k⟩ ≤ K", "error"),
        ]

    def _gamma_is_large_enough(self, regulariser: MapConstants) -> Verdict:
        R = regulariser.smoothness
        dual = self.setting.of_map.dual_smoothness
        smallest = min(self._values(self.method.gamma))
        needed = R.value * dual.value
        too_small = smallest < R.estimate * dual.estimate * (1 - 1e-9)
        sampled = not too_small and (dual.how == "sampled" or smallest < needed)
        because = f"The smallest γ is {smallest:.4g}, and L_R L_ψ* = {needed:.4g}{', from samples' if sampled else ''}."
        return Verdict.of("γ ≥ L_R L_ψ*", None if sampled else not too_small, because)

    def _step_is_short_enough(self, regulariser: MapConstants) -> Verdict:
        assumption = "t_k ≤ ℓ_R/(L_f γ)"
        L = self.smoothness
        alpha = regulariser.alpha
        if math.isinf(L.value):
            because = "L_f is infinite, because f has kinks: no step is short enough; what AMD does here is empirical."
            return Verdict.of(assumption, False, because)
        largest = max(
            t * gamma for t, gamma in zip(self.steps, self._values(self.method.gamma), strict=True)
        )
        too_long = largest > alpha.estimate / L.estimate * (1 + 1e-9)
        sampled = not too_long and L.how == "sampled"
        allowed = f"ℓ_R/L_f = {alpha.value / L.value:.4g}{', from samples' if sampled else ''}"
        because = f"The largest γt is {largest:.4g}, and {allowed}."
        return Verdict.of(assumption, None if sampled else not too_long, because)

    def _slow_enough(self) -> Verdict:
        c = decay(self.method.t)
        outside = f"c = {c:.2f}: Theorem 1 leaves this rule out, so that its convergence is an observation, no theorem."
        because = f"c = {c:.2f}: the bound falls like k^{c - 1:.2g}."
        return Verdict.of("t_k = Θ(k^−c) with c < 1", c <= 1 - 1e-3, because, outside)

    def _exact_gradients(self) -> Verdict:
        oracle = self.setting.oracle
        other = f"{type(oracle).__name__} does not tell the gradient of f itself, but of another function."
        if oracle.stochastic:
            other = "There is no theorem for AMD with stochastic gradients."
        exact = isinstance(oracle, Exact) and not oracle.stochastic
        return Verdict.of("the gradients are exact", exact, "The oracle is exact.", other)

    def _bounded_moments(self) -> Verdict:
        problem = self.setting.problem
        points = self.setting.points
        holds = None
        because = "The gradient does not grow at the points sampled."
        if problem.bounded_gradients:
            holds = True
            because = f"The {'domain is' if problem.domain.bounded else 'gradients are'} bounded."
        else:
            near = max(float(norm(problem.grad(x)).max()) for x in points)
            far = max(
                float(norm(problem.grad(tree_map(lambda leaf: FAR * leaf, x))).max())
                for x in points
            )
            if far > 10 * near:
                holds = False
                because = "The gradient grows without bound far from the origin."
        return Verdict.of(
            "E‖G‖_*² ≤ σ² on the whole domain", holds, because + self._along("σ²", "displacement")
        )

    def _summable(self) -> Verdict:
        c = decay(self.method.t)
        L = self.smoothness.value
        alpha = self.setting.of_map.alpha.value
        because = f"t_k falls like k^−{c:.2g}" if c > 1e-3 else "t_k tends to a constant"
        holds = 0.5 + 1e-3 < c <= 1 + 1e-3
        if holds:
            because += ". The bound falls only like 1/log k." if c > 1 - 1e-3 else "."
        elif c > 1:
            because += ": the steps add up to a finite length."
        elif c < 1e-3 and not self.setting.oracle.stochastic and max(self.steps) * L <= alpha:
            because += (
                f", but t ≤ α/L_f = {alpha / L:.4g}, with which exact gradients need no decay."
            )
        elif abs(c - 0.5) < 1e-3:
            because += ": Σ t² grows like log k, and the bound still falls, like log k/√k."
        else:
            because += ": the term with Σ t_k²/Σ t_k does not vanish."
        return Verdict.of("Σ t_k = ∞ and Σ t_k² < ∞", holds, because)

    def _constant(self) -> Verdict:
        low = min(self.steps)
        high = max(self.steps)
        first = self.steps[0]
        last = self.steps[-1]
        varies = f"t falls from {first:.4g} to {last:.4g}; the bound has s_k/t_k in place of s_k."
        if self.increase:
            varies = f"t lies between {low:.4g} and {high:.4g} and increases at times: outside the assumptions."
        because = f"t = {first:.4g}: the method runs on t·f."
        return Verdict.of("the step size is constant", high <= low * (1 + 1e-9), because, varies)

    def _non_increasing(self) -> Verdict:
        steps = self.steps
        k = self.increase
        because = f"From {steps[0]:.4g} to {steps[-1]:.4g} in {len(steps)} steps."
        if k:
            cure = (
                "; monotone=True of Prefix prevents that"
                if isinstance(self.method.t, Prefix)
                else ""
            )
            because = f"Step {k + 1} is {steps[k] / steps[k - 1]:.3g} times step {k}: outside the assumptions{cure}."
        return Verdict.of("t_k does not increase", not k, because)

    def _bounded_divergence(self) -> Verdict:
        bounded = self.setting.problem.domain.bounded and math.isfinite(
            self.setting.of_map.smoothness.value
        )
        infinite = "It is infinite; the bound is computed along the run."
        because = "The domain is bounded and ∇ψ Lipschitz." if bounded else infinite
        return Verdict.of(
            "M_ψ = sup B_ψ < ∞ on the whole domain",
            bounded,
            because + self._along("M_ψ", "divergence"),
        )

    def _along(self, symbol: str, series: str) -> str:
        """Say how large a constant is along the run, if there is one."""
        record = self.record
        return (
            ""
            if record is None
            else f" Along the run {symbol} = {float(record[series].nan_to_num().max()):.4g}."
        )

    def _growth(self, assumption: str, name: str, sign: int = 1) -> list[Verdict]:
        """Judge a series, if there is one: zero, bounded as far as one can see, or growing."""
        if self.record is None:
            return []
        sizes = (sign * self.record[name]).nan_to_num()
        if not bool(sizes.any()):
            return [
                Verdict.of(assumption, True, "There is no error: the run is exact mirror descent.")
            ]
        half = len(sizes) // 2
        early, late = (float(part.clamp(min=0).max()) for part in (sizes[:half], sizes[half:]))
        grows = "It grows, and no bound is in sight." if late > 2 * early else "It does not grow."
        measured = f"The largest over the first half of the run is {early:.4g}, over the second {late:.4g}."
        return [Verdict.of(assumption, None, f"{measured} {grows}")]

    def _paper_weights(self, name: str, *formulas: Callable[[int], float]) -> Verdict:
        """Compare mixing, of this name in the theorem, and dual weight with their formulas."""
        assumption = "the weights are those of the theorem"
        schedules = (self.method.mixing, self.method.dual_weight)
        for called, schedule, formula in zip(
            (name, "dual weight"), schedules, formulas, strict=True
        ):
            for k, used in enumerate(self._values(schedule)):
                if abs(used - formula(k)) > 1e-6 * (1 + formula(k)):
                    because = f"The {called} at k = {k} is {used:.4g}, not {formula(k):.4g}: outside the theorem."
                    return Verdict.of(assumption, False, because)
        return Verdict.of(assumption, True, "As printed.")

    def _values(self, schedule: Schedule) -> list[float]:
        return [value_at(schedule, k + 1) for k in range(self.setting.iterations)]
