"""Worst-case rates of methods with fixed steps, by performance estimation.

A method with fixed steps computes xₖ = x₀ − Σᵢ Hₖᵢ ∇f(xᵢ), with numbers Hₖᵢ that do not depend on
f. The worst case of f(x_N) − f* over all convex f with an L-Lipschitz gradient is then the value of
a semidefinite program (Drori and Teboulle, 2014; Taylor, Hendrickx and Glineur, 2017). The package
PEPit writes the program and solves it numerically.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from mirrordescent.methods.base import GradientMethod, Method
from mirrordescent.mirrors import Euclidean

SECONDS = 60.0
"""Default time limit."""

LINEAR = 1e-9
"""Relative deviation up to which steps count as linear in the gradients."""


@dataclass(frozen=True)
class WorstCase:
    """A worst-case rate, or the reason why there is none.

    Args:
        rate: The least c with f(x_N) − f* ≤ c·L‖x₀ − x*‖² for every function of the class, as
            computed numerically; None if it is not known.
        iterations: Number N of steps.
        reason: Reason why the rate is not known; empty if it is.
    """

    rate: float | None
    iterations: int
    reason: str = ""

    def __str__(self) -> str:
        if self.rate is None:
            return f"No worst-case rate: {self.reason}."
        return (
            "Without its safeguard, the worst case over all convex functions with an L-Lipschitz "
            f"gradient is f − f* ≤ {self.rate:.3g}·L‖x₀ − x*‖² after {self.iterations} steps "
            "(computed numerically by PEPit)."
        )


@torch.no_grad()
def fixed_steps(method: Method[Any], iterations: int) -> Tensor | None:
    """Return the numbers H of a method with fixed steps, (N + 1, N); None if it has none.

    Row k < N gives the point of the k-th gradient, and the last row the answer. They are read off a
    run from 0 whose i-th gradient is the i-th unit vector. A second run with other gradients checks
    that the steps are linear.

    Args:
        method: The method.
        iterations: Number N of steps.
    """
    euclidean = method.mirror is None or isinstance(method.mirror, Euclidean)
    if not isinstance(method, GradientMethod) or not euclidean:
        return None
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(iterations, 3, dtype=torch.float64, generator=generator)
    try:
        H = -_points(method, torch.eye(iterations, dtype=torch.float64))
        found = _points(method, gradients)
    except (TypeError, RuntimeError, ValueError):  # a method that needs a problem
        return None
    error = (found + H @ gradients).abs().max()
    size = found.abs().max() + 1e-300
    return H if bool(error <= LINEAR * size) else None


def _points(method: GradientMethod[Any], gradients: Tensor) -> Tensor:
    """Return the points of the gradients and the answer of a run from 0 with given gradients."""
    state = method.init(gradients.new_zeros(1, gradients.shape[1]))
    points = []
    for gradient in gradients:
        points.append(_as_row(state.x))
        state = method.update(state, gradient.unsqueeze(0))
    points.append(_as_row(method.answer(state)))
    return torch.cat(points)


def _as_row(x: Any) -> Tensor:
    if not isinstance(x, Tensor):
        raise TypeError("points must be tensors")
    return x


def worst_case(
    method: Method[Any], iterations: int, smoothness: float, seconds: float = SECONDS
) -> WorstCase:
    """Return the worst-case rate of a method with fixed steps on smooth convex functions.

    The semidefinite program is solved in another process, which is stopped when the time is over.

    Args:
        method: The method.
        iterations: Number N of steps.
        smoothness: Lipschitz constant L of the gradients.
        seconds: Time limit.
    """
    if not 0 < smoothness < math.inf:
        return WorstCase(None, iterations, "f has no known Lipschitz constant of its gradient")
    H = fixed_steps(method, iterations)
    if H is None:
        return WorstCase(None, iterations, "the steps of the method depend on the problem")
    if find_spec("PEPit") is None:
        return WorstCase(None, iterations, "PEPit is not installed")
    request = json.dumps({"H": H.tolist(), "L": smoothness})
    command = [sys.executable, "-m", "mirrordescent.theory.performance"]
    try:
        run = subprocess.run(
            command, input=request, capture_output=True, text=True, timeout=seconds, check=True
        )
    except subprocess.TimeoutExpired:
        reason = f"PEPit did not finish {iterations} steps in {seconds:.0f} s"
        return WorstCase(None, iterations, reason)
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["no message"]
        return WorstCase(None, iterations, f"PEPit failed ({lines[-1]})")
    rate = json.loads(run.stdout)
    if not math.isfinite(rate):
        return WorstCase(None, iterations, "the method diverges on some function")
    return WorstCase(rate, iterations)


def solve_with_pepit(H: list[list[float]], L: float) -> float:
    """Return the least c with f(x_N) − f* ≤ c·L‖x₀ − x*‖²; infinite if there is none.

    Args:
        H: Numbers of the steps, (N + 1, N).
        L: Lipschitz constant of the gradients.
    """
    from PEPit import PEP
    from PEPit.functions import SmoothConvexFunction

    problem: Any = PEP()
    f = problem.declare_function(SmoothConvexFunction, L=L)
    start = problem.set_initial_point()
    minimiser = f.stationary_point()
    problem.set_initial_condition((start - minimiser) ** 2 <= 1)
    gradients: list[Any] = []
    for row in H:
        x = start
        for h, gradient in zip(row, gradients, strict=False):
            x = x - h * gradient
        if len(gradients) < len(H) - 1:
            gradients.append(f.gradient(x))
    problem.set_performance_metric(f(x) - f(minimiser))
    value = problem.solve(wrapper="cvxpy", verbose=0)
    return math.inf if value is None else float(value) / L


if __name__ == "__main__":
    given = json.load(sys.stdin)
    print(json.dumps(solve_with_pepit(given["H"], given["L"])))
