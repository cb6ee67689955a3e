"""Energies along runs: against their definitions, and as callbacks."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from mirrordescent import (
    AMD,
    ASMD,
    LPD,
    MD,
    SMD,
    Adam,
    Function,
    Quadratic,
    TVDenoising,
    gradient_norm,
    solve,
)
from mirrordescent.domains import Simplex
from mirrordescent.methods import Equipped
from mirrordescent.mirrors import (
    Conjugate,
    DenseICNN,
    Diagonal,
    Euclidean,
    LearnedPair,
    SimplexEntropy,
    SquaredPNorm,
)
from mirrordescent.oracles import Exact, Noisy, Smoothed
from mirrordescent.problems import LeastSquares
from mirrordescent.schedules import Prefix
from mirrordescent.theory import observe
from mirrordescent.theory.energies import Energies
from mirrordescent.theory.geometry import (
    Coupling,
    LineIntegralPotential,
    NewtonInverse,
    exact_geometry,
    squared_dual_norm,
)
from mirrordescent.theory.recording import StepRecorder


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def problem():
    return Quadratic(torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64), random(2, 3, seed=9))


@pytest.fixture
def pair():
    networks = [
        DenseICNN(3, hidden=6, generator=torch.Generator().manual_seed(seed)).double()
        for seed in (0, 1)
    ]
    for network in networks:
        network.requires_grad_(False).skips.mul_(3)
    return LearnedPair(*networks)


def states(problem, method, x0, iterations):
    found = [method.init(x0)]
    for _ in range(iterations):
        found.append(method.step(problem, found[-1], Exact()))
    return found


@pytest.mark.parametrize("storage", ["primal", "dual"])
def test_the_energy_of_amd_by_hand(problem, pair, storage):
    """B_ψ*(∇ψ(z̃), ∇ψ(x*)) by definition: ψ = M for primal and (M*)* for dual storage."""
    method = AMD(pair, 0.2, storage=storage, r=4.0)
    x0 = random(2, 3)
    u = problem.centre
    r = 4.0
    record = observe(problem, method, x0, minimiser=u, iterations=5).record
    for k, state in enumerate(states(problem, method, x0, 5)):
        if storage == "primal":
            divergence = pair.divergence(u, state.z)
        else:
            potential = pair.backward_potential
            y = Conjugate(pair.backward_potential).to_dual(u)
            divergence = potential.value(state.z) - potential.value(y) - (u * (state.z - y)).sum(1)
        energy = k**2 * 0.2 / r * problem.value(state.x_tilde) + r * divergence
        torch.testing.assert_close(record["divergence"][k], divergence, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(record["energy"][k], energy, rtol=1e-8, atol=1e-8)


def test_the_error_term_of_amd_by_hand(problem, pair):
    method = AMD(pair, 0.2, storage="primal")
    x0 = random(2, 3)
    u = problem.centre
    record = observe(problem, method, x0, minimiser=u, iterations=4, exact_iterates=True).record
    run = states(problem, method, x0, 4)
    twin = NewtonInverse(pair)
    for k, (before, after) in enumerate(pairwise(run)):
        z_hat = twin.to_primal(pair.to_dual(before.z) - k / 3 * 0.2 * problem.grad(before.x))
        error = ((pair.to_dual(after.z) - pair.to_dual(z_hat)) * (after.z - u)).sum(1)
        torch.testing.assert_close(record["error"][k], error, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(
            record["distance"][k], (after.z - z_hat).norm(dim=1), rtol=1e-6, atol=1e-9
        )
    assert record["error"].abs().min() > 1e-6
    assert "distance" not in observe(problem, method, x0, minimiser=u, iterations=2).record


def test_the_error_of_a_dual_vector_by_hand(problem, pair):
    """U by definition: the displacement of the dual iterate minus the gradient."""
    method = MD(pair, 0.3)
    x0 = random(2, 3)
    u = problem.centre
    t = 0.3
    record = observe(problem, method, x0, minimiser=u, iterations=3).record
    run = states(problem, method, x0, 3)
    for k, (before, after) in enumerate(pairwise(run)):
        g = problem.grad(before.x)
        moved = (pair.to_dual(before.x) - pair.to_dual(after.x)) / t
        torch.testing.assert_close(record["error"][k], (moved - g).norm(dim=1))
        torch.testing.assert_close(record["displacement"][k], moved.square().sum(1))
        torch.testing.assert_close(
            record["error_pairing"][k], ((moved - g) * (before.x - u)).sum(1)
        )
        torch.testing.assert_close(record["divergence"][k], pair.divergence(u, before.x))


def test_a_dual_stored_pair_has_no_errors_in_its_own_geometry_but_has_in_the_other(problem, pair):
    x0 = random(2, 3)
    u = problem.centre
    for method in (SMD(pair, 0.3), AMD(pair, 0.3), ASMD(pair, 0.3)):
        own = observe(problem, method, x0, minimiser=u, iterations=3).record
        forward = observe(
            problem, method, x0, minimiser=u, iterations=3, geometry=NewtonInverse(pair)
        ).record
        assert not own["error"].any()
        assert forward["error"][1:].abs().min() > 1e-6
        torch.testing.assert_close(own["gap"], forward["gap"])


def test_the_energy_of_asmd_by_hand(problem):
    """A_k(f(x_k) − f*) + (s_k/t) B(x*, ∇ψ*(y_k)); x_0 is the start, and state k holds x_{k+1}."""
    mirror = Diagonal(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    t = 0.7
    x0 = random(2, 3)
    u = problem.centre
    method = ASMD(mirror, t)
    record = observe(problem, method, x0, minimiser=u, iterations=5).record
    run = states(problem, method, x0, 5)
    queries = [x0] + [state.x for state in run]
    for k, state in enumerate(run):
        area = k * (k + 1) / 2 or 0.5
        divergence = mirror.divergence(u, mirror.to_primal(state.y))
        energy = area * problem.value(queries[k]) + (k + 1) ** 1.5 / t * divergence
        torch.testing.assert_close(record["energy"][k], energy)
        if k < 5:
            torch.testing.assert_close(record["distance"][k], (queries[k + 1] - u).norm(dim=1))


def test_noise_is_measured_against_the_true_gradient(problem):
    record = observe(
        problem,
        SMD(Euclidean(), 0.1),
        random(2, 3),
        minimiser=problem.centre,
        iterations=400,
        oracle=Noisy(0.5),
        generator=torch.Generator().manual_seed(0),
    ).record
    assert float(record["noise"].mean()) == pytest.approx(3 * 0.25, rel=0.1)
    exact = observe(
        problem, SMD(Euclidean(), 0.1), random(2, 3), minimiser=problem.centre, iterations=3
    ).record
    assert not exact["noise"].any()


def test_smoothed_gradients_are_not_the_true_ones():
    y = random(1, 1, 3, 3)
    x0 = random(1, 1, 3, 3, seed=1)
    problem = TVDenoising(y)
    record = observe(
        problem, SMD(Euclidean(), 0.1), x0, minimiser=y, iterations=1, oracle=Smoothed(0.5)
    ).record
    difference = problem.smoothed_grad(x0, 0.5) - problem.grad(x0)
    torch.testing.assert_close(record["noise"][0], difference.square().sum((1, 2, 3)))


def test_a_coupling_can_be_given_for_a_geometry(problem, pair):
    u = problem.centre
    x0 = random(2, 3)
    coupling = Coupling(exact_geometry(pair, "dual"), u)
    for method in (SMD(pair, 0.2), AMD(pair, 0.2), ASMD(pair, 0.2)):
        given, own = (
            observe(problem, method, x0, minimiser=u, iterations=4, geometry=geometry).record
            for geometry in (coupling, None)
        )
        torch.testing.assert_close(given["divergence"], own["divergence"], rtol=0, atol=0)


def test_samples_that_stop_leave_nan_and_do_not_disturb_others(problem):
    x0 = torch.stack([problem.centre[0] + 1e-3, problem.centre[1] + 1])
    energies = Energies(problem.centre)
    solution = solve(
        problem,
        StepRecorder(MD(Euclidean(), 0.5)),
        x0,
        iterations=40,
        callbacks=[energies],
        check_every=1,
        stop=gradient_norm(1e-4),
    )
    record = energies.record
    first = int(solution.steps[0])
    assert first < int(solution.steps[1])
    assert record["gap"][first + 1 :, 0].isnan().all()
    assert not record["gap"][: first + 1, 0].isnan().any()
    assert not record["gap"][:, 1].isnan().any()
    alone = observe(
        problem, MD(Euclidean(), 0.5), x0, minimiser=problem.centre, iterations=len(record.steps)
    ).record
    assert torch.equal(alone["gap"][:, 1], record["gap"][:, 1])


def test_observing_does_not_change_the_run(problem, pair):
    x0 = random(2, 3)
    for method in (MD(pair, 0.2), SMD(pair, 0.2), AMD(pair, 0.2), ASMD(pair, 0.2)):
        plain = solve(
            problem,
            method,
            x0,
            iterations=10,
            oracle=Noisy(0.1),
            generator=torch.Generator().manual_seed(1),
        )
        observed = observe(
            problem,
            method,
            x0,
            minimiser=problem.centre,
            iterations=10,
            oracle=Noisy(0.1),
            generator=torch.Generator().manual_seed(1),
        )
        assert torch.equal(plain.x, observed.solution.x)


def test_energies_need_recorded_steps(problem):
    x0 = random(2, 3)
    method = MD(Euclidean(), 0.1)
    with pytest.raises(ValueError, match="needs recorded steps"):
        solve(
            problem, method, x0, iterations=2, callbacks=[Energies(problem.centre)], check_every=1
        )
    energies = Energies(problem.centre)
    with pytest.raises(ValueError, match="nothing was observed"):
        _ = energies.record
    with pytest.raises(ValueError, match="every step"):
        solve(problem, StepRecorder(method), x0, iterations=90, callbacks=[energies])
    with pytest.raises(TypeError, match=r"step\(\); got LPD"):
        StepRecorder(LPD())


def test_a_method_without_a_theorem_has_a_gap_and_nothing_else(problem):
    observed = observe(problem, Adam(0.1), random(2, 3), minimiser=problem.centre, iterations=4)
    record = observed.record
    assert (set(record.at_states), record.at_steps, len(record.steps)) == ({"gap"}, {}, 0)
    assert torch.equal(record["gap"], observed.solution.trace.values)  # the minimum is 0
    assert "divergence" not in record


def test_recording_does_not_change_states(problem):
    """A recorded step depends on its state alone, and leads to a state that contains it."""
    method = StepRecorder(AMD(Euclidean(), 0.1))
    x0 = random(2, 3)
    generator = torch.Generator().manual_seed(0)
    first = method.step(problem, method.init(x0), Noisy(0.1), generator)
    again = method.step(problem, method.init(x0), Noisy(0.1), torch.Generator().manual_seed(0))
    assert torch.equal(first.own.gradient, again.own.gradient)
    assert torch.equal(first.own.previous.x, x0)
    assert torch.equal(first.own.true_gradient, problem.grad(x0))
    torch.testing.assert_close(first.own.noise, first.own.gradient - problem.grad(x0))
    assert torch.equal(
        first.inner.x, method.method.update(first.own.previous, first.own.gradient).x
    )


def test_a_method_with_an_oracle_is_observed_with_it():
    y = random(1, 1, 3, 3)
    x0 = random(1, 1, 3, 3, seed=1)
    problem = TVDenoising(y)
    method = SMD(Euclidean(), 0.1)
    plain = observe(problem, method, x0, minimiser=y, iterations=3, oracle=Smoothed(0.5)).record
    equipped = observe(
        problem, Equipped(method, Smoothed(0.5)), x0, minimiser=y, iterations=3
    ).record
    assert plain["noise"].any()
    for name in ("gap", "divergence", "noise", "displacement"):
        assert torch.equal(plain[name], equipped[name])
    with pytest.raises(TypeError, match="brings its own oracle"):
        observe(
            problem, Equipped(method, Smoothed(0.5)), x0, minimiser=y, iterations=3, oracle=Exact()
        )


def test_works_in_single_precision_and_with_learned_steps(problem):
    problem = problem.float()
    method = AMD(Diagonal(torch.tensor([1.0, 2.0, 3.0])), Prefix([0.2, 0.1]))
    record = observe(
        problem, method, random(2, 3).float(), minimiser=problem.centre, iterations=4
    ).record
    assert record["energy"].dtype == torch.float32
    torch.testing.assert_close(record.steps[:2], torch.tensor([0.2, 0.1]))


def test_dicts_are_observed_too():
    tree = {"a": random(2, 3), "b": random(2, 2, 2)}
    problem = Function(lambda x: 0.5 * sum((leaf.flatten(1) ** 2).sum(1) for leaf in x.values()))
    zero = {name: torch.zeros_like(leaf) for name, leaf in tree.items()}
    record = observe(problem, SMD(Euclidean(), 0.5), tree, minimiser=zero, iterations=3).record
    torch.testing.assert_close(record["gap"], record["divergence"])


def test_the_coupling_is_the_divergence_of_legendre_maps(pair):
    x = random(2, 3).softmax(-1)
    u = random(2, 3, seed=1).softmax(-1)
    simplex = SimplexEntropy()
    torch.testing.assert_close(Coupling(simplex, u)(simplex.to_dual(x)), simplex.divergence(u, x))
    conjugate = Conjugate(pair.backward_potential)
    y = random(2, 3, seed=2)
    torch.testing.assert_close(
        Coupling(conjugate, u)(y),
        conjugate.divergence(u, conjugate.to_primal(y)),
        rtol=1e-7,
        atol=1e-9,
    )


def test_the_potential_of_a_gradient_field(pair):
    """The potential is right up to its value at 0, and can replace that of a user's map."""
    potential = pair.forward_potential
    field = LineIntegralPotential(pair.forward_potential.gradient)
    x = random(3, 3)
    expected = potential.value(x) - potential.value(torch.zeros_like(x))
    torch.testing.assert_close(field.value(x), expected, rtol=1e-6, atol=1e-8)
    assert torch.equal(field.gradient(x), potential.gradient(x))


def test_geometries(pair):
    assert exact_geometry(Euclidean(), "dual").exact
    primal = exact_geometry(pair, "primal")
    dual = exact_geometry(pair, "dual")
    y = random(2, 3)
    torch.testing.assert_close(primal.to_dual(primal.to_primal(y)), y, rtol=1e-8, atol=1e-8)
    assert torch.equal(dual.to_primal(y), pair.to_primal(y))
    torch.testing.assert_close(dual.to_primal(dual.to_dual(y)), y, rtol=1e-8, atol=1e-8)
    claimed = exact_geometry(Euclidean(), "primal", exact=False)
    torch.testing.assert_close(claimed.to_primal(y), y)
    assert primal.strong_convexity == pair.strong_convexity


def test_dual_norms():
    v = torch.tensor([[[3.0, -4.0], [1.0, 0.0]]])
    assert squared_dual_norm(Euclidean(), v).item() == 26
    assert squared_dual_norm(SimplexEntropy(), v).item() == 17  # ‖·‖_∞² of each simplex
    expected = torch.linalg.vector_norm(v.flatten(), ord=3.0).square().reshape(1)
    torch.testing.assert_close(squared_dual_norm(SquaredPNorm(1.5), v), expected)


def test_a_minimiser_on_the_edge_of_the_simplex():
    u = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64)
    A = random(4, 3)
    problem = LeastSquares(A, A[:, 2], Simplex())
    record = observe(problem, SMD(SimplexEntropy(), 0.1), minimiser=u, iterations=30).record
    assert record["divergence"].isfinite().all()
    assert record["gap"][-1] < record["gap"][0]
