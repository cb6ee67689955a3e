"""Measurements along runs and of maps, number by number."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import warnings
from itertools import pairwise

import pytest
import torch

from mirrordescent import AMD, ASMD, MD, SMD, Function, Quadratic, theory
from mirrordescent.domains import Box
from mirrordescent.mirrors import Conjugate, DenseICNN, Diagonal, Euclidean, LearnedPair
from mirrordescent.oracles import Exact, Noisy
from mirrordescent.schedules import Reciprocal
from mirrordescent.solving import solve
from mirrordescent.theory import Record, diagnose, observe
from mirrordescent.theory.energies import Energies
from mirrordescent.theory.geometry import NewtonInverse
from mirrordescent.theory.inverse_consistency import (
    UpdateErrors,
    dual_update_error,
    inconsistency,
    inconsistency_over_box,
    primal_update_error,
)
from mirrordescent.theory.recording import StepRecorder


def double(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Stretched(Euclidean):
    """∇M(x) = x with ∇M*(y) = 1.1y, so that e(y) = 0.1y."""

    exact = False

    def _to_primal(self, y):
        return 1.1 * y


BOWL = Quadratic(double(1.0, 3.0), double([0.5, -1.0], [2.0, 1.0]))


# Runs


def test_a_record_finds_series_by_their_names():
    series = double([-1.0, 2.0], [3.0, -4.0], [1.0, 5.0])
    record = Record(double(1.0, 1.0, 1.0), {"gap": series}, {"error": -series})
    assert record["gap"] is series
    assert torch.equal(record["error"], -series)
    assert "gap" in record
    assert "error" in record
    assert "energy" not in record
    assert record.running_maximum("gap").tolist() == [[0.0, 2.0], [3.0, 2.0], [3.0, 5.0]]


def test_the_terms_of_descent_with_noise_and_errors_by_hand():
    """x⁺ = 1.1(x − tG): U = 0.1(G − x/t), and with x̂ = x − tG the two error terms of LMD."""
    t = 0.2
    x0 = random(2, 2)
    u = random(2, 2, seed=1)
    method = MD(Stretched(), t)
    told = []

    class Heard(Noisy):
        def forward(self, problem, x, k, generator=None):
            told.append(super().forward(problem, x, k, generator))
            return told[-1]

    found = observe(
        BOWL,
        method,
        x0,
        minimiser=u,
        iterations=3,
        oracle=Heard(0.3),
        generator=torch.Generator().manual_seed(0),
        exact_iterates=True,
    ).record
    x = x0
    for k, G in enumerate(told):
        after = 1.1 * (x - t * G)
        noise = G - BOWL.grad(x)
        x_hat = x - t * G
        U = (x - after) / t - G
        expected = {
            "noise": noise.square().sum(1),
            "noise_pairing": (noise * (x - u)).sum(1),
            "error": U.norm(dim=1),
            "displacement": (G + U).square().sum(1),
            "error_pairing": (U * (x - u)).sum(1),
            "dual_error": ((x_hat - after) * (u - after)).sum(1),
            "primal_error": (BOWL.grad(x_hat) * (after - x_hat)).sum(1),
        }
        for name, value in expected.items():
            torch.testing.assert_close(
                found[name][k], value, msg=lambda m, name=name: f"{name}: {m}"
            )
        torch.testing.assert_close(found["gap"][k], BOWL.value(x) - BOWL.value(u))
        torch.testing.assert_close(found["divergence"][k], (x - u).square().sum(1) / 2)
        x = after
    assert found.steps.tolist() == [t] * 3
    plain = observe(BOWL, method, x0, minimiser=u, iterations=1).record
    assert "primal_error" not in plain


def test_the_terms_of_accelerated_descent_with_steps_that_fall():
    """Ẽ_k = (k²t_{k−1}/r)·gap + r·B, and E_k = A_k·gap + (s_k/t_k)·B with the next step t_k."""
    x0 = random(2, 2)
    u = random(2, 2, seed=1)
    r = 4.0
    record = observe(
        BOWL, AMD(Euclidean(), Reciprocal(0.4), r=r), x0, minimiser=u, iterations=4
    ).record
    for k in range(5):
        weight = k**2 * (0.4 / k if k else 0.0) / r
        torch.testing.assert_close(
            record["energy"][k], weight * record["gap"][k] + r * record["divergence"][k]
        )
    assert not record["error"].any()
    record = observe(BOWL, ASMD(Euclidean(), Reciprocal(0.4)), x0, minimiser=u, iterations=4).record
    for k in range(5):
        area = k * (k + 1) / 2 or 0.5
        t = 0.4 / (k + 1)
        expected = area * record["gap"][k] + (k + 1) ** 1.5 / t * record["divergence"][k]
        torch.testing.assert_close(record["energy"][k], expected)


def test_the_errors_of_stochastic_acceleration_by_hand():
    """⟨∇f(x_{k+1}), U_k⟩ with U_k = 1.1y − y, in the geometry of the identity."""
    x0 = random(2, 2)
    u = random(2, 2, seed=1)
    method = ASMD(Stretched(), 0.2)
    found = observe(
        BOWL, method, x0, minimiser=u, iterations=3, geometry=NewtonInverse(Stretched())
    ).record
    state = method.init(x0)
    for k in range(3):
        g = BOWL.grad(state.x)
        torch.testing.assert_close(found["error"][k], (g * 0.1 * state.y).sum(1))
        torch.testing.assert_close(found["displacement"][k], g.square().sum(1))
        torch.testing.assert_close(found["divergence"][k], (state.y - u).square().sum(1) / 2)
        state = method.step(BOWL, state, Exact())


def test_dual_stored_acceleration_held_against_another_geometry():
    """z̃ is the image of the dual iterate, and its error has the weight k/r of the step."""
    x0 = random(2, 2)
    u = random(2, 2, seed=1)
    t = 0.2
    method = AMD(Stretched(), t)
    found = observe(
        BOWL,
        method,
        x0,
        minimiser=u,
        iterations=3,
        geometry=NewtonInverse(Stretched()),
        exact_iterates=True,
    ).record
    state = method.init(x0)
    states = [state]
    for _ in range(3):
        states.append(method.step(BOWL, states[-1], Exact()))
    for k, (before, after) in enumerate(pairwise(states)):
        z = 1.1 * before.z
        z_after = 1.1 * after.z
        aimed = z - k / 3 * t * BOWL.grad(before.x)
        torch.testing.assert_close(found["divergence"][k], (z - u).square().sum(1) / 2)
        torch.testing.assert_close(found["error"][k], ((z_after - aimed) * (z_after - u)).sum(1))
        torch.testing.assert_close(found["distance"][k], (z_after - aimed).norm(dim=1))


def test_exact_iterates_are_not_looked_for_unless_they_are_asked_for():
    assert not Energies(random(1, 2)).exact_iterates
    exact = observe(
        BOWL, MD(Euclidean(), 0.1), minimiser=BOWL.centre, iterations=1, exact_iterates=True
    ).record
    assert "primal_error" not in exact, "an exact run has none"


def test_energies_begin_anew_with_every_run():
    energies = Energies(BOWL.centre)
    for iterations in (3, 2):
        solve(
            BOWL,
            StepRecorder(MD(Euclidean(), 0.1)),
            random(2, 2),
            iterations=iterations,
            callbacks=[energies],
            check_every=1,
            progress=False,
        )
        assert energies.record["gap"].shape == (iterations + 1, 2)


# Updates


def test_the_errors_of_updates_by_hand():
    """e(y) = 0.1y: a primal update errs by e(x − tg), a dual one by e(y⁺) − e(y) = −0.1tg."""
    x = random(2, 2)
    y = random(2, 2, seed=1)
    g = random(2, 2, seed=2)
    torch.testing.assert_close(primal_update_error(Stretched(), x, g, 0.3), 0.1 * (x - 0.3 * g))
    torch.testing.assert_close(dual_update_error(Stretched(), y, g, 0.3), -0.03 * g)


@pytest.mark.parametrize("every", [1, 2])
def test_update_errors_along_a_run(every):
    x0 = random(2, 2)
    t = 0.2
    method = SMD(Stretched(), t)
    errors = UpdateErrors(every)
    solve(BOWL, method, x0, iterations=5, callbacks=[errors], check_every=1, progress=False)
    assert errors.iterations == list(range(0, 5, every))
    states = [method.init(x0)]
    for _ in range(5):
        states.append(method.step(BOWL, states[-1], Exact()))
    total = torch.zeros(2, 2, dtype=torch.float64)
    for row, k in enumerate(errors.iterations):
        y = states[k].y
        after = states[k + 1].y
        x = states[k].x
        primal = 0.1 * (x - t * BOWL.grad(x))  # e(∇M(x) − tg), and ∇M is the identity
        total = total + every * primal
        expected = {
            "dual": 0.1 * y,
            "primal": 0.1 * x,
            "dual_update": 0.1 * (after - y),
            "primal_update": primal,
            "dual_total": 0.1 * (after - states[0].y),
            "primal_total": total,
        }
        for name, value in expected.items():
            found = errors.series[name][row]
            torch.testing.assert_close(
                found, value.norm(dim=1), msg=lambda m, name=name: f"{name}: {m}"
            )
    assert UpdateErrors().every == 5


def test_update_errors_need_every_step_of_smd():
    options = {"iterations": 6, "progress": False}
    with pytest.raises(ValueError, match="every step"):
        solve(BOWL, SMD(Stretched(), 0.1), callbacks=[UpdateErrors()], check_every=2, **options)
    for method in (MD(Stretched(), 0.1), ASMD(Stretched(), 0.1)):
        with pytest.raises(
            TypeError, match=f"needs a dual-stored run of SMD, not of {type(method).__name__}"
        ):
            solve(BOWL, method, callbacks=[UpdateErrors()], check_every=1, **options)
    recorded = UpdateErrors(1)
    solve(BOWL, StepRecorder(SMD(Stretched(), 0.1)), callbacks=[recorded], check_every=1, **options)
    assert recorded.series["dual"].shape == (6, 2)


def test_inconsistency_at_the_origin_and_at_images():
    shift = type("Shift", (Euclidean,), {"exact": False, "_to_primal": lambda self, y: y + 1.0})()
    found = inconsistency(shift, [double([0.0, 0.0], [3.0, 4.0])])
    assert found.primal.tolist() == pytest.approx([2**0.5] * 2)
    assert found.relative_primal[0].isnan()
    assert found.relative_primal[1].item() == pytest.approx(2**0.5 / 5)
    images = [double([1.0, 1.0])]  # taken as they are given
    given = inconsistency(shift, [double([0.0, 2.0])], images=images)
    assert given.primal.item() == pytest.approx(2.0)
    assert given.relative_dual.item() == pytest.approx(1.0)


def test_a_box_in_the_dual_is_that_of_the_images():
    """∇M = (x, 10x), so that the dual box differs between entries."""
    seen = []

    class Spy(Diagonal):
        def _to_primal(self, y):
            seen.append(y)
            return super()._to_primal(y)

    mirror = Spy(double(1.0, 10.0))
    generator = torch.Generator().manual_seed(0)
    found = inconsistency_over_box(
        mirror, 1.0, 2.0, torch.zeros(50, 2, dtype=torch.float64), generator
    )
    assert found.primal.shape == (200,)
    points = torch.cat(seen[:4])
    duals = torch.cat(seen[4:])
    for drawn in (points, duals):
        assert (drawn.amin(0) >= double(1.0, 10.0)).all()
        assert (drawn.amax(0) <= double(2.0, 20.0)).all()
        assert (drawn.amax(0) - drawn.amin(0) > double(0.9, 9.0)).all()
    assert not torch.equal(points, duals)


# Diagnosis


def bump(x):
    """Of curvature 0.1 + 10/cosh²(10x): large at 0 only."""
    return (0.05 * x.square() + (10 * x).cosh().log() / 10).sum(1)


def test_a_problem_is_judged_half_way_to_the_minimiser_too():
    x0 = double([-1.0, -1.0])
    u = double([1.0, 1.0])
    found = diagnose(MD(Euclidean(), 0.01), Function(bump), x0, minimiser=u, iterations=2)
    assert found.problem_constants.smoothness.estimate == pytest.approx(10.1, rel=1e-6)


def test_a_diagnosis_tells_what_it_was_made_of():
    x0 = random(3, 2, seed=3)
    problem = Function(lambda x: (x - 1).square().sum(1))
    found = diagnose(SMD(Stretched(), 0.1), problem, x0, iterations=7, name="mine")
    assert (found.name, found.problem) == ("mine", "Function")
    assert found.settings["problems"] == "3"
    assert found.settings["iterations"] == "7"
    assert found.settings["the map judged at"] == "4 points of 2 of the problems"
    assert (
        found.settings["compared with"] == "the best point of 28 iterations, which is not certified"
    )
    assert found.settings["gradients"] == "Exact"
    assert found.settings["exact inversions that did not converge"] == "0"
    assert found.runs["SMD"].updates.iterations == [0, 5]
    given = diagnose(
        SMD(Stretched(), 0.1), problem, x0, iterations=2, minimiser=torch.ones(2).double()
    )
    assert given.settings["compared with"] == "the point given"
    assert given.name == "SMD"


def test_a_pair_is_measured_on_the_way_and_in_the_box_around_it():
    x0 = double([-2.0, 0.5])
    u = double([1.0, 3.0])
    found = diagnose(
        MD(Stretched(), 0.1), Function(bump), x0, minimiser=u, iterations=2
    ).inconsistency
    along = found["the start, half-way and the minimiser"]
    points = torch.cat([x0, (x0 + u) / 2, u])
    torch.testing.assert_close(along.primal, 0.1 * points.norm(dim=1))
    box = found["the box [-2, 3] around them"]
    assert box.primal.shape == (1,)
    assert box.relative_primal.item() == pytest.approx(0.1)


def test_warnings_of_others_are_passed_on():
    class Loud(Euclidean):
        def _to_dual(self, x):
            warnings.warn("loud", UserWarning, stacklevel=1)
            return x

    with pytest.warns(UserWarning, match="loud"):
        diagnose(MD(Loud(), 0.1), BOWL, random(2, 2), iterations=1)


def test_images_have_symmetries_if_their_map_is_learned():
    image = Function(lambda x: x.square().flatten(1).sum(1))
    x0 = random(2, 1, 5, 5)
    options = {"minimiser": torch.zeros(1, 5, 5).double(), "iterations": 1}
    assert diagnose(MD(Euclidean(), 0.1), image, x0, **options).equivariance is None
    learned = Diagonal(torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64)))
    found = diagnose(
        MD(learned, 0.1), image, x0, before_learning=Euclidean(), **options
    ).equivariance
    assert set(found.by_name) == {
        "∇ψ, before learning",
        "∇ψ*, before learning",
        "∇ψ, learned",
        "∇ψ*, learned",
    }


def test_usual_methods_have_the_steps_that_are_recommended():
    mirror = Diagonal(double(0.5, 2.0))
    found = diagnose(mirror, BOWL, random(2, 2), iterations=2)
    t = {name: float(run.method.t(1)) for name, run in found.runs.items()}
    assert t == pytest.approx(
        {"MD": 0.5 / 3, "SMD": 0.5 / 3, "AMD": 0.5 / 3, "ASMD": 0.5 / 3 / 8**0.5}
    )
    assert float(found.runs["AMD"].method.gamma(1)) == 2.0
    kinked = Function(lambda x: x.abs().sum(1))
    found = diagnose(mirror, kinked, random(2, 2), minimiser=torch.zeros(2).double(), iterations=2)
    assert [float(found.runs["SMD"].method.t(k)) for k in (1, 4)] == pytest.approx([0.1, 0.05])


def test_only_dual_stored_descent_with_a_pair_has_update_errors():
    pair = LearnedPair(
        *(DenseICNN(2, generator=torch.Generator().manual_seed(s)).double() for s in (0, 1))
    )
    methods = {"MD": MD(pair, 0.1), "SMD": SMD(pair, 0.1), "AMD": AMD(pair, 0.1)}
    found = diagnose(pair, BOWL, random(2, 2), methods=methods, iterations=2)
    assert {name: run.updates is not None for name, run in found.runs.items()} == {
        "MD": False,
        "SMD": True,
        "AMD": False,
    }
    exact = diagnose(SMD(Euclidean(), 0.1), BOWL, random(2, 2), iterations=2)
    assert exact.runs["SMD"].updates is None


def test_results_are_frozen():
    """All result classes are frozen, except the examination that makes them."""
    modules = [
        importlib.import_module(each.name)
        for each in pkgutil.iter_modules(theory.__path__, "mirrordescent.theory.")
    ]
    found = {
        c
        for m in modules
        for c in vars(m).values()
        if dataclasses.is_dataclass(c) and isinstance(c, type)
    }
    own = {
        c.__name__: c.__dataclass_params__.frozen
        for c in found
        if c.__module__.startswith("mirrordescent.theory")
    }
    assert own.pop("Examination") is False
    assert len(own) > 10
    assert all(own.values())


def test_a_step_recorder_needs_a_gradient_method_with_the_usual_step():
    class Own(MD):
        def step(self, *arguments):
            return super().step(*arguments)

    for bad in (Own(Euclidean(), 0.1), Conjugate(DenseICNN(2))):
        with pytest.raises(TypeError, match="needs a GradientMethod that does not override step"):
            StepRecorder(bad)
    state = StepRecorder(MD(Euclidean(Box(0.0, 1.0)), 0.1)).init(double([0.5, 0.5]))
    assert not state.own.gradient.any()
    assert not state.own.true_gradient.any()
    assert state.own.previous is state.inner
