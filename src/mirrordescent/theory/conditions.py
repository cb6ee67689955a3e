"""What the theorems assume of a method's schedules and of a run, and whether it holds, in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import Tensor

from mirrordescent.domains import Box, Simplex
from mirrordescent.methods import AMD, ASMD, MD, SMD, Method
from mirrordescent.methods.accelerated import _area
from mirrordescent.oracles import Exact, Oracle
from mirrordescent.problems import LogisticRegression, Problem
from mirrordescent.schedules import Prefix, Schedule
from mirrordescent.theory.assumptions import FAR, Verdict
from mirrordescent.theory.constants import MapConstants, ProblemConstants, map_constants
from mirrordescent.theory.energies import Record, value_at
from mirrordescent.theory.geometry import storage_of
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
    """Judge the schedules of MD, SMD, AMD or ASMD, and what was measured along a run if there is a record."""
    storage_of(method)
    return _JUDGES[next(kind for kind in _JUDGES if isinstance(method, kind))](method, setting)


def _amd(method: Any, setting: Setting) -> list[Verdict]:
    own = method.regulariser is method.mirror and method.mirror.exact
    regulariser = setting.of_map if own else map_constants(method.regulariser, setting.points)
    return [
        Verdict("r ≥ 3", "holds" if method.r >= 3 else "does not hold", f"r = {method.r:g}."),
        _paper_weights(
            setting.iterations,
            ("mixing λ_k", method.mixing, lambda k: method.r / (method.r + k)),
            ("dual weight", method.dual_weight, lambda k: k / method.r),
        ),
        _gamma_is_large_enough(method, setting, regulariser),
        _step_is_short_enough(method, setting, regulariser),
        _non_increasing(method.t, setting.iterations),
        _slow_enough(method.t),
        _exact_gradients(setting.oracle),
        *_bounded_error(setting.record),
    ]


def _gamma_is_large_enough(method: Any, setting: Setting, regulariser: MapConstants) -> Verdict:
    assumption = "γ ≥ L_R L_ψ*"
    needed = regulariser.smoothness.value * setting.of_map.dual_smoothness.value
    surely_needed = regulariser.smoothness.estimate * setting.of_map.dual_smoothness.estimate
    smallest = min(_values(method.gamma, setting.iterations))
    because = f"The smallest γ is {smallest:.4g}, and L_R L_ψ* = {needed:.4g}"
    if smallest < surely_needed * (1 - 1e-9):
        return Verdict(assumption, "does not hold", f"{because}.")
    if setting.of_map.dual_smoothness.how == "sampled" or smallest < needed:
        return Verdict(assumption, "not known", f"{because}, from samples.")
    return Verdict(assumption, "holds", f"{because}.")


def _step_is_short_enough(method: Any, setting: Setting, regulariser: MapConstants) -> Verdict:
    assumption, smoothness = "t_k ≤ ℓ_R/(L_f γ)", setting.of_problem.smoothness
    if math.isinf(smoothness.value):
        because = "L_f is infinite, because f has kinks: no step is short enough, and what AMD does here is empirical."
        return Verdict(assumption, "does not hold", because)
    products = [a * b for a, b in zip(*(_values(s, setting.iterations) for s in (method.t, method.gamma)), strict=True)]
    largest, allowed = max(products), regulariser.alpha.value / smoothness.value
    because = f"The largest γt is {largest:.4g}, and ℓ_R/L_f = {allowed:.4g}"
    if largest > regulariser.alpha.estimate / smoothness.estimate * (1 + 1e-9):
        return Verdict(assumption, "does not hold", f"{because}.")
    if smoothness.how == "sampled":
        return Verdict(assumption, "not known", f"{because}, from samples.")
    return Verdict(assumption, "holds", f"{because}.")


def _slow_enough(t: Schedule) -> Verdict:
    assumption, c = "t_k = Θ(k^−c) with c < 1", decay(t)
    if c > 1 - 1e-3:
        because = f"c = {c:.2f}: Theorem 1 leaves this rule out, so that its convergence is an observation, no theorem."
        return Verdict(assumption, "does not hold", because)
    return Verdict(assumption, "holds", f"c = {c:.2f}: the bound falls like k^{c - 1:.2g}.")


def _exact_gradients(oracle: Oracle) -> Verdict:
    assumption = "the gradients are exact"
    if oracle.stochastic:
        return Verdict(assumption, "does not hold", "There is no theorem for AMD with stochastic gradients.")
    if not isinstance(oracle, Exact):
        because = f"{type(oracle).__name__} does not tell the gradient of f itself, but of another function."
        return Verdict(assumption, "does not hold", because)
    return Verdict(assumption, "holds", "The oracle is exact.")


def _descent(method: Any, setting: Setting) -> list[Verdict]:
    return [
        _bounded_moments(setting),
        _summable(method, setting),
        _non_increasing(method.t, setting.iterations),
        *_bounded_error_pairing(setting.record),
    ]


def _bounded_moments(setting: Setting) -> Verdict:
    assumption = "E‖G‖_*² ≤ σ² on the whole domain"
    along = ""
    if setting.record is not None:
        along = f" Along the run σ² = {float(setting.record['displacement'].nan_to_num().max()):.4g}."
    problem = setting.problem
    if isinstance(problem.domain, (Simplex, Box)):
        return Verdict(assumption, "holds", f"The domain is bounded.{along}")
    if isinstance(problem, LogisticRegression) and not problem.ridge.any():
        return Verdict(assumption, "holds", f"The slopes of the loss are bounded.{along}")
    near = max(float(norm(problem.grad(x)).max()) for x in setting.points)
    far = max(float(norm(problem.grad(tree_map(lambda leaf: FAR * leaf, x))).max()) for x in setting.points)
    if far > 10 * near:
        return Verdict(assumption, "does not hold", f"The gradient grows without bound far from the origin.{along}")
    return Verdict(assumption, "not known", f"The gradient does not grow at the points sampled.{along}")


def _summable(method: Any, setting: Setting) -> Verdict:
    assumption, c = "Σ t_k = ∞ and Σ t_k² < ∞", decay(method.t)
    if 0.5 + 1e-3 < c <= 1 + 1e-3:
        note = " The bound falls only like 1/log k." if c > 1 - 1e-3 else ""
        return Verdict(assumption, "holds", f"t_k falls like k^−{c:.2g}.{note}")
    if c > 1:
        return Verdict(assumption, "does not hold", f"t_k falls like k^−{c:.2g}: the steps add up to a finite length.")
    because = f"t_k falls like k^−{c:.2g}: " if c > 1e-3 else "t_k tends to a constant: "
    smoothness, alpha = setting.of_problem.smoothness.value, setting.of_map.alpha.value
    largest = max(_values(method.t, setting.iterations))
    if c < 1e-3 and not setting.oracle.stochastic and largest * smoothness <= alpha:
        because += f"but t ≤ α/L_f = {alpha / smoothness:.4g}, with which exact gradients need no decay."
    elif abs(c - 0.5) < 1e-3:
        because += "Σ t² grows like log k, and the bound still falls, like log k/√k."
    else:
        because += "the term with Σ t_k²/Σ t_k does not vanish."
    return Verdict(assumption, "does not hold", because)


def _asmd(method: Any, setting: Setting) -> list[Verdict]:
    return [
        _paper_weights(
            setting.iterations,
            ("mixing", method.mixing, lambda k: 1 - _area(k) / _area(k + 1)),
            ("dual weight", method.dual_weight, lambda k: (_area(k + 1) - _area(k)) / (k + 1) ** 1.5),
        ),
        _constant(method.t, setting.iterations),
        _bounded_divergence(setting),
        _bounded_moments(setting),
        *_bounded_error(setting.record, "⟨∇f(x_{k+1}), U_k⟩ ≤ K"),
    ]


def _constant(t: Schedule, iterations: int) -> Verdict:
    values = _values(t, iterations)
    assumption = "the step size is constant"
    if max(values) <= min(values) * (1 + 1e-9):
        return Verdict(assumption, "holds", f"t = {values[0]:.4g}: the method runs on t·f.")
    if any(after > before * (1 + 1e-6) for before, after in pairwise(values)):
        because = (
            f"t lies between {min(values):.4g} and {max(values):.4g} and increases at times: outside the assumptions."
        )
    else:
        because = f"t falls from {values[0]:.4g} to {values[-1]:.4g}; the bound has s_k/t_k in place of s_k."
    return Verdict(assumption, "does not hold", because)


def _bounded_divergence(setting: Setting) -> Verdict:
    assumption = "M_ψ = sup B_ψ < ∞ on the whole domain"
    along = ""
    if setting.record is not None:
        along = f" Along the run M_ψ = {float(setting.record['divergence'].nan_to_num().max()):.4g}."
    bounded = isinstance(setting.problem.domain, (Simplex, Box)) and math.isfinite(setting.of_map.smoothness.value)
    if bounded:
        return Verdict(assumption, "holds", f"The domain is bounded and ∇ψ Lipschitz.{along}")
    return Verdict(assumption, "does not hold", f"It is infinite; the bound is computed along the run.{along}")


def _bounded_error(record: Record | None, assumption: str = "the error terms are at most M") -> list[Verdict]:
    return [] if record is None else [_growth(assumption, record["error"])]


def _bounded_error_pairing(record: Record | None) -> list[Verdict]:
    return [] if record is None else [_growth("−⟨U_k, x_k − x*⟩ ≤ C", -record["error_pairing"])]


def _growth(assumption: str, series: Tensor) -> Verdict:
    """Judge a series: zero, bounded as far as one can see, or growing."""
    sizes = series.nan_to_num()
    if not bool(sizes.any()):
        return Verdict(assumption, "holds", "There is no error: the run is exact mirror descent.")
    half = len(sizes) // 2
    early, late = (float(part.clamp(min=0).max()) for part in (sizes[:half], sizes[half:]))
    measured = f"The largest over the first half of the run is {early:.4g}, over the second {late:.4g}."
    if late > 2 * early:
        return Verdict(assumption, "not known", f"{measured} It grows, and no bound is in sight.")
    return Verdict(assumption, "not known", f"{measured} It does not grow.")


def _paper_weights(iterations: int, *weights: tuple[str, Schedule, Callable[[int], float]]) -> Verdict:
    assumption = "the weights are those of the theorem"
    for name, schedule, formula in weights:
        for k in range(iterations):
            used, wanted = value_at(schedule, k + 1), formula(k)
            if abs(used - wanted) > 1e-6 * (1 + wanted):
                because = f"The {name} at k = {k} is {used:.4g}, not {wanted:.4g}: outside the theorem."
                return Verdict(assumption, "does not hold", because)
    return Verdict(assumption, "holds", "As printed.")


def _non_increasing(t: Schedule, iterations: int) -> Verdict:
    assumption, values = "t_k does not increase", _values(t, iterations)
    for k, (before, after) in enumerate(pairwise(values), start=1):
        if after > before * (1 + 1e-6):
            cure = "; monotone=True of Prefix prevents that" if isinstance(t, Prefix) else ""
            because = f"Step {k + 1} is {after / before:.3g} times step {k}: outside the assumptions{cure}."
            return Verdict(assumption, "does not hold", because)
    return Verdict(assumption, "holds", f"From {values[0]:.4g} to {values[-1]:.4g} in {len(values)} steps.")


def decay(t: Schedule, far: int = 2**14) -> float:
    """Return the c of t_k = Θ(k^−c), from the ratio of two late values.

    >>> from mirrordescent.schedules import Prefix
    >>> round(decay(Prefix([0.4, 0.1], extension="root_reciprocal")), 3)
    0.5
    """
    return math.log2(value_at(t, far) / value_at(t, 2 * far))


def _values(schedule: Schedule, iterations: int) -> list[float]:
    return [value_at(schedule, k + 1) for k in range(iterations)]


_JUDGES: dict[type, Callable[[Any, Setting], list[Verdict]]] = {MD: _descent, SMD: _descent, AMD: _amd, ASMD: _asmd}
