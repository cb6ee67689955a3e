"""Classes of a user's own: a method without a theorem, with or without a map, a map, a problem."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from mirrordescent import MD, SMD, Quadratic, solve
from mirrordescent.diagnosis.diagnosis_page import markdown
from mirrordescent.methods import GradientMethod, Method
from mirrordescent.mirrors import Diagonal, Euclidean, MirrorMap, StrongConvexity
from mirrordescent.oracles import Noisy
from mirrordescent.problems import Problem
from mirrordescent.schedules import as_schedule
from mirrordescent.theory import diagnose, observe, recommend
from mirrordescent.theory.conditions import method_verdicts
from mirrordescent.trees import sum_per_sample, tree_map
from mirrordescent_experiments import diagnosis_pages

DOUBLE = torch.float64


class HeavyBallState(NamedTuple):
    k: int
    x: Tensor
    velocity: Tensor


class HeavyBall(GradientMethod):
    """Momentum; with a map, the gradient passes through ∇ψ*. No theorem is claimed."""

    def __init__(self, t, mirror=None):
        super().__init__(mirror)
        self.t = as_schedule(t, "t")

    def init(self, x0, problem=None):
        return HeavyBallState(0, x0, tree_map(torch.zeros_like, x0))

    def update(self, state, grad):
        direction = grad if self.mirror is None else self.mirror.to_primal(grad)
        velocity = 0.5 * state.velocity - self.t(state.k + 1) * direction
        return HeavyBallState(state.k + 1, state.x + velocity, velocity)


class MiddleState(NamedTuple):
    k: int
    x: Tensor


class Middle(Method):
    """A step half-way to the problem's minimiser, without gradients, map and step sizes."""

    def init(self, x0, problem=None):
        return MiddleState(0, x0)

    def step(self, problem, state, oracle, generator=None):
        return MiddleState(state.k + 1, (state.x + problem.centre) / 2)


class Cosh(MirrorMap):
    """ψ(x) = Σ 2x² + cosh x: 5-strongly convex, and the inverse by Newton's method."""

    def __init__(self, states=True):
        super().__init__()
        self.states = states

    @property
    def strong_convexity(self):
        return StrongConvexity(5.0, 2.0) if self.states else None

    def _potential(self, x):
        return sum_per_sample(2 * x.square() + x.cosh())

    def _to_dual(self, x):
        return 4 * x + x.sinh()

    def _to_primal(self, y):
        x = y / 5
        for _ in range(60):
            x = x - (4 * x + x.sinh() - y) / (4 + x.cosh())
        return x


class Smooth(Problem):
    """f(x) = Σ √(1 + (x − c)²): convex, smooth, and nothing is stated."""

    def __init__(self, centre):
        super().__init__(len(centre), centre.shape[1:])
        self.register_buffer("centre", centre)

    def value(self, x):
        return sum_per_sample((1 + (x - self.centre).square()).sqrt())

    def grad(self, x):
        return (x - self.centre) / (1 + (x - self.centre).square()).sqrt()


class StatedSmooth(Smooth):
    """The same, with what is known of it stated."""

    convex = True
    bounded_gradients = True

    def smoothness(self):
        return 1.0

    def strong_convexity(self):
        return 0.0

    def minimiser(self, tolerance):
        return self.centre, self.value(self.centre)


@pytest.fixture
def centre():
    return torch.randn(2, 3, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)


@pytest.fixture
def quadratic(centre):
    return Quadratic(torch.tensor([1.0, 2.0, 4.0], dtype=DOUBLE), centre)


def answers(verdicts):
    return {verdict.assumption: verdict.answer for verdict in verdicts}


@pytest.mark.parametrize(
    "mirror", [None, Diagonal(torch.tensor([1.0, 2.0, 4.0], dtype=DOUBLE)), Cosh()]
)
def test_a_method_without_a_theorem(mirror, quadratic, tmp_path):
    """There are verdicts on the problem and on the map, and the run, but no bound."""
    method = HeavyBall(0.1, mirror)
    x0 = torch.ones(2, 3, dtype=DOUBLE)
    diagnosis = diagnose(method, quadratic, x0, iterations=30)
    assert set(answers(diagnosis.problem_verdicts).values()) == {"holds"}
    judged = (
        {}
        if mirror is None
        else {"the map, primal-stored": diagnosis.geometries["primal"].verdicts}
    )
    run = diagnosis.runs["HeavyBall"]
    assert diagnosis.verdicts_by_subject == {
        "the problem": diagnosis.problem_verdicts,
        **judged,
        "HeavyBall": run.verdicts,
    }
    if mirror is not None:
        assert answers(diagnosis.geometries["primal"].verdicts)["ψ is strongly convex"] == "holds"
    (verdict,) = run.verdicts
    assert verdict.answer == "not known"
    assert "No theorem is known for HeavyBall" in verdict.reason
    assert (run.bound_check, run.advice, run.updates) == (None, None, None)
    plain = solve(quadratic, method, x0, iterations=30)
    assert torch.equal(run.solution.x, plain.x)
    assert torch.equal(run.record["gap"][-1], plain.value)
    text = diagnosis_pages.write(diagnosis, tmp_path).read_text()
    assert "# HeavyBall on Quadratic" in text
    assert ("## The map" in text) == (mirror is not None)
    assert "The theory supports" not in text
    for name in ("bounds", "energies", "errors"):
        assert (tmp_path / f"{name}.png").stat().st_size > 5000


def test_a_method_that_asks_for_no_gradients(quadratic):
    diagnosis = diagnose(Middle(), quadratic, iterations=5)
    gap = diagnosis.runs["Middle"].record["gap"]
    torch.testing.assert_close(gap[1:], gap[:-1] / 4)
    assert diagnosis.geometries == {}
    with pytest.raises(TypeError, match="uses no gradients"):
        diagnose(Middle(), quadratic, iterations=5, oracle=Noisy(0.1))


def test_methods_with_and_without_a_theorem_side_by_side(quadratic):
    mirror = Cosh()
    methods = {"SMD": SMD(mirror, 0.5), "momentum": HeavyBall(0.1, mirror)}
    diagnosis = diagnose(mirror, quadratic, methods=methods, iterations=20)
    assert diagnosis.runs["SMD"].bound_check is not None
    assert diagnosis.runs["momentum"].bound_check is None
    assert set(diagnosis.geometries) == {"dual", "primal"}


def test_random_gradients_for_a_method_without_a_theorem(quadratic):
    """The point to compare with comes from exact gradients; the run is random and repeatable."""
    found = [
        diagnose(HeavyBall(0.1), Smooth(quadratic.centre), iterations=9, oracle=Noisy(0.1))
        for _ in range(2)
    ]
    first, second = (diagnosis.runs["HeavyBall"].solution.x for diagnosis in found)
    assert torch.equal(first, second)
    assert found[0].settings["gradients"] == "Noisy"
    assert "not certified" in found[0].settings["compared with"]


@pytest.mark.parametrize("states", [True, False])
def test_a_map(states, quadratic):
    """Stated properties hold unless a sample contradicts them; other properties are not known."""
    diagnosis = diagnose(Cosh(states), quadratic, iterations=20)
    known = "holds" if states else "not known"
    for geometry in diagnosis.geometries.values():
        verdicts = answers(geometry.verdicts)
        assert verdicts["∇ψ is the gradient of a function"] == "not known"
        assert verdicts["∇ψ is monotone, so that its potential is convex"] == known
        assert verdicts["ψ is strongly convex"] == known
        assert verdicts["∇ψ* is the inverse of ∇ψ"] == "holds"
        assert geometry.constants.alpha.source == ("formula" if states else "sampled")
    for run in diagnosis.runs.values():
        assert (run.bound_check.measured <= run.bound_check.bound + 1e-12).all()
    assert recommend(Cosh(states), quadratic, "SMD").certain is states


def test_a_problem(centre):
    """Properties that are not stated are sampled, and a longer run replaces the minimiser."""
    method = SMD(Euclidean(), 0.5)
    x0 = torch.zeros(2, 3, dtype=DOUBLE)
    silent, stated = (
        diagnose(method, kind(centre), x0, iterations=20) for kind in (Smooth, StatedSmooth)
    )
    assert list(answers(silent.problem_verdicts).values()) == ["not known", "not known"]
    assert list(answers(stated.problem_verdicts).values()) == ["not known", "not known"]
    assert "not certified" in silent.settings["compared with"]
    assert stated.settings["compared with"] == "a certified minimiser"
    moments = {
        name: answers(found.runs["SMD"].verdicts)
        for name, found in {"silent": silent, "stated": stated}.items()
    }
    assert moments["silent"]["E‖G‖_*² ≤ σ² on the whole domain"] == "not known"
    assert moments["stated"]["E‖G‖_*² ≤ σ² on the whole domain"] == "holds"
    assert "## SMD" in markdown(stated)


def test_a_method_with_a_theorem_of_its_own_choice(quadratic):
    """A subclass that declares the theorem has it; one that only changes the steps has none."""

    class Damped(MD):
        def update(self, state, grad):
            return super().update(state, 0.5 * grad)

    class StillDescent(Damped):
        theorem = "descent"

        def update(self, state, grad):
            return MD.update(self, state, grad)

    mirror = Cosh()
    x0 = torch.ones(2, 3, dtype=DOUBLE)
    assert (
        diagnose(Damped(mirror, 0.5), quadratic, x0, iterations=10).runs["Damped"].bound_check
        is None
    )
    run = diagnose(StillDescent(mirror, 0.5), quadratic, x0, iterations=10).runs["StillDescent"]
    twin = observe(quadratic, MD(mirror, 0.5), x0, minimiser=quadratic.centre, iterations=10).record
    assert torch.equal(run.record["divergence"], twin["divergence"])
    assert (run.bound_check.measured <= run.bound_check.bound + 1e-12).all()
    assert len(method_verdicts(Damped(mirror, 0.5), None)) == 1
